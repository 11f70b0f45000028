//! Operations and results as bytes: one form each, and whatever comes in, nothing panics.

use crate::common::World;
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::Service;
use quorate_files::op::*;
use quorate_files::{Errno, Handle, Ino, Nothing, Outcome, Stamp};
use quorate_wire::{Decode, Digest, Encode, PublicKey};

/// One operation of each kind.
const HANDLE: Handle = Handle {
    ino: Ino(7),
    number: 1,
};

fn samples() -> Vec<Action> {
    let (ino, parent, name) = (Ino(1), Ino(1), Bytes::from_static(b"n"));
    let target = Target::Handle(HANDLE);
    let (data, value) = (Bytes::from_static(b"data"), Bytes::from_static(b"v"));
    let xattr = Bytes::from_static(b"user.x");
    vec![
        Action::Ping(Nothing),
        Action::Lookup(Lookup {
            parent,
            name: name.clone(),
        }),
        Action::GetAttr(Target::Ino(ino)),
        Action::SetAttr(SetAttr {
            target: target.clone(),
            mode: Some(0o644),
            uid: None,
            gid: Some(7),
            size: Some(u64::MAX),
            atime: Some(SetTime::Now(Nothing)),
            mtime: Some(SetTime::At(Stamp { secs: -1, nanos: 5 })),
        }),
        Action::Access(Access { ino, mask: 7 }),
        Action::Open(Open {
            ino,
            flags: flags::READ,
        }),
        Action::Create(Create {
            parent,
            name: name.clone(),
            mode: 0o600,
            umask: 0,
            flags: 3,
        }),
        Action::Release(HANDLE),
        Action::Read(Read {
            target: target.clone(),
            offset: u64::MAX,
            len: 1 << 20,
        }),
        Action::Write(Write {
            target: target.clone(),
            place: Place::End(Nothing),
            data,
        }),
        Action::Mkdir(Mkdir {
            parent,
            name: name.clone(),
            mode: 0o755,
            umask: 0,
        }),
        Action::Mknod(Mknod {
            parent,
            name: name.clone(),
            kind: quorate_files::Kind::Fifo,
            mode: 0,
            umask: 0,
            rdev: 0,
        }),
        Action::Symlink(Symlink {
            parent,
            name: name.clone(),
            target: name.clone(),
        }),
        Action::Readlink(ino),
        Action::Link(Link {
            ino,
            parent,
            name: name.clone(),
        }),
        Action::Unlink(Unlink {
            parent,
            name: name.clone(),
        }),
        Action::Rmdir(Rmdir {
            parent,
            name: name.clone(),
        }),
        Action::Rename(Rename {
            parent,
            name: name.clone(),
            new_parent: parent,
            new_name: name.clone(),
            mode: RenameMode::Exchange,
        }),
        Action::ReadDir(ReadDir {
            target: Target::Ino(ino),
            cookie: 0,
            count: 10,
            plus: true,
        }),
        Action::StatFs(Nothing),
        Action::Fsync(target.clone()),
        Action::Fallocate(Fallocate {
            target: target.clone(),
            mode: FallocateMode::PunchHole,
            offset: 1,
            len: u64::MAX - 1,
        }),
        Action::Seek(Seek {
            target,
            offset: 0,
            whence: Whence::Hole,
        }),
        Action::SetXattr(SetXattr {
            ino,
            name: xattr.clone(),
            value,
            mode: XattrMode::Set,
        }),
        Action::GetXattr(GetXattr {
            ino,
            name: xattr.clone(),
            size: 0,
        }),
        Action::ListXattr(ListXattr { ino, size: 100 }),
        Action::RemoveXattr(RemoveXattr { ino, name: xattr }),
        Action::Lock(Lock {
            handle: HANDLE,
            space: LockSpace::Posix,
            owner: 1,
            pid: 1,
            start: 0,
            end: u64::MAX,
            kind: LockKind::Write,
            test: true,
        }),
        Action::Make(Make {
            parent,
            name: name.clone(),
            mode: 0o600,
            umask: 0,
            verifier: Some(7),
        }),
        Action::CopyRange(CopyRange {
            from: Target::Handle(HANDLE),
            offset: 1,
            to: Target::Ino(ino),
            to_offset: 1 << 40,
            len: u64::MAX,
        }),
        Action::PutCredential(PutCredential {
            chain: Bytes::from_static(b"chain"),
        }),
        Action::Revoke(Revoke {
            what: Revoked::Epoch(Serial {
                issuer: PublicKey([5; 32]),
                serial: 9,
            }),
            by: Some(Digest([6; 32])),
            until: Some(1),
        }),
        Action::Revoke(Revoke {
            what: Revoked::Key(PublicKey([5; 32])),
            by: None,
            until: None,
        }),
        Action::Grants(Grants {
            about: Some(ino),
            after: Some(GrantPlace {
                subject: PublicKey([5; 32]),
                id: Digest([6; 32]),
            }),
            count: 256,
        }),
        Action::PassedOn(PassedOn {
            link: Digest([7; 32]),
            about: Some(ino),
            after: Some(GrantPlace {
                subject: PublicKey([5; 32]),
                id: Digest([6; 32]),
            }),
            count: 256,
        }),
        Action::Audit(Audit { from: 1, count: 2 }),
        Action::Restore(Restore {
            what: Revoked::Serial(Serial {
                issuer: PublicKey([5; 32]),
                serial: 9,
            }),
            by: Some(Digest([6; 32])),
        }),
        Action::Revocations(Revocations {
            after: Some(RevocationPlace {
                by: None,
                what: Revoked::Key(PublicKey([5; 32])),
            }),
            count: 256,
        }),
        Action::SetQuota(SetQuota {
            dir: parent,
            limits: Some(Limits {
                bytes: Some(1 << 20),
                files: None,
            }),
        }),
        Action::Adopt(Adopt {
            dir: parent,
            after: 3,
        }),
        Action::Quotas(Quotas {
            about: Some(ino),
            after: 0,
        }),
        Action::StatFsOf(parent),
        Action::CheckOpen(Open { ino, flags: 1 }),
        Action::Hold(Hold {
            keep: vec![ino, parent],
            let_go: vec![ino],
        }),
        Action::Accessed(Accessed {
            objects: vec![
                Seen { ino, change: 7 },
                Seen {
                    ino: parent,
                    change: 0,
                },
            ],
        }),
        Action::Read(Read {
            target: Target::Checked(ino),
            offset: 1,
            len: 2,
        }),
        Action::WithAttrs(WithAttrs::new(
            vec![parent, ino],
            Action::Unlink(Unlink { parent, name }),
        )),
        Action::WithAttrs(WithAttrs::new(
            vec![ino],
            Action::GetAttr(Target::Unopened(ino)),
        )),
    ]
}

fn who() -> Who {
    Who {
        uid: 5,
        gid: 6,
        groups: vec![7, 8, 9],
    }
}

/// What is encoded comes back, cut or longer forms are refused, and the glance at bytes agrees with the operation.
#[test]
fn every_operation_has_one_form() {
    let world = World::new();
    for action in samples() {
        if !matches!(action, Action::WithAttrs(_)) {
            assert_eq!(action.to_bytes()[0], action.tag());
        }
        let op = Op::new(who(), action);
        let bytes = op.to_bytes();
        assert_eq!(Op::from_bytes(bytes.clone()).as_ref(), Ok(&op));
        assert_eq!(
            world.service.is_read_only(&bytes),
            op.is_read_only(),
            "{op:?}"
        );
        for cut in 0..bytes.len() {
            assert!(
                Op::from_bytes(bytes.slice(..cut)).is_err(),
                "{op:?} cut at {cut}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Op::from_bytes(longer.into()).is_err());
    }
}

/// Results come back as they were, errors with their stable codes.
#[test]
fn every_result_has_one_form() {
    let mut world = World::new();
    world.create(Ino::ROOT, b"n");
    for action in samples() {
        let result = world.execute(1, &Op::new(Who::root(), action).to_bytes());
        assert_eq!(
            Outcome::from_bytes(result.clone()).unwrap().to_bytes(),
            result
        );
    }
    for errno in Errno::ALL {
        assert_eq!(Errno::from_code(errno.code()), Some(*errno));
    }
    assert_eq!(Errno::ENOTEMPTY.code(), 39);
    let malformed = world.execute(1, &Bytes::from_static(b"what?"));
    assert_eq!(
        Outcome::from_bytes(malformed),
        Ok(Outcome(Err(Errno::EPROTO)))
    );
}

/// Operations and results that nest would take the stack that they are read on: they are refused at the second level.
#[test]
fn nothing_nests() {
    let inner = Action::WithAttrs(WithAttrs::new(vec![], Action::StatFs(Nothing)));
    assert!(Op::from_bytes(Op::new(who(), inner.clone()).to_bytes()).is_ok());
    let twice = Action::WithAttrs(WithAttrs::new(vec![], inner));
    assert!(Op::from_bytes(Op::new(who(), twice).to_bytes()).is_err());

    let level = [29, 0, 0, 0, 0, 0];
    let head = Op::new(who(), Action::Ping(Nothing)).to_bytes();
    let deep = [&head[..head.len() - 1], &level.repeat(200_000)].concat();
    assert!(Op::from_bytes(deep.into()).is_err());

    let level = [0, 14, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(Outcome::from_bytes([&level[..], &[1, 2, 0]].concat().into()).is_ok());
    assert!(Outcome::from_bytes(level.repeat(200_000).into()).is_err());
}

/// More groups than there may be are refused.
#[test]
fn groups_are_bounded() {
    let mut caller = who();
    caller.groups = vec![1; MAX_GROUPS];
    let op = Op::new(caller.clone(), Action::Ping(Nothing));
    assert!(Op::from_bytes(op.to_bytes()).is_ok());
    caller.groups.push(1);
    assert!(Op::from_bytes(Op::new(caller, Action::Ping(Nothing)).to_bytes()).is_err());
}

proptest! {
    #![proptest_config(crate::cases::cases(256))]

    /// Random bytes, and real operations with random changes: no panic, one form, and a state that holds.
    #[test]
    fn hostile_bytes_do_no_harm(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        hits in prop::collection::vec((0..samples().len(), any::<u16>(), any::<u8>()), 1..60),
    ) {
        let mut world = World::new();
        world.create(Ino::ROOT, b"n");
        let noise = Bytes::from(noise);
        world.service.is_read_only(&noise);
        world.execute(1, &noise);
        let _ = Outcome::from_bytes(noise);
        for (index, at, byte) in hits {
            let mut bytes = Op::new(Who::root(), samples()[index].clone()).to_bytes().to_vec();
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
            let bytes = Bytes::from(bytes);
            if let Ok(op) = Op::from_bytes(bytes.clone()) {
                prop_assert_eq!(op.to_bytes(), bytes.clone());
                prop_assert_eq!(world.service.is_read_only(&bytes), op.is_read_only());
            }
            world.execute(1, &bytes);
            world.check();
        }
    }
}
