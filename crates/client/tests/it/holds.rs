//! Files are opened without an agreement, and stay as long as they are open.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Group, Mount, can_mount, noise};
use quorate_files::layout::LINGER_NANOS;
use quorate_files::{Ino, Nothing, Who};
use rustix::io::Errno;

const LINGER_MS: u64 = LINGER_NANOS / 1_000_000;
/// After so long the group knows what is open.
const TOLD: Duration = Duration::from_millis(2000);

/// The space in use.
fn used(group: &Group, mount: &Mount) -> u64 {
    let root = Who::root();
    let stat = mount.volume.stat_fs(&root, Nothing);
    group.runtime.block_on(stat).unwrap().used
}

/// Has a session say something, which keeps its lease.
fn ping(group: &Group, mount: &Mount) {
    let root = Who::root();
    let ping = mount.volume.ping(&root, Nothing);
    group.runtime.block_on(ping).unwrap();
}

/// Lets agreed time pass, and the next changes come, which delete what has lingered.
fn pass(group: &Group, mount: &Mount, ms: u64) {
    group.ahead_ms.fetch_add(ms, Ordering::AcqRel);
    for _ in 0..2 {
        fs::create_dir(mount.path("passing")).unwrap();
        fs::remove_dir(mount.path("passing")).unwrap();
    }
}

/// Who reads many files asks for nothing that has to be agreed on; nor who opens one for writing and does not.
#[test]
fn reading_costs_no_agreement() {
    if !can_mount() {
        return;
    }
    const FILES: u64 = 200;
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for n in 0..FILES {
        fs::write(a.path(&format!("{n}")), noise(n + 1, 3000)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    group.kinds.take();
    for n in 0..FILES {
        let name = format!("{n}");
        assert!(fs::read(b.path(&name)).unwrap() == noise(n + 1, 3000));
        OpenOptions::new().write(true).open(b.path(&name)).unwrap();
    }
    std::thread::sleep(TOLD);
    let asked = group.kinds.take();
    assert_eq!(asked["CheckOpen"], 2 * FILES, "{asked:?}");
    for kind in ["Open", "Release", "Hold"] {
        assert!(!asked.contains_key(kind), "{asked:?}");
    }

    // Many that stay open are told at once, and let go together.
    let open: Vec<_> = (0..FILES)
        .map(|n| File::open(b.path(&format!("{n}"))).unwrap())
        .collect();
    std::thread::sleep(TOLD);
    let told = group.kinds.take()["Hold"];
    // It is looked for them twice a second, as long as it takes to open them.
    assert!((1..=FILES / 10).contains(&told), "{told}");
    drop(open);
    std::thread::sleep(TOLD);
    let asked = group.kinds.take();
    assert!((1..=FILES / 4).contains(&asked["Hold"]), "{asked:?}");
    assert!(!asked.contains_key("Release"), "{asked:?}");
}

/// A file that another mount removes at once stays for who has it open, however long; and is gone when it is closed.
#[test]
fn what_is_open_outlives_its_name() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let data = noise(1, 20 << 20);
    fs::write(b.path("f"), &data).unwrap();
    let before = used(&group, &b);
    let open = File::open(a.path("f")).unwrap();
    fs::remove_file(b.path("f")).unwrap();
    assert!(used(&group, &b) < before);
    let read = |offset: usize| {
        let mut back = vec![0; 1 << 20];
        let read = open.read_exact_at(&mut back, offset as u64);
        read.unwrap_or_else(|e| panic!("at {offset}: {e}"));
        assert!(back == data[offset..offset + back.len()], "{offset}");
    };
    read(0);
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    std::thread::sleep(TOLD);
    assert_eq!(used(&group, &b), before - 256, "all but its name");
    for offset in [5 << 20, 10 << 20] {
        pass(&group, &b, LINGER_MS);
        ping(&group, &a);
        read(offset);
    }
    // The session is lost, and with it what it held; the next one holds it again.
    let generation = a.volume.generation(Ino::ROOT);
    group.ahead_ms.fetch_add(10 * LINGER_MS, Ordering::AcqRel);
    // A session notices with the next operation, at the latest when it is renewed.
    ping(&group, &a);
    ping(&group, &b);
    read(15 << 20);
    std::thread::sleep(TOLD);
    assert!(a.volume.generation(Ino::ROOT) > generation);
    pass(&group, &b, LINGER_MS);
    read(19 << 20);
    // Once more, by another descriptor.
    let again = File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&open)
    ));
    assert_eq!(again.unwrap().metadata().unwrap().len(), data.len() as u64);
    drop(open);
    std::thread::sleep(TOLD);
    assert!(used(&group, &b) < 1 << 20);
}

/// A mount that does not say in time what it has open, since time has run away from it, is told that it is gone.
#[test]
fn what_was_not_told_in_time_is_stale() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    // Where this test was held up, it was told in time.
    let mut was_stale = false;
    for _ in 0..10 {
        fs::write(b.path("f"), noise(1, 4 << 20)).unwrap();
        if group.kinds.take().contains_key("Hold") {
            // It took so long to write that the group was told that it is open.
            continue;
        }
        let open = File::open(a.path("f")).unwrap();
        fs::remove_file(b.path("f")).unwrap();
        pass(&group, &b, LINGER_MS);
        let read = open.read_at(&mut [0; 10], 2 << 20);
        let asked = group.kinds.take();
        // The second time the kernel may have opened what is gone, and then the mount pins what it finds by that name.
        let is_held = asked.contains_key("Hold") || asked.contains_key("Open");
        if !is_held || read.is_err() {
            let errno = read.unwrap_err().raw_os_error();
            assert_eq!(errno, Some(Errno::STALE.raw_os_error()));
            was_stale = true;
            break;
        }
    }
    assert!(was_stale);
    std::thread::sleep(TOLD);
    fs::write(a.path("f"), b"another").unwrap();
    assert_eq!(fs::read(b.path("f")).unwrap(), b"another");
}

/// What is open for writing can be written, cut and changed after another mount has removed it; its attributes are right.
#[test]
fn what_has_lost_its_name_can_be_changed() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for (round, change) in ["write", "cut", "mode", "times", "attribute", "lock"]
        .into_iter()
        .enumerate()
    {
        let data = noise(round as u64 + 1, 300_000);
        fs::write(b.path("f"), &data).unwrap();
        let mut options = OpenOptions::new();
        let f = options.read(true).write(true).open(a.path("f")).unwrap();
        fs::remove_file(b.path("f")).unwrap();
        match change {
            "write" => f.write_all_at(b"more", 300_000).unwrap(),
            "cut" => f.set_len(1000).unwrap(),
            "mode" => f.set_permissions(Permissions::from_mode(0o600)).unwrap(),
            "times" => f.set_modified(std::time::UNIX_EPOCH).unwrap(),
            "attribute" => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::fsetxattr(&f, "user.x", b"y", flags).unwrap();
            }
            _ => f.try_lock().unwrap(),
        }
        f.sync_all().unwrap();
        let now = f.metadata().unwrap();
        let expected = match change {
            "write" => 300_004,
            "cut" => 1000,
            _ => 300_000,
        };
        assert_eq!((now.nlink(), now.len()), (0, expected), "{change}");
        let mut back = vec![0; 1000];
        f.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data[..1000]);
    }
    // What could not be opened in time may be held for some seconds.
    for _ in 0..600 {
        if used(&group, &b) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{} bytes are in use", used(&group, &b));
}

/// A mount that removes what it has open itself says so with it: the space counts without a pause. What it has not open costs nothing.
#[test]
fn own_removals_are_told_at_once() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let a = group.mount(1);
    for name in ["f", "g", "h"] {
        fs::write(a.path(name), noise(1, 100_000)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = used(&group, &a);
    let open = File::open(a.path("f")).unwrap();
    group.kinds.take();
    fs::remove_file(a.path("f")).unwrap();
    assert_eq!(group.kinds.take()["Hold"], 1);
    assert_eq!(used(&group, &a), before - 256);
    fs::rename(a.path("g"), a.path("h")).unwrap();
    fs::remove_file(a.path("h")).unwrap();
    assert!(!group.kinds.take().contains_key("Hold"));
    pass(&group, &a, LINGER_MS);
    assert_eq!(open.metadata().unwrap().len(), 100_000);
    drop(open);
    std::thread::sleep(TOLD);
    assert_eq!(used(&group, &a), 0);
}
