//! How many files a process may have open: each link is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows, for a process with hundreds of links, and for those that it starts: the usual soft limit of 1,024 is for
/// programs that use select(2). Where it can't be raised, making a link says so.
pub fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}
