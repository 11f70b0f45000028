//! What becomes of a command whose results can't be written, since nobody reads them any more or the disk is full.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{free_ports, quorate, run, scratch};

/// Commands that need no group that runs, each with the exit code that it has where its results are read; all that they make is in `place`.
fn commands(place: &Path) -> Vec<(Command, i32)> {
    let addresses: Vec<String> = free_ports(4)
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let init = |name: &str| {
        let mut init = quorate();
        init.args(["init", "--replicas", &addresses.join(",")]);
        init.arg(place.join(name));
        init
    };
    run(&mut init("group"));
    let group = place.join("group/group.toml");
    let audit = place.join("audit");
    let head = "0".repeat(64);
    fs::write(&audit, format!("{{\"head\":\"{head}\"}}\n")).expect("an export");
    let mut all = vec![(init("another"), 0)];
    let mut add = |arguments: &[&str], last: &Path, code| {
        let mut command = quorate();
        command.args(arguments).arg(last);
        all.push((command, code));
    };
    add(&["keygen"], &place.join("key"), 0);
    add(&["keygen", "--json"], &place.join("another-key"), 0);
    add(&["programs"], Path::new(env!("CARGO_BIN_EXE_quorate")), 0);
    add(&["evidence", "list", "--json", "--group"], &group, 0);
    add(&["audit", "verify"], &audit, 0);
    // Nobody answers.
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        let asked = [&["status", "--timeout-ms", "10"], form].concat();
        add(&asked, &group, 2);
    }
    all
}

/// How a command ends that has this as its standard output, and what it says.
fn ends(command: &mut Command, out: impl Into<Stdio>) -> (Option<i32>, String) {
    let ended = command.stdout(out).stderr(Stdio::piped()).output();
    let ended = ended.expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.code(), said)
}

/// Whoever read them has gone: the command ends as it would have.
#[test]
fn nobody_need_read_results() {
    let place = scratch();
    for (mut command, code) in commands(place.path()) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let (ended, said) = ends(&mut command, writer);
        assert_eq!(ended, Some(code), "{command:?}: {said}");
        let told = ["panicked", "written", "pipe"].map(|word| said.contains(word));
        assert!(!told.contains(&true), "{command:?}: {said}");
    }
}

/// A disk takes no more of them: the command says so, and so does its exit code.
#[test]
fn results_that_are_lost_are_missed() {
    let place = scratch();
    for (mut command, _) in commands(place.path()) {
        let full = OpenOptions::new().write(true).open("/dev/full");
        let (ended, said) = ends(&mut command, full.expect("a full disk"));
        assert_eq!(ended, Some(74), "{command:?}: {said}");
        assert_eq!(
            said.matches("can't be written").count(),
            1,
            "{command:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{command:?}: {said}");
    }
}
