//! Layers of writes over a snapshot.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;
use quorate_wire::Seq;

use crate::snapshot::{Fault, Snapshot};

/// Writes over whatever is below: `None` deletes.
pub type Layer = BTreeMap<Bytes, Option<Bytes>>;

/// The state as execution sees it: writes that may be undone, over the writes since the last checkpoint, over layers that
/// are on their way to the store, over the store's newest snapshot.
#[derive(Debug)]
pub struct State {
    /// The overlay of tentative execution, while there is one.
    tentative: Option<Layer>,
    current: Layer,
    /// Frozen layers, oldest first, each with its checkpoint.
    frozen: VecDeque<(Seq, Arc<Layer>)>,
    base: Arc<dyn Snapshot>,
}

impl State {
    /// The state that a snapshot holds.
    pub fn new(base: Arc<dyn Snapshot>) -> State {
        State {
            tentative: None,
            current: Layer::new(),
            frozen: VecDeque::new(),
            base,
        }
    }

    /// From here on writes can be undone together.
    pub fn begin_tentative(&mut self) {
        assert!(self.tentative.is_none(), "one overlay at a time");
        self.tentative = Some(Layer::new());
    }

    /// Keeps what was written since [`State::begin_tentative`].
    pub fn keep_tentative(&mut self) {
        self.current
            .extend(self.tentative.take().into_iter().flatten());
    }

    /// Undoes what was written since [`State::begin_tentative`].
    pub fn drop_tentative(&mut self) {
        self.tentative = None;
    }

    /// Begins an operation.
    pub fn begin(&mut self) -> Txn<'_> {
        Txn {
            state: self,
            writes: Layer::new(),
        }
    }

    /// Freezes the writes since the last checkpoint. The layer goes to the store; reads go on through it until
    /// [`State::stored`] is told that the store has it.
    pub fn freeze(&mut self, checkpoint: Seq) -> Arc<Layer> {
        assert!(
            self.tentative.is_none(),
            "what may be undone is in no checkpoint"
        );
        assert!(
            self.frozen
                .back()
                .is_none_or(|(last, _)| *last < checkpoint)
        );
        let layer = Arc::new(core::mem::take(&mut self.current));
        self.frozen.push_back((checkpoint, layer.clone()));
        layer
    }

    /// The store has written all layers up to `checkpoint`, and `base` is its snapshot after them.
    pub fn stored(&mut self, checkpoint: Seq, base: Arc<dyn Snapshot>) {
        while self
            .frozen
            .front()
            .is_some_and(|(seq, _)| *seq <= checkpoint)
        {
            self.frozen.pop_front();
        }
        self.base = base;
    }

    /// How many layers wait for the store.
    pub fn layers_in_flight(&self) -> usize {
        self.frozen.len()
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        for layer in self.layers_from_top() {
            if let Some(value) = layer.get(key) {
                return Ok(value.clone());
            }
        }
        self.base.get(key)
    }

    fn layers_from_top(&self) -> impl Iterator<Item = &Layer> {
        let frozen = self.frozen.iter().rev().map(|(_, layer)| &**layer);
        self.tentative.iter().chain([&self.current]).chain(frozen)
    }

    /// Entries between two keys with `top` over this state's own layers. Looks at no more than it needs: a short
    /// listing of a large range costs little.
    fn range_under(
        &self,
        top: &Layer,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let mut out = Vec::new();
        if limit == 0 || is_empty_range(from, to) {
            return Ok(out);
        }
        let mut layers: Vec<_> = core::iter::once(top)
            .chain(self.layers_from_top())
            .map(|layer| layer.range::<[u8], _>((from, to)).peekable())
            .collect();
        let mut base = Pages::new(&*self.base, from, to, limit);
        while out.len() < limit {
            let below = base.peek()?.map(|(key, _)| key.clone());
            let heads = layers
                .iter_mut()
                .filter_map(|l| l.peek().map(|(key, _)| (*key).clone()));
            let Some(key) = heads.chain(below).min() else {
                break;
            };
            let mut value = None;
            for layer in &mut layers {
                // The first layer that has the key is the newest; the older ones are passed over.
                if let Some((_, found)) = layer.next_if(|(k, _)| **k == key) {
                    value = value.or(Some(found.clone()));
                }
            }
            if let Some(found) = base.next_if(&key)? {
                value = value.or(Some(Some(found)));
            }
            out.extend(value.flatten().map(|value| (key, value)));
        }
        Ok(out)
    }
}

/// The entries of a snapshot's range, read in pages.
struct Pages<'a> {
    base: &'a dyn Snapshot,
    next: Bound<Bytes>,
    to: Bound<&'a [u8]>,
    size: usize,
    page: VecDeque<(Bytes, Bytes)>,
    is_last: bool,
}

impl<'a> Pages<'a> {
    /// The longest page; a caller may say "no limit".
    const MAX_PAGE: usize = 1024;

    fn new(
        base: &'a dyn Snapshot,
        from: Bound<&[u8]>,
        to: Bound<&'a [u8]>,
        limit: usize,
    ) -> Pages<'a> {
        let (next, size) = (own(from), limit.min(Pages::MAX_PAGE));
        Pages {
            base,
            next,
            to,
            size,
            page: VecDeque::new(),
            is_last: false,
        }
    }

    fn peek(&mut self) -> Result<Option<&(Bytes, Bytes)>, Fault> {
        if self.page.is_empty() && !self.is_last {
            let page = self.base.range(borrow(&self.next), self.to, self.size)?;
            self.is_last = page.len() < self.size;
            if let Some((last, _)) = page.last() {
                self.next = Bound::Excluded(last.clone());
            }
            self.page = page.into();
        }
        Ok(self.page.front())
    }

    fn next_if(&mut self, key: &Bytes) -> Result<Option<Bytes>, Fault> {
        if self.peek()?.is_none_or(|(k, _)| k != key) {
            return Ok(None);
        }
        Ok(self.page.pop_front().map(|(_, value)| value))
    }
}

/// One operation's view of the state, with its own writes on top.
///
/// Dropping it undoes them; [`Txn::commit`] makes them part of the state.
#[derive(Debug)]
pub struct Txn<'a> {
    state: &'a mut State,
    writes: Layer,
}

impl Txn<'_> {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        match self.writes.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.state.get(key),
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
        self.state.range_under(&self.writes, from, to, limit)
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

    /// Makes the writes part of the state.
    pub fn commit(self) {
        // Not `BTreeMap::append`: that rebuilds the whole layer for each operation.
        let State {
            tentative, current, ..
        } = self.state;
        tentative.as_mut().unwrap_or(current).extend(self.writes);
    }
}

fn own(bound: Bound<&[u8]>) -> Bound<Bytes> {
    bound.map(Bytes::copy_from_slice)
}

fn borrow(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Whether no key lies between two bounds; `BTreeMap::range` panics on some of these.
pub(crate) fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}
