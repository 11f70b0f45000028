//! The table of what operations touch, in docs/files.md, against the operations that there are.

use std::collections::BTreeSet;

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

/// The first cells of the rows that say what operations touch.
fn rows() -> impl Iterator<Item = &'static str> {
    let (_, table) = TABLE.split_once("\n| operation | its run step |").unwrap();
    let rows = table.lines().skip(2).take_while(|l| l.starts_with('|'));
    rows.map(|row| row.split('|').nth(1).unwrap())
}

/// What stands between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Each operation has a row, and no row is about one that is not there. Rows without a name are about all operations of a kind.
#[test]
fn each_operation_has_a_row() {
    let actions = actions();
    assert!(actions.len() >= 44 && actions.contains("Ping"));
    let named: BTreeSet<_> = rows().flat_map(quoted).collect();
    let lack: Vec<_> = actions.difference(&named).collect();
    assert!(lack.is_empty(), "without a row: {lack:?}");
    let unknown: Vec<_> = named.difference(&actions).collect();
    assert!(unknown.is_empty(), "rows about nothing: {unknown:?}");
}
