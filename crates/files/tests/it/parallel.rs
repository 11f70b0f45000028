//! Operations in any order that the dependency graph allows: results, replies and state are those of the agreed order.

use crate::common::World;
use crate::script::{GUESTS, Raw, SMALL, admission, script, with_guests};
use crate::sharing;
use crate::support::{Freedom, as_allowed, in_order};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::Service;
use quorate_execution::graph::{Conflicts, Graph};
use quorate_files::op::*;
use quorate_files::{Admission, FileService, Handle, Ino, Nothing, Outcome};
use quorate_wire::Decode;

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..crate::cases::cases(200) })]

    /// Whatever the schedule, everything is as in the agreed order.
    #[test]
    fn the_order_of_execution_does_not_show(
        raws in prop::collection::vec(any::<Raw>(), 20..120),
        schedule in prop::collection::vec(any::<u8>(), 200..600),
        window in 2..40_usize,
    ) {
        let service = FileService::new(SMALL, Admission::members_only());
        let script = script(&raws);
        let expected = in_order(&service, &script);
        let found = as_allowed(&service, &script, &schedule, window, &mut Freedom::default());
        for (step, (e, f)) in script.iter().zip(expected.results.iter().zip(&found.results)) {
            prop_assert_eq!(e, f, "{:?}", step.op.clone().map(Op::from_bytes));
        }
        prop_assert!(expected == found);
    }

    /// The same where guests are among those who ask.
    #[test]
    fn nor_does_it_where_there_are_guests(
        raws in prop::collection::vec(any::<Raw>(), 20..120),
        schedule in prop::collection::vec(any::<u8>(), 200..600),
        window in 2..40_usize,
    ) {
        let service = FileService::new(SMALL, admission());
        let script = with_guests(script(&raws), &raws);
        let expected = in_order(&service, &script);
        // What was decided is remembered on both sides, and does not show.
        prop_assert!(in_order(&service.clone().without_memory(), &script) == expected);
        let found = as_allowed(&service.clone(), &script, &schedule, window, &mut Freedom::default());
        for (step, (e, f)) in script.iter().zip(expected.results.iter().zip(&found.results)) {
            prop_assert_eq!(e, f, "{:?}", step.op.clone().map(Op::from_bytes));
        }
        prop_assert!(expected == found);
    }
}

/// The property says something of guests only if they are let do much.
#[test]
fn guests_are_often_let_do_what_they_ask() {
    let raws: Vec<Raw> = (0..400_u32)
        .map(|i| {
            std::array::from_fn(|j| (i.wrapping_mul(2_654_435_761 + 97 * j as u32) >> 13) as u8)
        })
        .collect();
    let service = FileService::new(SMALL, admission());
    let steps = with_guests(script(&raws), &raws);
    let end = in_order(&service, &steps);
    let of_guests = steps.iter().zip(&end.results).filter(|(step, _)| {
        let guest = |key: &u8| step.call.client == sharing::public(*key);
        step.op.is_some() && GUESTS.iter().any(guest)
    });
    let (done, refused): (Vec<_>, Vec<_>) = of_guests
        .map(|(_, result)| Outcome::from_bytes(result.clone()).unwrap().0)
        .partition(Result::is_ok);
    assert!(
        done.len() >= 60 && refused.len() >= 20,
        "{} {}",
        done.len(),
        refused.len()
    );
}

/// Whether an operation can run while one before it has not ended.
fn beside(earlier: &Action, later: &Action) -> bool {
    let service = FileService::new(SMALL, Admission::members_only());
    let mut world = World::with(SMALL);
    let mut graph = Graph::new(Conflicts::Declared, 2);
    let mut insert = |action: &Action| {
        world.now += 1_000;
        let op = Op::new(Who::root(), action.clone()).to_bytes();
        graph.insert(service.uses(&world.call(1), &op))
    };
    let (first, second) = (insert(earlier), insert(later));
    let runs = std::iter::from_fn(|| graph.take_ready()).collect::<Vec<_>>();
    assert!(runs.contains(&first));
    runs.contains(&second)
}

fn write(ino: u64, offset: u64) -> Action {
    let number = 2 * 99;
    Action::Write(Write {
        target: Target::Handle(Handle {
            ino: Ino(ino),
            number,
        }),
        place: Place::At(offset),
        data: Bytes::from_static(b"some"),
    })
}

fn read(ino: u64, offset: u64) -> Action {
    Action::Read(Read {
        target: Target::Ino(Ino(ino)),
        offset,
        len: 10,
    })
}

/// Writes to different files run at the same time, and so do writes to different extents of one; others wait.
#[test]
fn what_is_independent_runs_at_the_same_time() {
    let lookup = Action::Lookup(Lookup {
        parent: Ino::ROOT,
        name: Bytes::from_static(b"a"),
    });
    assert!(beside(&write(2, 0), &write(3, 0)));
    assert!(beside(&write(2, 0), &write(2, 65_536)));
    assert!(!beside(&write(2, 0), &write(2, 65_000)));
    assert!(beside(&read(2, 0), &read(2, 0)));
    assert!(beside(&read(2, 0), &write(2, 0)));
    assert!(!beside(&write(2, 0), &read(2, 0)));
    assert!(beside(&write(2, 0), &read(3, 0)));
    assert!(beside(&lookup, &lookup));
    assert!(!beside(&write(2, 0), &lookup));
    assert!(beside(&lookup, &write(2, 0)));
}

/// What only settles never keeps a write from running unless it is about its file's content or its handle; and it settles
/// after what it conflicts with.
#[test]
fn changes_of_names_leave_writes_alone() {
    let service = FileService::new(SMALL, Admission::members_only());
    let world = World::with(SMALL);
    let rename = Action::Rename(Rename {
        parent: Ino::ROOT,
        name: Bytes::from_static(b"a"),
        new_parent: Ino::ROOT,
        new_name: Bytes::from_static(b"b"),
        mode: RenameMode::Replace,
    });
    let cut = |size| {
        let mut op = crate::common::set_attr(Target::Ino(Ino(2)));
        op.size = Some(size);
        Action::SetAttr(op)
    };
    // A write to 2, a read of 3 that keeps what comes from settling, then each of these; then a write to 2 and a read of 3.
    for (middle, write_runs, read_runs) in [
        (rename, true, false),
        (cut(0), false, true),
        (Action::Fsync(Target::Ino(Ino(3))), true, true),
    ] {
        let mut graph = Graph::new(Conflicts::Declared, 8);
        let mut insert = |action: &Action| {
            let op = Op::new(Who::root(), action.clone()).to_bytes();
            graph.insert(service.uses(&world.call(1), &op))
        };
        let ids = [
            write(2, 0),
            read(3, 0),
            middle,
            write(2, 1 << 20),
            read(3, 0),
        ]
        .map(|action| insert(&action));
        let runs = std::iter::from_fn(|| graph.take_ready()).collect::<Vec<_>>();
        assert_eq!(graph.take_settleable(), None);
        let found = ids.map(|id| runs.contains(&id));
        assert_eq!(found, [true, true, false, write_runs, read_runs]);
    }
}

/// With a handle go its locks: who asks for them waits. Chance rarely makes this case.
#[test]
fn a_test_of_locks_waits_for_a_release() {
    let service = FileService::new(SMALL, Admission::members_only());
    let world = World::with(SMALL);
    let handle = |number| Handle {
        ino: Ino(2),
        number,
    };
    let test = Action::Lock(Lock {
        handle: handle(4),
        space: LockSpace::Posix,
        owner: 1,
        pid: 1,
        start: 0,
        end: 9,
        kind: LockKind::Write,
        test: true,
    });
    let mut graph = Graph::new(Conflicts::Declared, 2);
    for (session, action) in [(1, Action::Release(handle(2))), (2, test)] {
        let op = Op::new(Who::root(), action).to_bytes();
        graph.insert(service.uses(&world.call(session), &op));
    }
    assert_eq!(graph.take_ready(), None);
    let release = graph.take_settleable().unwrap();
    graph.done(release);
    assert!(graph.take_ready().is_some());
}

/// Bits, owner, group and ACL say who may write: a write to an object by its number waits until they are set, and for other attributes it does not.
#[test]
fn a_write_by_number_waits_for_rights() {
    let by_number = Action::Write(Write {
        target: Target::Ino(Ino(2)),
        place: Place::At(0),
        data: Bytes::from_static(b"some"),
    });
    let mut changes = Vec::new();
    for (name, ino, expected) in [
        ("system.posix_acl_access", Ino(2), false),
        ("system.posix_acl_access", Ino(3), true),
        ("system.posix_acl_default", Ino(2), true),
        ("user.x", Ino(2), true),
    ] {
        let name = Bytes::from_static(name.as_bytes());
        let set = Action::SetXattr(SetXattr {
            ino,
            name: name.clone(),
            value: Bytes::new(),
            mode: XattrMode::Set,
        });
        let remove = Action::RemoveXattr(RemoveXattr { ino, name });
        changes.extend([(set, expected), (remove, expected)]);
    }
    let nothing = crate::common::set_attr(Target::Ino(Ino(2)));
    for (op, expected) in [
        (
            SetAttr {
                mode: Some(0),
                ..nothing.clone()
            },
            false,
        ),
        (
            SetAttr {
                uid: Some(0),
                ..nothing.clone()
            },
            false,
        ),
        (
            SetAttr {
                gid: Some(0),
                ..nothing.clone()
            },
            false,
        ),
        (
            SetAttr {
                mtime: Some(SetTime::Now(Nothing)),
                ..nothing
            },
            true,
        ),
    ] {
        changes.push((Action::SetAttr(op), expected));
    }
    for (change, expected) in changes {
        let service = FileService::new(SMALL, Admission::members_only());
        let world = World::with(SMALL);
        let mut graph = Graph::new(Conflicts::Declared, 8);
        let mut insert = |action: &Action| {
            let op = Op::new(Who::root(), action.clone()).to_bytes();
            graph.insert(service.uses(&world.call(1), &op))
        };
        // The first keeps the change from settling.
        let ids = [&write(4, 0), &change, &by_number].map(&mut insert);
        let runs = std::iter::from_fn(|| graph.take_ready()).collect::<Vec<_>>();
        assert_eq!(runs.contains(&ids[2]), expected, "{change:?}");
    }
}

/// What a copy reads must not be written before it has settled, nor what it writes.
#[test]
fn a_write_waits_for_a_copy() {
    let service = FileService::new(SMALL, Admission::members_only());
    let world = World::with(SMALL);
    let copy = Action::CopyRange(CopyRange {
        from: Target::Ino(Ino(2)),
        offset: 0,
        to: Target::Ino(Ino(3)),
        to_offset: 0,
        len: 10,
    });
    for (ino, expected) in [(2, false), (3, false), (5, true)] {
        let mut graph = Graph::new(Conflicts::Declared, 8);
        let mut insert = |action: &Action| {
            let op = Op::new(Who::root(), action.clone()).to_bytes();
            graph.insert(service.uses(&world.call(1), &op))
        };
        // The first keeps the copy from settling.
        let ids = [&write(4, 0), &copy, &write(ino, 0)].map(&mut insert);
        let runs = std::iter::from_fn(|| graph.take_ready()).collect::<Vec<_>>();
        assert_eq!(runs.contains(&ids[2]), expected, "a write to {ino}");
    }
}
