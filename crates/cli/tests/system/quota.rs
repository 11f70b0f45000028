//! Quotas of directories, on a real mount.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{Group, program, quorate, require_fuse, run};

fn quota(group: &Group, words: &[&str], path: Option<&Path>) -> std::process::Command {
    let mut command = quorate();
    command.arg("quota").args(words);
    if let Some(path) = path {
        command.arg(path);
    }
    command.arg("--group").arg(group.file());
    command.arg("--key").arg(group.client_key(0));
    command
}

fn shown(group: &Group, path: &Path) -> Value {
    let said = run(&mut quota(group, &["show", "--json"], Some(path)));
    serde_json::from_str(&said).expect("JSON")
}

/// A directory with files gets a quota: what is there is counted, what exceeds it is refused on all mounts, df shows what is left,
/// and a replica that comes back counts the same.
#[test]
fn a_quota_holds_on_a_mount() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let (left, right) = (group.mount_as(0), group.mount_as(1));
    let dir = left.at("team");
    fs::create_dir_all(dir.join("a/b")).expect("directories");
    fs::write(dir.join("a/b/old"), vec![1; 100_000]).expect("a file");
    let mut set = quota(
        &group,
        &["set", "--bytes", "1M", "--files", "6"],
        Some(&dir),
    );
    let said = run(&mut set);
    assert!(said.contains("of 1048576 bytes, 4 of 6 files"), "{said}");
    // 25 blocks and three entries.
    let row = shown(&group, &dir.join("a/b/old"));
    assert_eq!(row["used_bytes"], 25 * 4096 + 3 * 256);
    assert_eq!(row["path"], "/team");

    group.kill(2);
    let mut large = File::create(right.at("team/large")).expect("an empty file");
    large.write_all(&vec![2; 1 << 20]).expect("it is gathered");
    let refused = large.sync_all().expect_err("over quota");
    drop(large);
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    // What did not fit is not there, what fits does not suffer.
    fs::remove_file(right.at("team/large")).expect("what is left of it");
    fs::write(right.at("team/small"), vec![2; 500_000]).expect("it fits");
    fs::write(left.at("team/last"), b"").expect("the sixth");
    let seventh = File::create(right.at("team/more")).expect_err("too many files");
    assert_eq!(seventh.kind(), ErrorKind::QuotaExceeded);
    fs::write(left.at("beside"), vec![3; 2 << 20]).expect("beside it there is room");

    let mut df = program("df");
    df.args(["-B1", "--output=size,used", "--"])
        .arg(right.at("team/a"));
    let said = run(&mut df);
    let numbers: Vec<u64> = said
        .lines()
        .nth(1)
        .expect("a line of numbers")
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    let row = shown(&group, &dir);
    let used = row["used_bytes"].as_u64().expect("a number");
    assert_eq!(numbers[0], 1 << 20);
    assert_eq!(numbers[1], used.next_multiple_of(4096));

    // A directory with entries does not move out by rename(2), and does by mv(1); a file moves.
    let moved = fs::rename(left.at("team/a"), left.at("a")).expect_err("another quota");
    assert_eq!(moved.kind(), ErrorKind::CrossesDevices);
    run(program("mv").arg(left.at("team/a")).arg(left.at("a")));
    fs::rename(left.at("team/small"), left.at("small")).expect("a file moves");
    let row = shown(&group, &dir);
    assert_eq!(
        (row["used_bytes"].as_u64(), row["used_files"].as_u64()),
        (Some(256), Some(2))
    );
    let inode = fs::metadata(&dir).expect("the directory").ino();
    assert_eq!(row["object"], inode);

    assert_said(
        &ends(&mut quota(&group, &["show"], Some(&left.at("beside")))),
        1,
        &[],
    );
    let none = ends(&mut quota(&group, &["clear"], Some(&left.at("a"))));
    assert_said(&none, 1, &["has no quota of its own"]);
    let elsewhere = ends(&mut quota(&group, &["show"], Some(Path::new("/tmp"))));
    assert_said(&elsewhere, 1, &["not on a mount"]);
    let unlimited = ["set", "--bytes", "none"];
    let said = run(&mut quota(&group, &unlimited, Some(&dir)));
    assert!(said.contains("of any bytes, 2 of 6 files"), "{said}");
    let listed = run(&mut quota(&group, &["list"], None));
    assert!(listed.starts_with("/team: 256 of any bytes"), "{listed}");
    run(&mut quota(&group, &["clear"], Some(&dir)));
    assert_eq!(run(&mut quota(&group, &["list"], None)), "");
    for n in 0..10 {
        fs::write(dir.join(format!("{n}")), b"").expect("no quota any more");
    }
    group.start_replica(2);
    left.unmount();
    right.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}
