//! Processes are killed, paused, cut off and starved of disk on a schedule, and what clients see meanwhile has an order.
//!
//! `cargo xtask chaos` does the same with other schedules, for as long as wanted.

use std::path::PathBuf;
use std::time::Duration;

use quorate_chaos::knobs::Knobs;
use quorate_chaos::{Settings, run};
use quorate_fault::Fault;

use crate::harness::{Group, scratch_in_memory};

/// Far longer than a busy machine takes: it is no measure of speed.
const PATIENCE: Duration = Duration::from_secs(120);

fn torment(seed: u64, byzantine: Option<(u8, Fault)>, signed: bool) {
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
        mounts: false,
        ends_at_interrupt: false,
        schedule: None,
        knobs: None,
    };
    settings.knobs = Some(Knobs {
        replicas: 4,
        byzantine,
        signed,
        workers: 0,
        verifiers: if signed { 2 } else { 0 },
        sealers: if signed { 0 } else { 1 },
        clients: 4,
        // See docs/chaos.md: a process that has files open on a mount may wait for the group when it starts a replica.
        mounts: 0,
        rest_ms: 20,
        disks: settings.means().disks,
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

/// Four sound replicas.
#[test]
fn clients_see_one_order_under_faults() {
    torment(1, None, false);
}

/// One of them says different things to different others, beside all that happens to the rest.
#[test]
fn clients_see_one_order_with_a_replica_that_equivocates() {
    torment(2, Some((2, Fault::Equivocate)), false);
}

/// The same where all is signed, and all signatures are checked beside the threads that order.
#[test]
fn clients_see_one_order_with_signatures() {
    torment(3, Some((0, Fault::Equivocate)), true);
}
