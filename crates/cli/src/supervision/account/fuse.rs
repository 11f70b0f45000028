//! File systems whose server is a process. Who waits for one that never answers waits in the kernel, where not even SIGKILL ends it, until the
//! connection is aborted: so a user makes processes that can't be ended, with a namespace of its own and /dev/fuse.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the kernel shows connections: a directory for each, which is the user's that has mounted it.
pub const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts all connections of a user. Where they are not shown, or one goes meanwhile, there is nothing to do.
pub fn abort_all(connections: &Path, uid: u32) {
    for connection in fs::read_dir(connections).into_iter().flatten().flatten() {
        let is_its = connection.metadata().is_ok_and(|it| it.uid() == uid);
        if is_its {
            let _ = fs::write(connection.path().join("abort"), "1");
        }
    }
}
