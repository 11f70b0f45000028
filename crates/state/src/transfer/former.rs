//! The state that a replica had before and believes as little as a donor's: it is near, and most of it is right.
//!
//! A replica that recovers does not trust its own pages (PBFT 2002, 5.3.3). So it fetches the whole state, and looks for each piece at
//! home first; what is found there is checked as any donor's piece is. Nothing in the old store says what may be left out.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use quorate_wire::Digest;

use super::diff::{Above, NodeWant, ValueWant};
use super::fetcher::{Fetcher, check_node};
use super::{FORMER_TIMEOUT_MS, MAX_KEYS, REPLY_BYTES};
use crate::snapshot::{Fault, Snapshot};

/// The most names in a lookup.
const MAX_NAMES: usize = 256;
/// The most lookups that wait. Half of them may be read at once, since a disk gives more to several readers; the others are checked
/// meanwhile. Each has about [`REPLY_BYTES`].
pub const LOOKUPS: usize = 8;

/// What is looked for in the former state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Comes back with what is found.
    pub number: u64,
    /// The paths of nodes, or the keys of values.
    pub names: Names,
}

/// Names of pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Paths of nodes.
    Nodes(Vec<Bytes>),
    /// Keys of values.
    Values(Vec<Bytes>),
}

/// What was found; for as many of the names as were looked for, in their order.
#[derive(Clone, Debug)]
pub struct Found {
    /// The lookup's.
    pub number: u64,
    /// May be fewer than names.
    pub pieces: Vec<Piece>,
}

/// One piece of the former state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A node of the tree as it is there. It keeps no other bytes alive: it is held until it is stored.
    Node(Bytes),
    /// A value, likewise, with its digest: taken where it was read, from the bytes themselves.
    Value(Bytes, Digest),
    /// There is none of that name.
    None,
    /// The store says itself that it is damaged.
    Damaged,
}

/// What came of looking at home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pieces that were right.
    pub right: u64,
    /// Bytes of them.
    pub right_bytes: u64,
    /// Pieces that were another, or not there: changed since, or by somebody.
    pub differing: u64,
    /// Pieces that the store itself knew to be damaged.
    pub damaged: u64,
}

/// Looks for pieces: what the driver does with a [`Lookup`], on a thread of its own. A store that fails is one that is damaged.
pub fn look(snapshot: &dyn Snapshot, lookup: &Lookup) -> Found {
    let (number, mut pieces, mut bytes) = (lookup.number, Vec::new(), 0);
    let mut keep = |found: Result<Option<Piece>, Fault>| {
        let piece = match found {
            Ok(piece) => piece.unwrap_or(Piece::None),
            Err(_) => Piece::Damaged,
        };
        if let Piece::Node(piece) | Piece::Value(piece, _) = &piece {
            bytes += piece.len();
        }
        pieces.push(piece);
        bytes < REPLY_BYTES
    };
    let node = |path| Ok(snapshot.node(path)?.map(Piece::Node));
    let value = |key| {
        let found = snapshot.get_hashed(key)?;
        Ok(found.map(|(value, digest)| Piece::Value(value, digest)))
    };
    match &lookup.names {
        Names::Nodes(paths) => paths.iter().all(|path| keep(node(path))),
        Names::Values(keys) => keys.iter().all(|key| keep(value(key))),
    };
    Found { number, pieces }
}

/// What waits to be found at home.
#[derive(Debug)]
pub(super) enum Looked {
    Nodes(Vec<NodeWant>),
    Values(Vec<ValueWant>),
}

/// The lookups that wait.
#[derive(Debug, Default)]
pub(super) struct Former {
    next: u64,
    waiting: BTreeMap<u64, (u64, Looked)>,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            right: self.right + other.right,
            right_bytes: self.right_bytes + other.right_bytes,
            differing: self.differing + other.differing,
            damaged: self.damaged + other.damaged,
        }
    }
}

impl Former {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < LOOKUPS
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Looks for the last of a list.
    pub(super) fn nodes(&mut self, now: u64, list: &mut Vec<NodeWant>) -> Lookup {
        let wants = list.split_off(list.len().saturating_sub(MAX_NAMES));
        let names = wants.iter().map(|want| want.path.clone()).collect();
        self.ask(now, Names::Nodes(names), Looked::Nodes(wants))
    }

    /// As [`Former::nodes`].
    pub(super) fn values(&mut self, now: u64, list: &mut Vec<ValueWant>) -> Lookup {
        let wants = list.split_off(list.len().saturating_sub(MAX_NAMES));
        let names = wants.iter().map(|want| want.key.clone()).collect();
        self.ask(now, Names::Values(names), Looked::Values(wants))
    }

    fn ask(&mut self, now: u64, names: Names, looked: Looked) -> Lookup {
        let number = self.next;
        self.next += 1;
        let until = now.saturating_add(FORMER_TIMEOUT_MS);
        self.waiting.insert(number, (until, looked));
        Lookup { number, names }
    }

    /// What a lookup was for; `None` for one that does not wait. As long as some come back, however slowly, the others are waited for.
    pub(super) fn settle(&mut self, now: u64, number: u64) -> Option<Looked> {
        let (_, looked) = self.waiting.remove(&number)?;
        let until = now.saturating_add(FORMER_TIMEOUT_MS);
        self.waiting.values_mut().for_each(|(at, _)| *at = until);
        Some(looked)
    }

    /// When the first lookup has waited too long.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.waiting.values().map(|(until, _)| *until).min()
    }

    /// All that waits, when it is given up.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Looked> {
        core::mem::take(&mut self.waiting)
            .into_values()
            .map(|(_, looked)| looked)
    }

    pub(super) fn waiting_nodes(&self) -> impl Iterator<Item = &Bytes> {
        let nodes = self
            .waiting
            .values()
            .filter_map(|(_, looked)| match looked {
                Looked::Nodes(wants) => Some(wants),
                Looked::Values(_) => None,
            });
        nodes.flatten().map(|want| &want.path)
    }
}

impl Fetcher {
    /// Looks for each piece in the state that this replica had before; donors are asked for what is not right there. Each fetcher of
    /// a replica has a `round` of its own, so that what an earlier one looked for is not taken for what this one looks for.
    pub fn look_at_home_first(&mut self, round: u32) {
        self.former = Some(Former {
            next: u64::from(round) << 32,
            ..Former::default()
        });
        self.diff.look_at_home_first();
    }

    /// What came of looking in the former state.
    pub fn former_counts(&self) -> Counts {
        self.counts
    }

    /// What to look for in the former state next; [`Fetcher::found`] takes what is found. To be called until it gives nothing.
    pub fn look_up(&mut self) -> Option<Lookup> {
        let is_full = self.diff.is_full();
        let (former, near) = (self.former.as_mut()?, self.diff.near.as_mut()?);
        if !former.has_room() {
            return None;
        }
        if !near.values.is_empty() && !is_full {
            return Some(former.values(self.now, &mut near.values));
        }
        // Nodes would only bring more values.
        let enough = near.values.len() >= MAX_KEYS;
        (!enough && !near.nodes.is_empty()).then(|| former.nodes(self.now, &mut near.nodes))
    }

    /// What was found in the former state.
    ///
    /// # Errors
    /// [`Fault`] where the own store fails.
    pub fn found(&mut self, now: u64, found: Found) -> Result<(), Fault> {
        self.now = self.now.max(now);
        let Some(former) = &mut self.former else {
            return Ok(());
        };
        match former.settle(self.now, found.number) {
            None => Ok(()),
            Some(Looked::Nodes(wants)) => self.found_nodes(wants, found.pieces),
            Some(Looked::Values(wants)) => {
                self.found_values(wants, found.pieces);
                Ok(())
            }
        }
    }

    fn found_nodes(&mut self, wants: Vec<NodeWant>, pieces: Vec<Piece>) -> Result<(), Fault> {
        let mut pieces = pieces.into_iter();
        for want in wants {
            let piece = pieces.next();
            let looked = piece.is_some();
            let node = match self.here(piece) {
                Some(Piece::Node(bytes)) => {
                    check_node(&want, bytes.clone()).map(|node| (bytes, node))
                }
                _ => None,
            };
            match (node, &mut self.diff.near) {
                (Some((bytes, node)), _) => {
                    self.count_right(bytes.len());
                    let above = Above::new(&bytes, want.above);
                    self.diff.compare(&want.path, node, Some(&above))?;
                }
                (None, Some(near)) if !looked => near.nodes.push(want),
                (None, _) => self.diff.nodes.push(want),
            }
        }
        Ok(())
    }

    fn found_values(&mut self, wants: Vec<ValueWant>, pieces: Vec<Piece>) {
        let mut pieces = pieces.into_iter();
        for want in wants {
            let piece = pieces.next();
            let looked = piece.is_some();
            let value = match self.here(piece) {
                Some(Piece::Value(value, digest)) if digest == want.digest => Some(value),
                _ => None,
            };
            match (value, &mut self.diff.near) {
                (Some(value), _) => {
                    self.count_right(value.len());
                    self.diff.put_own(want.key, value);
                }
                (None, Some(near)) if !looked => near.values.push(want),
                (None, _) => self.diff.values.push(want),
            }
        }
    }

    /// A piece of the former state, which is counted as differing until it is known to be right.
    fn here(&mut self, piece: Option<Piece>) -> Option<Piece> {
        match &piece {
            Some(Piece::Node(_) | Piece::Value(..) | Piece::None) => self.counts.differing += 1,
            Some(Piece::Damaged) => self.counts.damaged += 1,
            None => {}
        }
        piece
    }

    fn count_right(&mut self, bytes: usize) {
        self.counts.differing -= 1;
        self.counts.right += 1;
        self.counts.right_bytes += bytes as u64;
    }

    /// Uses the former state no more: what was looked for there, donors are asked for.
    pub(super) fn leave_home(&mut self) {
        let Some(mut former) = self.former.take() else {
            return;
        };
        for looked in former.give_up() {
            match looked {
                Looked::Nodes(wants) => self.diff.nodes.extend(wants),
                Looked::Values(wants) => self.diff.values.extend(wants),
            }
        }
        self.diff.leave_home();
    }
}
