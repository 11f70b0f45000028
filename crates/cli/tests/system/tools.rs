//! Exercisers of file systems that others have written.

use std::path::Path;

use rustix::process::geteuid;

use crate::harness::{
    Group, Patience, finish, left_out, program, require_fuse, scratch, scratch_in_memory, tool,
};

/// fsx does reads, writes, truncations and mappings of chance to one file and compares with what it remembers.
#[test]
fn fsx_finds_nothing() {
    let Some(fsx) = tool("fsx") else { return };
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let mount = group.mount();
    let mut command = program(fsx.to_str().expect("a path"));
    command
        .args(["-N", "10000", "-S", "42"])
        .arg(mount.at("file"));
    let finished = finish(&mut command, Patience::default());
    let said = [finished.stdout.as_str(), finished.stderr.as_str()].concat();
    let lines: Vec<&str> = said.lines().collect();
    let last = &lines[lines.len().saturating_sub(40)..];
    assert!(
        finished.status.success(),
        "fsx: {}\n{}",
        finished.status,
        last.join("\n")
    );
}

/// pjdfstest asks of each system call what POSIX says of it, as several users. It skips what would remount the volume read-only, and one limit that the mount does
/// not name.
#[test]
fn pjdfstest_finds_nothing() {
    let Some(pjdfstest) = tool("pjdfstest") else {
        return;
    };
    if !require_fuse() {
        return;
    }
    if !geteuid().is_root() {
        return left_out("only user 0 can act as others").unwrap_or_default();
    }
    let group = Group::start();
    let mount = group.mount();
    // What must not go across two file systems is tried with another; and the program writes its log where it is started.
    let (another, place) = (scratch_in_memory(), scratch());
    let mut command = program(pjdfstest.to_str().expect("a path"));
    command
        .arg("-c")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites/pjdfstest.toml"));
    command.arg("-s").arg(another.path());
    command
        .arg("-p")
        .arg(mount.path())
        .current_dir(place.path());
    let finished = finish(&mut command, Patience::default());
    let said = [finished.stdout.as_str(), finished.stderr.as_str()].concat();
    let lines: Vec<&str> = said.lines().collect();
    let summary = lines.iter().rfind(|line| line.starts_with("Summary: "));
    let wanted = "Summary: 0 failed, 14 skipped, 384 passed,";
    let other = |line: &&&str| !line.ends_with(" ok") && !line.ends_with(" skipped");
    assert!(
        finished.status.success() && summary.is_some_and(|line| line.starts_with(wanted)),
        "pjdfstest: {}\n{:#?}",
        finished.status,
        lines.iter().filter(other).collect::<Vec<_>>()
    );
}
