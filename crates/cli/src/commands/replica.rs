//! `quorate replica`.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use quorate_files::{FileService, Genesis};
use quorate_net::{Group, keys};
use quorate_node::{Daemon, Options, Tuning};
use quorate_wire::ReplicaId;

use crate::args::Replica;
use crate::{commands, paths};

pub fn run(args: &Replica) -> Result<()> {
    let group = Group::load(&args.group)?;
    let n = group.quorum().n();
    if usize::from(args.id) >= n {
        bail!(
            "--id {}: the replicas of this group are numbered from 0 to {}",
            args.id,
            n - 1
        );
    }
    let directory = paths::beside(&args.group);
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::replica_key(&directory, args.id));
    let service = file_service(&group);
    let options = Options {
        group: Arc::new(group),
        me: ReplicaId(args.id),
        key: keys::load(&key)?,
        data: args
            .data
            .clone()
            .unwrap_or_else(|| paths::replica(&directory, args.id)),
        first_start: args.first_start,
        listen: args.listen.clone(),
        tuning: Tuning::default(),
        workers: args.workers.into(),
        fault: args.fault,
    };
    let runtime = commands::runtime()?;
    let stopped = || format!("replica {} stopped", args.id);
    let replica = Daemon::start(options, service).with_context(stopped)?;
    let (stopper, with_parent) = (replica.stopper(), args.with_parent);
    runtime.spawn(async move {
        if with_parent {
            tokio::select! {
                () = commands::asked_to_end() => {}
                () = parent_gone() => {}
            }
        } else {
            commands::asked_to_end().await;
        }
        stopper.stop();
    });
    replica.wait().with_context(stopped)
}

/// The service that the group file describes; the same on all replicas.
fn file_service(group: &Group) -> FileService {
    let files = group.files();
    FileService::new(Genesis {
        capacity_bytes: files.capacity_bytes,
        capacity_inodes: files.inodes,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o1777,
    })
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
