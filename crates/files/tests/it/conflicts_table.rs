//! The table of what operations touch, in docs/files.md, against the operations that there are; and rows of it that random operations meet too seldom.

use std::collections::BTreeSet;

use quorate_execution::graph::{Conflicts, Graph};
use quorate_execution::{Call, Service};
use quorate_files::op::*;
use quorate_files::{Admission, FileService, Handle, Ino, Nothing};
use quorate_wire::{PublicKey, SessionId, Time};

use crate::conflicts_cells::lock;
use crate::script::SMALL;

const OPERATIONS: &str = include_str!("../../src/op.rs");
const TABLE: &str = include_str!("../../../../docs/files.md");

/// The names of all actions, from where they are defined.
fn actions() -> BTreeSet<&'static str> {
    let (_, list) = OPERATIONS.split_once("pub enum Action {").unwrap();
    let (list, _) = list.split_once("\n    }").unwrap();
    let names = list.lines().filter_map(|line| {
        let (_, what) = line.split_once(" => ")?;
        what.split_once('(').map(|(name, _)| name)
    });
    names.collect()
}

/// The rows of a table whose head begins so: their cells.
pub fn rows(head: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let (_, table) = TABLE.split_once(head).unwrap();
    let rows = table.lines().skip(2).take_while(|l| l.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// The head of the one that says what operations touch.
pub const TOUCHED: &str = "\n| operation | its run step |";

/// What stands between backquotes.
pub fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Each operation has a row, and no row is about one that is not there. Rows without a name are about all operations of a kind.
#[test]
fn each_operation_has_a_row() {
    let actions = actions();
    assert!(actions.len() >= 44 && actions.contains("Ping"));
    let named: BTreeSet<_> = rows(TOUCHED).flat_map(|row| quoted(row[0])).collect();
    let lack: Vec<_> = actions.difference(&named).collect();
    assert!(lack.is_empty(), "without a row: {lack:?}");
    let unknown: Vec<_> = named.difference(&actions).collect();
    assert!(unknown.is_empty(), "rows about nothing: {unknown:?}");
}

/// Of the two sessions that there are.
const MINE: u64 = 1;
const ANOTHERS: u64 = 2;

/// Whether the second of two operations, which only reads, waits until the first is done. Each is of a session, and the first has this time.
fn waits((session, now, first): (u64, u64, &Action), (reader, second): (u64, &Action)) -> bool {
    let service = FileService::new(SMALL, Admission::members_only());
    let uses = |session, now, action: &Action| {
        let call = Call {
            client: PublicKey([7; 32]),
            session: SessionId(session),
            now: Time(now),
        };
        let op = Op::new(Who::root(), action.clone());
        service.uses(&call, &op.to_bytes())
    };
    let mut graph = Graph::new(Conflicts::Declared, 4);
    graph.insert(uses(session, now, first));
    let second = graph.insert(uses(reader, now, second));
    let ready: Vec<_> = std::iter::from_fn(|| graph.take_ready()).collect();
    !ready.contains(&second)
}

/// A time at which changes sweep nothing beside what they are for.
const NO_SWEEP: u64 = 65;
const FILE: Ino = Ino(20);
const OTHER: Ino = Ino(21);

fn held(ino: Ino) -> Handle {
    Handle {
        ino,
        number: (1 << 63) | (2 * ino.0),
    }
}

fn hold(keep: &[Ino], let_go: &[Ino]) -> Action {
    Action::Hold(Hold {
        keep: keep.to_vec(),
        let_go: let_go.to_vec(),
    })
}

fn opened(ino: Ino) -> Handle {
    Handle { ino, number: 10 }
}

/// What is read by a handle by which a session holds a file waits for what the same session takes or lets go of, and not for what another does.
#[test]
fn what_is_held_is_waited_for() {
    let keep = hold(&[OTHER], &[]);
    // It may delete a file that lingers.
    let look = Action::GetAttr(Target::Ino(FILE));
    assert!(waits((MINE, NO_SWEEP, &keep), (ANOTHERS, &look)));
    let held = lock(held(FILE), true);
    assert!(waits((MINE, NO_SWEEP, &keep), (MINE, &held)));
    assert!(!waits((MINE, NO_SWEEP, &keep), (ANOTHERS, &held)));
    assert!(!waits(
        (MINE, NO_SWEEP, &keep),
        (MINE, &lock(opened(FILE), true))
    ));
}

/// What is let go of gives its locks back, whosoever looks at them.
#[test]
fn locks_wait_for_what_is_let_go() {
    let lock = lock(opened(FILE), true);
    for (let_go, expected) in [(&[][..], false), (&[FILE][..], true)] {
        let hold = hold(&[], let_go);
        assert_eq!(waits((MINE, NO_SWEEP, &hold), (ANOTHERS, &lock)), expected);
    }
}

/// Some of all changes may delete files that linger: who looks for any object waits for them, and for no other change of another object.
#[test]
fn whoever_sweeps_is_waited_for() {
    let change = Action::SetAttr(crate::common::set_attr(Target::Ino(OTHER)));
    let look = Action::GetAttr(Target::Ino(FILE));
    assert!(waits((MINE, 64, &change), (ANOTHERS, &look)));
    assert!(!waits((MINE, NO_SWEEP, &change), (ANOTHERS, &look)));
    // Of writes one in 4,096 does it for each 16 KiB, whoever else does at that time.
    for (len, first_that_does_not) in [
        (0, 1),
        (1, 1),
        (4096, 1),
        (16 << 10, 1),
        ((16 << 10) + 1, 2),
        (1 << 20, 64),
    ] {
        let write = Action::Write(Write {
            target: Target::Ino(OTHER),
            place: Place::At(0),
            data: vec![7; len].into(),
        });
        for now in [0, 1, 2, 63, 64, 128] {
            let expected = now < first_that_does_not;
            let waits = waits((MINE, 4096 + now, &write), (ANOTHERS, &look));
            assert_eq!(waits, expected, "{len} bytes at {now}");
        }
    }
    let name = bytes::Bytes::from_static(b"a");
    let parent = Ino::ROOT;
    for sweeps in [
        Action::Ping(Nothing),
        Action::Unlink(Unlink {
            parent,
            name: name.clone(),
        }),
        Action::Rmdir(Rmdir { parent, name }),
    ] {
        assert!(
            waits((MINE, NO_SWEEP, &sweeps), (ANOTHERS, &look)),
            "{sweeps:?}"
        );
    }
}

/// With its last handle a file may go.
#[test]
fn whoever_looks_for_a_file_waits_for_its_release() {
    let release = Action::Release(opened(FILE));
    let look = |ino| Action::GetAttr(Target::Ino(ino));
    assert!(waits((MINE, NO_SWEEP, &release), (ANOTHERS, &look(FILE))));
    assert!(!waits((MINE, NO_SWEEP, &release), (ANOTHERS, &look(OTHER))));
}
