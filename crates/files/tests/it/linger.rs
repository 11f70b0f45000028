//! Files that are open without a handle: they stay for a while when nobody else needs them, and then go, and count nowhere.

use crate::common::{GENESIS, Result, World, set_attr};
use crate::sharing::{MEMBER, Volume, public, refused};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_credential::Rights;
use quorate_files::answer::{Answer, Decision};
use quorate_files::layout::{LINGER_NANOS, LINGERING_PER_OP};
use quorate_files::op::*;
use quorate_files::{Action, Errno, Genesis, Ino, Nothing};

const MIB: u64 = 1 << 20;

/// A file with a name and without a handle.
fn file(world: &mut World, name: &str, content: &[u8]) -> Ino {
    let (ino, handle) = world.create(Ino::ROOT, name.as_bytes());
    let (root, target) = (Who::root(), Target::Handle(handle));
    world.write(&root, target, 0, content).unwrap();
    world.run(1, &root, Action::Release(handle)).unwrap();
    ino
}

fn unlink(world: &mut World, name: &str) {
    let root = Who::root();
    world.unlink(&root, Ino::ROOT, name.as_bytes()).unwrap();
}

fn hold(world: &mut World, session: u64, keep: &[Ino], let_go: &[Ino]) -> Vec<Ino> {
    let hold = Hold {
        keep: keep.to_vec(),
        let_go: let_go.to_vec(),
    };
    match world.run(session, &Who::root(), Action::Hold(hold)) {
        Ok(Answer::Held(held)) => held.gone,
        other => panic!("{other:?}"),
    }
}

fn checked(world: &mut World, ino: Ino) -> Result<Bytes> {
    world.read(&Who::root(), Target::Checked(ino), 0, 100)
}

fn ping(world: &mut World) {
    world.run(9, &Who::root(), Action::Ping(Nothing)).unwrap();
}

/// Lets the time pass for which files linger, and the operations come that delete this many.
fn pass(world: &mut World, files: usize) {
    world.now += LINGER_NANOS;
    for _ in 0..files.div_ceil(LINGERING_PER_OP) {
        ping(world);
    }
}

/// To ask whether a file could be opened is a read, with the errors of an open; for who is refused no rights come of it.
#[test]
fn a_check_is_as_an_open() {
    let mut world = World::new();
    let ino = file(&mut world, "f", b"text");
    let (owner, other) = (Who::root(), Who::new(1000, 100));
    world.chmod(&owner, ino, 0o604).unwrap();
    let mut check = |who: &Who, ino, flags| {
        let action = Action::CheckOpen(Open { ino, flags });
        assert!(action.is_read_only());
        world.run(1, who, action).map(drop)
    };
    assert_eq!(check(&other, ino, flags::READ), Ok(()));
    for (flags, errno) in [
        (flags::WRITE, Errno::EACCES),
        (flags::EXEC, Errno::EACCES),
        (flags::READ | flags::TRUNC, Errno::EINVAL),
        (flags::READ | flags::EXCLUSIVE, Errno::EINVAL),
        (1 << 20, Errno::EINVAL),
    ] {
        assert_eq!(check(&other, ino, flags), Err(errno), "{flags}");
    }
    assert_eq!(check(&other, Ino(99), flags::READ), Err(Errno::ESTALE));
    assert_eq!(check(&owner, Ino::ROOT, flags::WRITE), Err(Errno::EISDIR));
}

/// A file without a name is there for those alone who say that they have it open, and for them unchanged; after a while it is gone.
#[test]
fn an_unlinked_file_lingers() {
    let mut world = World::new();
    let ino = file(&mut world, "f", b"still here");
    unlink(&mut world, "f");
    let root = Who::root();
    assert_eq!(world.attr(ino), Err(Errno::ESTALE));
    let by_number = |target| {
        Action::Read(Read {
            target,
            offset: 0,
            len: 9,
        })
    };
    for action in [
        by_number(Target::Ino(ino)),
        by_number(Target::Unopened(ino)),
        Action::Open(Open {
            ino,
            flags: flags::READ,
        }),
        Action::CheckOpen(Open {
            ino,
            flags: flags::READ,
        }),
        Action::ListXattr(ListXattr { ino, size: 0 }),
        Action::Link(Link {
            ino,
            parent: Ino::ROOT,
            name: Bytes::from_static(b"g"),
        }),
        // Nothing changes it before it is held.
        Action::SetAttr(SetAttr {
            mode: Some(0),
            ..set_attr(Target::Checked(ino))
        }),
        Action::SetAttr(SetAttr {
            size: Some(0),
            ..set_attr(Target::Checked(ino))
        }),
        Action::Write(Write {
            target: Target::Checked(ino),
            place: Place::At(0),
            data: Bytes::from_static(b"x"),
        }),
    ] {
        assert_eq!(
            world.run(1, &root, action.clone()).map(drop),
            Err(Errno::ESTALE),
            "{action:?}"
        );
    }
    assert_eq!(&checked(&mut world, ino).unwrap()[..], b"still here");
    match world
        .run(1, &root, Action::GetAttr(Target::Checked(ino)))
        .unwrap()
    {
        Answer::Attr(attr) => assert_eq!((attr.nlink, attr.size), (0, 10)),
        other => panic!("{other:?}"),
    }
    // Its mode lets everybody read it, still.
    world.now += LINGER_NANOS - 100_000;
    ping(&mut world);
    let other = world.read(&Who::new(1000, 100), Target::Checked(ino), 0, 9);
    assert_eq!(&other.unwrap()[..], b"still her");
    world.check();
    world.now += 100_000;
    ping(&mut world);
    assert_eq!(checked(&mut world, ino), Err(Errno::ESTALE));
    assert_eq!(hold(&mut world, 1, &[ino], &[]), [ino]);
    world.check();
}

/// A file that lingers is read by those alone who might read it when it had a name.
#[test]
fn what_lingers_keeps_its_mode() {
    let mut world = World::new();
    let ino = file(&mut world, "f", b"secret");
    let (owner, other) = (Who::root(), Who::new(1000, 100));
    world.chmod(&owner, ino, 0o600).unwrap();
    unlink(&mut world, "f");
    let target = Target::Checked(ino);
    for _ in 0..2 {
        let read = world.read(&other, target.clone(), 0, 9);
        assert_eq!(read, Err(Errno::EACCES));
        assert_eq!(&checked(&mut world, ino).unwrap()[..], b"secret");
        // That somebody holds it gives no rights either.
        assert!(hold(&mut world, 1, &[ino], &[]).is_empty());
    }
    world.check();
}

/// What is held stays, and counts, until it is let go or its session ends; then it lingers once more.
#[test]
fn what_is_held_stays() {
    let mut world = World::new();
    let (one, two) = (file(&mut world, "1", b"one"), file(&mut world, "2", b"two"));
    assert_eq!(
        hold(&mut world, 2, &[one, two, Ino(77), Ino::ROOT], &[]),
        [Ino(77), Ino::ROOT]
    );
    // Twice is once.
    assert!(hold(&mut world, 2, &[one], &[]).is_empty());
    unlink(&mut world, "1");
    unlink(&mut world, "2");
    assert_eq!(world.statfs().used, 2 * 4096);
    pass(&mut world, 99);
    assert_eq!(&checked(&mut world, one).unwrap()[..], b"one");
    // A change by who has it open.
    let root = Who::root();
    world.write(&root, Target::Checked(one), 3, b"!").unwrap();
    assert!(hold(&mut world, 2, &[], &[one, Ino(5)]).is_empty());
    assert_eq!(world.statfs().used, 4096);
    assert_eq!(&checked(&mut world, one).unwrap()[..], b"one!");
    world.check();
    world.end_session(2);
    assert_eq!(&checked(&mut world, two).unwrap()[..], b"two");
    // Who comes back with another session has it again.
    assert!(hold(&mut world, 3, &[two], &[]).is_empty());
    pass(&mut world, 99);
    assert_eq!(checked(&mut world, one), Err(Errno::ESTALE));
    assert_eq!(&checked(&mut world, two).unwrap()[..], b"two");
    world.check();
    world.end_session(3);
    pass(&mut world, 99);
    assert_eq!(world.contents().len(), 2, "the counters and the root");
}

/// Space is free at once when a file is removed. Where it is needed, what lingers goes, the first first; and what has gone from the
/// volume's space can't come back into it when that is full again.
#[test]
fn what_lingers_makes_room() {
    let mut world = World::with(Genesis {
        capacity_bytes: 4 * MIB + 8192,
        ..GENESIS
    });
    let content = vec![7; MIB as usize];
    let names = ["1", "2", "3"];
    let files = names.map(|name| file(&mut world, name, &content));
    for name in names {
        unlink(&mut world, name);
    }
    assert_eq!(world.statfs().used, 0);
    let big = file(&mut world, "a", &content);
    ping(&mut world);
    assert!(files.iter().all(|ino| checked(&mut world, *ino).is_ok()));
    file(&mut world, "b", &content);
    ping(&mut world);
    let left = files.map(|ino| checked(&mut world, ino).is_ok());
    assert_eq!(left, [false, true, true]);
    // As much as there is: nothing is left of the others, held or not.
    assert!(hold(&mut world, 1, &[files[1]], &[]).is_empty());
    let (last, handle) = world.create(Ino::ROOT, b"c");
    let (root, target) = (Who::root(), Target::Handle(handle));
    for offset in [0, MIB] {
        let data = &content[..(MIB - offset).max(4096) as usize];
        world.write(&root, target.clone(), offset, data).unwrap();
    }
    assert_eq!(
        world.write(&root, target, 2 * MIB, b"x"),
        Err(Errno::ENOSPC)
    );
    assert_eq!(hold(&mut world, 1, &[files[2]], &[]), [files[2]]);
    assert_eq!(checked(&mut world, files[2]), Err(Errno::ESTALE));
    world.check();
    for name in ["a", "b", "c"] {
        unlink(&mut world, name);
    }
    assert!(checked(&mut world, big).is_ok() && checked(&mut world, last).is_ok());
    world.check();
}

/// A quota counts what is held and not what lingers; and can't be exceeded by holding.
#[test]
fn quotas_hold_for_what_comes_back() {
    let mut world = World::new();
    let root = Who::root();
    let dir = world.mkdir(&root, Ino::ROOT, b"d", 0o755).unwrap();
    let limits = Some(Limits {
        bytes: Some(3 * 4096),
        files: None,
    });
    world
        .run(1, &root, Action::SetQuota(SetQuota { dir, limits }))
        .unwrap();
    let make = |world: &mut World, name: &[u8], bytes: usize| {
        let (ino, handle) = world.create(dir, name);
        let written = world.write(&root, Target::Handle(handle), 0, &vec![1; bytes]);
        world.run(1, &root, Action::Release(handle)).unwrap();
        written.map(|_| ino)
    };
    let first = make(&mut world, b"f", 8192).unwrap();
    assert_eq!(make(&mut world, b"g", 8192), Err(Errno::EDQUOT));
    world.unlink(&root, dir, b"f").unwrap();
    make(&mut world, b"h", 8192).unwrap();
    assert_eq!(hold(&mut world, 1, &[first], &[]), [first]);
    world.unlink(&root, dir, b"h").unwrap();
    assert!(hold(&mut world, 1, &[first], &[]).is_empty());
    world.check();
    hold(&mut world, 1, &[], &[first]);
    pass(&mut world, 9);
    world.check();
}

/// A volume in which nothing but writes happen lets go, too; and no operation does much of it.
#[test]
fn the_end_of_many_is_bounded() {
    let mut world = World::new();
    let kept = file(&mut world, "kept", b"x");
    const FILES: usize = 200;
    for n in 0..FILES {
        file(&mut world, &format!("{n}"), b"x");
    }
    for n in 0..FILES {
        unlink(&mut world, &format!("{n}"));
    }
    let rows = world.contents().len();
    world.now += LINGER_NANOS;
    let mut before = rows;
    let root = Who::root();
    for n in 0..2 * FILES.div_ceil(LINGERING_PER_OP) as u64 {
        // Every second small write comes at one of the times at which they delete; an operation takes 1,000 ns.
        world.now = (world.now + 1_000).next_multiple_of(4096) + n % 2 - 1_000;
        world.write(&root, Target::Ino(kept), 0, b"y").unwrap();
        // Three rows of one that lingers, its inode, its content and the note of that; and the counts of all.
        let now = world.contents().len();
        assert!(before - now <= 6 * LINGERING_PER_OP + 1);
        assert!(n % 2 == 0 || now == before);
        before = now;
    }
    assert_eq!(
        before, 6,
        "counters, the root, and a file with name, cookie and content"
    );
    world.check();
}

/// Who lets go of files and holds them again, all the time, leaves gaps in the queue, and none of what waits behind them stays longer for that.
#[test]
fn gaps_hold_up_nobody() {
    let mut world = World::new();
    let names: Vec<String> = (0..256).map(|n| format!("{n}")).collect();
    let held: Vec<Ino> = names.iter().map(|n| file(&mut world, n, b"")).collect();
    assert!(hold(&mut world, 2, &held, &[]).is_empty());
    for name in &names {
        unlink(&mut world, name);
    }
    let first = file(&mut world, "first", b"x");
    let big = file(&mut world, "big", &vec![7; MIB as usize]);
    unlink(&mut world, "first");
    for _ in 0..100 {
        assert!(hold(&mut world, 2, &held, &held).is_empty());
    }
    world.now += LINGER_NANOS / 2;
    unlink(&mut world, "big");
    world.now += LINGER_NANOS / 2;
    ping(&mut world);
    assert_eq!(checked(&mut world, first), Err(Errno::ESTALE));
    // The gaps are behind: who waits first is in the first place.
    ping(&mut world);
    assert!(checked(&mut world, big).is_ok());
    let rows = world.contents();
    let all = &rows[&[0x2a][..]];
    let place = &rows[&[&[0x28][..], &big.0.to_be_bytes()].concat()[..]];
    assert_eq!(all[..8], place[..]);
    world.check();
    world.now += LINGER_NANOS / 2;
    ping(&mut world);
    assert_eq!(checked(&mut world, big), Err(Errno::ESTALE));
    world.check();
}

/// A guest holds and reads what its credentials are about, and nothing of it after they end.
#[test]
fn guests_hold_what_is_theirs() -> Result<()> {
    const BOB: u8 = 1;
    let mut v = Volume::new();
    let shared = v.dir(Ino::ROOT, b"shared");
    let file = v.file(shared, b"file");
    let secret = v.file(Ino::ROOT, b"secret");
    v.share(BOB, shared, Rights::ALL);
    let check = |ino| {
        Action::CheckOpen(Open {
            ino,
            flags: flags::READ,
        })
    };
    let keep = |ino| {
        Action::Hold(Hold {
            keep: vec![ino],
            let_go: vec![],
        })
    };
    v.run(BOB, check(file))?;
    refused(v.run(BOB, check(secret)), Errno::ESTALE);
    refused(v.run(BOB, keep(secret)), Errno::ESTALE);
    v.unlink(MEMBER, shared, b"file")?;
    assert_eq!(&v.read(BOB, Target::Checked(file))?[..], b"file");
    refused(v.read(BOB, Target::Checked(secret)), Errno::ESTALE);
    v.run(BOB, keep(file))?;
    assert_eq!(&v.read(BOB, Target::Checked(file))?[..], b"file");
    v.revoke(0, Revoked::Key(public(BOB)), None, None)?;
    assert!(v.read(BOB, Target::Checked(file)).is_err());
    assert!(v.run(BOB, keep(file)).is_err());
    v.check();
    Ok(())
}

/// The log tells of each file that a guest holds; of a refusal, of the file that it is about; and of nothing that is let go, which needs
/// no credential.
#[test]
fn the_log_tells_of_each_file_held() -> Result<()> {
    const BOB: u8 = 1;
    let mut v = Volume::new();
    let shared = v.dir(Ino::ROOT, b"shared");
    let files = [b"a", b"b", b"c"].map(|name| v.file(shared, name));
    let secret = v.file(Ino::ROOT, b"secret");
    v.share(BOB, shared, Rights::ALL);
    let hold = |v: &mut Volume, keep: &[Ino], let_go: &[Ino]| {
        let seen = v.log_of(0).next;
        let hold = Action::Hold(Hold {
            keep: keep.to_vec(),
            let_go: let_go.to_vec(),
        });
        let done = v.run(BOB, hold).map(drop);
        let rows = v.log_of(0).rows.into_iter();
        let rows = rows.filter(|row| row.sequence >= seen);
        let rows: Vec<_> = rows
            .map(|row| (row.object, row.held, row.decision, row.errno))
            .collect();
        (done, rows)
    };
    let held = |files: &[Ino]| (files[0], files.to_vec(), Decision::Allowed, 0);
    assert_eq!(hold(&mut v, &files, &[]), (Ok(()), vec![held(&files)]));
    let denied = |ino| {
        let row = (ino, vec![], Decision::Denied, Errno::ESTALE.code());
        (Err(Errno::ESTALE), vec![row])
    };
    let with_secret = [files[0], secret, files[1]];
    assert_eq!(hold(&mut v, &with_secret, &[]), denied(secret));
    assert_eq!(hold(&mut v, &[], &files[..1]), (Ok(()), vec![]));
    assert_eq!(
        hold(&mut v, &files[..1], &files[1..2]),
        (Ok(()), vec![held(&files[..1])])
    );
    // Who has no credential any more can let go all the same.
    v.revoke(0, Revoked::Key(public(BOB)), None, None)?;
    let is_held = |v: &mut Volume, n: usize| {
        let key = |key: &Bytes| key[0] == 0x18 && key[1..9] == files[n].0.to_be_bytes();
        v.contents().keys().any(key)
    };
    assert!(is_held(&mut v, 2));
    assert_eq!(hold(&mut v, &[], &files[2..]), (Ok(()), vec![]));
    assert!(!is_held(&mut v, 2));
    assert_eq!(hold(&mut v, &files, &[]).1.len(), 1);
    v.check();
    Ok(())
}

/// What a mount does, and others do to its files.
#[derive(Clone, Debug)]
enum Event {
    Open(u8),
    Close(u8),
    /// The mount says what it has open.
    Tell,
    Make(u8),
    Unlink(u8),
    Lose,
    Wait(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any::<u8>().prop_map(Event::Open),
        2 => any::<u8>().prop_map(Event::Close),
        2 => Just(Event::Tell),
        3 => any::<u8>().prop_map(Event::Make),
        3 => any::<u8>().prop_map(Event::Unlink),
        1 => Just(Event::Lose),
        2 => (0..4_000_000_000_u32).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(crate::cases::cases(150))]

    /// Whatever others do, a mount that tells in time what it has open can read it to the end; and when it has closed all, nothing
    /// is left of what has no name.
    #[test]
    fn what_is_open_can_be_read(events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::new();
        let mut session = 10;
        let (mut named, mut open, mut told) = (Vec::<(String, Ino)>::new(), Vec::<Ino>::new(), Vec::<Ino>::new());
        let (mut made, mut since) = (0, world.now);
        for event in events {
            match event {
                Event::Make(byte) => {
                    let name = format!("{made}");
                    made += 1;
                    let ino = file(&mut world, &name, name.as_bytes());
                    if byte % 4 == 0 {
                        // Somebody else has it open, and lets it go when it has no name any more.
                        hold(&mut world, 2, &[ino], &[]);
                    }
                    named.push((name, ino));
                }
                Event::Unlink(byte) if !named.is_empty() => {
                    let (name, ino) = named.remove(usize::from(byte) % named.len());
                    unlink(&mut world, &name);
                    hold(&mut world, 2, &[], &[ino]);
                }
                Event::Open(byte) if !named.is_empty() => {
                    let ino = named[usize::from(byte) % named.len()].1;
                    let check = Action::CheckOpen(Open { ino, flags: flags::READ });
                    prop_assert!(world.run(session, &Who::root(), check).is_ok());
                    if !open.contains(&ino) {
                        open.push(ino);
                    }
                }
                Event::Close(byte) if !open.is_empty() => {
                    open.remove(usize::from(byte) % open.len());
                }
                Event::Tell => {
                    let new: Vec<_> = open.iter().copied().filter(|ino| !told.contains(ino)).collect();
                    let old: Vec<_> = told.iter().copied().filter(|ino| !open.contains(ino)).collect();
                    prop_assert!(hold(&mut world, session, &new, &old).is_empty());
                    told = open.clone();
                    since = world.now;
                }
                Event::Lose => {
                    world.end_session(session);
                    session += 1;
                    told.clear();
                    since = world.now.min(since);
                }
                Event::Wait(nanos) => {
                    let least = since + LINGER_NANOS - 1_000_000;
                    world.now = (world.now + u64::from(nanos)).min(least).max(world.now);
                }
                _ => {}
            }
            for ino in &open {
                prop_assert!(checked(&mut world, *ino).is_ok(), "{ino:?} is gone");
            }
            // A mount that has not told for so long has to.
            if world.now + 2_000_000 > since + LINGER_NANOS {
                let new: Vec<_> = open.iter().copied().filter(|ino| !told.contains(ino)).collect();
                prop_assert!(hold(&mut world, session, &new, &[]).is_empty());
                told.extend(new);
                since = world.now;
            }
            world.check();
        }
        world.end_session(session);
        world.end_session(2);
        pass(&mut world, 200);
        // Of each file with a name: inode, entry, cookie, and content.
        prop_assert_eq!(world.contents().len(), 2 + 4 * named.len());
    }
}
