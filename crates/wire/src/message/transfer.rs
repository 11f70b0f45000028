//! Pieces of a state, for a replica that catches up. PBFT 2002, 5.3.2.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::ids::Seq;
use crate::{record, tagged};

/// The most nodes or values in one message. An empty name takes up four bytes on a link and many times that in memory.
pub const MAX_PIECES: usize = 1024;

tagged! {
    /// State transfer: the partition tree is fetched from the top, and only what differs.
    pub enum StateMessage {
        /// Asks for nodes of the tree of a checkpoint.
        1 => GetNodes(GetNodes),
        /// Nodes that were asked for.
        2 => Nodes(Nodes),
        /// Asks for values of a checkpoint.
        3 => GetValues(GetValues),
        /// Values that were asked for.
        4 => Values(Values),
        /// The checkpoint that was asked for is not kept here (any more).
        5 => NotHere(Seq),
    }
}

record! {
    /// Asks for nodes by their paths: the leading bytes of the key hashes below them, the root's path being empty.
    pub struct GetNodes {
        /// Of which checkpoint.
        pub checkpoint: Seq,
        /// Which nodes.
        pub paths: Vec<Bytes> => MAX_PIECES, "paths",
    }
}

record! {
    /// Nodes in their canonical form; each is checked against the digest in its parent.
    pub struct Nodes {
        /// Of which checkpoint.
        pub checkpoint: Seq,
        /// Path and bytes.
        pub nodes: Vec<(Bytes, Bytes)> => MAX_PIECES, "nodes",
    }
}

record! {
    /// Asks for values by their keys.
    pub struct GetValues {
        /// Of which checkpoint.
        pub checkpoint: Seq,
        /// Which.
        pub keys: Vec<Bytes> => MAX_PIECES, "keys",
    }
}

record! {
    /// Values; each is checked against the digest in its leaf.
    pub struct Values {
        /// Of which checkpoint.
        pub checkpoint: Seq,
        /// Key and value.
        pub values: Vec<(Bytes, Bytes)> => MAX_PIECES, "values",
    }
}
