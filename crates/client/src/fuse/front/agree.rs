//! What the kernel and the front agree on at the start.

use fuser::{InitFlags, KernelConfig};

use super::super::{Caching, MAX_REQUEST_BYTES};

/// Requests of the kernel's own (read-ahead, writing back) that are under way at once.
const MAX_BACKGROUND: u16 = 64;

/// `FUSE_AUTO_INVAL_DATA` is wanted only where each read is to ask first whether the file has changed. With it the kernel drops a
/// file's pages whenever the time of change is another than it knew: the service gives the time of an own write, so each of
/// them costs the pages that it has just filled. Without it the front tells own changes from foreign ones by their numbers.
pub(super) fn on(config: &mut KernelConfig, caching: &Caching, is_guest: bool) {
    let mut wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_POSIX_LOCKS
        | InitFlags::FUSE_FLOCK_LOCKS
        | InitFlags::FUSE_EXPORT_SUPPORT
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_MAX_PAGES
        // The umask is for those who know default ACLs.
        | InitFlags::FUSE_DONT_MASK
        // The service takes set-user-ID bits away at writes itself; asking before each write is spared.
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    if !is_guest {
        // The kernel checks permissions, by ACLs too, as the replicas do. Not for guests: it knows them by the ids of this machine.
        wanted |= InitFlags::FUSE_POSIX_ACL;
    }
    if caching.validate_reads {
        wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
    }
    for flag in wanted.iter() {
        // Older kernels lack some; all are for speed but the locks, which then hold on this machine only, and the ACLs, which
        // the replicas alone then keep.
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "the kernel's FUSE can't do this");
        }
    }
    // Where the kernel offers less, it says what is the most.
    if let Err(most) = config.set_max_readahead(MAX_REQUEST_BYTES) {
        let _ = config.set_max_readahead(most);
    }
    if let Err(most) = config.set_max_write(MAX_REQUEST_BYTES) {
        let _ = config.set_max_write(most);
    }
    let _ = config.set_max_background(MAX_BACKGROUND);
}
