//! Calls that the system itself passes on, by programs that the router gives to it (docs/router.md, The kernel's ways).
//!
//! They do what [`proxy`](crate::proxy) does for most calls, and leave the rest to it. The programs are in `bpf/` of this crate, as C and as
//! what came of it. They know the map of buckets as far as it is plain, and forget before a bucket moves what they know of it.

mod datagrams;
mod net;

use std::fmt::Debug;

use crate::layout::{Bucket, Volume};

pub use datagrams::{Passed, UdpSwitch};

/// Why calls are not passed on there.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// Programs are for the superuser alone.
    #[error("it takes the rights to load programs for the network (CAP_BPF and CAP_NET_ADMIN)")]
    Rights,
    /// The system's word.
    #[error("the system does not take the program: {0}")]
    Program(String),
    /// The configuration's.
    #[error("{0}")]
    Configuration(&'static str),
    /// A socket, or what the system tells of its network.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Who passes calls on beside the proxy.
pub trait Shortcut: Debug + Send + Sync {
    /// From now on calls to a bucket go to the server of a volume, whose handles and numbers are as that server says; or to the proxy.
    fn set(&self, bucket: Bucket, volume: Option<Volume>);
}
