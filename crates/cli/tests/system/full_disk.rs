//! A replica whose disk is full is one faulty replica: it says so and stops, and the files stay served.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::harness::{Random, Setup, require_fuse, scratch};

/// A small file system in memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with a word, where this user may not mount.
    fn new(megabytes: usize) -> Option<SmallDisk> {
        let place = scratch();
        let size = std::ffi::CString::new(format!("size={megabytes}m")).expect("an option");
        match mount(
            "quorate-test",
            place.path(),
            "tmpfs",
            MountFlags::empty(),
            size.as_c_str(),
        ) {
            Ok(()) => Some(SmallDisk(place)),
            Err(e) => {
                eprintln!("skipped: a small disk can't be mounted here: {e}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What still uses it is about to end.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

/// Replica 2 has a tenth of the room that it needs. Nobody who uses the files notices when it stops, and the
/// operator reads why.
#[test]
fn a_full_disk_stops_one_replica() {
    if !require_fuse() {
        return;
    }
    let Some(disk) = SmallDisk::new(24) else {
        return;
    };
    let own: PathBuf = disk.path().join("replica");
    let mut group = Setup::new(4).data(2, own).start();
    let mount = group.mount();
    let contents: Vec<Vec<u8>> = (0..20).map(|n| Random::new(n).bytes(2_000_000)).collect();
    for (n, content) in contents.iter().enumerate() {
        let mut file = File::create(mount.at(&n.to_string())).expect("a new file");
        file.write_all(content).expect("it is written");
        file.sync_all().expect("it is synced");
    }
    let ended = group.wait_for_end(2);
    assert!(!ended.success(), "replica 2 ended as if all were well");
    let log = group.log(2);
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.contains("No space left") || last.contains("full"),
        "its last word is {last:?}"
    );
    for (n, content) in contents.iter().enumerate() {
        assert!(fs::read(mount.at(&n.to_string())).expect("the file") == *content);
    }
    fs::write(mount.at("more"), b"still served").expect("a file is written");
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
}
