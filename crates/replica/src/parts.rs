//! What a replica holds in memory, so far as it is counted.

use alloc::vec::Vec;

use quorate_agreement::{Memory, Part};

use crate::replica::{MAX_LAYERS, Replica};

impl<S> Replica<S> {
    /// What of it has a bound of its own. It looks at everything, so it is for tests.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = self.agreement.parts();
        parts.extend(self.reads.parts());
        parts.extend(self.bundles.parts());
        parts.extend([self.asks.part(), self.clients.part()]);
        let layers = Part::new(
            "layers on their way to the store",
            self.in_store,
            MAX_LAYERS,
        );
        parts.push(layers);
        parts
    }

    /// What this replica's agreement holds.
    pub fn memory(&self) -> Memory {
        self.agreement.memory()
    }
}
