//! `quorate nfs`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_client::fuse::Start;
use quorate_client::{Session, Volume};
use quorate_files::Ino;
use quorate_net::{Group, Identity, keys};
use quorate_nfs::{Exports, Front, Secrets, Settings, serve};
use quorate_wire::KeyPair;
use tokio::net::TcpListener;

use super::guest::Guest;
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
    commands::check_reach(args.listen, args.trust_network)?;
    let exports = match &args.exports {
        Some(path) => Exports::load(path)?,
        None => Exports::default(),
    };
    let runtime = commands::runtime()?;
    let let_in = match &args.credential {
        None => LetIn::member(&group, &key, &key_pair)?,
        Some(file) => runtime.block_on(LetIn::guest(&group, key_pair.clone(), file))?,
    };
    let settings = Settings {
        exports,
        root: let_in.root,
        secrets: Secrets::new(&key_pair.seed(), &group.id()),
        patience: PATIENCE,
    };
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("can't listen on {}", args.listen))?;
        let address = listener.local_addr().context("where it listens")?;
        let session =
            Session::connect(&group, &let_in.identity).context("connecting to the group")?;
        let volume = match &let_in.guest {
            Some(guest) => guest.volume(&session),
            None => Volume::new(session.clone()),
        };
        if let Some(mut guest) = let_in.guest {
            // Calls that come before the group has the credential would be refused.
            let _ = tokio::time::timeout(PATIENCE, guest.bring(&session, &volume)).await;
            tokio::spawn(guest.keep(session.clone(), volume.clone()));
        }
        let front = Front::new(volume, settings);
        say!("serving {} over NFS at {address}", group.name());
        let served = tokio::select! {
            served = serve(listener, front) => served.context("serving"),
            () = commands::asked_to_end() => Ok(()),
            () = commands::parent_gone(args.with_parent) => Ok(()),
            // Every call would be answered with an error: better to be started anew.
            failed = session.failed() => Err(failed.into()),
        };
        session.close().await;
        served
    })
}

/// As whom the front comes to the group, and what it sees there.
struct LetIn {
    identity: Identity,
    root: Ino,
    guest: Option<Guest>,
}

impl LetIn {
    fn member(group: &Group, file: &Path, key: &KeyPair) -> Result<LetIn> {
        let identity = Identity::new(key);
        if !group.is_client(&identity.public()) {
            bail!(
                "{} is not the key of a client of this group: give one that the group file lists (--key), or a credential for it \
                 (--credential)",
                file.display()
            );
        }
        Ok(LetIn {
            identity,
            root: Ino::ROOT,
            guest: None,
        })
    }

    async fn guest(group: &Group, key: KeyPair, file: &Path) -> Result<LetIn> {
        let guest = Guest::new(group, key, &[file.to_owned()]).await?;
        let Start::Shared(root, _) = guest.start() else {
            bail!(
                "{}: give one credential that is about a directory and all below it; `quorate mount` takes others too",
                file.display()
            );
        };
        Ok(LetIn {
            identity: guest.identity(),
            root,
            guest: Some(guest),
        })
    }
}
