//! Proof of a replica's contradictions: found by the others, kept, listed, and checked by whoever has the group file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{Group, Setup, eventually, free_ports, quorate, require_fuse, run, scratch};

/// Enough for a checkpoint, from which a state can be fetched: each takes two batches at least.
const FILES: usize = 100;

fn evidence(action: &str, group: &Path) -> Command {
    let mut command = quorate();
    command.args(["evidence", action, "--json", "--group"]);
    command.arg(group);
    command
}

fn list(group: &Group) -> Vec<Value> {
    let said = run(&mut evidence("list", &group.file()));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    said["evidence"].as_array().expect("a list").clone()
}

/// A replica gives another, which fetches the state, pieces that are not in it. Where all messages are signed, that is
/// proof too.
#[test]
fn a_donor_that_lies_is_convicted() {
    if !require_fuse() {
        return;
    }
    let mut group = Setup::new(4).signed().fault(3, "corrupt-state").start();
    let mount = group.mount();
    for i in 0..FILES {
        fs::write(mount.path().join(format!("file-{i}")), b"content").expect("a file");
    }
    group.wait_until_they_agree(&[0, 1, 2]);
    group.kill(2);
    let state = group.directory().join("replica-2/state.redb");
    fs::write(&state, b"no store").expect("it is damaged");
    group.start_replica(2);
    group.wait_until_they_agree(&[0, 1, 2]);
    eventually("a proof is found", || !list(&group).is_empty());
    mount.unmount();
    let found = list(&group);
    for one in &found {
        assert_eq!(one["proved"], true, "{found:#?}");
        assert_eq!(one["about"]["replica"], 3, "{found:#?}");
        assert_eq!(one["about"]["kind"], "state", "{found:#?}");
    }
    assert!(group.log(2).contains("is not in the certified one"));
    let file = found[0]["file"].as_str().expect("a file");
    let shown = run(evidence("show", &group.file()).arg(file));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let certificate = shown["statements"][1].as_str().expect("words");
    assert!(certificate.contains("Checkpoint"), "{certificate}");
}

/// In a group as it is by default, where votes have MACs and key holders certify the keys of an epoch, what is signed are the words of view changes: who says two things there is
/// convicted by these, before everyone with the group file.
#[test]
fn two_words_of_a_view_change_convict() {
    if !require_fuse() {
        return;
    }
    let setup = Setup::new(4).key_holders().fault(3, "equivocate");
    let mut group = setup.start();
    let mount = group.mount();
    let mut round = 0_u8;
    eventually("a proof is found", || {
        // A primary that starts again hands its view over.
        let primary = round % 3;
        group.kill(primary);
        group.start_replica(primary);
        fs::write(mount.path().join(format!("file-{round}")), b"content").expect("a file");
        group.wait_until_they_agree(&[0, 1, 2]);
        round += 1;
        !list(&group).is_empty()
    });
    mount.unmount();
    for one in &list(&group) {
        assert_eq!(one["proved"], true, "{one:#?}");
        assert_eq!(one["about"]["replica"], 3, "{one:#?}");
        let kind = one["about"]["kind"].as_str().expect("a kind");
        assert!(["view-change", "new-view"].contains(&kind), "{kind}");
        let file = PathBuf::from(one["file"].as_str().expect("a file"));
        let said = run(evidence("verify", &group.file()).arg(&file));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["about"], one["about"]);
    }
}

/// A primary gives one place to two batches, and has signed both: the others keep the proof. It convicts the primary before
/// everyone with the group file; a file that was changed, or another group's file, convicts nobody.
#[test]
fn a_primary_that_tells_two_stories_is_convicted() {
    if !require_fuse() {
        return;
    }
    let group = Setup::new(4).signed().fault(0, "equivocate").start();
    let mount = group.mount();
    let mut written = 0;
    eventually("a proof is found", || {
        fs::write(mount.path().join(format!("file-{written}")), b"content").expect("a file");
        written += 1;
        !list(&group).is_empty()
    });
    mount.unmount();
    let found = list(&group);
    for one in &found {
        assert_eq!(one["proved"], true, "{found:#?}");
        assert_eq!(one["about"]["replica"], 0, "{found:#?}");
    }
    let file = PathBuf::from(found[0]["file"].as_str().expect("a file"));

    let said = run(evidence("verify", &group.file()).arg(&file));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["about"], found[0]["about"]);
    let shown = run(evidence("show", &group.file()).arg(&file));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_ne!(shown["statements"][0], shown["statements"][1]);

    let place = scratch();
    let forged = place.path().join("forged");
    let bytes = fs::read(&file).expect("the proof");
    // At or near the end is the second signature. What follows it in some proofs has a form that it must have.
    let with_other_byte = |back: usize| {
        let mut changed = bytes.clone();
        let at = changed.len() - back;
        changed[at] ^= 1;
        fs::write(&forged, changed).expect("a file");
        let refused = ends(evidence("verify", &group.file()).arg(&forged));
        assert!([1, 2].contains(&refused.code()), "{}", refused.stdout);
        refused
    };
    let mut all = (1..100).map(with_other_byte);
    let refused = all.find(|refused| refused.code() == 1).expect("one");
    assert!(refused.stdout.contains("not signed"), "{}", refused.stdout);
    fs::write(&forged, &bytes[..bytes.len() - 1]).expect("a file");
    assert_said(
        &ends(evidence("verify", &group.file()).arg(&forged)),
        2,
        &["forged"],
    );

    let addresses: Vec<String> = free_ports(4)
        .iter()
        .map(|p| format!("127.0.0.1:{p}"))
        .collect();
    let other = place.path().join("other");
    run(quorate()
        .args(["init", "--replicas", &addresses.join(",")])
        .arg(&other));
    let refused = ends(evidence("verify", &other.join("group.toml")).arg(&file));
    assert_eq!(refused.code(), 1, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("another group"),
        "{}",
        refused.stdout
    );
}
