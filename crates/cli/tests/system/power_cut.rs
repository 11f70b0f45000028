//! After a power cut of all replicas, what fsync(2) had said is there, to the byte.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Group, Mount, Random, Setup, program, require_fuse};

const CUTS: usize = 20;
const FILES: usize = 4;
const LONGEST_RECORD: u64 = 24_000;

/// A file to which records are appended; its bytes up to `synced` were acknowledged.
struct Appended {
    seed: u64,
    synced: AtomicU64,
}

/// The records of a file are a function of its seed, so its content is known at any length.
fn record(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ number << 20);
    let len = 1 + random.below(LONGEST_RECORD) as usize;
    random.bytes(len)
}

impl Appended {
    fn name(&self) -> String {
        format!("records-{}", self.seed)
    }

    /// Appends for ever, and prints how much is synced. A power cut makes a call take long, and nothing else.
    fn append(&self, directory: &Path) {
        let mut file = File::create(directory.join(self.name())).expect("a new file");
        let mut len = 0;
        for number in 0.. {
            let record = record(self.seed, number);
            file.write_all(&record).expect("a record is written");
            // Both calls promise the same.
            match number % 2 {
                0 => file.sync_all().expect("a record is synced"),
                _ => file.sync_data().expect("a record is synced"),
            }
            len += record.len();
            println!("synced {} {len}", self.seed);
            // All of it is read after each cut: what is written meanwhile must not outgrow that.
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Fails unless all acknowledged bytes are there, and nothing that was never written.
    fn check(&self, directory: &Path, synced: u64) {
        let file = File::open(directory.join(self.name())).expect("the file is there");
        let mut content = Vec::new();
        // Not to its end: the writer may be faster than this.
        let mut start = file.take(synced + LONGEST_RECORD);
        start.read_to_end(&mut content).expect("it can be read");
        let len = content.len() as u64;
        assert!(
            len >= synced,
            "{} lost {} synced bytes",
            self.name(),
            synced - len
        );
        let mut rest = content.as_slice();
        for number in 0.. {
            let record = record(self.seed, number);
            let here = rest.len().min(record.len());
            assert_eq!(
                rest[..here],
                record[..here],
                "{}, record {number}",
                self.name()
            );
            rest = &rest[here..];
            if rest.is_empty() {
                break;
            }
        }
    }
}

/// Twenty times, all four replicas are killed at a moment of chance while files are written and synced.
///
/// Even cuts are looked at through a mount that was made after them, so no cache of the writers' machine helps.
#[test]
fn synced_data_survives_power_cuts() {
    if !require_fuse() {
        return;
    }
    let seed = match std::env::var("QUORATE_TEST_SEED") {
        Ok(text) => text.parse().expect("QUORATE_TEST_SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("QUORATE_TEST_SEED={seed} repeats the moments");
    let mut random = Random::new(seed);
    let mut group = Setup::new(4).on_disk().start();
    let mount = group.mount();
    let files: Vec<Appended> = (0..FILES as u64)
        .map(|seed| Appended {
            seed,
            synced: AtomicU64::new(0),
        })
        .collect();
    let mut writer = start_writer(mount.path());
    let said = BufReader::new(writer.0.stdout.take().expect("a pipe"));
    std::thread::scope(|scope| {
        scope.spawn(|| listen(said, &files));
        // Also when a check fails: a scope waits for its threads.
        let mut writer = writer;
        for cut in 0..CUTS {
            wait_for_progress(&files);
            std::thread::sleep(Duration::from_micros(random.below(600_000)));
            group.kill_all();
            let synced: Vec<u64> = files
                .iter()
                .map(|f| f.synced.load(Ordering::Acquire))
                .collect();
            println!("cut {cut}: {synced:?} bytes were synced");
            group.start_all();
            group.wait_until_it_works();
            let fresh = (cut % 2 == 0).then(|| group.mount_as(1));
            let directory = fresh.as_ref().map_or(mount.path(), Mount::path);
            for (file, synced) in files.iter().zip(synced) {
                file.check(directory, synced);
            }
        }
        writer.end();
    });
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let fresh = group.mount_as(1);
    for file in &files {
        file.check(fresh.path(), file.synced.load(Ordering::Acquire));
    }
}

/// The process that appends. It is another than this one: a replica's process that is started by one that has files
/// of the mount open would first have to close them, and that waits for the group.
struct Writer(Child);

fn start_writer(directory: &Path) -> Writer {
    let mut command = Command::new(std::env::current_exe().expect("this test's own file"));
    command.args([
        "--exact",
        "power_cut::appends_for_ever",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env("QUORATE_TEST_APPEND", directory)
        .stdout(Stdio::piped());
    Writer(command.spawn().expect("the writer starts"))
}

impl Writer {
    fn end(&mut self) {
        // It may have failed, and then the test does too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The writer's part of the test above.
#[test]
#[ignore = "is a process of synced_data_survives_power_cuts"]
fn appends_for_ever() {
    let Some(directory) = std::env::var_os("QUORATE_TEST_APPEND") else {
        return;
    };
    std::thread::scope(|scope| {
        for seed in 0..FILES as u64 {
            let file = Appended {
                seed,
                synced: AtomicU64::new(0),
            };
            let directory = Path::new(&directory);
            scope.spawn(move || file.append(directory));
        }
    });
}

/// Takes down what the writer has synced, until it ends.
fn listen(said: impl BufRead, files: &[Appended]) {
    for line in said.lines().map_while(Result::ok) {
        let Some(("", rest)) = line.split_once("synced ") else {
            continue;
        };
        let Some((seed, len)) = rest.split_once(' ') else {
            continue;
        };
        if let (Ok(seed), Ok(len)) = (seed.parse::<usize>(), len.parse()) {
            files[seed].synced.store(len, Ordering::Release);
        }
    }
}

/// Waits until each file has grown since the last cut: then the group serves, and a cut hits writes.
fn wait_for_progress(files: &[Appended]) {
    let before: Vec<u64> = files
        .iter()
        .map(|f| f.synced.load(Ordering::Acquire))
        .collect();
    crate::harness::eventually("all writers go on", || {
        files
            .iter()
            .zip(&before)
            .all(|(f, before)| f.synced.load(Ordering::Acquire) > *before)
    });
}

/// A group that comes back after a power cut is the same to its mounts: what was open stays open, even without a name.
#[test]
fn open_files_survive_a_power_cut() {
    if !require_fuse() {
        return;
    }
    const PROGRAM: &str = "exec 3>\"$0\" 4<\"$0\"; rm \"$0\"; printf before >&3; echo ready; read go; \
                           printf ' and after' >&3; cat <&4";
    let mut group = Group::start();
    let mount = group.mount();
    let mut shell = program("sh");
    shell.args(["-c", PROGRAM]).arg(mount.at("open"));
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = Writer(shell.spawn().expect("a shell"));
    let mut said = BufReader::new(writer.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a word");
    assert_eq!(line, "ready\n");
    group.kill_all();
    group.start_all();
    let mut go = writer.0.stdin.take().expect("a pipe");
    go.write_all(b"\n").expect("the shell goes on");
    let mut content = String::new();
    said.read_to_string(&mut content)
        .expect("what was in the file");
    assert_eq!(content, "before and after");
    writer.end();
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}
