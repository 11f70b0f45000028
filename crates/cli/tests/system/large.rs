//! Sizes and names at their ends: sparse files, long directories, large copies, any bytes in a name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::harness::{
    Group, Mount, Random, Setup, Status, long_or, program, require_fuse, run, scratch,
};

/// Eight gibibytes of which only the ends are written: the rest is zeros and takes no room.
#[test]
fn sparse_files_are_large_and_cost_nothing() {
    const LEN: u64 = 8 << 30;
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let mount = group.mount();
    let options = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.at("sparse"));
    let file = options.expect("a new file");
    file.write_all_at(b"first", 0)
        .expect("the start is written");
    file.write_all_at(b"last", LEN - 4)
        .expect("the end is written");
    file.sync_all().expect("it is synced");
    let meta = file.metadata().expect("attributes");
    assert_eq!(meta.len(), LEN);
    assert!(meta.blocks() <= 2 * 4096 / 512, "{} blocks", meta.blocks());
    drop(file);
    let fresh = group.mount_as(1);
    let file = File::open(fresh.at("sparse")).expect("the file");
    assert_eq!(file.metadata().expect("attributes").len(), LEN);
    let mut buffer = vec![1; 1 << 20];
    for at in [5, 4 << 20, LEN / 2 + 123, LEN - 4 - (1 << 20)] {
        file.read_exact_at(&mut buffer, at)
            .expect("a hole can be read");
        assert!(buffer.iter().all(|b| *b == 0), "bytes in the hole at {at}");
    }
    let mut end = Vec::new();
    file.read_exact_at(&mut buffer[..4], LEN - 4)
        .expect("the end can be read");
    end.extend_from_slice(&buffer[..4]);
    assert_eq!(end, b"last");
    assert_eq!(
        file.read_at(&mut buffer, LEN).expect("reading at the end"),
        0
    );
}

/// Thirty thousand files in one directory, or a hundred thousand, each made through the kernel, listed on another machine's mount.
///
/// The kernel makes and removes one name of a directory at a time, each a round of agreement. So sixteen mounts work beside each
/// other, and their operations share batches. Most files are made by mknod(2), which leaves nothing to be closed.
#[test]
fn a_directory_holds_many_thousand_files() {
    const MOUNTS: usize = 16;
    const OPENED: usize = 20;
    const REMOVED: usize = 25;
    if !require_fuse() {
        return;
    }
    let files = long_or(100_000, 30_000);
    let group = Setup::new(4).votes_in_memory().start();
    let mounts: Vec<Mount> = (0..MOUNTS).map(|n| group.mount_as(n % 2)).collect();
    fs::create_dir(mounts[0].at("many")).expect("a directory");
    // Each mount does something with its share of every so many files.
    let each = |every: usize, what: fn(usize, &Path)| {
        std::thread::scope(|scope| {
            for (share, mount) in mounts.iter().enumerate() {
                let directory = mount.at("many");
                let numbers = (0..files).step_by(every).skip(share).step_by(MOUNTS);
                scope.spawn(move || numbers.for_each(|n| what(n, &directory.join(name(n)))));
            }
        });
    };
    let start = Instant::now();
    each(1, |n, path| match n % OPENED {
        0 => drop(File::create_new(path).expect("a new file")),
        _ => {
            let mode = Mode::from_raw_mode(0o644);
            mknodat(CWD, path, FileType::RegularFile, mode, 0).expect("a new file");
        }
    });
    println!("made {files} files in {:?}", start.elapsed());

    let fresh = group.mount_as(2);
    let directory = fresh.at("many");
    let start = Instant::now();
    let list = || -> BTreeSet<OsString> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&directory).expect("the directory") {
            let name = entry.expect("an entry").file_name();
            assert!(names.insert(name.clone()), "{name:?} is listed twice");
        }
        names
    };
    let mut expected: BTreeSet<OsString> = (0..files).map(|n| name(n).into()).collect();
    assert!(list() == expected, "the list is not what was made");
    println!("listed them in {:?}", start.elapsed());
    for n in (0..files).step_by(97) {
        let metadata = fs::metadata(directory.join(name(n))).expect("attributes");
        assert!(metadata.is_file());
    }
    assert!(fs::metadata(directory.join(name(files))).is_err());

    let start = Instant::now();
    each(REMOVED, |_, path| {
        fs::remove_file(path).expect("a file is removed");
    });
    println!("removed some in {:?}", start.elapsed());
    for n in (0..files).step_by(REMOVED) {
        expected.remove(&OsString::from(name(n)));
    }
    // What others have removed may be remembered here for as long as attributes are.
    std::thread::sleep(quorate_client::fuse::TTL);
    assert!(list() == expected, "the list is not what is left");
    let refused = fs::remove_dir(&directory).expect_err("it is not empty");
    assert_eq!(refused.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    mounts.into_iter().for_each(Mount::unmount);
    fresh.unmount();
    Status::wait_until_they_agree(group.directory(), &[0, 1, 2, 3]);
}

fn name(n: usize) -> String {
    format!("file number {n}")
}

/// Two hundred megabytes in and out again are the same bytes.
#[test]
fn large_files_come_back_as_they_were() {
    const LEN: usize = 200_000_000;
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let (original, back) = (place.path().join("original"), place.path().join("back"));
    fs::write(&original, Random::new(200).bytes(LEN)).expect("a local file");
    let group = Group::start();
    let mount = group.mount();
    let start = Instant::now();
    run(program("cp").arg(&original).arg(mount.at("file")));
    println!("copied in in {:?}", start.elapsed());
    // Another mount: nothing comes from the writer's cache.
    let fresh = group.mount_as(1);
    let start = Instant::now();
    run(program("cp").arg(fresh.at("file")).arg(&back));
    println!("copied out in {:?}", start.elapsed());
    let sums = [&original, &back].map(|path| {
        let line = run(program("sha256sum").arg(path));
        line.split(' ').next().map(str::to_owned)
    });
    assert!(sums[0].is_some() && sums[0] == sums[1], "{sums:?}");
}

/// Names are bytes: 255 of any but `/` and NUL.
#[test]
fn names_are_any_bytes() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let mount = group.mount();
    let mut random = Random::new(255);
    let mut names: BTreeSet<OsString> = BTreeSet::new();
    // Each byte alone, but for the dot, which names the directory itself.
    names.extend(
        (1..=255u8)
            .filter(|b| !b"/.".contains(b))
            .map(|b| OsString::from_vec(vec![b])),
    );
    for _ in 0..100 {
        let mut name = random.bytes(255);
        for byte in &mut name {
            if b"/\0".contains(byte) {
                *byte = 0xff;
            }
        }
        names.insert(OsString::from_vec(name));
    }
    for text in ["...", " ", "a\nb", "\u{e9}", "e\u{301}", "A", "\u{202e}"] {
        names.insert(text.into());
    }
    for name in &names {
        fs::write(mount.path().join(name), name.as_bytes()).expect("a file of that name");
    }
    let other = group.mount_as(1);
    let listed = fs::read_dir(other.path()).expect("the list");
    let listed: BTreeSet<OsString> = listed.map(|e| e.expect("an entry").file_name()).collect();
    assert!(listed == names, "the list is not what was made");
    for name in &names {
        let mut content = Vec::new();
        let mut file = File::open(other.path().join(name)).expect("the file of that name");
        file.read_to_end(&mut content).expect("its content");
        assert_eq!(content, name.as_bytes());
        fs::remove_file(other.path().join(name)).expect("it is removed");
    }
    assert_eq!(fs::read_dir(mount.path()).expect("the list").count(), 0);
    let long = fs::write(mount.path().join(OsStr::from_bytes(&[b'x'; 256])), b"");
    assert_eq!(
        long.expect_err("256 bytes").kind(),
        std::io::ErrorKind::InvalidFilename
    );
}

/// One replica alone reads a file's content and sends it, each in its turn; one that sends other content is found out by what the others have
/// vouched for, and nobody reads a wrong byte.
#[test]
fn a_liar_that_sends_the_content_is_found_out() {
    if !require_fuse() {
        return;
    }
    let group = Setup::new(4).fault(2, "lie").start();
    let content: Vec<u8> = Random::new(7).bytes(4 << 20);
    fs::write(group.mount().at("content"), &content).expect("it is written");
    for _ in 0..3 {
        let fresh = group.mount_as(1);
        assert!(fs::read(fresh.at("content")).expect("it is read") == content);
    }
}
