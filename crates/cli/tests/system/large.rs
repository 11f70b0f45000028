//! Sizes and names at their ends: sparse files, long directories, large copies, any bytes in a name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use quorate_client::{Session, Volume};
use quorate_files::op::{Action, Mknod, Unlink, Who};
use quorate_files::{Ino, Kind};
use quorate_net::{Identity, keys};

use crate::harness::{Group, Random, program, require_fuse, run, scratch};

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

/// A hundred thousand files in one directory: made, counted, looked at, removed.
///
/// The kernel makes and removes one name of a directory at a time, each a round of agreement. So every fiftieth file comes and
/// goes through the mount, and a session with many requests in flight does the rest.
#[test]
fn a_directory_holds_a_hundred_thousand_files() {
    const FILES: usize = 100_000;
    const BY_MOUNT: usize = 50;
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let mount = group.mount();
    let directory = mount.at("many");
    fs::create_dir(&directory).expect("a directory");
    let number = fs::metadata(&directory).expect("its attributes").ino();
    let others = Others::of(&group, Ino(number));
    let start = Instant::now();
    for n in (0..FILES).step_by(BY_MOUNT) {
        File::create_new(directory.join(name(n))).expect("a new file");
    }
    others.each((0..FILES).filter(|n| n % BY_MOUNT != 0), |parent, n| {
        Action::Mknod(Mknod {
            parent,
            name: name(n).into(),
            kind: Kind::Regular,
            mode: 0o644,
            rdev: 0,
        })
    });
    println!("made {FILES} files in {:?}", start.elapsed());
    let start = Instant::now();
    let list = |directory: &Path| -> BTreeSet<OsString> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(directory).expect("the directory") {
            let name = entry.expect("an entry").file_name();
            assert!(names.insert(name.clone()), "{name:?} is listed twice");
        }
        names
    };
    let expected: BTreeSet<OsString> = (0..FILES).map(|n| name(n).into()).collect();
    assert!(
        list(&directory) == expected,
        "the list is not what was made"
    );
    println!("listed them in {:?}", start.elapsed());
    for n in (0..FILES).step_by(997) {
        let metadata = fs::metadata(directory.join(name(n))).expect("attributes");
        assert!(metadata.is_file());
    }
    assert!(fs::metadata(directory.join(name(FILES))).is_err());
    let start = Instant::now();
    others.each((0..FILES).filter(|n| n % BY_MOUNT != 0), |parent, n| {
        Action::Unlink(Unlink {
            parent,
            name: name(n).into(),
        })
    });
    // What the other session removed may be remembered here for as long as attributes are.
    std::thread::sleep(quorate_client::fuse::TTL);
    assert_eq!(list(&directory).len(), FILES / BY_MOUNT);
    for n in (0..FILES).step_by(BY_MOUNT) {
        fs::remove_file(directory.join(name(n))).expect("a file is removed");
    }
    println!("removed them in {:?}", start.elapsed());
    fs::remove_dir(&directory).expect("an empty directory");
}

fn name(n: usize) -> String {
    format!("file number {n}")
}

/// A client of the group beside the mount, with many requests in flight.
struct Others {
    runtime: tokio::runtime::Runtime,
    volume: Volume,
    directory: Ino,
}

impl Others {
    fn of(group: &Group, directory: Ino) -> Others {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let key = keys::load(&group.client_key(2)).expect("a client's key");
        let session = Session::connect(group.contents(), &Identity::new(&key)).expect("a session");
        Others {
            runtime,
            volume: Volume::new(session),
            directory,
        }
    }

    /// Does something in the directory for each number; all of it must succeed.
    fn each(&self, numbers: impl Iterator<Item = usize>, action: impl Fn(Ino, usize) -> Action) {
        const AT_ONCE: usize = 128;
        self.runtime.block_on(async {
            let mut calls = tokio::task::JoinSet::new();
            for n in numbers {
                if calls.len() == AT_ONCE {
                    calls
                        .join_next()
                        .await
                        .expect("one is under way")
                        .expect("a call");
                }
                let (volume, action) = (self.volume.clone(), action(self.directory, n));
                calls.spawn(async move {
                    let root = Who::new(0, 0);
                    volume.run(&root, action).await.expect("it succeeds");
                });
            }
            while let Some(done) = calls.join_next().await {
                done.expect("a call");
            }
        });
    }
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
