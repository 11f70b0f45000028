//! Processes are killed, paused, cut off and starved of disk on a schedule, and what clients see meanwhile has an order.
//!
//! `cargo xtask chaos` does the same with other schedules, for as long as wanted.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use quorate_chaos::knobs::{Knobs, Wanted};
use quorate_chaos::{Settings, run};
use quorate_fault::Fault;

use crate::harness::{Group, scratch_in_memory};

/// Far longer than a busy machine takes: it is no measure of speed.
const PATIENCE: Duration = Duration::from_secs(120);

fn torment(seed: u64, byzantine: Option<(u8, Fault)>, signed: bool, mounts: u8) {
    let _turn = Group::take_turn();
    let place = scratch_in_memory();
    let mut settings = Settings {
        quorate: PathBuf::from(env!("CARGO_BIN_EXE_quorate")),
        directory: place.path().into(),
        seed,
        duration: Duration::ZERO,
        rounds: Some(1),
        round: Duration::from_secs(16),
        rounds_per_group: 1,
        patience: PATIENCE,
        mounts: mounts > 0 && std::env::var_os("QUORATE_SKIP_FUSE").is_none(),
        hand: hand(),
        ends_at_interrupt: false,
        schedule: None,
        knobs: None,
        wanted: Wanted::default(),
    };
    let means = settings.means();
    if mounts > 0 && !means.mounts {
        println!("without mounts: /dev/fuse can't be opened, or QUORATE_SKIP_FUSE is set");
    }
    settings.knobs = Some(Knobs {
        replicas: 4,
        byzantine,
        forgetful: None,
        signed,
        workers: 0,
        verifiers: if signed { 2 } else { 0 },
        sealers: if signed { 0 } else { 1 },
        clients: 4,
        mounts: if means.mounts { mounts } else { 0 },
        rest_ms: 20,
        disks: means.disks,
    });
    match run::run(&settings, &|line| println!("{line}")) {
        Ok(report) => {
            println!("{report}");
            assert!(report.operations() > 0, "nobody was answered");
        }
        Err(failure) => {
            let place = place.keep();
            panic!(
                "logs are in {}; schedule:\n{}\n{:#}",
                place.display(),
                failure.schedule,
                failure.error
            );
        }
    }
}

/// This very program, as the process that works on a mount.
fn hand() -> Vec<OsString> {
    let program = std::env::current_exe().expect("this test's own file");
    let test = ["chaos::works_on_a_mount", "--exact", "--ignored"];
    let test = test.map(OsString::from);
    std::iter::once(program.into()).chain(test).collect()
}

/// That process's part.
#[test]
#[ignore = "is a process of the runs with mounts"]
fn works_on_a_mount() {
    // Started by hand, it has no socket to serve.
    if let Err(error) = quorate_chaos::hand::serve() {
        println!("{error:#}");
    }
}

/// Four sound replicas, and two mounts where there is FUSE.
#[test]
fn clients_see_one_order_under_faults() {
    torment(1, None, false, 2);
}

/// One of them says different things to different others, beside all that happens to the rest.
#[test]
fn clients_see_one_order_with_a_replica_that_equivocates() {
    torment(2, Some((2, Fault::Equivocate)), false, 0);
}

/// The same where all is signed, and all signatures are checked beside the threads that order.
#[test]
fn clients_see_one_order_with_signatures() {
    torment(3, Some((0, Fault::Equivocate)), true, 0);
}
