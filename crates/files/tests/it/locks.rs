//! Locks against an array in which each owner marks each byte.

use crate::common::World;
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::{Rest, Service};
use quorate_files::answer::Answer;
use quorate_files::layout::MAX_LOCKS_OF_SESSION;
use quorate_files::op::*;
use quorate_files::{Errno, Handle, Ino};

const LEN: usize = 12;

fn lock(handle: Handle, owner: u64, start: u64, end: u64, kind: LockKind, test: bool) -> Action {
    let space = LockSpace::Posix;
    Action::Lock(Lock {
        handle,
        space,
        owner,
        pid: 9,
        start,
        end,
        kind,
        test,
    })
}

fn flock(handle: Handle, kind: LockKind) -> Action {
    let (space, owner) = (LockSpace::Flock, handle.number);
    let (start, end, test) = (0, u64::MAX, false);
    Action::Lock(Lock {
        handle,
        space,
        owner,
        pid: 9,
        start,
        end,
        kind,
        test,
    })
}

fn open(world: &mut World, session: u64, ino: Ino, flags: u32) -> Handle {
    match world
        .run(session, &Who::root(), Action::Open(Open { ino, flags }))
        .unwrap()
    {
        Answer::Opened(opened) => opened.handle,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(256))]

    /// Who gets a lock, and what a test finds, follow from the array; the end of a session frees its bytes.
    #[test]
    fn range_locks_follow_the_array(
        steps in prop::collection::vec((0..2u64, 0..2u64, 0..LEN, 0..LEN, 0..8u8), 1..80)
    ) {
        let mut world = World::new();
        let (ino, _) = world.create(Ino::ROOT, b"f");
        let mut handles = [1, 2].map(|session| open(&mut world, session, ino, 3));
        let mut array = [[LockKind::Unlock; LEN]; 4];
        for (session, owner, a, b, choice) in steps {
            let (start, end) = (a.min(b), a.max(b));
            let me = (2 * session + owner) as usize;
            if choice == 7 {
                world.end_session(session + 1);
                array[2 * session as usize] = [LockKind::Unlock; LEN];
                array[2 * session as usize + 1] = [LockKind::Unlock; LEN];
                handles[session as usize] = open(&mut world, session + 1, ino, 3);
                continue;
            }
            let kind = [LockKind::Read, LockKind::Write, LockKind::Unlock][choice as usize % 3];
            let blocked = (0..4).filter(|&other| other != me).any(|other| {
                array[other][start..=end].iter().any(|held| match held {
                    LockKind::Unlock => false,
                    LockKind::Read => kind == LockKind::Write,
                    LockKind::Write => kind != LockKind::Unlock,
                })
            });
            let test = choice >= 3;
            let handle = handles[session as usize];
            let action = lock(handle, owner, start as u64, end as u64, kind, test);
            let result = world.run(session + 1, &Who::root(), action);
            world.check();
            match result {
                Ok(Answer::Lock(found)) => {
                    prop_assert_eq!(found.is_some(), test && blocked);
                    prop_assert!(test || !blocked);
                    if let Some(found) = found {
                        prop_assert!(found.start <= end as u64 && found.end >= start as u64);
                    }
                    if !test {
                        array[me][start..=end].fill(kind);
                    }
                }
                other => prop_assert!(blocked && !test && other == Err(Errno::EAGAIN)),
            }
        }
    }
}

/// Locks end with their handle, and with the session.
#[test]
fn locks_end_with_handles() {
    let mut world = World::new();
    let (ino, first) = world.create(Ino::ROOT, b"f");
    let second = open(&mut world, 1, ino, 3);
    let other = open(&mut world, 2, ino, 3);
    let root = Who::root();
    world.run(1, &root, flock(first, LockKind::Write)).unwrap();
    assert_eq!(
        world.run(1, &root, flock(second, LockKind::Read)),
        Err(Errno::EAGAIN)
    );
    // The namespaces don't meet.
    let range = |handle| lock(handle, 1, 0, u64::MAX, LockKind::Write, false);
    world.run(1, &root, range(first)).unwrap();
    assert_eq!(world.run(2, &root, range(other)), Err(Errno::EAGAIN));
    world.run(1, &root, Action::Release(first)).unwrap();
    world.run(1, &root, flock(second, LockKind::Write)).unwrap();
    // As one of fcntl(2) that belongs to the open file.
    world.run(2, &root, range(other)).unwrap();
    world
        .run(
            2,
            &root,
            lock(other, 1, 0, u64::MAX, LockKind::Unlock, false),
        )
        .unwrap();
    // What was taken through another handle stays.
    let third = open(&mut world, 1, ino, 3);
    world.run(1, &root, range(second)).unwrap();
    world.run(1, &root, Action::Release(third)).unwrap();
    assert_eq!(world.run(2, &root, range(other)), Err(Errno::EAGAIN));
    world.run(1, &root, Action::Release(second)).unwrap();
    world.run(2, &root, range(other)).unwrap();
    world.run(2, &root, flock(other, LockKind::Write)).unwrap();
    world.check();
    world.end_session(2);
    assert!(world.contents().keys().all(|key| key[0] != 0x1a));
}

/// A lock needs the matching right, sense in its range, and room in the table.
#[test]
fn locks_are_checked_and_bounded() {
    let mut world = World::new();
    let (ino, both) = world.create(Ino::ROOT, b"f");
    let reader = open(&mut world, 1, ino, flags::READ);
    let root = Who::root();
    let write = lock(reader, 1, 0, 9, LockKind::Write, false);
    assert_eq!(world.run(1, &root, write), Err(Errno::EBADF));
    let backwards = lock(both, 1, 9, 0, LockKind::Write, false);
    assert_eq!(world.run(1, &root, backwards), Err(Errno::EINVAL));
    let single = |n: u64| lock(both, 1, 2 * n, 2 * n, LockKind::Write, false);
    for n in 0..1024 {
        world.run(1, &root, single(n)).unwrap();
    }
    assert_eq!(world.run(1, &root, single(1024)), Err(Errno::ENOLCK));
    world.check();
    // The whole range at once: one lock is left.
    world
        .run(1, &root, lock(both, 1, 0, u64::MAX, LockKind::Write, false))
        .unwrap();
    world.run(1, &root, single(1024)).unwrap();
    world.check();
}

/// A session has so many locks and no more, on whatever objects: each may be another one's.
#[test]
fn the_locks_of_a_session_are_bounded() {
    let mut world = World::new();
    let root = Who::root();
    let (_, a) = world.create(Ino::ROOT, b"a");
    let (_, b) = world.create(Ino::ROOT, b"b");
    let single = |handle, at: u64, kind| lock(handle, 1, 2 * at, 2 * at, kind, false);
    let key = Bytes::from([&[0x2f][..], &1u64.to_be_bytes()].concat());
    let count = |world: &mut World, more: u32| {
        let mut txn = world.state.begin();
        let row = txn.get(&key).unwrap().unwrap();
        let count = u32::from_le_bytes(row[..].try_into().unwrap());
        let changed = count.wrapping_add(more).to_le_bytes();
        txn.put(key.clone(), Bytes::copy_from_slice(&changed));
        txn.commit();
        count
    };
    for at in 0..3 {
        world.run(1, &root, single(a, at, LockKind::Write)).unwrap();
    }
    // As if it had others elsewhere.
    let elsewhere = MAX_LOCKS_OF_SESSION - 4;
    assert_eq!(count(&mut world, elsewhere), 3);
    world.run(1, &root, single(b, 0, LockKind::Write)).unwrap();
    let refused = world.run(1, &root, single(b, 1, LockKind::Write));
    assert_eq!(refused, Err(Errno::ENOLCK));
    // What takes none more is not refused; and one that is given back leaves room.
    world.run(1, &root, single(b, 0, LockKind::Read)).unwrap();
    world.run(1, &root, single(a, 0, LockKind::Unlock)).unwrap();
    world.run(1, &root, single(b, 1, LockKind::Write)).unwrap();
    count(&mut world, elsewhere.wrapping_neg());
    world.check();
    // Another session has its own.
    let other = open(&mut world, 2, a.ino, 3);
    world
        .run(2, &root, single(other, 9, LockKind::Write))
        .unwrap();
    world.run(1, &root, Action::Release(a)).unwrap();
    world.check();
    world.end_session(1);
    world.end_session(2);
    world.check();
    assert!(world.contents().keys().all(|key| key[0] != 0x2f));
}

/// An object's locks are one value, which is written anew when a session lets go of its own: many of them go with several operations, not with one.
#[test]
fn a_session_with_many_locks_ends_in_steps() {
    let mut world = World::new();
    let mut files = Vec::new();
    for name in [b"a", b"b", b"c", b"d"] {
        let (ino, _) = world.create(Ino::ROOT, name);
        let (own, other) = (open(&mut world, 2, ino, 3), open(&mut world, 3, ino, 3));
        let one = lock(own, 1, 5_000, 5_000, LockKind::Write, false);
        world.run(2, &Who::root(), one).unwrap();
        for at in 0..700 {
            let one = lock(other, 1, 2 * at, 2 * at, LockKind::Write, false);
            world.run(3, &Who::root(), one).unwrap();
        }
        files.push(other);
    }
    let mut steps = 0;
    loop {
        steps += 1;
        world.now += 1_000;
        let call = world.call(2);
        let mut txn = world.state.begin();
        let rest = world.service.session_ended(&mut txn, &call).unwrap();
        let values = txn.writes().values().flatten();
        let written: usize = values.map(Bytes::len).sum();
        assert!(written <= 2 * (64 << 10), "{written} bytes in a step");
        txn.commit();
        if rest == Rest::Nothing {
            break;
        }
    }
    assert_eq!(steps, 2);
    for other in files {
        let all = lock(other, 1, 0, u64::MAX, LockKind::Write, false);
        assert_eq!(world.run(3, &Who::root(), all), Ok(Answer::Lock(None)));
    }
    world.check();
}
