//! Whether a snapshot is what its tree says.

use alloc::format;
use alloc::vec;
use core::ops::Bound;

use bytes::Bytes;
use quorate_wire::Digest;
use quorate_wire::digest::Content;

use super::{Node, child_path, decode_own, digest, empty_root, missing};
use crate::snapshot::{Fault, Snapshot};

/// Entries that are read at a time: their values may be long.
const PAGE: usize = 16;

/// Reads the whole snapshot and recomputes its tree from the values up; gives the root. For comparisons: a
/// replica that recovers looks at each piece on its way instead ([`look`](crate::transfer::look)).
///
/// Takes time in proportion to the state. Memory stays small.
///
/// # Errors
/// [`Fault`] where the store fails, or entries and tree do not agree.
pub fn check(snapshot: &dyn Snapshot) -> Result<Digest, Fault> {
    let Some(bytes) = snapshot.node(&[])? else {
        return match count_entries(snapshot)? {
            0 => Ok(empty_root()),
            _ => Err(missing(&[])),
        };
    };
    let root = digest(&bytes);
    let mut listed = 0_u64;
    let mut total = None;
    let mut todo = vec![(Bytes::new(), root, None)];
    while let Some((path, expected, count)) = todo.pop() {
        let bytes = snapshot.node(&path)?.ok_or_else(|| missing(&path))?;
        let found = digest(&bytes);
        let node = decode_own(&path, bytes)?;
        total = total.or(Some(node.count()));
        if found != expected || count.is_some_and(|count| count != node.count()) {
            return Err(Fault::Tree(format!(
                "the tree's node at {path:?} does not match its parent"
            )));
        }
        match node {
            Node::Inner(children) => todo.extend(children.iter().map(|child| {
                let path = child_path(&path, child.byte);
                (path, child.digest, Some(child.count))
            })),
            Node::Leaf(entries) => {
                for entry in entries {
                    let value = snapshot.get(&entry.key)?;
                    let value = value.map(|value| Digest::of(Content::StateValue, &value));
                    if value != Some(entry.value) {
                        let key = entry.key;
                        return Err(Fault::Tree(format!(
                            "the value of {key:?} does not match the tree"
                        )));
                    }
                    listed += 1;
                }
            }
        }
    }
    // All that is listed is there; as many as are listed leave no room for others.
    if count_entries(snapshot)? != listed || total != Some(listed) {
        return Err(Fault::Tree(
            "there are entries that the tree does not list".into(),
        ));
    }
    Ok(root)
}

fn count_entries(snapshot: &dyn Snapshot) -> Result<u64, Fault> {
    let mut count = 0;
    let mut last: Option<Bytes> = None;
    loop {
        let from = match &last {
            Some(key) => Bound::Excluded(&key[..]),
            None => Bound::Unbounded,
        };
        let page = snapshot.range(from, Bound::Unbounded, PAGE)?;
        count += page.len() as u64;
        match page.into_iter().next_back() {
            Some((key, _)) => last = Some(key),
            None => return Ok(count),
        }
    }
}
