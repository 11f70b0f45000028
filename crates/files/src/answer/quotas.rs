//! Answers about quotas.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::record;

use crate::op::{Limits, MAX_QUOTA_ROWS};
use crate::types::Ino;

record! {
    /// A directory's quota.
    pub struct QuotaRow {
        /// Its number, which is never used again.
        pub number: u64,
        /// The directory; 0 for a guest to whom nothing there is shown.
        pub dir: Ino,
        /// Where the directory is in the volume, from `/` on; for user 0 alone, and empty where that is too deep.
        pub path: Bytes,
        /// What there can be.
        pub limits: Limits,
        /// Space in use.
        pub used_bytes: u64,
        /// How many objects there are.
        pub used_files: u64,
    }
}

record! {
    /// A part of the quotas.
    pub struct Quotas {
        /// In the order of their numbers.
        pub quotas: Vec<QuotaRow> => MAX_QUOTA_ROWS as usize, "quotas",
        /// Where to go on; none if nothing comes after these.
        pub next: Option<u64>,
    }
}

record! {
    /// What came under a directory's quota.
    pub struct Adopted {
        /// Directories among the entries: what is in them is to be adopted too.
        pub dirs: Vec<Ino> => MAX_QUOTA_ROWS as usize, "directories",
        /// How many of the entries did not count under it before.
        pub adopted: u32,
        /// The cookie after which to go on; none if nothing comes after it.
        pub next: Option<u64>,
    }
}
