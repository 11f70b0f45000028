//! The committed corpus and mutations of it, the same every time.

use std::process::Command;

use quorate_fuzz::TARGETS;

/// Mutations of a cheap target; dear ones have fewer.
const MUTATIONS: &str = "60000";
/// Tests that run beside each other.
const PARTS: usize = 4;

fn replay(part: usize) {
    let targets = TARGETS.iter().skip(part).step_by(PARTS).map(|t| t.name);
    let status = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(["--mutations", MUTATIONS])
        .args(targets)
        .status()
        .expect("it can be started");
    assert!(status.success(), "see above");
}

#[test]
fn first_part() {
    replay(0);
}

#[test]
fn second_part() {
    replay(1);
}

#[test]
fn third_part() {
    replay(2);
}

#[test]
fn fourth_part() {
    replay(3);
}
