//! Processes are killed, paused, cut off and starved of disk on a schedule, and what clients see meanwhile has an order.
//!
//! The schedules are written down, so that each kind of fault is there each time but two: a log that loses its end, and rot of large contents. `cargo xtask chaos` draws others, for
//! as long as wanted.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use quorate_chaos::disk::SmallDisk;
use quorate_chaos::knobs::{Knobs, Wanted};
use quorate_chaos::schedule::{Act, Fault, Node, Rotten, Schedule, Trouble};
use quorate_chaos::{Settings, run};
use quorate_fault::Fault as Lie;

use crate::harness::{Group, scratch_in_memory};

/// Far longer than a busy machine takes: it is no measure of speed.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a schedule is, in milliseconds.
const LENGTH_MS: u64 = 16_000;

/// Who has links: replicas, then clients and mounts.
const REPLICAS: u8 = 4;
const CLIENTS: u8 = 4;

/// An act from and until these times, in milliseconds.
fn act(start_ms: u64, end_ms: u64, fault: Fault) -> Act {
    Act {
        start_ms,
        end_ms,
        fault,
    }
}

fn kill(replicas: &[u8]) -> Fault {
    let replicas = replicas.to_vec();
    Fault::Kill { replicas }
}

fn pause(replica: u8) -> Fault {
    let replicas = vec![replica];
    Fault::Pause { replicas }
}

/// What is said between some replicas and all others, and clients, has trouble.
fn around(some: &[u8], both: bool, trouble: Trouble) -> Fault {
    let others = (0..REPLICAS).filter(|id| !some.contains(id));
    let others = others.map(Node::Replica);
    Fault::Network {
        from: some.iter().copied().map(Node::Replica).collect(),
        to: others.chain((0..CLIENTS).map(Node::Client)).collect(),
        both,
        trouble,
    }
}

fn rot(replica: u8, what: Rotten, every: u64) -> Fault {
    Fault::Rot {
        replica,
        what,
        at_per_mille: 500,
        every,
    }
}

fn cut_write(replica: u8) -> Fault {
    Fault::CutWrite {
        replica,
        longest_kib: 4,
    }
}

fn full_disk(replica: u8) -> Fault {
    Fault::FullDisk {
        replica,
        left_kib: 0,
    }
}

fn torment(acts: Vec<Act>, byzantine: Option<(u8, Lie)>, signed: bool, mounts: u8) {
    let _turn = Group::take_turn();
    let place = scratch_in_memory();
    let stops = |act: &&Act| match act.fault {
        Fault::CutWrite { .. } => true,
        Fault::FullDisk { .. } => SmallDisk::is_possible(),
        _ => false,
    };
    let ends = acts.iter().filter(stops).count();
    let mut settings = Settings {
        quorate: PathBuf::from(env!("CARGO_BIN_EXE_quorate")),
        directory: place.path().into(),
        seed: 1,
        duration: Duration::ZERO,
        rounds: Some(1),
        round: Duration::from_millis(LENGTH_MS),
        rounds_per_group: 1,
        patience: PATIENCE,
        mounts: mounts > 0 && std::env::var_os("QUORATE_SKIP_FUSE").is_none(),
        hand: hand(),
        ends_at_interrupt: false,
        schedule: Some(Schedule {
            duration_ms: LENGTH_MS,
            acts,
        }),
        knobs: None,
        wanted: Wanted::default(),
    };
    let means = settings.means();
    if mounts > 0 && !means.mounts {
        println!("without mounts: /dev/fuse can't be opened, or QUORATE_SKIP_FUSE is set");
    }
    settings.knobs = Some(Knobs {
        replicas: REPLICAS,
        byzantine,
        forgetful: None,
        signed,
        workers: 0,
        verifiers: if signed { 2 } else { 0 },
        sealers: if signed { 0 } else { 1 },
        clients: CLIENTS,
        mounts: if means.mounts { mounts } else { 0 },
        rest_ms: 20,
        disks: means.disks,
    });
    match run::run(&settings, &|line| println!("{line}")) {
        Ok(report) => {
            println!("{report}");
            assert!(report.operations() > 0, "nobody was answered");
            let rounds = &report.rounds;
            assert!(
                rounds.iter().all(|r| r.undecided == 0),
                "not all is checked"
            );
            let stopped: usize = rounds.iter().map(|r| r.stopped).sum();
            assert!(stopped > 0 || ends == 0, "no disk stopped a replica");
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
    let corrupt = Trouble::Corrupt { per_mille: 50 };
    let acts = vec![
        act(500, 2_000, kill(&[0])),
        act(2_300, 3_800, rot(3, Rotten::Log, 0)),
        act(4_000, 5_500, pause(1)),
        act(5_500, 7_500, around(&[2], true, Trouble::Hold)),
        act(7_000, 9_000, around(&[0, 1], true, corrupt)),
        act(8_000, 10_500, cut_write(3)),
        act(11_000, 12_500, kill(&[0, 1, 2])),
        act(13_000, 15_500, full_disk(3)),
    ];
    torment(acts, None, false, 2);
}

/// One of them says different things to different others, beside all that happens to the rest.
#[test]
fn clients_see_one_order_with_a_replica_that_equivocates() {
    let delay = Trouble::Delay {
        ms: 50,
        jitter_ms: 50,
    };
    let corrupt = Trouble::Corrupt { per_mille: 20 };
    let acts = vec![
        act(500, 2_000, kill(&[0])),
        act(2_500, 4_000, pause(1)),
        act(4_500, 6_500, around(&[3], true, Trouble::Cut)),
        act(7_000, 9_000, around(&[0], false, Trouble::Hold)),
        act(9_000, 11_000, around(&[1], true, corrupt)),
        act(11_500, 13_000, kill(&[0, 1, 3])),
        act(13_000, 15_500, around(&[0, 1, 2, 3], true, delay)),
    ];
    torment(acts, Some((2, Lie::Equivocate)), false, 0);
}

/// The same where all is signed, and all signatures are checked beside the threads that order.
#[test]
fn clients_see_one_order_with_signatures() {
    let limit = Trouble::Limit { kib_per_s: 100 };
    let acts = vec![
        act(500, 3_400, cut_write(1)),
        act(3_500, 6_000, around(&[2], true, limit)),
        act(6_000, 9_000, full_disk(3)),
        act(9_500, 11_000, pause(1)),
        act(11_500, 14_000, around(&[1, 2], true, Trouble::Hold)),
        act(14_000, 15_500, kill(&[2])),
    ];
    torment(acts, Some((0, Lie::Equivocate)), true, 0);
}

/// A sound group whose state rots at one of its replicas.
#[test]
fn clients_see_one_order_where_a_state_rots() {
    let acts = vec![
        act(3_000, 4_500, rot(2, Rotten::State, 4096)),
        act(10_000, 11_500, kill(&[0])),
    ];
    torment(acts, None, false, 0);
}
