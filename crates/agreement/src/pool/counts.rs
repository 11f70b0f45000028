//! How much there is.

use alloc::collections::BTreeMap;

use quorate_wire::ClientId;

use super::{Entry, Pool};
use crate::turns::charge;

impl Pool {
    /// How many requests are known here, open or not, and their weight.
    pub fn held(&self) -> (usize, usize) {
        let weights = self.entries.values().map(|e| e.request().weight());
        (self.entries.len(), weights.sum())
    }

    /// What the requests are charged that wait and that no batch in the log names: those of the client with most, and all.
    pub fn charged_beside_log(&self) -> (usize, usize) {
        let mut of_client: BTreeMap<ClientId, usize> = BTreeMap::new();
        let waits = |e: &&Entry| e.authentic && e.is_waiting() && !e.in_log;
        for entry in self.entries.values().filter(waits) {
            let request = entry.request();
            *of_client.entry(request.client()).or_default() += charge(request.weight());
        }
        let most = of_client.values().max().copied().unwrap_or(0);
        (most, of_client.values().sum())
    }
}
