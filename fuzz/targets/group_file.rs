//! Group files. They have a text form that is not the only one; what is read and written again means the same.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use quorate_net::Group;

/// A file that this process alone writes, in memory where there is such a place.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        directory.expect("a place for a file").keep().join("group")
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(path(), data).expect("the file can be written");
    if let Ok(group) = Group::load(path()) {
        group.save(path()).expect("the file can be written");
        assert_eq!(Group::load(path()).expect("our own file"), group);
    }
});
