//! A replica whose disk is full is one faulty replica: it says so and stops, and the files stay served.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::command_line::replica;
use crate::harness::{
    Group, Patience, Random, Setup, Status, Up, eventually, finish, free_ports, is_mounted,
    left_out, quorate, require_fuse, scratch,
};

/// Far more than the small disk holds.
const MOST_FILES: u64 = 150;

/// A small file system in memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with a word, where this user may not mount.
    fn new(megabytes: usize) -> Option<SmallDisk> {
        let place = scratch();
        let size = SmallDisk::size(megabytes);
        match mount(
            "quorate-test",
            place.path(),
            "tmpfs",
            MountFlags::empty(),
            size.as_c_str(),
        ) {
            Ok(()) => Some(SmallDisk(place)),
            Err(e) => left_out(&format!("a small disk can't be mounted here: {e}")),
        }
    }

    fn size(megabytes: usize) -> CString {
        CString::new(format!("size={megabytes}m")).expect("an option")
    }

    /// Makes room.
    fn resize(&self, megabytes: usize) {
        let size = SmallDisk::size(megabytes);
        mount_remount(self.path(), MountFlags::empty(), size.as_c_str()).expect("a larger disk");
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

/// Replica 2 works until its disk is full, between files as they come. Nobody who uses the files notices when it stops,
/// and the operator reads why; with room again it catches up.
#[test]
fn a_full_disk_stops_one_replica() {
    if !require_fuse() {
        return;
    }
    // The log takes 64 MiB from the start, so the replica runs, and what comes fills the rest.
    let Some(disk) = SmallDisk::new(150) else {
        return;
    };
    let own: PathBuf = disk.path().join("replica");
    let mut group = Setup::new(4).data(2, own).start();
    let mount = group.mount();
    eventually("all four serve", || group.status().code == 0);
    let content = |n: u64| Random::new(n).bytes(2_000_000);
    let mut files = 0;
    while group.all_run() {
        assert!(files < MOST_FILES, "the disk does not fill");
        let mut file = File::create(mount.at(&files.to_string())).expect("a new file");
        file.write_all(&content(files)).expect("it is written");
        file.sync_all().expect("it is synced");
        files += 1;
    }
    println!("the disk was full after {files} files");
    let ended = group.wait_for_end(2);
    assert!(!ended.success(), "replica 2 ended as if all were well");
    let log = group.log(2);
    let last = log.lines().last().unwrap_or_default().to_lowercase();
    assert!(
        last.contains("no space left") || last.contains("full"),
        "its last word is {last:?}"
    );
    for n in 0..files {
        assert!(fs::read(mount.at(&n.to_string())).expect("the file") == content(n));
    }
    fs::write(mount.at("more"), b"still served").expect("a file is written");
    group.wait_until_they_agree(&[0, 1, 3]);

    disk.resize(1_000);
    group.start_replica(2);
    fs::write(mount.at("again"), b"and served by four").expect("a file is written");
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// `up` makes a volume that its disk has room for: whoever fills it is told that it is full, all replicas go on, and what is removed makes room.
#[test]
fn a_volume_is_full_before_its_disk() {
    if !require_fuse() {
        return;
    }
    let Some(disk) = SmallDisk::new(1_500) else {
        return;
    };
    let up = Up::start(&disk.path().join("data"), free_ports(1)[0], &[]);
    let files = disk.path().join("data/files");
    let space = statvfs(&files).expect("the volume's space");
    let size = space.f_blocks * space.f_frsize;
    assert!(
        (64 << 20..1_500 << 18).contains(&size),
        "it has {size} bytes"
    );
    let mut written = 0;
    let full = loop {
        assert!(written < MOST_FILES, "the volume does not fill");
        let content = Random::new(written).bytes(4_000_000);
        let file = File::create(files.join(written.to_string()));
        let done =
            file.and_then(|mut file| file.write_all(&content).and_then(|()| file.sync_all()));
        match done {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(
        full.raw_os_error(),
        Some(Errno::NOSPC.raw_os_error()),
        "{full}"
    );
    println!("full after {written} files, of {size} bytes");
    // As much once more, in place of what was there: what is superseded goes in time.
    for n in 0..written {
        fs::remove_file(files.join(n.to_string())).expect("it goes");
        let content = Random::new(n + 1).bytes(3_000_000);
        eventually("there is room for another", || {
            fs::write(files.join(n.to_string()), &content).is_ok()
        });
    }
    for n in 0..written {
        let content = fs::read(files.join(n.to_string())).expect("the file");
        assert!(content == Random::new(n + 1).bytes(3_000_000), "file {n}");
    }
    let status = Status::ask(&disk.path().join("data"));
    assert_eq!(status.code, 0, "{status:?}");
    up.stop();
}

/// What can't be said ends nobody: where what a replica and a mount say goes to a disk that is full, they go on.
#[test]
fn what_cannot_be_said_is_left_unsaid() {
    if !require_fuse() {
        return;
    }
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("a full disk")
    };
    let mut group = Group::start();
    group.kill(3);
    let mut command = replica(group.directory(), 3);
    command.arg("-v").stderr(full());
    let mut silent = Running(command.spawn().expect("a replica starts"));
    eventually("all four serve", || group.status().code == 0);
    let mut stranger = TcpStream::connect(group.address(3)).expect("it listens");
    stranger
        .write_all(b"hello, who are you?\r\n")
        .expect("it hears");
    let mut answer = Vec::new();
    // It is told off, which the replica notes.
    let _ = stranger.read_to_end(&mut answer);

    let place = scratch();
    let mut command = quorate();
    command
        .args(["mount", "-v", "--key"])
        .arg(group.client_key(0));
    command.arg(group.file()).arg(place.path()).stderr(full());
    let mut mount = Running(command.spawn().expect("a mount starts"));
    eventually("it is mounted", || is_mounted(place.path()));
    fs::write(place.path().join("before"), b"hello").expect("a file");
    for id in [0, 1, 2] {
        group.kill(id);
    }
    // Long enough for a mount to say that the group is away.
    std::thread::sleep(Duration::from_secs(8));
    for id in [0, 1, 2] {
        group.start_replica(id);
    }
    fs::write(place.path().join("after"), b"hello").expect("a file");
    eventually("all four serve", || group.status().code == 0);
    assert_eq!(silent.0.try_wait().expect("it is asked"), None);
    assert_eq!(mount.0.try_wait().expect("it is asked"), None);
    // Another test's child has what is open here until it becomes its program.
    eventually("it is unmounted", || {
        let mut command = quorate();
        let umount = command.arg("umount").arg(place.path());
        finish(umount, Patience::default()).code() == 0
    });
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
