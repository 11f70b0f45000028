//! One operation's reads and writes.

use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;

use crate::layers::{Layer, Lineage, Place, State, View};
use crate::merge;
use crate::snapshot::{Fault, Summary};

/// One operation's view of the state, with its own writes on top.
///
/// Dropping it undoes them; [`Txn::commit`] makes them part of the state.
#[derive(Debug)]
pub struct Txn<'a> {
    ground: Ground<'a>,
    writes: Layer,
}

#[derive(Debug)]
enum Ground<'a> {
    State(&'a mut State, Place),
    View(&'a View),
}

impl State {
    /// Begins an operation whose writes go into the newest layer.
    pub fn begin(&mut self) -> Txn<'_> {
        let place = self.newest_place();
        self.begin_at(place, Layer::new())
    }

    /// Goes on with an operation that has written something already, and whose writes belong into a certain layer.
    pub fn begin_at(&mut self, place: Place, writes: Layer) -> Txn<'_> {
        let ground = Ground::State(self, place);
        Txn { ground, writes }
    }
}

impl View {
    /// Begins an operation whose writes are taken out with [`Txn::into_writes`].
    pub fn begin(&self) -> Txn<'_> {
        let (ground, writes) = (Ground::View(self), Layer::new());
        Txn { ground, writes }
    }
}

impl Txn<'_> {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        match (self.writes.get(key), &self.ground) {
            (Some(value), _) => Ok(value.clone()),
            (None, Ground::State(state, _)) => state.get(key),
            (None, Ground::View(view)) => view.get(key),
        }
    }

    /// The length and digest of a key's value: a large one need not be read for that.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        match (self.writes.get(key), &self.ground) {
            (Some(value), _) => Ok(value.as_deref().map(Summary::of)),
            (None, Ground::State(state, _)) => state.summary(key),
            (None, Ground::View(view)) => view.summary(key),
        }
    }

    /// Which history it reads. Its own writes are not part of any yet.
    pub fn lineage(&self) -> &Lineage {
        match &self.ground {
            Ground::State(state, _) => state.lineage(),
            Ground::View(view) => view.lineage(),
        }
    }

    /// Up to `limit` entries between two keys, in rising order.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let top = core::iter::once(&self.writes);
        match &self.ground {
            Ground::State(state, _) => {
                let layers = top.chain(state.layers_from_top());
                merge::range(layers, state.base(), from, to, limit)
            }
            Ground::View(view) => {
                let layers = top.chain(view.layers_from_top());
                merge::range(layers, view.base(), from, to, limit)
            }
        }
    }

    /// The keys of these entries. No value is read.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn keys(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        let top = core::iter::once(&self.writes);
        match &self.ground {
            Ground::State(state, _) => {
                let layers = top.chain(state.layers_from_top());
                merge::keys(layers, state.base(), from, to, limit)
            }
            Ground::View(view) => {
                let layers = top.chain(view.layers_from_top());
                merge::keys(layers, view.base(), from, to, limit)
            }
        }
    }

    /// The same as the layer has it that the writes belong into, without what lies above that.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn range_in_place(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        match &self.ground {
            Ground::State(state, place) => {
                let top = core::iter::once(&self.writes);
                let layers = top.chain(state.layers_from(*place));
                merge::range(layers, state.base(), from, to, limit)
            }
            Ground::View(_) => self.range(from, to, limit),
        }
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: Bytes, value: Bytes) {
        self.writes.insert(key, Some(value));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Bytes) {
        self.writes.insert(key, None);
    }

    /// What the operation has written so far.
    pub fn writes(&self) -> &Layer {
        &self.writes
    }

    /// Undoes the writes so far.
    pub fn rollback(&mut self) {
        self.writes.clear();
    }

    /// Ends the operation without making its writes part of the state, and hands them out.
    pub fn into_writes(self) -> Layer {
        self.writes
    }

    /// Makes the writes part of the state. A view has no such end: it never changes.
    pub fn commit(self) {
        match self.ground {
            Ground::State(state, place) => state.write(place, self.writes),
            Ground::View(_) => panic!("a view never changes"),
        }
    }
}
