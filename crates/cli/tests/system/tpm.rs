//! A key holder whose key and counter are in a TPM 2.0: here swtpm, which is one in all but that it is a program and can be set back.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use quorate_net::Group;
use quorate_net::group::{Files, Purpose};
use quorate_net::holder::{AskError, HolderClient};
use quorate_wire::{IdentityKey, KeyPair, ReplicaId};

use crate::command_line::{assert_said, ends};
use crate::harness::{Chip, Setup, eventually, free_ports, program, quorate, run, scratch};

/// A TPM with a state of its own, on two ports of loopback.
struct Tpm {
    state: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Tpm {
    fn start(state: &Path) -> Tpm {
        fs::create_dir_all(state).expect("a directory");
        // The library finds the second port by the first.
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let port = (0..100).map(|_| free_ports(1)[0]);
        let port = { port }.find(|port| is_free(port + 1)).expect("two ports");
        let mut tpm = Tpm {
            state: state.into(),
            port,
            child: None,
        };
        tpm.power_on();
        tpm
    }

    fn power_on(&mut self) {
        let on = |port| format!("type=tcp,bindaddr=127.0.0.1,port={port}");
        // It does not outlive the test, however that ends.
        let mut command = program("setpriv");
        command.args(["--pdeathsig", "KILL", "swtpm", "socket", "--tpm2"]);
        command.arg("--tpmstate");
        command.arg(format!("dir={}", self.state.display()));
        command.args(["--server", &on(self.port), "--ctrl", &on(self.port + 1)]);
        command.args(["--flags", "not-need-init,startup-clear"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(command.spawn().expect("swtpm starts"));
        let port = self.port;
        eventually("swtpm listens", || {
            TcpListener::bind(("127.0.0.1", port)).is_err()
        });
    }

    /// As the loss of power does.
    fn power_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    fn power_cycle(&mut self) {
        self.power_off();
        self.power_on();
    }

    fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    fn enroll(&self, file: &Path) -> IdentityKey {
        let mut command = quorate();
        command.args(["keyholder", "--tpm", &self.tcti(), "--enroll", "--key"]);
        let said = run(command.arg(file));
        IdentityKey::from_text(said.trim()).expect("a key")
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        self.power_off();
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}

fn group_of(directory: &Path, identity: IdentityKey) -> Group {
    let public = |seed| KeyPair::from_seed(&[seed; 32]).public();
    let replicas = (0..4).map(|i| (format!("127.0.0.1:{}", 7400 + i), public(1 + i as u8)));
    let mut identities: Vec<IdentityKey> = (50..54).map(|seed| public(seed).into()).collect();
    identities[2] = identity;
    let (files, purpose) = (Files::default(), Purpose::Demonstration);
    let group = Group::new("test", replicas.collect(), Vec::new(), files, purpose);
    let group = group.and_then(|g| g.with_identities(&identities));
    let group = group.expect("a group");
    group.save(&directory.join("group.toml")).expect("a file");
    fs::create_dir_all(directory.join("holder-2")).expect("a directory");
    group
}

fn keyholder(directory: &Path, tpm: &Tpm, file: &Path) -> Command {
    let mut command = quorate();
    command.args(["keyholder", "--with-parent", "--id", "2", "--group"]);
    command.arg(directory.join("group.toml"));
    command.args(["--tpm", &tpm.tcti(), "--key"]).arg(file);
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    command
}

fn kill(mut child: Child) {
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");
}

/// Statements are signed and hold; numbers rise whatever is killed. Without its TPM, or with another one, nothing is signed.
#[test]
fn numbers_rise_across_restarts() {
    let place = scratch();
    let mut tpm = Tpm::start(&place.path().join("tpm"));
    let file = place.path().join("key");
    let identity = tpm.enroll(&file);
    let group = group_of(place.path(), identity);
    let again = ends(
        quorate()
            .args(["keyholder", "--tpm", &tpm.tcti(), "--enroll", "--key"])
            .arg(&file),
    );
    assert_said(&again, 1, &["is there already"]);

    let client = HolderClient::new(&place.path().join("holder-2/socket"), &group, ReplicaId(2));
    let client = client.expect("a group with key holders");
    let epoch = KeyPair::from_seed(&[9; 32]).public();
    let mut last = 0;
    let mut grows = |counter: u64| {
        assert!(counter > last, "{counter} after {last}");
        last = counter;
    };
    for round in 0..4 {
        let spawned = keyholder(place.path(), &tpm, &file).spawn();
        let child = spawned.expect("a key holder starts");
        eventually("it signs", || {
            client.certify(epoch).is_ok_and(|c| {
                grows(c.counter);
                true
            })
        });
        for _ in 0..3 {
            // The client has checked the signatures.
            grows(client.recover().expect("a statement").counter);
            grows(client.certify(epoch).expect("a certificate").counter);
        }
        if round == 1 {
            // Another one would say the same numbers.
            let second = ends(keyholder(place.path(), &tpm, &file).stderr(Stdio::piped()));
            assert_said(
                &second,
                1,
                &["another key holder works with", "one for each key"],
            );
        }
        match round {
            0 => kill(child),
            1 => {
                kill(child);
                tpm.power_cycle();
            }
            // Its chip goes while it is at work: it ends rather than to sign without.
            2 => {
                tpm.power_cycle();
                let mut child = child;
                assert!(
                    matches!(client.recover(), Err(e) if !matches!(e, AskError::TooOften { .. }))
                );
                // Not by wait(), which closes its standard input first: it would end for that.
                let mut ended = None;
                eventually("it ends", || {
                    ended = child.try_wait().expect("a child can be asked for");
                    ended.is_some()
                });
                assert_eq!(ended.and_then(|e| e.code()), Some(1));
            }
            _ => kill(child),
        }
    }
    println!("{last} is the last of the numbers");

    let elsewhere = Tpm::start(&place.path().join("another"));
    let refused = ends(&mut keyholder(place.path(), &elsewhere, &file));
    assert_said(&refused, 1, &["does not have the key", "was cleared"]);
    tpm.power_off();
    let refused = ends(&mut keyholder(place.path(), &tpm, &file));
    assert_said(&refused, 1, &["no TPM answers at"]);
    let process = place.path().join("process");
    run(quorate().arg("keygen").arg(&process));
    tpm.power_on();
    let refused = ends(&mut keyholder(place.path(), &tpm, &process));
    assert_said(&refused, 1, &["names no key of a TPM", "--enroll"]);
}

/// A group is made with what was enrolled, and makes no key for that replica.
#[test]
fn a_group_is_made_with_it() {
    let place = scratch();
    let tpm = Tpm::start(&place.path().join("tpm"));
    let (directory, file) = (place.path().join("group"), place.path().join("key"));
    let identity = tpm.enroll(&file);
    let ports = free_ports(4);
    let addresses: Vec<String> = ports.iter().map(|p| format!("127.0.0.1:{p}")).collect();
    let addresses = addresses.join(",");
    let init = |option: &str| {
        let mut command = quorate();
        command.args(["init", "--replicas", &addresses]);
        command.args(["--identity", option]);
        command.arg(&directory);
        command
    };
    for bad in [
        "1",
        "1=abc",
        "4=p256:00",
        &format!("4={identity}"),
        &format!("1={identity}00"),
    ] {
        assert_said(&ends(&mut init(bad)), 1, &["--identity"]);
    }
    run(&mut init(&format!("1={identity}")));
    let group = Group::load(&directory.join("group.toml")).expect("a group");
    let identities = group.identities().expect("key holders");
    assert_eq!(identities[1], identity);
    assert!(matches!(identities[0], IdentityKey::Ed25519(_)));
    assert!(!directory.join("holder-1/key").exists());
    assert!(directory.join("holder-0/key").exists());
    let mut holder = quorate();
    holder.args(["keyholder", "--id", "1", "--group"]);
    let without = ends(holder.arg(directory.join("group.toml")));
    assert_said(&without, 1, &["in a TPM", "--tpm"]);
}

/// A group of which one replica's identity is in a TPM: it works, its keys are renewed, the replica recovers by the order. When somebody sets the TPM back, so
/// that it says old numbers again, the others refuse them, and go on.
#[test]
fn a_group_recovers_and_refuses_old_numbers() {
    const R: u8 = 1;
    let place = scratch();
    let mut tpm = Tpm::start(&place.path().join("tpm"));
    let file = place.path().join("key");
    let chip = Chip {
        replica: R,
        tcti: tpm.tcti(),
        file: file.clone(),
        identity: tpm.enroll(&file),
    };
    tpm.power_off();
    let old = place.path().join("old");
    copy(&tpm.state, &old);
    // Each loss of power puts the numbers forward: so those of the old state will be below.
    for _ in 0..2 {
        tpm.power_cycle();
    }
    let mut group = Setup::new(4).chip(chip).start();
    group.wait_until_they_agree(&[0, 1, 2, 3]);

    group.kill(R);
    group.start_replica_with(R, &["--recover"]);
    eventually("it has recovered", || {
        let status = group.status();
        status
            .said(R)
            .is_some_and(|said| !said.recovering && said.active)
    });
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let is_linked = |group: &crate::harness::Group| {
        let status = group.status();
        [0, 2, 3].map(|other| {
            let said = status.said(other).expect("the others answer");
            let link = said.links.iter().find(|link| link.peer == R);
            link.is_some_and(|link| link.up)
        })
    };
    eventually("all have it", || is_linked(&group) == [true; 3]);

    // What was there before comes back, and the replica takes keys from it.
    group.kill_holder(R);
    group.kill(R);
    tpm.power_off();
    let right = place.path().join("right");
    copy(&tpm.state, &right);
    copy(&old, &tpm.state);
    tpm.power_on();
    group.start_holder(R);
    group.start_replica(R);
    eventually("its certificates are refused", || {
        group.log(R).contains("is old: its number is")
            || [0, 2, 3]
                .iter()
                .any(|&other| group.log(other).contains("is old: its number is"))
    });
    assert_eq!(is_linked(&group), [false; 3]);
    assert!(group.status().code < 2, "the others go on");

    group.kill_holder(R);
    group.kill(R);
    tpm.power_off();
    copy(&right, &tpm.state);
    tpm.power_on();
    group.start_holder(R);
    group.start_replica(R);
    eventually("all have it again", || is_linked(&group) == [true; 3]);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}
