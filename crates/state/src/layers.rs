//! Layers of writes over a snapshot.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::Seq;

use crate::levels::Levels;
use crate::snapshot::{Fault, Snapshot, Summary};

/// Writes over whatever is below: `None` deletes.
pub type Layer = BTreeMap<Bytes, Option<Bytes>>;

/// One line of history: states that came of each other by operations and by nothing else. It ends where operations are undone, or
/// a state is put in place of another; so in one line whatever only rises says how far it has come. Means nothing outside of this
/// process, and must not come into any result.
#[derive(Clone, Debug)]
pub struct Lineage(Arc<()>);

impl Lineage {
    fn begin() -> Lineage {
        Lineage(Arc::new(()))
    }
}

/// By identity. Who keeps one keeps its number from being used again.
impl PartialEq for Lineage {
    fn eq(&self, other: &Lineage) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Lineage {}

/// A layer that writes can still go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The overlay of tentative execution.
    Tentative,
    /// An open layer; the oldest is 0.
    Open(usize),
}

/// The state as execution sees it: writes that may be undone, over open layers with the writes since the last checkpoint, over
/// layers that are on their way to the store, over the store's newest snapshot.
///
/// There is one open layer where operations are executed one after the other. Where they are executed out of order there
/// can be more: one for each checkpoint that waits for operations before it. What is read is the same wherever a key was written,
/// since operations that touch the same keys keep their order.
#[derive(Debug)]
pub struct State {
    /// The overlay of tentative execution, while there is one.
    tentative: Option<Levels>,
    /// Oldest first; never empty.
    open: VecDeque<Levels>,
    /// Frozen layers, oldest first, each with its checkpoint.
    frozen: VecDeque<(Seq, Arc<Layer>)>,
    base: Arc<dyn Snapshot>,
    /// The last view, while it is true.
    view: Option<View>,
    lineage: Lineage,
}

impl State {
    /// The state that a snapshot holds.
    pub fn new(base: Arc<dyn Snapshot>) -> State {
        State {
            tentative: None,
            open: [Levels::default()].into(),
            frozen: VecDeque::new(),
            base,
            view: None,
            lineage: Lineage::begin(),
        }
    }

    /// Which history this is.
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// From here on writes can be undone together.
    pub fn begin_tentative(&mut self) {
        assert!(self.tentative.is_none(), "one overlay at a time");
        self.tentative = Some(Levels::default());
    }

    /// Keeps what was written since [`State::begin_tentative`].
    pub fn keep_tentative(&mut self) {
        self.view = None;
        if let Some(overlay) = self.tentative.take() {
            self.write(self.newest_place(), overlay.into_layer());
        }
    }

    /// Undoes what was written since [`State::begin_tentative`].
    pub fn drop_tentative(&mut self) {
        self.view = None;
        self.tentative = None;
        self.lineage = Lineage::begin();
    }

    /// Where the writes of the newest operation belong.
    pub fn newest_place(&self) -> Place {
        match self.tentative {
            Some(_) => Place::Tentative,
            None => Place::Open(self.open.len() - 1),
        }
    }

    pub(crate) fn write(&mut self, place: Place, writes: Layer) {
        if writes.is_empty() {
            return;
        }
        // Before the write: what nobody else reads need not be copied.
        self.view = None;
        let layer = match place {
            Place::Tentative => self.tentative.as_mut(),
            Place::Open(at) => self.open.get_mut(at),
        };
        let layer = layer.unwrap_or_else(|| panic!("no layer {place:?} to write to"));
        layer.extend(writes);
    }

    /// The newest open layer gets no more operations: those after it write to a new one. Operations before may still write
    /// to it.
    pub fn close(&mut self) {
        assert!(
            self.tentative.is_none(),
            "what may be undone is in no checkpoint"
        );
        self.open.push_back(Levels::default());
    }

    /// Freezes the oldest open layer: all writes up to a checkpoint. The layer goes to the store; reads go on through it until
    /// [`State::stored`] is told that the store has it.
    pub fn freeze(&mut self, checkpoint: Seq) -> Arc<Layer> {
        assert!(
            self.tentative.is_none() || self.open.len() > 1,
            "what may be undone is in no checkpoint"
        );
        assert!(
            self.frozen
                .back()
                .is_none_or(|(last, _)| *last < checkpoint)
        );
        self.view = None;
        let oldest = self.open.pop_front().unwrap_or_default();
        if self.open.is_empty() {
            self.open.push_back(Levels::default());
        }
        let layer = Arc::new(oldest.into_layer());
        self.frozen.push_back((checkpoint, layer.clone()));
        layer
    }

    /// The store has written all layers up to `checkpoint`, and `base` is its snapshot after them.
    pub fn stored(&mut self, checkpoint: Seq, base: Arc<dyn Snapshot>) {
        self.view = None;
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
        match newest(self.layers_from_top(), key) {
            Some(value) => Ok(value.clone()),
            None => self.base.get(key),
        }
    }

    /// The length and digest of a key's value.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        summary(self.layers_from_top(), self.base(), key)
    }

    /// The state as it is now, to be read while it goes on: from other threads, without a lock.
    pub fn view(&mut self) -> View {
        let State {
            tentative,
            open,
            frozen,
            base,
            view,
            lineage,
        } = self;
        let view = view.get_or_insert_with(|| {
            let growing = tentative.iter_mut().chain(open.iter_mut().rev());
            let mut layers: Vec<_> = growing.flat_map(Levels::share).collect();
            layers.extend(frozen.iter().rev().map(|(_, layer)| layer.clone()));
            let base = base.clone();
            let lineage = lineage.clone();
            View(Arc::new(Seen {
                layers,
                base,
                lineage,
            }))
        });
        view.clone()
    }

    pub(crate) fn base(&self) -> &dyn Snapshot {
        &*self.base
    }

    /// The layers from one that is still written to downwards.
    pub(crate) fn layers_from(&self, place: Place) -> impl Iterator<Item = &Layer> {
        let above = match place {
            Place::Tentative => 0,
            Place::Open(at) => {
                let above = self.open.range(at + 1..);
                above.chain(&self.tentative).map(|l| l.iter().count()).sum()
            }
        };
        self.layers_from_top().skip(above)
    }

    pub(crate) fn layers_from_top(&self) -> impl Iterator<Item = &Layer> {
        let growing = self.tentative.iter().chain(self.open.iter().rev());
        let frozen = self.frozen.iter().rev().map(|(_, layer)| &**layer);
        growing.flat_map(Levels::iter).chain(frozen)
    }
}

/// The state at one moment. Never changes; clones share it.
#[derive(Clone, Debug)]
pub struct View(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    /// Newest first.
    layers: Vec<Arc<Layer>>,
    base: Arc<dyn Snapshot>,
    lineage: Lineage,
}

impl View {
    /// The history that it is a moment of.
    pub fn lineage(&self) -> &Lineage {
        &self.0.lineage
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        match newest(self.layers_from_top(), key) {
            Some(value) => Ok(value.clone()),
            None => self.base().get(key),
        }
    }

    /// The length and digest of a key's value.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        summary(self.layers_from_top(), self.base(), key)
    }

    pub(crate) fn base(&self) -> &dyn Snapshot {
        &*self.0.base
    }

    pub(crate) fn layers_from_top(&self) -> impl Iterator<Item = &Layer> {
        self.0.layers.iter().map(|layer| &**layer)
    }
}

/// What the layers have under a key; `None` where none has it.
fn newest<'a>(
    mut layers: impl Iterator<Item = &'a Layer>,
    key: &[u8],
) -> Option<&'a Option<Bytes>> {
    layers.find_map(|layer| layer.get(key))
}

fn summary<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    base: &dyn Snapshot,
    key: &[u8],
) -> Result<Option<Summary>, Fault> {
    match newest(layers, key) {
        Some(value) => Ok(value.as_deref().map(Summary::of)),
        None => base.summary(key),
    }
}
