//! An NFS server over TCP, as far as the tests go, over a server of the model.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_nfs::call::{Call, How};
use quorate_nfs::rpc::{Accepted, accepted, read_head};
use quorate_nfs::xdr::{Reader, Writer};
use quorate_nfs::{Answers, Peer};
use quorate_router::ask::{Ask, Given};

use crate::model::{ROOT, Server, fh};

/// What an FSINFO says that one READ or WRITE may have.
pub const IO_BYTES: u32 = 4 << 20;
/// What an FSSTAT says.
pub const SPACE: [u64; 6] = [1 << 40, 1 << 39, 1 << 38, 1000, 900, 800];

pub struct Responder(pub Mutex<Server>);

impl Answers for Responder {
    type Call = Bytes;

    fn admits(&self, _: IpAddr) -> bool {
        true
    }

    fn parse(&self, record: Bytes) -> Option<Bytes> {
        Some(record)
    }

    fn reply_bytes(&self, _: &Bytes) -> usize {
        1 << 16
    }

    async fn answer(self: &Arc<Self>, _: Peer, record: Bytes) -> Vec<u8> {
        let mut r = Reader::new(record);
        let head = read_head(&mut r).expect("a call");
        let mut w = accepted(head.xid, Accepted::Success, 0);
        if head.program != 100_003 {
            w.u32(0);
            w.opaque(&fh(ROOT));
            w.u32(0);
            return w.out;
        }
        let call = Call::read(head.procedure, &mut r);
        let call = call.expect("a procedure").expect("arguments");
        if let Call::Null = call {
            return w.out;
        }
        if let Call::FsStat(_) = call {
            [0, 0].into_iter().for_each(|word| w.u32(word));
            SPACE.into_iter().for_each(|word| w.u64(word));
            w.u32(0);
            return w.out;
        }
        if let Call::FsInfo(_) = call {
            [0, 0].into_iter().for_each(|word| w.u32(word));
            [IO_BYTES; 7].into_iter().for_each(|word| w.u32(word));
            [0; 5].into_iter().for_each(|word| w.u32(word));
            return w.out;
        }
        let mut server = self.0.lock().unwrap();
        // As Linux' own server has it: what is there is given, whatever it is.
        let there = match &call {
            Call::Create(at, How::Unchecked(_)) => server.ask(Ask::Lookup(at.clone())).ok(),
            _ => None,
        };
        let given = match there {
            Some(there) => Ok(there),
            None => server.ask(order(call)),
        };
        drop(server);
        write(
            &mut w,
            head.procedure,
            given.map_err(|status| status as u32),
        );
        w.out
    }
}

fn order(call: Call) -> Ask {
    match call {
        Call::GetAttr(object) => Ask::GetAttr(object),
        Call::SetAttr { object, attrs, .. } => Ask::SetAttr(object, attrs),
        Call::Lookup(at) => Ask::Lookup(at),
        Call::Access { object, mask } => Ask::Access(object, mask),
        Call::Readlink(object) => Ask::Readlink(object),
        Call::Mkdir(at, attrs) => Ask::Mkdir(at, attrs),
        Call::Symlink(at, _, text) => Ask::Symlink(at, text),
        Call::Remove(at) => Ask::Remove(at),
        Call::Rmdir(at) => Ask::Rmdir(at),
        Call::Rename(from, to) => Ask::Rename(from, to),
        Call::Link { file, new } => Ask::Link(file, new),
        Call::ReadDir(listing) => Ask::ReadDir {
            dir: listing.dir,
            cookie: listing.cookie,
            verifier: 0,
        },
        Call::Read {
            file,
            offset,
            count,
        } => Ask::Read {
            file,
            offset,
            count,
        },
        Call::Write { file, offset, data } => Ask::Write {
            file,
            offset,
            data,
            stable: true,
        },
        Call::Create(at, How::Guarded(new) | How::Unchecked(new)) => Ask::Create(at, new),
        Call::Commit(file) => Ask::Commit(file),
        other => panic!("{other:?} is not asked here"),
    }
}

/// Results with as few attributes as the standard allows.
fn write(w: &mut Writer, procedure: u32, given: Result<Given, u32>) {
    let given = match given {
        Ok(given) => given,
        Err(status) => {
            w.u32(status);
            let words = quorate_nfs::call::refusal_words(procedure).unwrap_or(0);
            (0..words).for_each(|_| w.u32(0));
            return;
        }
    };
    w.u32(0);
    match given {
        Given::Attrs(attrs) => w.fixed(&attrs.0),
        Given::Object(object) => {
            if procedure != 3 {
                w.bool(true);
            }
            w.opaque(&object.handle);
            w.bool(object.attrs.is_some());
            object.attrs.iter().for_each(|attrs| w.fixed(&attrs.0));
            w.bool(false);
            if procedure != 3 {
                w.bool(false);
            }
        }
        Given::Allowed(mask) => {
            w.bool(false);
            w.u32(mask);
        }
        Given::Text(text) => {
            w.bool(false);
            w.opaque(&text);
        }
        Given::Entries { entries, end, .. } => {
            w.bool(false);
            w.u64(0);
            for entry in entries {
                w.bool(true);
                w.u64(entry.fileid);
                w.opaque(&entry.name);
                w.u64(entry.cookie);
            }
            w.bool(false);
            w.bool(end);
        }
        Given::Data { data, end } => {
            w.bool(false);
            w.u32(data.len() as u32);
            w.bool(end);
            w.opaque(&data);
        }
        Given::Written { count, verifier } => {
            w.bool(false);
            w.bool(false);
            if procedure == 7 {
                w.u32(count);
                // FILE_SYNC.
                w.u32(2);
            }
            w.u64(verifier);
        }
        Given::Done => {
            let words = quorate_nfs::call::refusal_words(procedure).unwrap_or(0);
            (0..words).for_each(|_| w.u32(0));
        }
    }
}
