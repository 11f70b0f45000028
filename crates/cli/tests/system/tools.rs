//! Exercisers of file systems that others have written.

use crate::harness::{Group, Patience, finish, program, require_fuse, tool};

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
