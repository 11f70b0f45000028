//! What a start that came to nothing says of what the replica has on its disk.

use quorate_node::daemon::ground::Keep;

/// What may be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing of the replica's.
    Elsewhere,
    /// Its state, at the most.
    State,
    /// Anything that it has.
    Anything,
}

impl Fault {
    /// How much the next start is to have, after one that had so much. The state goes first: the others have it as well, but what a replica has told them
    /// stands in its log alone.
    pub fn leaves(self, had: Keep) -> Keep {
        match (self, had) {
            (Fault::Elsewhere, had) => had,
            (_, Keep::All) => Keep::NoState,
            (Fault::State, had) => had,
            (Fault::Anything, _) => Keep::Nothing,
        }
    }
}
