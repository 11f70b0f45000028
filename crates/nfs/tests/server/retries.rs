//! Calls that come again, groups that do not answer, and fronts that are killed.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nfs3_types::nfs3::*;
use quorate_wire::message::session::SESSION_LEASE_MS;

use crate::client::{Client, NFS, OPEN, Server, mode, ok, option, place, record, settings, write};
use crate::group::Group;

/// A removal that was answered and is sent again under its number is not done again; under another number it is.
#[test]
fn a_call_that_is_sent_again_is_done_once() {
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    for name in [b"a", b"b"] {
        client.file(&root, name);
    }
    let remove = |name: &[u8]| REMOVE3args {
        object: place(&root, name),
    };
    let sent = record(1000, NFS, 12, &client.auth, &remove(b"a"));
    let mut replies = Vec::new();
    for _ in 0..3 {
        client.stream.write_all(&sent).unwrap();
        replies.push(client.receive());
    }
    assert!(ok(Client::read::<REMOVE3res>(&replies[0].1)).is_ok());
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    let gone = Some(nfsstat3::NFS3ERR_NOENT);
    assert_eq!(client.remove(&root, b"a").err(), gone);
    // The number alone does not make it the same call.
    let sent = record(1000, NFS, 12, &client.auth, &remove(b"b"));
    client.stream.write_all(&sent).unwrap();
    assert!(ok(Client::read::<REMOVE3res>(&client.receive().1)).is_ok());
    assert_eq!(client.lookup(&root, b"b").err(), gone);
}

/// The root and some files, made by a front that waits for the group: one that does not may be too early on a busy machine.
fn prepared<const N: usize>(group: &Group, names: [&[u8]; N]) -> (nfs_fh3, [nfs_fh3; N]) {
    let server = Server::open(group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    let files = names.map(|name| client.file(&root, name));
    (root, files)
}

fn impatient(group: &Group) -> Server {
    let mut settings = settings(OPEN);
    settings.patience = Duration::from_millis(300);
    Server::start(group, settings)
}

/// While the group does not answer, clients are told to come again, in time; what was asked for is done once, and who comes
/// again gets what became of it.
#[test]
fn a_group_that_is_slow_is_waited_for() {
    let group = Group::start();
    let (root, [file, _]) = prepared(&group, [&b"f"[..], b"g"]);
    let impatient = impatient(&group);
    let mut client = Client::connect(impatient.address, 0, 0);
    let pause = |on| group.paused.store(on, Ordering::Release);
    let later = Some(nfsstat3::NFS3ERR_JUKEBOX);

    pause(true);
    assert_eq!(client.getattr(&root).err(), later);
    assert_eq!(client.lookup(&root, b"f").err(), later);
    assert_eq!(client.read_file(&file, 0, 10).err(), later);
    for _ in 0..2 {
        assert_eq!(client.remove(&root, b"g").err(), later);
        assert_eq!(client.mkdir(&root, b"d").err(), later);
        assert_eq!(client.write(&file, 0, b"old").err(), later);
    }
    pause(false);
    let again = |client: &mut Client, what: &mut dyn FnMut(&mut Client) -> Option<nfsstat3>| {
        for _ in 0..200 {
            match what(client) {
                Some(nfsstat3::NFS3ERR_JUKEBOX) => std::thread::sleep(Duration::from_millis(50)),
                done => return done,
            }
        }
        panic!("no answer");
    };
    // Done once each: else the first would find no name, and the second one.
    let removed = again(&mut client, &mut |c| c.remove(&root, b"g").err());
    assert_eq!(removed, None);
    let made = again(&mut client, &mut |c| c.mkdir(&root, b"d").err());
    assert_eq!(made, None);
    assert_eq!(
        again(&mut client, &mut |c| c.write(&file, 0, b"old").err()),
        None
    );
    assert_eq!(
        again(&mut client, &mut |c| c.write(&file, 0, b"new").err()),
        None
    );
    std::thread::sleep(Duration::from_millis(500));
    let mut found = Vec::new();
    let read = again(&mut client, &mut |c| match c.read_file(&file, 0, 10) {
        Ok((read, _)) => {
            found = read;
            None
        }
        Err(status) => Some(status),
    });
    assert_eq!((read, &found[..]), (None, &b"new"[..]));
    // And now they are new calls.
    let removed = again(&mut client, &mut |c| c.remove(&root, b"g").err());
    assert_eq!(removed, Some(nfsstat3::NFS3ERR_NOENT));
    let made = again(&mut client, &mut |c| c.mkdir(&root, b"d").err());
    assert_eq!(made, Some(nfsstat3::NFS3ERR_EXIST));
}

/// Of a change of attributes that was to be done if nobody else had changed them, and that was done in a session which then ended, nobody says that it was
/// not done: that it is not the same any more is its own doing.
#[test]
fn a_guard_is_not_asked_twice() {
    const MAX_LOOKS: usize = 6_000;
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    let file = client.file(&root, b"f");
    let guard = client.getattr(&file).unwrap().ctime;
    group.kinds.take();
    group.answers_lost.store(true, Ordering::Release);
    let args = SETATTR3args {
        object: file.clone(),
        new_attributes: mode(0o640),
        guard: option(Some(guard)),
    };
    client.send(NFS, NFS_PROGRAM::NFSPROC3_SETATTR as u32, &args);
    let is_done = |_| {
        std::thread::sleep(Duration::from_millis(10));
        group.kinds.take().contains_key("SetAttr")
    };
    assert!((0..MAX_LOOKS).any(is_done), "it does not come to the group");
    // The session ends with whatever comes next.
    group
        .ahead_ms
        .store(2 * SESSION_LEASE_MS, Ordering::Release);
    group.answers_lost.store(false, Ordering::Release);
    let (_, reply) = client.receive();
    let status = ok(Client::read::<SETATTR3res>(&reply)).err();
    assert_eq!(status, Some(nfsstat3::NFS3ERR_IO));
    assert_eq!(client.getattr(&file).unwrap().mode, 0o640);
}

/// Has a client write to an empty file, which the group does and has its answer lost; then, once its connection has ended or as long as that is there, another
/// one sends the same to the byte from another port. How long the file was before the second one's write, which is answered.
fn length_before_a_second_write(has_left: bool) -> u64 {
    const MAX_LOOKS: usize = 6_000;
    const PATIENCE: Duration = Duration::from_secs(60);
    let group = Group::start();
    let mut settings = settings(OPEN);
    settings.patience = PATIENCE;
    let server = Server::start(&group, settings);
    let mut first = Client::connect(server.address, 0, 0);
    let root = first.mount("/").unwrap();
    let file = first.file(&root, b"f");
    let sent = record(1000, NFS, 7, &first.auth, &write(&file, 0, b"text"));
    group.kinds.take();
    group.answers_lost.store(true, Ordering::Release);
    first.stream.write_all(&sent).unwrap();
    let is_done = |_| {
        std::thread::sleep(Duration::from_millis(10));
        group.kinds.take().contains_key("Write")
    };
    assert!((0..MAX_LOOKS).any(is_done), "it does not come to the group");
    let from = first.stream.local_addr().unwrap();
    let stays = (!has_left).then_some(first);
    if has_left {
        assert_eq!(server.left.recv_timeout(PATIENCE), Ok(from));
    }
    let mut second = Client::connect(server.address, 0, 0);
    second.stream.write_all(&sent).unwrap();
    // It is there when one behind it is answered, for which nobody is asked.
    let null = record(1001, NFS, 0, &second.auth, &[]);
    second.stream.write_all(&null).unwrap();
    assert_eq!(second.receive().0, 1001);
    group.answers_lost.store(false, Ordering::Release);
    let (_, reply) = second.receive();
    drop(stays);
    match ok(Client::read::<WRITE3res>(&reply))
        .unwrap()
        .file_wcc
        .before
    {
        Nfs3Option::Some(before) => before.size,
        Nfs3Option::None => panic!("without attributes"),
    }
}

/// Who comes back from another port, because its connection has ended, with a call that is at the group gets what becomes of that: a second one could be
/// answered before the first is done. Two clients that are both there are two.
#[test]
fn a_call_that_comes_again_from_another_port_is_done_once() {
    assert_eq!(length_before_a_second_write(true), 0);
    assert_eq!(length_before_a_second_write(false), 4);
}

/// However much waits for a group that does not answer, every client is told so in time.
#[test]
fn what_waits_for_the_group_is_bounded() {
    let group = Group::start();
    let (_, [file]) = prepared(&group, [&b"f"[..]]);
    let impatient = impatient(&group);
    let mut client = Client::connect(impatient.address, 0, 0);
    group.paused.store(true, Ordering::Release);
    // Together more than may be at the group.
    for n in 0..160 {
        client.send(NFS, 7, &write(&file, n << 20, &vec![n as u8; 1 << 20]));
    }
    for n in 0..160 {
        let (_, reply) = client.receive();
        let status = ok(Client::read::<WRITE3res>(&reply)).err();
        assert_eq!(status, Some(nfsstat3::NFS3ERR_JUKEBOX), "{n}");
    }
}

/// A new front knows the handles that an old one gave out, if it has the same key; and no handle ever names another object.
#[test]
fn handles_outlive_the_front() {
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    let (kept, removed) = (client.file(&root, b"kept"), client.file(&root, b"removed"));
    let verf = client.write(&kept, 0, b"text").unwrap().verf;
    client.remove(&root, b"removed").unwrap();
    drop(server);

    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    assert_eq!(client.read_file(&kept, 0, 10).unwrap().0, b"text");
    assert_eq!(client.write(&kept, 0, b"TEXT").unwrap().verf, verf);
    for n in 0..20 {
        client.file(&root, format!("new {n}").as_bytes());
    }
    let stale = Some(nfsstat3::NFS3ERR_STALE);
    assert_eq!(client.getattr(&removed).err(), stale);
    assert_eq!(client.write(&removed, 0, b"x").err(), stale);
    assert_eq!(client.setattr(&removed, mode(0o777), None).err(), stale);
    assert_eq!(
        client
            .create(&removed, b"x", createhow3::UNCHECKED(mode(0)))
            .err(),
        stale
    );

    let mut others = settings(OPEN);
    others.secrets = quorate_nfs::Secrets::new(&[9; 32], &quorate_wire::Digest([2; 32]));
    let other = Server::start(&group, others);
    let mut client = Client::connect(other.address, 0, 0);
    assert_eq!(client.getattr(&kept).err(), stale);
}
