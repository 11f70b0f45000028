//! Operations about quotas of directories.

use quorate_wire::record;

use crate::types::Ino;

/// The most entries that one [`Adopt`] looks at, and the most rows that one answer to [`Quotas`] has.
pub const MAX_QUOTA_ROWS: u32 = 256;

record! {
    /// How much there can be in a directory and below it. What is not limited is none.
    pub struct Limits {
        /// Space, as the volume counts it.
        pub bytes: Option<u64>,
        /// Objects, the directory itself among them.
        pub files: Option<u64>,
    }
}

record! {
    /// See [`Action::SetQuota`](super::Action::SetQuota). For user 0 alone (`EPERM`). `ENODATA`: there is no quota to be taken away. `ENOSPC`: there are
    /// as many as there can be.
    pub struct SetQuota {
        /// The directory.
        pub dir: Ino,
        /// Its limits from now on; none takes the quota away. They can be below what is there: then nothing can be added.
        pub limits: Option<Limits>,
    }
}

record! {
    /// See [`Action::Adopt`](super::Action::Adopt). For user 0 alone (`EPERM`). `ENODATA`: the directory counts under no quota.
    pub struct Adopt {
        /// The directory.
        pub dir: Ino,
        /// The cookie after which to go on; 0 from the start.
        pub after: u64,
    }
}

record! {
    /// See [`Action::Quotas`](super::Action::Quotas).
    pub struct Quotas {
        /// Only the one that this object counts under. Else all, for user 0 alone (`EPERM`).
        pub about: Option<Ino>,
        /// The number after which to go on; 0 from the start.
        pub after: u64,
    }
}
