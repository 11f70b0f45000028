//! The service against a model of a file tree that was written naively from the manual pages: the same random
//! operations of several users and sessions must end alike, with equal attributes, names and contents after each.

use crate::common::World;
use crate::tree::{Expected, Tree};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Handle, Ino, Kind, Nothing, Stamp};

type Raw = [u8; 10];

fn users() -> [Who; 4] {
    let mut member = Who::new(1001, 101);
    member.groups = vec![100, 102];
    [
        Who::root(),
        Who::new(1000, 100),
        member,
        Who::new(1002, 102),
    ]
}

fn pick(all: &[u64], byte: u8) -> u64 {
    all.get(usize::from(byte) % all.len().max(1))
        .copied()
        .unwrap_or(99)
}

fn pick_handle(all: &[Handle], byte: u8) -> Handle {
    let found = all.get(usize::from(byte) % all.len().max(1)).copied();
    found.unwrap_or(Handle {
        ino: Ino(1),
        number: 99,
    })
}

fn name(byte: u8) -> Bytes {
    Bytes::from_static(match byte % 40 {
        38 => b"..",
        39 => b"x/y",
        n => [&b"a"[..], b"b", b"c", b"dd"][n as usize % 4],
    })
}

/// Makes an operation of raw bytes, about objects that the tree knows or once knew.
fn interpret(raw: &Raw, session: u64, tree: &Tree) -> Action {
    let ino = |byte: u8| Ino(pick(&tree.known, byte));
    // Mostly directories that are there, mostly names that are in them: else few operations would succeed.
    let dirs: Vec<u64> = tree.dirs();
    let dir = |byte: u8| match byte % 8 {
        0 => ino(byte / 8),
        _ => Ino(pick(&dirs, byte / 8)),
    };
    let old_name = |dir: Ino, byte: u8| {
        let children = tree.nodes.get(&dir.0).map(|node| &node.children);
        match children {
            Some(children) if !byte.is_multiple_of(4) && !children.is_empty() => {
                let names: Vec<_> = children.keys().cloned().collect();
                Bytes::from(names[usize::from(byte / 4) % names.len()].clone())
            }
            _ => name(byte / 4),
        }
    };
    let handle = |byte: u8| match byte % 8 {
        0 => pick_handle(&tree.handles, byte / 8),
        _ => pick_handle(&tree.open_handles(session), byte / 8),
    };
    let target = |byte: u8| match byte % 4 {
        0 => Target::Handle(handle(byte / 4)),
        1 => Target::Ino(ino(byte / 4)),
        2 if byte >= 128 => Target::Checked(Ino(pick(&tree.files(), byte / 4))),
        2 => Target::Unopened(Ino(pick(&tree.files(), byte / 4))),
        _ => Target::Ino(Ino(pick(&tree.files(), byte / 4))),
    };
    let mode = u32::from(raw[8]) << 4 | u32::from(raw[7]);
    let mode = if raw[6] >= 128 { mode | 0o700 } else { mode };
    let (parent, name) = (dir(raw[3]), |i: usize| name(raw[i]));
    let old = |i: usize| old_name(parent, raw[i]);
    let open_flags = u32::from(raw[6]) % if raw[6] < 192 { 16 } else { 64 };
    let offset = u64::from(raw[5]) * 97;
    match raw[2] % 40 {
        0 | 1 => Action::Mkdir(Mkdir {
            parent,
            name: name(4),
            mode,
            umask: 0,
        }),
        2 | 3 => Action::Create(Create {
            parent,
            name: name(4),
            mode,
            umask: 0,
            flags: open_flags,
        }),
        4 => Action::Mknod(Mknod {
            parent,
            name: name(4),
            kind: [Kind::Fifo, Kind::Regular, Kind::Char, Kind::Socket][usize::from(raw[5]) % 4],
            mode,
            umask: 0,
            rdev: 5,
        }),
        5 => Action::Symlink(Symlink {
            parent,
            name: name(4),
            target: name(5),
        }),
        6 | 7 => Action::Link(Link {
            ino: ino(raw[5]),
            parent,
            name: name(4),
        }),
        8 | 9 => Action::Unlink(Unlink {
            parent,
            name: old(4),
        }),
        10 => Action::Rmdir(Rmdir {
            parent,
            name: old(4),
        }),
        11..=15 => Action::Rename(Rename {
            parent,
            name: old(4),
            new_parent: dir(raw[5]),
            new_name: old_name(dir(raw[5]), raw[6]),
            mode: [
                RenameMode::Replace,
                RenameMode::Exchange,
                RenameMode::NoReplace,
            ][usize::from(raw[7]) % 3],
        }),
        16 | 17 => Action::Write(Write {
            target: target(raw[3]),
            place: if raw[6].is_multiple_of(4) {
                Place::End(Nothing)
            } else {
                Place::At(offset)
            },
            data: Bytes::from(vec![raw[8]; usize::from(raw[7]) * 41]),
        }),
        18 => Action::Read(Read {
            target: target(raw[3]),
            offset,
            len: 20_000,
        }),
        19 | 20 => Action::SetAttr(SetAttr {
            target: target(raw[3]),
            mode: (raw[4].is_multiple_of(4)).then_some(mode),
            uid: (raw[4] % 4 == 1 && raw[6].is_multiple_of(2))
                .then_some(1000 + u32::from(raw[5]) % 3),
            gid: (raw[4] % 4 == 1 && raw[6].is_multiple_of(3))
                .then_some(100 + u32::from(raw[5]) % 4),
            size: (raw[4] % 4 == 2).then_some(offset),
            atime: (raw[4] % 4 == 3).then_some(match raw[6] % 2 {
                0 => SetTime::Now(Nothing),
                _ => SetTime::At(Stamp { secs: -5, nanos: 7 }),
            }),
            mtime: (raw[4] % 4 == 3 && raw[7].is_multiple_of(2)).then_some(SetTime::Now(Nothing)),
        }),
        21 | 22 => Action::Open(Open {
            ino: ino(raw[3]),
            flags: open_flags,
        }),
        23 | 24 => Action::Release(handle(raw[3])),
        33 | 34 => Action::CheckOpen(Open {
            ino: ino(raw[3]),
            flags: open_flags & !(flags::TRUNC * u32::from(raw[7] % 2)),
        }),
        // Of two lists, no file in both: what is let go first and held then lingers in between.
        35 | 36 => {
            let files = tree.files();
            let (keep, let_go) = files
                .iter()
                .partition::<Vec<u64>, _>(|ino| (*ino ^ u64::from(raw[4])) & 1 == 0);
            let some = |list: Vec<u64>, byte: u8| {
                let count = usize::from(byte) % 4;
                list.into_iter().rev().take(count).map(Ino).collect()
            };
            Action::Hold(Hold {
                keep: some(keep, raw[5]),
                let_go: some(let_go, raw[6]),
            })
        }
        // Most of them as they are.
        38 | 39 => {
            let seen = |byte: u8| {
                let ino = ino(byte);
                let change = tree.attr(ino.0).map_or(0, |attr| attr.change);
                let is_old = byte.is_multiple_of(5);
                Seen {
                    ino,
                    change: change + u64::from(is_old),
                }
            };
            Action::Accessed(Accessed {
                objects: raw[3..3 + usize::from(raw[9]) % 5]
                    .iter()
                    .copied()
                    .map(seen)
                    .collect(),
            })
        }
        25 => Action::Lookup(Lookup {
            parent,
            name: old(4),
        }),
        26 => Action::Readlink(parent),
        27 | 28 => Action::Make(Make {
            parent,
            name: name(4),
            mode,
            umask: 0,
            verifier: [None, Some(0), Some(2), Some(3)][usize::from(raw[5]) % 4],
        }),
        29 | 30 => Action::SetQuota(SetQuota {
            dir: parent,
            limits: (!raw[4].is_multiple_of(8)).then(|| Limits {
                bytes: (!raw[5].is_multiple_of(4)).then(|| u64::from(raw[6]) * 512),
                files: (!raw[7].is_multiple_of(4)).then(|| u64::from(raw[8]) % 16),
            }),
        }),
        31 | 32 => Action::Adopt(Adopt {
            dir: parent,
            after: 0,
        }),
        _ => Action::Access(Access {
            ino: parent,
            mask: u32::from(raw[4]) % 9,
        }),
    }
}

/// Compares what everyone can see of the two.
fn compare(world: &mut World, tree: &Tree) {
    for ino in &tree.known {
        let expected = tree.attr(*ino);
        let actual = world.attr(Ino(*ino)).ok();
        assert_eq!(actual, expected, "attributes of {ino}");
        let Some(node) = tree.nodes.get(ino) else {
            continue;
        };
        if node.kind == Kind::Regular {
            let data = world
                .read(&Who::root(), Target::Ino(Ino(*ino)), 0, 1 << 20)
                .unwrap();
            assert!(data == node.content, "content of {ino}");
        }
        if node.kind == Kind::Directory && tree.is_linked(*ino) {
            let (entries, end) = world.list(Ino(*ino), 2, 1000).unwrap();
            assert!(end);
            let mut names: Vec<_> = entries.iter().map(|e| (e.name.to_vec(), e.ino.0)).collect();
            names.sort();
            let expected: Vec<_> = node.children.iter().map(|(n, c)| (n.clone(), *c)).collect();
            assert_eq!(names, expected, "names in {ino}");
        }
    }
    let stat = world.statfs();
    assert_eq!((stat.used, stat.used_inodes), tree.used());
    let quotas = Action::Quotas(Quotas {
        about: None,
        after: 0,
    });
    let Ok(Answer::Quotas(quotas)) = world.run(1, &Who::root(), quotas) else {
        panic!("another answer");
    };
    let quotas = quotas.quotas.into_iter();
    let quotas: Vec<_> = quotas
        .map(|row| (row.dir.0, row.limits, (row.used_bytes, row.used_files)))
        .collect();
    assert_eq!(quotas, tree.quotas());
}

/// Runs an action with a look at objects from both sides. What was before is compared with the tree here; what came after is
/// what any look would have shown then.
fn run_with_attrs(
    world: &mut World,
    tree: &Tree,
    session: u64,
    who: &Who,
    objects: &[Ino],
    action: &Action,
) -> (crate::common::Result<Answer>, u64) {
    let op = Action::WithAttrs(WithAttrs::new(objects.to_vec(), action.clone()));
    let Answer::WithAttrs(seen) = world.run(session, who, op).unwrap() else {
        panic!("another answer");
    };
    let now = world.now;
    let before: Vec<_> = objects.iter().map(|ino| tree.attr(ino.0)).collect();
    let after: Vec<_> = objects.iter().map(|ino| world.attr(*ino).ok()).collect();
    assert_eq!(seen.after, after, "{action:?}");
    match action.is_read_only() {
        true => assert_eq!((seen.before, after), (vec![], before), "{action:?}"),
        false => assert_eq!(seen.before, before, "{action:?}"),
    }
    (seen.outcome.0, now)
}

fn step(world: &mut World, tree: &mut Tree, raw: &Raw) {
    let session = 1 + u64::from(raw[1]) % 2;
    if raw[9] < 4 {
        world.end_session(session);
        tree.end_session(session);
        return;
    }
    let who = &users()[[0, 0, 1, 1, 2, 3][usize::from(raw[0]) % 6]];
    let action = interpret(raw, session, tree);
    let objects = vec![
        Ino(pick(&tree.known, raw[3])),
        Ino(pick(&tree.known, raw[4])),
    ];
    let with_attrs = raw[9].is_multiple_of(4);
    let (actual, now) = match with_attrs {
        false => (world.run(session, who, action.clone()), world.now),
        true => run_with_attrs(world, tree, session, who, &objects, &action),
    };
    let expected = tree.apply(session, who, now, &action, &actual);
    match (&actual, &expected) {
        (Ok(Answer::Data(data)), Ok(Expected::Bytes(bytes))) => assert!(data.data == *bytes),
        (Ok(Answer::Bytes(data)), Ok(Expected::Bytes(bytes))) => assert!(*data == *bytes),
        (Ok(Answer::Allowed(mask)), Ok(Expected::Mask(other))) => assert_eq!(mask, other),
        (Ok(Answer::Attr(attr)), Ok(Expected::Object(ino))) => {
            assert_eq!(Some(attr), tree.attr(*ino).as_ref(), "{who:?} {action:?}");
        }
        (Ok(Answer::Made(made)), Ok(Expected::Object(ino))) => {
            let attr = Some(&made.attr);
            assert_eq!(attr, tree.attr(*ino).as_ref(), "{who:?} {action:?}");
        }
        (Ok(Answer::Opened(opened)), Ok(Expected::Object(ino))) => {
            assert_eq!(
                Some(&opened.attr),
                tree.attr(*ino).as_ref(),
                "{who:?} {action:?}"
            );
        }
        (Ok(Answer::Written(written)), Ok(Expected::At(offset))) => {
            assert_eq!(written.offset, *offset);
        }
        (Ok(Answer::Done(_)), Ok(Expected::Done)) => {}
        (Ok(Answer::Held(held)), Ok(Expected::Gone(gone))) => assert_eq!(held.gone, *gone),
        (Ok(Answer::Adopted(some)), Ok(Expected::Adopted(count))) => {
            assert_eq!(some.adopted, *count);
        }
        (Err(a), Err(e)) if a == e => {}
        _ => panic!("{who:?} {action:?}: {actual:?}, expected {expected:?}"),
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(150))]

    /// Outcomes, attributes, names, contents and accounting follow the model; the state's invariants hold.
    #[test]
    fn the_service_is_the_model(steps in prop::collection::vec(any::<Raw>(), 1..250)) {
        let (mut world, mut tree) = (World::new(), Tree::new());
        for raw in &steps {
            step(&mut world, &mut tree, raw);
            compare(&mut world, &tree);
            world.check();
        }
    }

    /// When layers are frozen and stored has no influence on results or state.
    #[test]
    fn checkpoints_leave_no_trace(
        steps in prop::collection::vec(any::<Raw>(), 1..250),
        moments in prop::collection::vec(0..20u8, 1..50),
    ) {
        let (mut plain, mut tree) = (World::new(), Tree::new());
        for raw in &steps {
            step(&mut plain, &mut tree, raw);
        }
        let mut frozen = World::new();
        for ((session, op), moment) in plain.log.clone().into_iter().zip(moments.iter().cycle()) {
            match op {
                None => frozen.end_session(session),
                Some((op, result)) => prop_assert_eq!(frozen.execute(session, &op), result),
            }
            match moment {
                0..=3 => frozen.freeze(),
                4 => frozen.store(),
                _ => {}
            }
        }
        prop_assert!(plain.contents() == frozen.contents());
    }
}
