//! A snapshot in memory, for tests, the simulator and the genesis state.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;

use quorate_wire::Digest;

use crate::layers::Layer;
use crate::snapshot::{Fault, Snapshot};
use crate::tree;

/// A snapshot that is two ordered maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// The state's entries.
    pub entries: BTreeMap<Bytes, Bytes>,
    /// The partition tree's nodes by path.
    pub nodes: BTreeMap<Bytes, Bytes>,
}

impl MemorySnapshot {
    /// This state after `delta`, with its tree, and the new root digest. Entries are shared, not copied; the cost
    /// is one reference for each.
    ///
    /// # Errors
    /// [`Fault`] where this snapshot's tree does not fit its entries.
    pub fn apply(&self, delta: &Layer) -> Result<(MemorySnapshot, Digest), Fault> {
        let update = tree::update(self, delta, |_| None)?;
        let mut after = self.clone();
        write(&mut after.entries, delta);
        write(&mut after.nodes, &update.nodes);
        Ok((after, update.root))
    }
}

fn write(map: &mut BTreeMap<Bytes, Bytes>, changes: &Layer) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.entries.get(key).cloned())
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        if crate::merge::is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        let range = self.entries.range::<[u8], _>((from, to));
        Ok(range
            .take(limit)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect())
    }

    fn keys(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        if crate::merge::is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        let range = self.entries.range::<[u8], _>((from, to));
        Ok(range.take(limit).map(|(k, _)| k.clone()).collect())
    }

    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.nodes.get(path).cloned())
    }
}
