//! `quorate recover`: a replica that does not believe what it has written comes back right, and users notice nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command_line::assert_said;
use crate::harness::{
    Finished, Patience, Random, Status, Up, eventually, finish, free_ports, holds_in_time, quorate,
    require_fuse, scratch,
};

fn recover(data: &Path, id: u8) -> Finished {
    let mut command = quorate();
    command.args(["recover", &id.to_string(), "--json", "--data"]);
    command.arg(data);
    finish(&mut command, Patience::default())
}

fn recovers(data: &Path, id: u8) -> Value {
    let mut ended = recover(data, id);
    // Where the group has just started, the supervisor may not have heard of all others yet.
    holds_in_time(|| {
        let is_early = ended.stderr.contains("the group would stop");
        if is_early {
            ended = recover(data, id);
        }
        !is_early
    });
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

fn count(told: &Value, what: &str) -> u64 {
    told[what].as_u64().expect("a number")
}

/// Long files, which lie in segments, and short ones.
fn write_files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut random = Random::new(7);
    let mut files = BTreeMap::new();
    for i in 0..60 {
        let bytes = if i % 2 == 0 { 150_000 } else { 900 };
        let content = random.bytes(bytes);
        let name = PathBuf::from(format!("file-{i}"));
        fs::write(directory.join(&name), &content).expect("a file");
        files.insert(name, content);
    }
    files
}

fn assert_files(directory: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (name, content) in files {
        let found = fs::read(directory.join(name)).expect("a file");
        assert!(found == *content, "{} has other content", name.display());
    }
}

/// Somebody changes bytes in what a replica keeps, so far apart, in each file of a directory; gives how many files these are.
fn tamper(segments: &Path, apart: usize) -> usize {
    let mut files = 0;
    for segment in fs::read_dir(segments).expect("segments") {
        let path = segment.expect("a segment").path();
        let file = fs::File::options().write(true).open(&path).expect("it");
        let bytes = file.metadata().expect("its length").len();
        for at in (1_000..bytes).step_by(apart) {
            file.write_all_at(b"tampered with", at)
                .expect("it is written");
        }
        files += 1;
    }
    files
}

/// Somebody has set traps in a replica's directory: it is to look like one that has never run, or not to come up.
fn set_traps(replica: &Path) {
    let mark = replica.join("group-id");
    let id = fs::read_to_string(&mark).expect("a mark");
    fs::write(&mark, format!("{}\nnew\n", id.trim())).expect("another mark");
    for pipe in [
        "blobs/0000000000000000.blob",
        "log.reached",
        "log.former.reached",
        "state.damaged",
    ] {
        let path = replica.join(pipe);
        let _ = fs::remove_file(&path);
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a pipe");
    }
    fs::create_dir(replica.join("former.redb")).expect("a directory");
    for name in ["log.damaged", "log.former"] {
        let path = replica.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::write(path, b"").expect("a file");
    }
}

/// Recovered while people work: one that is sound, which fetches next to nothing; one whose files were changed behind its back; the
/// primary. Then one of the others goes, so that what the recovered ones have is needed: all is as it was.
#[test]
fn a_replica_recovers_while_people_work() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let up = Up::start(&data, port, &[]);
    let mount = data.join("files");
    let files = write_files(&mount);
    Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &mount);

    let over = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                let path = mount.join("work");
                let content = format!("written {written} times");
                fs::write(&path, &content).expect("the group goes on");
                assert_eq!(
                    fs::read_to_string(&path).expect("the group goes on"),
                    content
                );
                written += 1;
                thread::sleep(Duration::from_millis(20));
            }
            written
        });
        let sound = recovers(&data, 1);
        assert_eq!(count(&sound, "damaged"), 0, "{sound}");
        assert!(count(&sound, "right_bytes") > 4_000_000, "{sound}");
        assert!(
            count(&sound, "right") > 4 * count(&sound, "differing"),
            "{sound}"
        );

        tamper(&data.join("replica-2/blobs"), 1 << 20);
        let mended = recovers(&data, 2);
        assert!(count(&mended, "damaged") > 0, "{mended}");
        assert!(count(&mended, "right") > 0, "{mended}");

        set_traps(&data.join("replica-3"));
        let trapped = recovers(&data, 3);
        assert!(count(&trapped, "right") > 0, "{trapped}");

        let primary = Status::ask(&data).primary().expect("a primary");
        recovers(&data, primary);
        over.store(true, Ordering::Relaxed);
        work.join().expect("no error")
    });
    assert!(written > 0);
    Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &mount);
    Status::wait_until_they_agree(&data, &[0, 1, 2, 3]);
    for id in 0..4 {
        let replica = data.join(format!("replica-{id}"));
        assert!(!replica.join("former.redb").exists(), "it has served");
    }
    up.stop();

    // A mount that has read nothing yet, and a group in which the three are needed.
    let up = Up::start(&data, port, &["--fault", "0=silent"]);
    assert_files(&mount, &files);
    up.stop();
}

/// Changes each place in a store's file that has one of these contents, and the sums of the blocks in which that is, as somebody does who knows the format
/// (docs/design.md, 7.3); gives how many places.
fn change_each(store: &Path, contents: &[&[u8]]) -> usize {
    const BLOCK: usize = 4096;
    const IN_GROUP: usize = 1024;
    let mut bytes = fs::read(store).expect("a file");
    let heads: Vec<&[u8]> = contents.iter().map(|content| &content[..16]).collect();
    let places = bytes.windows(16).enumerate();
    let places = places.filter(|(_, found)| heads.contains(found));
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    let wrong = b"tampered with";
    for &at in &places {
        bytes[at..at + wrong.len()].copy_from_slice(wrong);
        // Past two header slots, in groups of a block of sums and those that they are of.
        for block in at / BLOCK - 2..=(at + wrong.len() - 1) / BLOCK - 2 {
            let (group, in_group) = (block / (1 + IN_GROUP), block % (1 + IN_GROUP) - 1);
            let number = (group * IN_GROUP + in_group + 1) as u64;
            let mut sum = crc32fast::Hasher::new();
            sum.update(&number.to_le_bytes());
            sum.update(&bytes[(2 + block) * BLOCK..][..BLOCK]);
            let sums = (2 + group * (1 + IN_GROUP)) * BLOCK;
            let sum = sum.finalize().max(1).to_le_bytes();
            bytes[sums + 4 * in_group..][..4].copy_from_slice(&sum);
        }
    }
    fs::write(store, bytes).expect("it is written");
    places.len()
}

/// Somebody has changed what a replica would go on with: records of its log, and values in its store, of one that ended in order and of one that was killed. It recovers, says what was wrong,
/// and is as good as the others are: with another one silent what it has is needed.
#[test]
fn a_log_and_a_store_that_were_tampered_with_are_not_believed() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let up = Up::start(&data, port, &["--no-restart"]);
    let mount = data.join("files");
    let files = write_files(&mount);
    let short = files.values().map(Vec::as_slice);
    let short: Vec<&[u8]> = short.filter(|content| content.len() < 1_000).collect();
    for (id, signal) in [(2, Signal::TERM), (3, Signal::KILL)] {
        Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &mount);
        Status::wait_until_they_agree(&data, &[0, 1, 2, 3]);
        let pid = up.replica(id);
        kill_process(pid, signal).expect("it lives");
        eventually("it is gone", || {
            !Path::new(&format!("/proc/{}/exe", pid.as_raw_nonzero())).exists()
        });

        let replica = data.join(format!("replica-{id}"));
        let in_store = change_each(&replica.join("state.redb"), &short);
        assert!(in_store > 0, "no short file lies in the store");
        assert!(tamper(&replica.join("log"), 1 << 12) > 0, "it has no log");

        let told = recovers(&data, id);
        let wrong = count(&told, "damaged") + count(&told, "differing");
        assert!(wrong > 0 && count(&told, "right") > 0, "{told}");
        fs::write(mount.join("more"), format!("{id} is back")).expect("a file");
        Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &mount);
        Status::wait_until_they_agree(&data, &[0, 1, 2, 3]);
        for gone in ["log.former", "former.redb"] {
            let path = replica.join(gone);
            eventually("nothing of it is kept", || !path.exists());
        }
    }
    up.stop();

    let up = Up::start(&data, port, &["--fault", "1=silent"]);
    assert_files(&mount, &files);
    up.stop();
}

/// The process is killed in the midst of its recovery: started again, it goes on with that, though nobody tells it to.
#[test]
fn a_recovery_survives_a_kill() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &[]);
    let mount = data.join("files");
    let files = write_files(&mount);
    Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &mount);
    let before = up.replica(3);
    thread::scope(|scope| {
        let recovery = scope.spawn(|| recovers(&data, 3));
        eventually("it has started again", || {
            fs::read_to_string(data.join("replica-3/messages.log"))
                .is_ok_and(|log| log.contains("recovering on purpose"))
        });
        let again = up.replica(3);
        assert_ne!(again, before);
        kill_process(again, Signal::KILL).expect("it lives");
        recovery.join().expect("it comes back");
    });
    Status::wait_until_they_agree(&data, &[0, 1, 2, 3]);
    assert_files(&mount, &files);
    up.stop();
}

/// One of four says nothing any more, and the supervisors can't know: a sound one recovers, and the two that are left can do nothing. It goes
/// back to what it had, so that people wait for a moment and see no error. The next recovery, with nobody in its way, is one.
///
/// One that says nothing can't ask for what it has missed either. Where that happens as the group starts, which is chance, it is known to be behind, and the
/// recovery is refused: then the next group is tried.
#[test]
fn a_silent_replica_has_a_recovery_missed() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let is_shown = (0..5).any(|n| misses_a_recovery(&place.path().join(format!("data-{n}"))));
    assert!(
        is_shown,
        "the silent replica was behind in each of the groups"
    );
}

/// Whether it is shown: not where the silent replica is known to be behind.
fn misses_a_recovery(data: &Path) -> bool {
    let port = free_ports(1)[0];
    let up = Up::start(data, port, &["--fault", "3=silent"]);
    let mount = data.join("files");
    let files = write_files(&mount);
    Status::wait_for_a_checkpoint(data, &[0, 1, 2], &mount);
    let over = AtomicBool::new(false);
    let missed = thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                fs::write(mount.join("work"), format!("{written}")).expect("the group goes on");
                written += 1;
            }
            written
        });
        let missed = recover(data, 1);
        over.store(true, Ordering::Relaxed);
        assert!(work.join().expect("no error") > 0);
        missed
    });
    if missed.stderr.contains("look after 3 first") {
        up.stop();
        return false;
    }
    assert_said(&missed, 1, &["came to nothing", "goes on"]);
    let replica = status_of(data)["replicas"][1].clone();
    assert_eq!(replica["went_back"], true, "{replica}");
    assert_eq!(replica["recovering"], false, "{replica}");
    Status::wait_until_they_agree(data, &[0, 1, 2]);
    assert!(!data.join("replica-1/log.former").exists(), "it is in use");
    assert_files(&mount, &files);
    up.stop();

    let up = Up::start(data, port, &[]);
    let noted = fs::read_to_string(data.join("certificates")).expect("what is known of keys");
    recovers(data, 1);
    assert_seen(up.replica(1), &noted);
    assert_files(&mount, &files);
    up.stop();
    true
}

/// No recovery where the group would stop meanwhile; and the schedule, as it is set and told.
#[test]
fn a_group_that_can_spare_nobody_is_left_alone() {
    let place = scratch();
    let data = place.path().join("data");
    let options = ["--no-mount", "--no-restart", "--no-key-holders"];
    let up = Up::start(&data, free_ports(1)[0], &options);
    let schedule = |options: &[&str]| {
        let mut command = quorate();
        command
            .args(["schedule", "--data"])
            .arg(&data)
            .args(options);
        finish(&mut command, Patience::default())
    };
    assert_said(&schedule(&["--every", "10s"]), 1, &["too often"]);
    assert_said(&schedule(&["--every", "soon"]), 2, &["10m"]);
    // Long enough that hardly ever a turn comes by itself meanwhile.
    assert_said(&schedule(&["--every", "10h"]), 0, &[]);
    let told: Value = serde_json::from_str(&schedule(&["--json"]).stdout).expect("JSON");
    assert_eq!(told["every_s"], 36_000);
    // No keys are renewed where there are no key holders.
    assert_said(&schedule(&["--key-refresh", "5s"]), 1, &["no key holders"]);
    let next: Vec<u64> = (0..4)
        .map(|id| told["replicas"][id]["next_in_s"].as_u64().expect("a time"))
        .collect();
    assert!(next.iter().all(|s| *s <= 36_000), "{next:?}");
    assert_said(&recover(&data, 9), 1, &["replica 9 is not run from here"]);

    kill_process(up.replica(3), Signal::KILL).expect("it lives");
    // As the supervisor sees it.
    eventually("it is missed", || {
        let told = up.events("status");
        told.last()
            .is_some_and(|status| status["silent"] == json!([3]))
    });
    assert_said(&recover(&data, 1), 1, &["the group would stop"]);
    up.stop();
    assert_said(&recover(&data, 1), 1, &["nobody answers"]);
}

/// By the clock alone each replica has its turn, one after the other. When one is gone the next can't be spared: its turn is missed, with an alarm that says why,
/// and no window is claimed any more. The one that is gone has its own turn, which brings it back, and then the others have theirs.
#[test]
fn turns_come_by_the_clock() {
    let place = scratch();
    let data = place.path().join("data");
    let options = ["--no-mount", "--no-restart"];
    let up = Up::start(&data, free_ports(1)[0], &options);
    let mut every = quorate();
    every.args(["schedule", "--every", "20s", "--data"]);
    assert_said(&finish(every.arg(&data), Patience::default()), 0, &[]);
    let is_claimed = || told(&data)["window_ms"].is_u64();
    eventually("each has had its turn", is_claimed);
    let ended = |id: usize| told(&data)["replicas"][id]["last"]["ended_ms"].as_u64();
    let before = ended(3);
    eventually("replica 3 has just had its turn", || ended(3) != before);
    kill_process(up.replica(3), Signal::KILL).expect("it lives");
    eventually("a turn is missed", || {
        let text = told(&data)["text"].to_string();
        text.contains("ALARM") && text.contains("turn to recover was missed: without it the group")
    });
    assert_eq!(told(&data)["window_ms"], Value::Null);
    eventually("all have had their turns", is_claimed);
    up.stop();
}

/// A replica that recovers is told by its supervisor which of the others' certificates are old: no older ones than it had noted before.
fn assert_seen(replica: Pid, noted: &str) {
    let noted = noted.lines().skip(2).map(|line| {
        let number = line.split(' ').next().expect("a number");
        number.parse::<u64>().expect("a number")
    });
    let noted: Vec<u64> = noted.collect();
    let command =
        fs::read_to_string(format!("/proc/{}/cmdline", replica.as_raw_nonzero())).expect("it runs");
    let mut arguments = command.split('\0').skip_while(|a| *a != "--seen");
    let seen = arguments.nth(1).expect("what its supervisor has seen");
    let seen: Vec<u64> = seen
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!((noted.len(), seen.len()), (4, 4));
    let known = seen.iter().zip(&noted).all(|(seen, noted)| seen >= noted);
    assert!(known && noted.iter().all(|n| *n > 0), "{seen:?} {noted:?}");
}

fn status_of(data: &Path) -> Value {
    let mut command = quorate();
    command
        .args(["status", "--json"])
        .arg(data.join("group.toml"));
    let status = finish(&mut command, Patience::default());
    serde_json::from_str(&status.stdout).expect("JSON")
}

/// How `quorate status` words the recoveries of a group.
fn told(data: &Path) -> Value {
    status_of(data)["recovery"].clone()
}

/// A window of vulnerability is claimed when each replica has recovered, will again, and renews its keys; until then it is said what is
/// missing. What recoveries took is known after the supervisor has been killed.
#[test]
fn a_window_is_claimed_when_all_holds() {
    let place = scratch();
    let data = place.path().join("data");
    let options = ["--no-mount"];
    let port = free_ports(1)[0];
    let up = Up::start(&data, port, &options);
    let no = told(&data);
    assert_eq!(no["window_ms"], Value::Null, "{no}");
    let text = no["text"].to_string();
    for reason in ["does not recover by itself", "has not recovered yet"] {
        assert!(text.contains(reason), "{text}");
    }
    let mut every = quorate();
    every.args(["schedule", "--every", "1h", "--data"]);
    assert_said(&finish(every.arg(&data), Patience::default()), 0, &[]);
    for id in 0..4 {
        // Refused as long as the supervisor has not heard of all others that they work.
        let mut recovered = None;
        eventually("it can be spared, and recovers", || {
            let ended = recover(&data, id);
            recovered = serde_json::from_str(&ended.stdout).ok();
            recovered.is_some()
        });
        let recovered: Value = recovered.expect("JSON");
        let steps = &recovered["steps"];
        let at = |step: &str| count(steps, step);
        let order = ["restored_ms", "keyed_ms", "began_ms", "estimated_ms"];
        let rest = ["fetched_ms", "voted_ms", "caught_up_ms"];
        let times: Vec<u64> = order.into_iter().chain(rest).map(at).collect();
        assert!(times.is_sorted(), "{recovered}");
        assert!(times[6] <= count(&recovered, "took_ms"), "{recovered}");
        // Its key holder has said it, and the group has ordered that.
        let ordered = at("ordered_ms");
        assert!(times[2] < ordered && ordered <= times[5], "{recovered}");
    }
    let mut window = Value::Null;
    eventually("it is claimed", || {
        window = told(&data);
        window["window_ms"].is_u64()
    });
    let longest = window["replicas"].as_array().expect("four").iter();
    let longest = longest.map(|r| count(r, "longest_recovery_ms")).max();
    // With what renewals and turns may be late by.
    let all = 2 * 17_000 + 3_601_000 + longest.expect("four");
    assert_eq!(count(&window, "window_ms"), all, "{window}");
    let mut command = quorate();
    command
        .args(["status", "--prometheus"])
        .arg(data.join("group.toml"));
    let text = finish(&mut command, Patience::default()).stdout;
    for line in [
        "quorate_replica_up{replica=\"3\"} 1",
        "quorate_window_of_vulnerability_claimed 1",
        "quorate_recovery_alarms{replica=\"0\"} 0",
        "quorate_recovery_period_seconds{replica=\"2\"} 3600",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    up.stop();

    let up = Up::start(&data, port, &["--no-mount"]);
    // The supervisor has to hear of all of them first.
    eventually("it is claimed again", || {
        told(&data)["window_ms"].as_u64() == Some(all)
    });
    up.stop();
}
