//! `quorate replica`.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result};
use quorate_node::daemon::{self, Options};
use quorate_node::{Group, keys};
use quorate_wire::ReplicaId;

use crate::args::Replica;
use crate::{commands, paths};

pub fn run(args: &Replica) -> Result<()> {
    let group = Group::load(&args.group)?;
    let directory = paths::beside(&args.group);
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::replica_key(&directory, args.id));
    let options = Options {
        group: Arc::new(group),
        me: ReplicaId(args.id),
        key: keys::load(&key)?,
        data: args
            .data
            .clone()
            .unwrap_or_else(|| paths::replica(&directory, args.id)),
        listen: args.listen.clone(),
        fault: args.fault,
    };
    let with_parent = args.with_parent;
    let stop = async move {
        if with_parent {
            tokio::select! {
                () = commands::asked_to_end() => {}
                () = parent_gone() => {}
            }
        } else {
            commands::asked_to_end().await;
        }
    };
    commands::runtime()?
        .block_on(daemon::run(options, stop))
        .with_context(|| format!("replica {} stopped", args.id))
}

/// Done when whoever holds the other end of standard input is gone.
async fn parent_gone() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for a blocking read when it ends.
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        drop(gone);
    });
    let _: Result<(), _> = wait.await;
}
