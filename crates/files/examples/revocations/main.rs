//! Revocations that race with use, in a great many short histories of the file service itself: guests bring credentials and use them, by number and
//! by what they have open, while the owner and guests take them back and give them back, the owner moves and links what they are about, they end,
//! and their quotas are used up; parts of each history are undone and others take their place.
//! What is allowed is held, operation for operation, against a model of a few lines that knows nothing of the service.
//!
//! `cargo run --profile sim -p quorate-files --features quorate-wire/remember --example revocations -- 0..100000`
//! (signatures that were right are remembered, so that histories are short; wrong ones are no subject here)

mod grants;
mod history;
mod model;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use quorate_execution::Service;
use quorate_files::op::{Make, Mkdir, Place, Write};
use quorate_files::{Action, Admission, FileService, Genesis, Ino, Target};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::Seq;

use grants::{DIR_NAMES, DIRS, FILES, NAMES, VOLUME, key};
use history::{Counts, History, call};

/// Operations, and other things that happen, in a history.
const STEPS: usize = 32;

/// The service, and a volume with the two directories and files.
fn prepare() -> (FileService, Arc<MemorySnapshot>) {
    let admission = Admission {
        volume: VOLUME,
        owner: Some(key(0).public()),
        members: BTreeSet::new(),
    };
    let service = FileService::new(Genesis::for_all(1 << 30, 1000), admission);
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let mut txn = state.begin();
    service.genesis(&mut txn).expect("memory");
    txn.commit();
    let mut now = 1_000;
    let mut run = |action| {
        now += 1_000;
        call(&service, &mut state, now, 0, action).expect("it can be made");
    };
    for name in DIR_NAMES {
        run(Action::Mkdir(Mkdir {
            parent: Ino::ROOT,
            name: name.into(),
            mode: 0o777,
            umask: 0,
        }));
    }
    for (parent, [name, _]) in DIRS.into_iter().zip(NAMES) {
        run(Action::Make(Make {
            parent,
            name: name.into(),
            mode: 0o666,
            umask: 0,
            verifier: None,
        }));
    }
    // What guests write there later takes no more of the volume, so it counts as the bytes that it has.
    for file in FILES {
        run(Action::Write(Write {
            target: Target::Ino(file),
            place: Place::At(0),
            data: "x".into(),
        }));
    }
    let layer = state.freeze(Seq(1));
    let (snapshot, _) = MemorySnapshot::default()
        .apply(&layer)
        .expect("an empty tree takes any layer");
    (service, Arc::new(snapshot))
}

fn main() -> ExitCode {
    let seeds = std::env::args().nth(1).unwrap_or("0..1000".into());
    let ends = seeds.split_once("..");
    let ends = ends.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let Some((from, to)): Option<(u64, u64)> = ends else {
        eprintln!("say which histories: 0..1000");
        return ExitCode::from(2);
    };
    let (service, volume) = prepare();
    let grants = grants::grants();
    let mut counts = Counts::default();
    for seed in from..to {
        let state = State::new(volume.clone());
        let mut history = History::new(&service, &grants, state, seed, &mut counts);
        for step in 0..STEPS {
            if let Err(why) = history.step() {
                eprintln!("history {seed}, step {step}: {why}");
                return ExitCode::FAILURE;
            }
        }
        if (seed - from + 1).is_multiple_of(100_000) {
            eprintln!("{} histories", seed - from + 1);
        }
    }
    let Counts {
        allowed,
        refused,
        by_handles,
        unpaid,
        locked_out,
        revocations,
        by_holders,
        given_back,
        undone,
    } = counts;
    println!(
        "{} histories: {allowed} uses allowed and {refused} refused as they must be ({by_handles} by what was open, {unpaid} beyond a quota, \
         {locked_out} locked by another), {revocations} revocations ({by_holders} by holders), {given_back} of them ended, {undone} times \
         operations were undone",
        to.saturating_sub(from)
    );
    ExitCode::SUCCESS
}
