//! First inputs for small things: notes on a disk, handles and records of NFS, and ACLs.

use bytes::Bytes;
use quorate_agreement::Record;
use quorate_agreement::durable::{Content, PrePrepared};
use quorate_files::op::{Create, SetXattr, XattrMode};
use quorate_files::{Action, Ino, Op, Who};
use quorate_fuzz::disk::certified;
use quorate_fuzz::links::nfs_handle_sample;
use quorate_net::fuzzing as net;
use quorate_node::fuzzing::pack;
use quorate_store::LARGE_BYTES;
use quorate_wire::message::{Batch, Request, Vote};
use quorate_wire::{KeyPair, LogIndex, PublicKey, RequestNumber, Seq, SessionId, Time, View};

use super::write;

pub fn all() -> std::io::Result<()> {
    write("nfs_handle", 0, &nfs_handle_sample())?;
    records()?;
    notes()?;
    packed()?;
    acls()
}

/// Calls over TCP: whole ones, one of several fragments, one of many and one that is too long.
fn records() -> std::io::Result<()> {
    let fragment = |len: u32, last: bool| {
        let head = len | if last { 1 << 31 } else { 0 };
        [
            &head.to_be_bytes()[..],
            &vec![len as u8; len.min(300) as usize],
        ]
        .concat()
    };
    let whole = [fragment(40, true), fragment(0, true), fragment(200, true)].concat();
    let cut = [fragment(3, false), fragment(0, false), fragment(80, true)].concat();
    let many = fragment(1, false).repeat(66);
    let streams = [
        whole.clone(),
        [whole.clone(), cut.clone()].concat(),
        [cut, whole.clone(), many].concat(),
        [whole, fragment(1 << 30, true)].concat(),
    ];
    for (i, stream) in streams.iter().enumerate() {
        write("rpc_records", i, &[&[i as u8 * 7], &stream[..]].concat())?;
    }
    Ok(())
}

/// Each kind of note, whole; and what of it the target can't make by itself.
fn notes() -> std::io::Result<()> {
    let highest = vec![3, 0, u64::MAX, 1 << 40];
    let text = net::epochs_text(certified(), highest).expect("it has key holders");
    let lines = text.lines().skip(2).map(|line| format!("{line}\n"));
    let lines: String = lines.collect();
    let key = KeyPair::from_seed(&[1; 32]).public();
    let note = 4_100_u64.to_le_bytes();
    let sum = crc32fast::hash(&note).to_le_bytes();
    let all: [(u8, Vec<u8>); 6] = [
        (0, text.into()),
        (0, lines.into()),
        (1, net::counter_text(&key, 7).into()),
        (1, net::counter_text(&key, u64::MAX).into()),
        (2, note.into()),
        (2, [&note[..], &sum].concat()),
    ];
    for (i, (kind, bytes)) in all.iter().enumerate() {
        write("disk_small", i, &[&[*kind], &bytes[..]].concat())?;
    }
    Ok(())
}

/// Records of the log with short operations and large ones.
fn packed() -> std::io::Result<()> {
    for (i, ops) in [
        &[][..],
        &[5],
        &[LARGE_BYTES],
        &[0, LARGE_BYTES, 3, LARGE_BYTES],
    ]
    .into_iter()
    .enumerate()
    {
        let request = |(number, bytes): (u64, &usize)| {
            let op = Bytes::from(vec![number as u8; *bytes]);
            let client = PublicKey([3; 32]);
            Request::new(client, SessionId(4), RequestNumber(number), op)
        };
        let requests: Vec<Request> = (1..).zip(ops).map(request).collect();
        let batch = Batch {
            time: Time(5),
            requests: requests.iter().map(Request::digest).collect(),
        };
        let vote = Vote {
            seq: Seq(6),
            view: View(1),
            digest: batch.digest(),
        };
        let content = Some(Content { batch, requests });
        let record = pack(
            LogIndex(9),
            &Record::PrePrepared(PrePrepared { vote, content }),
        );
        let bodies = vec![9; record.bodies.len()];
        let first = record.bodies.len() as u8;
        for (j, lost) in [0, 4].into_iter().enumerate() {
            let input = [&[3, first | lost], &bodies[..], &record.bytes].concat();
            write("disk_small", 10 + 2 * i + j, &input)?;
        }
    }
    Ok(())
}

/// ACLs are set on the volume's root, right ones and wrong ones; then somebody else makes a file in it.
fn acls() -> std::io::Result<()> {
    const NOBODY: u32 = u32::MAX;
    let acl = |entries: &[(u16, u16, u32)]| {
        let mut out = Vec::from(2_u32.to_le_bytes());
        for (tag, perm, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    };
    let plain = acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 0, NOBODY)]);
    let named = acl(&[
        (1, 7, NOBODY),
        (2, 6, 1000),
        (4, 5, NOBODY),
        (8, 4, 24),
        (16, 7, NOBODY),
        (32, 1, NOBODY),
    ]);
    let without_mask = acl(&[
        (1, 7, NOBODY),
        (2, 6, 1000),
        (4, 5, NOBODY),
        (32, 1, NOBODY),
    ]);
    let all: [(&'static [u8], Vec<u8>); 4] = [
        (b"system.posix_acl_access", named.clone()),
        (b"system.posix_acl_default", named),
        (b"system.posix_acl_access", plain),
        (b"system.posix_acl_default", without_mask),
    ];
    for (i, (name, value)) in all.into_iter().enumerate() {
        let set = Action::SetXattr(SetXattr {
            ino: Ino::ROOT,
            name: Bytes::from_static(name),
            value: value.into(),
            mode: XattrMode::Set,
        });
        let set = Op::new(Who::root(), set).to_bytes();
        write("op", 200 + i, &set)?;
        let create = Action::Create(Create {
            parent: Ino::ROOT,
            name: Bytes::from_static(b"a"),
            mode: 0o666,
            umask: 0o022,
            flags: 1,
        });
        let create = Op::new(Who::new(1000, 1000), create).to_bytes();
        let mut script = Vec::new();
        for op in [&set, &create] {
            script.extend([0x10, op.len() as u8]);
            script.extend(&op[..]);
        }
        write("service", 100 + i, &script)?;
    }
    Ok(())
}
