//! Credentials, from a path on a mount to the check by somebody who has the group file alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{Finished, Setup, quorate, require_fuse, run, scratch};

/// A new key file's public key.
fn key(file: &Path) -> String {
    run(quorate().arg("keygen").arg(file)).trim().to_string()
}

fn verify(group: &Path, file: &Path) -> Command {
    let mut command = quorate();
    command.args(["credential", "verify"]).arg(file);
    command.arg("--group").arg(group);
    command
}

/// The owner grants, the holder passes on, and both can be checked without anybody's help. Nobody else can pass on, nothing is
/// gained, and a changed credential or summary is noticed.
#[test]
fn a_directory_is_shared_and_passed_on() {
    if !require_fuse() {
        return;
    }
    let group = Setup::new(4).owner().start();
    let mount = group.mount();
    let place = scratch();
    let at = |name: &str| place.path().join(name);
    let owner = group.owner_key();
    let (bob, carol) = (key(&at("bob.key")), key(&at("carol.key")));
    let shared = mount.path().join("shared");
    fs::create_dir_all(shared.join("plans")).expect("a directory");

    let grant = |path: &Path| {
        let mut command = quorate();
        command.arg("grant").arg(path).args(["--to", &bob]);
        command.args(["--rights", "rw", "--until", "2999-01-31", "--depth", "1"]);
        command.args(["--caveat", "quota=1000", "--caveat", "prefix=pl"]);
        command
    };
    let by_owner = |path: &Path| {
        let mut command = grant(path);
        command.arg("--key").arg(&owner);
        command
    };
    let granted = ends(&mut by_owner(&shared));
    assert_said(&granted, 0, &["another right, revoke (--rights rw,revoke)"]);
    let text = granted.stdout;
    assert!(text.contains("until:   2999-01-31 23:59:59 UTC"), "{text}");
    fs::write(at("bob.cred"), &text).expect("a file");
    assert_said(
        &ends(&mut by_owner(place.path())),
        1,
        &["is not on a mount"],
    );
    let client = group.client_key(0);
    let mut by_other = grant(&shared);
    by_other.arg("--group").arg(group.file());
    let by_other = by_other.arg("--key").arg(client);
    assert_said(&ends(by_other), 1, &["the owner of the volume is"]);

    let delegate = |key: &str, more: &[&str]| {
        let mut command = quorate();
        command
            .arg("delegate")
            .arg(at("bob.cred"))
            .arg("--key")
            .arg(at(key));
        command
            .args(["--to", &carol])
            .args(more)
            .arg("--path")
            .arg(shared.join("plans"));
        command
    };
    let passed = run(&mut delegate("bob.key", &["--rights", "r"]));
    assert_said(
        &ends(&mut delegate("carol.key", &[])),
        1,
        &["only the holder"],
    );
    let more = ends(&mut delegate("bob.key", &["--rights", "r,revoke"]));
    assert_said(&more, 1, &["rights that its issuer has not"]);
    // What would be of no use is signed, and said.
    let said = |finished: Finished| {
        assert_said(&finished, 0, &[]);
        finished.stderr
    };
    let passed_on = ends(&mut delegate("bob.key", &["--rights", "r,delegate"]));
    assert!(said(passed_on).contains("no use without a depth"));
    fs::create_dir(mount.at("elsewhere")).expect("a directory");
    let mut elsewhere = quorate();
    elsewhere.arg("delegate").arg(at("bob.cred"));
    elsewhere.arg("--key").arg(at("bob.key"));
    elsewhere
        .args(["--to", &carol, "--path"])
        .arg(mount.at("elsewhere"));
    assert!(said(ends(&mut elsewhere)).contains("is not below what the credential is about"));
    let plain = said(ends(&mut delegate("bob.key", &["--rights", "r"])));
    assert!(
        !plain.contains("below") && !plain.contains("depth"),
        "{plain}"
    );
    // What has ended is not passed on.
    let mut over = quorate();
    over.arg("grant").arg(&shared).args(["--to", &bob]);
    over.args(["--rights", "r", "--depth", "1"]);
    over.args(["--from", "2020-01-01", "--until", "2020-01-31"]);
    over.arg("--key").arg(&owner);
    fs::write(at("over.cred"), run(&mut over)).expect("a file");
    let mut passed_over = quorate();
    passed_over.arg("delegate").arg(at("over.cred"));
    passed_over.arg("--key").arg(at("bob.key"));
    passed_over.args(["--to", &carol]);
    assert_said(
        &ends(&mut passed_over),
        1,
        &["it ended with 2020-01-31 23:59:59 UTC"],
    );
    fs::write(at("carol.cred"), format!("Hello,\n\n{passed}\nBob\n")).expect("a file");
    mount.unmount();

    for (file, key, links) in [("bob.cred", &bob, 1), ("carol.cred", &carol, 2)] {
        let mut command = verify(&group.file(), &at(file));
        let said = run(command.args(["--json", "--subject", key]));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(
            (&said["holds"], &said["summary"]),
            (&true.into(), &"true".into()),
            "{said}"
        );
        assert_eq!(
            said["links"].as_array().map(Vec::len),
            Some(links),
            "{said}"
        );
    }
    let judged = |file: &str, more: &[&str], code: i32| {
        let finished = ends(verify(&group.file(), &at(file)).args(more));
        assert_said(&finished, code, &[]);
        finished.stdout
    };
    assert!(judged("carol.cred", &["--subject", &bob], 1).contains("another key's"));
    assert!(judged("carol.cred", &["--at", "2999-02-01"], 1).contains("ended with 2999-01-31"));
    judged("carol.cred", &["--at", "2999-01-31T23:59:59Z"], 0);
    assert!(judged("carol.cred", &["--owner", &carol], 1).contains("owner"));

    let shown = run(quorate().args(["credential", "show"]).arg(at("carol.cred")));
    assert!(
        shown.contains("may:     lookup, readdir, read\n"),
        "{shown}"
    );
    let lie = text.replacen("2999", "2027", 1);
    fs::write(at("lie.cred"), lie).expect("a file");
    let finished = ends(quorate().args(["credential", "show"]).arg(at("lie.cred")));
    assert_said(&finished, 1, &["do not believe them"]);
    assert!(judged("lie.cred", &[], 1).starts_with("its summary is untrue"));
    let words = text.replacen("Quorate credential.", "A credential.", 1);
    fs::write(at("words.cred"), words).expect("a file");
    let mut show = quorate();
    show.args(["credential", "show"]).arg(at("words.cred"));
    for command in [&mut show, &mut verify(&group.file(), &at("words.cred"))] {
        assert_said(&ends(command), 0, &["no summary that could be compared"]);
    }
    fs::write(at("cut.cred"), &text[..text.len() - 40]).expect("a file");
    let finished = ends(quorate().args(["credential", "show"]).arg(at("cut.cred")));
    assert_said(&finished, 2, &["cut.cred", "no credential"]);
}
