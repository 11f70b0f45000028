//! `quorate nfs`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_client::{Session, Volume};
use quorate_net::{Group, Identity, keys};
use quorate_nfs::{Exports, Front, Secrets, Settings, serve};
use tokio::net::TcpListener;

use crate::args::Nfs;
use crate::{commands, paths};

/// How long a call waits for the group. Clients send again after a minute.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(args: &Nfs) -> Result<()> {
    let group = Group::load(&args.group)?;
    commands::check_files(&group)?;
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::client_key(&paths::beside(&args.group)));
    let key_pair = keys::load(&key)?;
    let identity = Identity::new(&key_pair);
    if !group.is_client(&identity.public()) {
        bail!(
            "{} is not the key of a client of this group: give one that the group file lists (--key)",
            key.display()
        );
    }
    commands::check_reach(args.listen, args.trust_network)?;
    let exports = match &args.exports {
        Some(path) => Exports::load(path)?,
        None => Exports::default(),
    };
    let settings = Settings {
        exports,
        secrets: Secrets::new(&key_pair.seed(), &group.id()),
        patience: PATIENCE,
    };
    commands::runtime()?.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("can't listen on {}", args.listen))?;
        let address = listener.local_addr().context("where it listens")?;
        let session = Session::connect(&group, &identity).context("connecting to the group")?;
        let front = Front::new(Volume::new(session.clone()), settings);
        eprintln!("serving {} over NFS at {address}", group.name());
        let served = tokio::select! {
            served = serve(listener, front) => served.context("serving"),
            () = commands::asked_to_end() => Ok(()),
        };
        session.close().await;
        served
    })
}
