//! A layer that grows while others read what it was before.
//!
//! Writes go into the top level, which nobody else sees. When a view of the state is wanted, the top is sealed: from then on
//! it is shared and does not change, and a new top begins. Sealed levels are merged as they come to be of one size, so that there are
//! few of them (the logarithm of the entries), and an entry is moved as many times at most. A layer of which nobody has
//! wanted a view is one map.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::layers::Layer;

/// The levels of a layer that grows.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    top: Layer,
    /// Oldest first, each with more entries than the next.
    sealed: Vec<Arc<Layer>>,
}

impl Levels {
    pub fn extend(&mut self, writes: Layer) {
        // Not `BTreeMap::append`: that rebuilds the whole map for each operation.
        self.top.extend(writes);
    }

    /// All levels, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Layer> {
        core::iter::once(&self.top).chain(self.sealed.iter().rev().map(|level| &**level))
    }

    /// What there is so far, to be read while the layer grows; newest first.
    pub fn share(&mut self) -> impl Iterator<Item = Arc<Layer>> + '_ {
        if !self.top.is_empty() {
            let mut newest = core::mem::take(&mut self.top);
            while let Some(below) = self.sealed.pop_if(|below| below.len() <= newest.len()) {
                newest = merge(below, newest);
            }
            self.sealed.push(Arc::new(newest));
        }
        self.sealed.iter().rev().cloned()
    }

    /// All of it as one map.
    pub fn into_layer(self) -> Layer {
        let below = self.sealed.into_iter().rev();
        below.fold(self.top, |newest, below| merge(below, newest))
    }
}

/// In place, unless somebody reads the older one.
fn merge(below: Arc<Layer>, newer: Layer) -> Layer {
    let mut all = Arc::unwrap_or_clone(below);
    all.extend(newer);
    all
}
