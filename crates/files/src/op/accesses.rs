//! What was read, told late.

use alloc::vec::Vec;

use quorate_wire::record;

use crate::types::Ino;

/// The most objects of which one [`Accessed`] tells.
pub const MAX_ACCESSED_AT_ONCE: usize = 256;

record! {
    /// See [`Action::Accessed`](super::Action::Accessed). An object's time of access becomes the agreed time of this operation if it is due by
    /// the rule of [`crate::is_access_due`], the caller may read it, and it is as it was read. Nothing else of it changes, and all other
    /// objects are passed over: that is no error.
    pub struct Accessed {
        /// What was read.
        pub objects: Vec<Seen> => MAX_ACCESSED_AT_ONCE, "objects",
    }
}

record! {
    /// An object as it was read.
    pub struct Seen {
        /// The object.
        pub ino: Ino,
        /// Its number of changes then. If it has changed since, nobody can say that this was read.
        pub change: u64,
    }
}
