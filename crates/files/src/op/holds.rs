//! Files that a session has open without a handle for each open.

use alloc::vec::Vec;

use quorate_wire::record;

use crate::types::Ino;

/// The most files in either list of a [`Hold`].
pub const MAX_HELD_AT_ONCE: usize = 256;

record! {
    /// See [`Action::Hold`](super::Action::Hold). A file is held once by a session, however often it is asked for, and counts as one of the
    /// session's handles. What is held already, and what is let go of that is not held, is no error.
    pub struct Hold {
        /// Files to be held.
        pub keep: Vec<Ino> => MAX_HELD_AT_ONCE, "files",
        /// Files not to be held any more. Before the others.
        pub let_go: Vec<Ino> => MAX_HELD_AT_ONCE, "files",
    }
}
