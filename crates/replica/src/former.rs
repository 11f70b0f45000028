//! The state that a replica had before, and does not believe, while it recovers: see [`quorate_state::transfer`].

use quorate_execution::Service;
use quorate_state::transfer::Counts;

use crate::io::Output;
use crate::replica::Replica;
use crate::transfer::Transfer;

/// The state that this replica had before, while it recovers.
#[derive(Debug, Default)]
pub(crate) struct Former {
    /// Transfers that have looked into it.
    rounds: u32,
    /// What those found that have ended.
    counts: Counts,
}

impl Former {
    /// The number of the next transfer that looks into it.
    pub fn next_round(&mut self) -> u32 {
        self.rounds += 1;
        self.rounds
    }
}

impl<S: Service> Replica<S> {
    pub(crate) fn set_transfer(&mut self, next: Transfer) {
        let ended = core::mem::replace(&mut self.transfer, next);
        if let Some(silences) = ended.silences() {
            self.silences = silences;
        }
        if let Some(former) = &mut self.former {
            former.counts = former.counts.and(ended.former_counts());
        }
    }

    /// The state that was set aside has served when this replica does not recover, and has a state. Whether it has just done so.
    pub(crate) fn leave_former(&mut self) -> bool {
        let standing = self.agreement.standing();
        if self.former.is_none() || standing.recovering.is_some() || standing.fetching {
            return false;
        }
        let counts = self.former_counts().unwrap_or_default();
        self.former = None;
        self.out.push_back(Output::Recovered(counts));
        true
    }

    /// What has been found so far in the state that was set aside, while this replica recovers.
    pub fn former_counts(&self) -> Option<Counts> {
        let former = self.former.as_ref()?;
        Some(former.counts.and(self.transfer.former_counts()))
    }
}
