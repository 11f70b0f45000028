//! The state transfer of a replica that has fallen behind or whose state is damaged: between the fetcher and the store.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_state::transfer::{Counts, Fetcher, Found, Lie, Lookup, Silences, Target};
use quorate_state::{Fault, Layer, Snapshot};
use quorate_wire::message::StateMessage;
use quorate_wire::{Digest, ReplicaId, Seq};

/// Where a transfer stands.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// None goes on.
    Idle,
    /// The state can't be read, and agreement is about to say which one to go to.
    Doubted,
    /// Layers written before are still on their way to the store.
    Draining(Target),
    /// The fetcher is at work; `storing` while the store has a piece of it, `last` if that piece completes the state.
    Running {
        fetcher: Box<Fetcher>,
        storing: bool,
        last: bool,
    },
}

/// A piece of the state to be written.
#[derive(Debug)]
pub(crate) struct Piece {
    pub seq: Seq,
    pub complete: bool,
    pub layer: Arc<Layer>,
}

impl Transfer {
    pub fn is_idle(&self) -> bool {
        matches!(self, Transfer::Idle)
    }

    pub fn is_doubted(&self) -> bool {
        matches!(self, Transfer::Doubted)
    }

    /// `silences`: of donors, in transfers of this replica before; `lookups`: there is a former state, in which they have looked so many times.
    pub fn begin(
        target: Target,
        base: Arc<dyn Snapshot>,
        donors: impl IntoIterator<Item = ReplicaId>,
        silences: &Silences,
        lookups: Option<u32>,
    ) -> Result<Transfer, Fault> {
        let mut fetcher = Fetcher::new(target, base, donors)?;
        fetcher.mistrust(silences);
        if let Some(first) = lookups {
            fetcher.look_at_home_first(first);
        }
        Ok(Transfer::Running {
            fetcher: Box::new(fetcher),
            storing: false,
            last: false,
        })
    }

    pub fn handle(
        &mut self,
        now: u64,
        from: ReplicaId,
        message: StateMessage,
    ) -> Result<(), Fault> {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.handle(now, from, message),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => Ok(()),
        }
    }

    /// What to look for in the former state.
    pub fn look_up(&mut self) -> Option<Lookup> {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.look_up(),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => None,
        }
    }

    pub fn found(&mut self, now: u64, found: Found) -> Result<(), Fault> {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.found(now, found),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => Ok(()),
        }
    }

    /// What this transfer has found in the former state.
    pub fn former_counts(&self) -> Counts {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.former_counts(),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => Counts::default(),
        }
    }

    /// What donors sent since the last time that is not in the state.
    pub fn take_lies(&mut self) -> Vec<Lie> {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.take_lies(),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => Vec::new(),
        }
    }

    /// What to send, and a piece to store if one is ready.
    #[allow(clippy::type_complexity)]
    pub fn poll(
        &mut self,
        now: u64,
    ) -> Result<(Vec<(ReplicaId, StateMessage)>, Option<Piece>), Fault> {
        let Transfer::Running {
            fetcher,
            storing,
            last,
        } = self
        else {
            return Ok((Vec::new(), None));
        };
        let messages = fetcher.poll(now)?;
        if *storing {
            return Ok((messages, None));
        }
        let chunk = fetcher.take_chunk()?;
        if chunk.is_none() && !fetcher.is_done() {
            return Ok((messages, None));
        }
        *storing = true;
        *last = fetcher.is_done();
        let piece = Piece {
            seq: fetcher.target().checkpoint,
            complete: *last,
            layer: Arc::new(chunk.unwrap_or_default()),
        };
        Ok((messages, Some(piece)))
    }

    /// The donors that have left requests unanswered, if a transfer runs.
    pub fn silences(&self) -> Option<Silences> {
        match self {
            Transfer::Running { fetcher, .. } => Some(fetcher.silences()),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => None,
        }
    }

    /// It goes on to another target: what it has gathered, to be stored.
    pub fn leave(&mut self) -> Option<Piece> {
        let Transfer::Running { fetcher, .. } = self else {
            return None;
        };
        let layer = fetcher.leave()?;
        Some(Piece {
            seq: fetcher.target().checkpoint,
            complete: false,
            layer: Arc::new(layer),
        })
    }

    /// The store has a piece; the target if that was the last one.
    pub fn stored(&mut self) -> Option<Target> {
        let Transfer::Running {
            fetcher,
            storing,
            last,
        } = self
        else {
            return None;
        };
        *storing = false;
        last.then(|| fetcher.target())
    }

    pub fn is_storing(&self) -> bool {
        matches!(self, Transfer::Running { storing: true, .. })
    }

    pub fn is_unavailable(&self) -> bool {
        matches!(self, Transfer::Running { fetcher, .. } if fetcher.is_unavailable())
    }

    pub fn next_timeout(&self) -> Option<u64> {
        match self {
            Transfer::Running { fetcher, .. } => fetcher.next_timeout(),
            Transfer::Idle | Transfer::Doubted | Transfer::Draining(_) => None,
        }
    }
}

/// The target for a certified checkpoint.
pub(crate) fn target(seq: Seq, root: Digest) -> Target {
    Target {
        checkpoint: seq,
        root,
    }
}
