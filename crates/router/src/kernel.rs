//! Calls that the system itself passes on, by programs that the router gives to it (docs/router.md, The kernel's ways).
//!
//! They do what [`proxy`](crate::proxy) does for most calls, and leave the rest to it. The programs are in `bpf/` of this crate, as C and as
//! what came of it. They know the map of buckets as far as it is plain, and forget before a bucket moves what they know of it.

mod datagrams;
mod net;
mod session;
mod streams;

use std::fmt::Debug;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, Map, MapData};

use crate::layout::{Bucket, Volume};

pub use datagrams::{Passed, UdpSwitch};
pub use streams::{Choice, Streamed, TcpSwitch};

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

    /// Whether no call to a bucket is under way that may change something there. `patience`: none is left; what is under way is to be ended.
    fn is_clear(&self, _bucket: Bucket, _patience: bool) -> bool {
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A table of a program, by name.
fn table(programs: &mut Ebpf, name: &str) -> Result<Map, Unavailable> {
    let map = programs.take_map(name);
    map.ok_or_else(|| Unavailable::Program(format!("no table {name}")))
}

fn array<V: aya::Pod>(map: Map) -> Result<Array<MapData, V>, Unavailable> {
    Array::try_from(map).map_err(|e| refused(&e))
}

/// With all that led to an error.
fn refused(error: &(dyn std::error::Error + 'static)) -> Unavailable {
    let mut causes = vec![error.to_string()];
    let mut at = error;
    while let Some(cause) = at.source() {
        let system = cause.downcast_ref::<io::Error>();
        if system.is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return Unavailable::Rights;
        }
        causes.push(cause.to_string());
        at = cause;
    }
    Unavailable::Program(causes.join(": "))
}

/// A file system's number as programs have it.
fn fsid_words(fsid: u64) -> [u32; 2] {
    let fsid = fsid.to_be_bytes();
    let word = |at: usize| u32::from_ne_bytes([fsid[at], fsid[at + 1], fsid[at + 2], fsid[at + 3]]);
    [word(0), word(4)]
}

/// What the first word of numbers of a volume's files differs by.
fn turn(volume: Volume) -> u32 {
    let turn = u64::from(volume.0).reverse_bits().to_be_bytes();
    u32::from_ne_bytes([turn[0], turn[1], turn[2], turn[3]])
}
