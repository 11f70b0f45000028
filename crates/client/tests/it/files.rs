//! One mount of one volume, through the kernel: what programs do with files.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CAPACITY, Group, can_mount, left_out, noise};
use quorate_client::fuse::OBJECT;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, Timespec,
    Timestamps, XattrFlags, statx,
};

/// The basic life of files and directories: each call has the effect that POSIX gives it.
#[test]
fn files_are_made_changed_and_removed() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let mut m = group.mount(1);
    let a = m.path("a");
    fs::write(&a, b"hello").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"hello");
    assert_eq!(fs::metadata(&a).unwrap().len(), 5);

    let mut f = OpenOptions::new().append(true).open(&a).unwrap();
    f.write_all(b", world").unwrap();
    assert_eq!(fs::metadata(&a).unwrap().len(), 12);
    drop(f);
    assert_eq!(fs::read(&a).unwrap(), b"hello, world");

    let f = OpenOptions::new().write(true).open(&a).unwrap();
    f.set_len(4).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"hell");
    f.set_len(8).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"hell\0\0\0\0");
    drop(f);
    File::create(&a).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().len(), 0);

    fs::create_dir(m.path("d")).unwrap();
    fs::rename(&a, m.path("d/b")).unwrap();
    assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
    fs::hard_link(m.path("d/b"), m.path("c")).unwrap();
    assert_eq!(fs::metadata(m.path("c")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(m.path("c")).unwrap().ino(),
        fs::metadata(m.path("d/b")).unwrap().ino()
    );
    std::os::unix::fs::symlink("d/b", m.path("s")).unwrap();
    assert_eq!(fs::read_link(m.path("s")).unwrap().to_str(), Some("d/b"));
    assert!(fs::symlink_metadata(m.path("s")).unwrap().is_symlink());
    let e = fs::remove_dir(m.path("d")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_file(m.path("d/b")).unwrap();
    fs::remove_dir(m.path("d")).unwrap();
    assert_eq!(fs::metadata(m.path("c")).unwrap().nlink(), 1);

    fs::write(m.path("x"), b"x").unwrap();
    fs::write(m.path("y"), b"y").unwrap();
    let swap = |flags| rustix::fs::renameat_with(CWD, m.path("x"), CWD, m.path("y"), flags);
    assert!(swap(RenameFlags::NOREPLACE).is_err());
    swap(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(m.path("x")).unwrap(), b"y");
    m.unmount();
    assert_eq!(group.closed.load(std::sync::atomic::Ordering::Acquire), 1);
}

/// A program that runs is not written to: the refusal comes before anything is lost.
#[test]
fn a_running_program_is_not_truncated() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let program = m.path("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let len = fs::metadata(&program).unwrap().len();
    let mut child = Command::new(&program).arg("600").spawn().unwrap();
    let how = |flags| rustix::fs::open(&program, flags, Mode::empty()).map(drop);
    let refused = Err(rustix::io::Errno::TXTBSY);
    assert_eq!(how(OFlags::WRONLY), refused);
    assert_eq!(how(OFlags::RDWR | OFlags::TRUNC), refused);
    assert_eq!(how(OFlags::RDONLY | OFlags::TRUNC), refused);
    assert_eq!(fs::metadata(&program).unwrap().len(), len);
    child.kill().unwrap();
    child.wait().unwrap();
    how(OFlags::RDWR | OFlags::TRUNC).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
}

/// A file without a name lives as long as it is open.
#[test]
fn an_unlinked_open_file_stays_usable() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options.open(m.path("orphan")).unwrap()
    };
    let mut f = open();
    f.write_all(b"before").unwrap();
    fs::remove_file(m.path("orphan")).unwrap();
    f.write_all(b" after").unwrap();
    f.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    f.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before after");
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    assert_eq!(f.metadata().unwrap().len(), 12);
}

/// A large directory is listed whole and without repetition, and can be emptied while it is listed.
#[test]
fn a_directory_of_5000_entries() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    fs::create_dir(m.path("big")).unwrap();
    for i in 0..5000 {
        File::create(m.path(&format!("big/file-{i:04}"))).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(m.path("big"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 5000);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5000);
    assert_eq!(names[4999], "file-4999");
    for entry in fs::read_dir(m.path("big")).unwrap().take(100) {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), 0);
    }
    fs::remove_dir_all(m.path("big")).unwrap();
    assert!(!m.path("big").exists());
}

/// Large data comes back as it was, whatever the pieces it was written and read in; also at random places.
#[test]
fn large_writes_come_back() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let data = noise(1, 24 << 20);
    fs::write(m.path("whole"), &data).unwrap();
    assert!(fs::read(m.path("whole")).unwrap() == data);
    let mut f = File::create(m.path("pieces")).unwrap();
    for piece in data[..3 << 20].chunks(7_777) {
        f.write_all(piece).unwrap();
    }
    f.sync_all().unwrap();
    drop(f);
    assert!(fs::read(m.path("pieces")).unwrap() == data[..3 << 20]);

    let mut image = data[..4 << 20].to_vec();
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .open(m.path("pieces"));
    let f = f.unwrap();
    f.set_len(4 << 20).unwrap();
    f.write_all_at(&image, 0).unwrap();
    for i in 0..400u64 {
        let places = noise(i + 2, 16);
        let at = u32::from_le_bytes(places[..4].try_into().unwrap()) as usize % (4 << 20);
        let len = (u32::from_le_bytes(places[4..8].try_into().unwrap()) as usize % 100_000)
            .min((4 << 20) - at);
        let part = noise(i + 1000, len);
        f.write_all_at(&part, at as u64).unwrap();
        image[at..at + len].copy_from_slice(&part);
        if i % 10 == 0 {
            let mut back = vec![0; len];
            f.read_exact_at(&mut back, at as u64).unwrap();
            assert!(back == part);
        }
    }
    drop(f);
    rustix::fs::sync();
    // Without the kernel's pages.
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(m.path("pieces"));
    let mut back = Vec::new();
    direct.unwrap().read_to_end(&mut back).unwrap();
    assert!(back == image);
}

/// What is written through a direct or synchronous handle is at the group when write(2) returns.
#[test]
fn direct_and_synchronous_writes() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (m, other) = (group.mount(1), group.mount(2));
    for (name, flag) in [("direct", OFlags::DIRECT), ("sync", OFlags::SYNC)] {
        let f = OpenOptions::new()
            .write(true)
            .create(true)
            .custom_flags(flag.bits() as i32)
            .open(m.path(name))
            .unwrap();
        let data = noise(9, 3 << 20);
        f.write_all_at(&data, 4096).unwrap();
        // Nothing was closed or synced.
        let back = fs::read(other.path(name)).unwrap();
        assert_eq!(back.len(), data.len() + 4096);
        assert!(back[4096..] == data);
    }
}

/// Holes cost nothing, read as zeros and are found; ranges are allocated, punched and zeroed.
#[test]
fn sparse_files() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(m.path("sparse"))
        .unwrap();
    let far = 1u64 << 40;
    f.write_all_at(b"end", far).unwrap();
    let meta = f.metadata().unwrap();
    assert_eq!(meta.len(), far + 3);
    assert_eq!(meta.blocks(), 8);
    let mut part = [1; 100];
    f.read_exact_at(&mut part, far / 2).unwrap();
    assert_eq!(part, [0; 100]);
    let seek = |from| rustix::fs::seek(&f, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(far));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
    assert!(seek(rustix::fs::SeekFrom::Data(far + 10)).is_err());

    f.set_len(0).unwrap();
    f.write_all_at(&[7; 300_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&f, punch, 65_536, 131_072).unwrap();
    let back = fs::read(m.path("sparse")).unwrap();
    assert_eq!(back.len(), 300_000);
    assert!(back[65_536..196_608].iter().all(|b| *b == 0));
    assert!(back[..65_536].iter().all(|b| *b == 7));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(65_536));
    rustix::fs::fallocate(&f, FallocateFlags::ZERO_RANGE, 0, 10).unwrap();
    assert_eq!(
        fs::read(m.path("sparse")).unwrap()[..11],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]
    );
    rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 20);
    rustix::fs::fallocate(&f, FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 20);
}

/// Extended attributes, with their size probes and conditions.
#[test]
fn extended_attributes() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let f = m.path("f");
    fs::write(&f, b"").unwrap();
    let set = |name, value: &[u8], flags| rustix::fs::setxattr(&f, name, value, flags);
    set("user.a", b"1", XattrFlags::empty()).unwrap();
    set("user.b", &[2; 10_000], XattrFlags::CREATE).unwrap();
    assert!(set("user.b", b"x", XattrFlags::CREATE).is_err());
    assert!(set("user.c", b"x", XattrFlags::REPLACE).is_err());
    let mut value = vec![0; 20_000];
    assert_eq!(
        rustix::fs::getxattr(&f, "user.b", &mut value[..]),
        Ok(10_000)
    );
    let short = rustix::fs::getxattr(&f, "user.b", &mut value[..10]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    // The size probe; the safe call above has none.
    let script = "
import ctypes, sys
libc = ctypes.CDLL(None)
print(libc.getxattr(sys.argv[1].encode(), b'user.b', None, 0))
print(libc.listxattr(sys.argv[1].encode(), None, 0))
";
    if let Ok(out) = Command::new("python3")
        .args(["-c", script])
        .arg(&f)
        .output()
    {
        assert_eq!(out.stdout, b"10000\n14\n");
    }
    let len = rustix::fs::listxattr(&f, &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"user.a\0user.b\0");
    rustix::fs::removexattr(&f, "user.a").unwrap();
    let gone = rustix::fs::getxattr(&f, "user.a", &mut value[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    // The mount's own word for what credentials are about.
    let len = rustix::fs::getxattr(&f, OBJECT, &mut value[..]).unwrap();
    let ino = fs::metadata(&f).unwrap().ino();
    let said = format!("{} {ino}", m.volume.group().unwrap());
    assert_eq!(std::str::from_utf8(&value[..len]), Ok(&said[..]));
    let short = rustix::fs::getxattr(&f, OBJECT, &mut value[..10]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    let nothing = XattrFlags::empty();
    assert!(rustix::fs::setxattr(&f, OBJECT, b"x", nothing).is_err());
}

/// Modes, owners, times to the nanosecond, special files and the volume's numbers.
#[test]
fn attributes_and_special_files() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let f = m.path("f");
    fs::write(&f, b"data").unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o6751)).unwrap();
    std::os::unix::fs::chown(&f, Some(5), Some(6)).unwrap();
    let meta = fs::metadata(&f).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (5, 6, 0o751));
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: -5,
            tv_nsec: 1,
        },
        last_modification: Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 123_456_789,
        },
    };
    rustix::fs::utimensat(CWD, &f, &times, AtFlags::empty()).unwrap();
    let meta = fs::metadata(&f).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec()), (-5, 1));
    assert_eq!(
        (meta.mtime(), meta.mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    // A time that was set after a write stays, though the write goes out later.
    let open = OpenOptions::new().write(true).open(&f).unwrap();
    open.write_all_at(b"more", 0).unwrap();
    rustix::fs::futimens(&open, &times).unwrap();
    drop(open);
    assert_eq!(fs::metadata(&f).unwrap().mtime(), 1_000_000_000);

    let node = |name: &str, kind, dev| {
        rustix::fs::mknodat(CWD, m.path(name), kind, Mode::from_raw_mode(0o600), dev).unwrap();
        fs::symlink_metadata(m.path(name)).unwrap()
    };
    assert!(node("pipe", FileType::Fifo, 0).file_type().is_fifo());
    assert!(node("sock", FileType::Socket, 0).file_type().is_socket());
    let dev = rustix::fs::makedev(8, 300);
    let meta = node("disk", FileType::BlockDevice, dev);
    assert!(meta.file_type().is_block_device());
    assert_eq!(meta.rdev(), dev);

    let vfs = rustix::fs::statvfs(m.dir()).unwrap();
    assert_eq!(vfs.f_blocks * vfs.f_frsize, CAPACITY);
    assert_eq!(vfs.f_namemax, 255);
    let long = m.path(&"n".repeat(256));
    assert!(File::create(long).is_err());
}

/// Other users get what the modes give them, groups included, and no more.
#[test]
fn permissions_of_others() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    rustix::fs::chmod(m.dir().parent().unwrap(), Mode::from_raw_mode(0o1777)).unwrap_or(());
    fs::write(m.path("secret"), b"root").unwrap();
    fs::set_permissions(m.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(m.path("team"), b"team").unwrap();
    std::os::unix::fs::chown(m.path("team"), None, Some(4242)).unwrap();
    fs::set_permissions(m.path("team"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(m.path("open")).unwrap();
    fs::set_permissions(m.path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    let shell = |script: &str| {
        let run = Command::new("/bin/sh")
            .args(["-c", script])
            .current_dir(m.dir())
            .uid(1234)
            .gid(1234)
            .output()
            .unwrap();
        run.status.success()
    };
    assert!(!shell("cat secret"));
    assert!(!shell("echo x > secret"));
    assert!(!shell("echo x > new"));
    assert!(!shell("cat team"));
    assert!(shell(
        "echo mine > open/mine && chmod 0444 open/mine && cat open/mine"
    ));
    assert!(!shell("chown 0 open/mine"));
    assert_eq!(fs::metadata(m.path("open/mine")).unwrap().uid(), 1234);
    let with_group = Command::new("setpriv")
        .args(["--reuid=1234", "--regid=1234", "--groups=4242", "cat"])
        .arg(m.path("team"))
        .output()
        .unwrap();
    assert!(with_group.status.success(), "{with_group:?}");
}

/// A file's mode bits. Nothing else is asked for: for sizes and times the kernel would ask again, and hear of the mode.
fn mode_alone(path: &Path) -> u32 {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE);
    u32::from(found.unwrap().stx_mode) & 0o7777
}

/// Also where another mount has set the bits while the file was open.
#[test]
fn set_id_bits_of_another_mount_are_taken() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (m, other) = (group.mount(1), group.mount(2));
    fs::write(m.path("f"), b"text").unwrap();
    std::os::unix::fs::chown(m.path("f"), Some(1234), Some(1234)).unwrap();
    let mode = || mode_alone(&m.path("f"));
    // It says when it has the file open, and goes on when it is told.
    let mut writes = Command::new("/bin/sh")
        .args([
            "-e",
            "-c",
            "exec 3<>f; echo open; read word; echo x >&3; echo done; read word",
        ])
        .current_dir(m.dir())
        .uid(1234)
        .gid(1234)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(writes.stdout.take().unwrap()).lines();
    let mut tell = writes.stdin.take().unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "open");
    fs::set_permissions(other.path("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    std::thread::sleep(quorate_client::fuse::TTL);
    assert_eq!(mode(), 0o6755);
    tell.write_all(b"go on\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "done");
    assert_eq!(mode(), 0o755);
    drop(tell);
    writes.wait().unwrap();
}

/// Who writes takes set-ID bits away, and that is seen at once, however new what the kernel knows is; root leaves them.
#[test]
fn who_changes_a_file_takes_its_set_id_bits() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let path = m.path("f");
    fs::write(&path, noise(1, 8192)).unwrap();
    fs::write(m.path("other"), noise(2, 8192)).unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(1234)).unwrap();
    let mode = || mode_alone(&path);
    let after = |uid: u32, script: &str| {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(mode(), 0o6755);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-e", "-c", script]).current_dir(m.dir());
        let run = shell.uid(uid).gid(uid).output().unwrap();
        assert!(run.status.success(), "{script}: {run:?}");
        mode()
    };
    for script in [
        "dd if=/dev/zero of=f bs=4096 count=1 conv=notrunc oflag=direct",
        "dd if=/dev/zero of=f bs=4096 count=1 conv=notrunc oflag=sync",
        "dd if=/dev/zero of=f bs=100 count=3 conv=notrunc",
        "exec 3<>f; echo x >&3; test ! -u f",
        "echo more >> f",
        ": > f",
        "fallocate -l 10000 f",
        "truncate -s 5000 f",
    ] {
        assert_eq!(after(1234, script), 0o755, "{script}");
        assert_eq!(
            after(0, script.split("; test").next().unwrap()),
            0o6755,
            "{script}"
        );
    }
}

/// A full volume is told at the latest when the file is closed or synced, and not forgotten before.
#[test]
fn a_full_volume_is_told() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let mut f = File::create(m.path("large")).unwrap();
    let block = noise(3, 1 << 20);
    let mut failed = false;
    for _ in 0..(CAPACITY >> 20) + 8 {
        if f.write_all(&block).is_err() {
            failed = true;
            break;
        }
    }
    // A close of another descriptor, as by a child process, does not take the news away.
    drop(f.try_clone().unwrap());
    let synced = f.sync_all();
    assert!(failed || synced.is_err());
    if failed {
        assert_eq!(synced.unwrap_err().kind(), ErrorKind::StorageFull);
    }
    drop(f);
    fs::remove_file(m.path("large")).unwrap();
    fs::write(m.path("small"), b"fits").unwrap();
}

/// Memory maps: what is stored through one is in the file, and what is in the file is in the map.
#[test]
fn memory_maps() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (m, other) = (group.mount(1), group.mount(2));
    let data = noise(4, 300_000);
    fs::write(m.path("map"), &data).unwrap();
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 300000)
sys.stdout.buffer.write(m[:100])
m[5:10] = b'HELLO'
m[299990:299999] = b'THE END !'
m.flush()
m.close()
os.close(fd)
";
    let Ok(out) = Command::new("python3")
        .args(["-c", script])
        .arg(m.path("map"))
        .output()
    else {
        return left_out("python3 is absent");
    };
    assert!(out.status.success(), "{out:?}");
    assert_eq!(out.stdout, data[..100]);
    let mut expected = data;
    expected[5..10].copy_from_slice(b"HELLO");
    expected[299_990..299_999].copy_from_slice(b"THE END !");
    assert!(fs::read(m.path("map")).unwrap() == expected);
    assert!(fs::read(other.path("map")).unwrap() == expected);
}
