//! The command line of the laboratory.

use std::process::Command;

/// Who asks for nothing is told how it is used; and a seed can be run.
#[test]
fn it_says_how_it_is_used_and_runs_a_seed() {
    let lab = || Command::new(env!("CARGO_BIN_EXE_quorate-lab"));
    let told = lab().output().expect("it runs");
    assert!(!told.status.success());
    let usage = String::from_utf8_lossy(&told.stderr).into_owned();
    for word in ["sim", "twins", "mutants", "model"] {
        assert!(usage.contains(word), "{word}: {usage}");
    }
    let ran = lab().args(["sim", "--seed", "1"]).output();
    let ran = ran.expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
}
