//! `quorate replica`.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_execution::Service;
use quorate_execution::graph::Conflicts;
use quorate_files::{Admission, FileService, Genesis};
use quorate_ledger::Ledger;
use quorate_net::{Group, keys};
use quorate_node::daemon::exit;
use quorate_node::{
    Daemon, DaemonError, KeyHolder, Options, Sealing, Stopper, StoreOptions, Trust, Tuning,
    Verification,
};
use quorate_wire::ReplicaId;
use quorate_wire::message::Report;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, set_dumpable_behavior, umask};

use crate::args::{ConflictsArg, Replica};
use crate::supervision::{intended, tell};
use crate::{commands, commands::room, paths, words};

/// How often a process mends a damaged state: a disk that damages each is to be replaced.
const MENDED_AT_MOST: u32 = 3;
/// How often a supervisor is told how a recovery goes.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// How long the replica may take to say how it is, on a disk that is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a replica to its end; the exit code says what kind of end it was.
pub fn run(args: &Replica) -> ExitCode {
    match run_to_end(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("quorate: {}", words::of(&e));
            ExitCode::from(exit_code(&e))
        }
    }
}

/// What has not got as far as the replica itself is about options and files that it was given.
fn exit_code(error: &anyhow::Error) -> u8 {
    let of_cause = error.chain().find_map(|cause| {
        let of_group = || cause.downcast_ref().map(exit::of_group);
        let of_key = || cause.downcast_ref().map(exit::of_key);
        let of_replica = cause.downcast_ref().map(DaemonError::exit_code);
        of_replica.or_else(of_group).or_else(of_key)
    });
    of_cause.unwrap_or(exit::CONFIG)
}

fn run_to_end(args: &Replica) -> Result<()> {
    // What else runs as this user is not to have the keys in its memory, nor to make it do things.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("can't keep this process's memory from others")?;
    // What it writes is no business of other users of this machine.
    umask(Mode::from_raw_mode(0o077));
    // Each client has a link of its own, and guests have hundreds more.
    quorate_net::open_files::allow_many();
    let group = commands::with_routes(Group::load(&args.group)?, &args.route)?;
    commands::check_id(&group, args.id)?;
    match group.is_coordinator() {
        true => {
            let service = Ledger::new(group.client_keys());
            serve(args, group, service)
        }
        false => {
            let service = file_service(&group);
            serve(args, group, service)
        }
    }
}

/// Where signatures are checked.
fn verification(args: &Replica) -> Verification {
    let usual = Verification::default();
    Verification {
        threads: args.verifiers.map_or(usual.threads, usize::from),
        from: args.verify_from.map_or(usual.from, usize::from),
    }
}

/// Where frames are sealed.
fn sealing(args: &Replica) -> Sealing {
    let usual = Sealing::default();
    Sealing {
        threads: args.sealers.map_or(usual.threads, usize::from),
        from: args.seal_from.map_or(usual.from, |bytes| bytes as usize),
    }
}

/// Runs a replica of a service to its end.
fn serve<S: Service + Clone>(args: &Replica, group: Group, service: S) -> Result<()> {
    let directory = paths::beside(&args.group);
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::replica_key(&directory, args.id));
    let has_holders = group.identities().is_some();
    if !has_holders && (args.key_holder.is_some() || args.key_refresh.is_some()) {
        bail!(
            "the replicas of this group have no key holders: leave --key-holder and --key-refresh away, or make a group with \
             them (`quorate init` without --no-key-holders)"
        );
    }
    let refresh = match has_holders {
        true => commands::possible_key_refresh(&group, args.key_refresh)?,
        false => Duration::ZERO,
    };
    // With key holders nothing is signed with it, so that nobody keeps the replica from starting who takes its file away.
    let key = match has_holders {
        true => keys::generate()?,
        false => keys::load(&key)?,
    };
    let group = Arc::new(group);
    let data = args
        .data
        .clone()
        .unwrap_or_else(|| paths::replica(&directory, args.id));
    let options = |again: bool, trust: Trust| Options {
        group: group.clone(),
        me: ReplicaId(args.id),
        key: key.clone(),
        key_holder: has_holders.then(|| KeyHolder {
            socket: args
                .key_holder
                .clone()
                .unwrap_or_else(|| paths::holder_socket(&directory, args.id)),
            refresh,
        }),
        data: data.clone(),
        first_start: args.first_start && !again,
        lost_disk: args.lost_disk && !again,
        trust,
        seen: args.seen.clone(),
        listen: args.listen.clone(),
        tuning: Tuning::default(),
        workers: args.workers.into(),
        conflicts: match args.conflicts {
            ConflictsArg::Declared => Conflicts::Declared,
            ConflictsArg::All => Conflicts::All,
        },
        verification: verification(args),
        sealing: sealing(args),
        store: StoreOptions {
            cache_bytes: args.cache as usize,
        },
        patience: args.patience,
        fault: args.fault,
    };
    let runtime = commands::runtime()?;
    let stopped = || format!("replica {} stopped", args.id);
    let start =
        |again, trust| Daemon::start(options(again, trust), service.clone()).with_context(stopped);
    let trust = match args.recover {
        true => Trust::Nothing,
        false => Trust::All,
    };
    let mut replica = start(false, trust)?;
    let holds = group.files().capacity_bytes;
    let small = (!group.is_coordinator()).then(|| room::too_small(&data, holds));
    if let Some(why) = small.flatten() {
        tracing::warn!("{why}");
    }
    let stop = Stop::default();
    stop.use_for(replica.stopper());
    if args.recover && args.with_parent {
        tell_parent(stop.clone());
    }
    let (to_stop, to_tell, with_parent) = (stop.clone(), stop.clone(), args.with_parent);
    let hear = move |word| {
        if let Some(is_intended) = intended(word) {
            to_tell.intends_recovery(is_intended);
        }
    };
    runtime.spawn(async move {
        tokio::select! {
            () = commands::asked_to_end() => {}
            () = commands::parent_gone_after(with_parent, hear) => {}
        }
        to_stop.stop();
    });
    let mut mended = 0;
    loop {
        let trust = match replica.wait() {
            Err(DaemonError::StateDamaged(reason)) if mended < MENDED_AT_MOST => {
                mended += 1;
                tracing::error!("{reason}");
                tracing::warn!("replica {} starts again, to fetch the state", args.id);
                Trust::All
            }
            // Once: a replica that has taken its log back does not recover.
            Err(e @ DaemonError::Missed(_)) => {
                tracing::error!("{e}");
                tracing::warn!(
                    "replica {} goes on with the log and the state that it had",
                    args.id
                );
                Trust::SetAside
            }
            ended => return ended.with_context(stopped),
        };
        replica = start(true, trust)?;
        stop.use_for(replica.stopper());
    }
}

/// Tells the supervisor how this process's recovery goes, until it does not want to hear it any more.
fn tell_parent(replica: Stop) {
    std::thread::spawn(move || {
        loop {
            let report = replica.report();
            let told = report.map_or(Ok(()), |report| tell(&report, &mut std::io::stdout()));
            if told.is_err() {
                return;
            }
            std::thread::sleep(TELL_EVERY);
        }
    });
}

/// What stops the replica that runs now, also when it is asked for before that one has started.
#[derive(Clone, Debug, Default)]
struct Stop(Arc<Mutex<Wished>>);

#[derive(Debug, Default)]
struct Wished {
    stopper: Option<Stopper>,
    /// Whether it is to stop.
    stops: bool,
    /// Whether it is about to be had recover.
    recovery_intended: bool,
}

impl Stop {
    fn wished(&self) -> MutexGuard<'_, Wished> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_for(&self, stopper: Stopper) {
        let mut wished = self.wished();
        if wished.stops {
            stopper.stop();
        }
        if wished.recovery_intended {
            stopper.intends_recovery(true);
        }
        wished.stopper = Some(stopper);
    }

    fn report(&self) -> Option<Report> {
        let stopper = self.wished().stopper.clone();
        stopper?.report(ANSWER_TIMEOUT)
    }

    fn intends_recovery(&self, is_intended: bool) {
        let mut wished = self.wished();
        wished.recovery_intended = is_intended;
        if let Some(stopper) = &wished.stopper {
            stopper.intends_recovery(is_intended);
        }
    }

    fn stop(&self) {
        let mut wished = self.wished();
        wished.stops = true;
        if let Some(stopper) = &wished.stopper {
            stopper.stop();
        }
    }
}

/// The service that the group file describes; the same on all replicas.
fn file_service(group: &Group) -> FileService {
    let files = group.files();
    FileService::new(
        Genesis::for_all(files.capacity_bytes, files.inodes),
        Admission {
            volume: group.id(),
            owner: group.owner(),
            members: group.clients().iter().map(|client| client.key).collect(),
        },
    )
}
