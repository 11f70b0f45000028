//! `quorate keyholder`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use quorate_net::holder::{CounterFile, FileVault, Holder, Vault};
use quorate_net::{Group, keys};
use quorate_wire::{IdentityKey, ReplicaId};
use rustix::process::{DumpableBehavior, getuid, set_dumpable_behavior};

use crate::args::Keyholder;
use crate::supervision::Account;
use crate::{commands, paths, tpm};

pub fn run(args: &Keyholder) -> Result<()> {
    // Before the key is here: neither a core dump nor a debugger of the same user is to have it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("can't keep this process's memory from others")?;
    let (group_file, id) = match (args.enroll, &args.tpm, &args.key, &args.group, args.id) {
        (true, Some(tcti), Some(key), ..) => return enroll(tcti, key),
        (_, _, _, Some(group), Some(id)) => (group, id),
        _ => bail!("say which replica's key it is (--group, --id)"),
    };
    let group = Group::load(group_file)?;
    let Some(identities) = group.identities() else {
        bail!(
            "{} is of a group without key holders: its replicas' own keys speak for them",
            group_file.display()
        );
    };
    commands::check_id(&group, id)?;
    let identity = identities[usize::from(id)];
    let directory = paths::beside(group_file);
    let or = |given: &Option<PathBuf>, usual: fn(&Path, u8) -> PathBuf| {
        given.clone().unwrap_or_else(|| usual(&directory, id))
    };
    match &args.tpm {
        Some(tcti) => {
            let path = or(&args.key, paths::holder_tpm);
            let chip = tpm::open(tcti, &path)?;
            check_identity(&path, id, &chip, identity)?;
            let last = chip.last();
            serve(args, &group, id, chip, last)
        }
        None => {
            let path = or(&args.key, paths::holder_key);
            if matches!(identity, IdentityKey::P256(_)) {
                bail!("the identity key of replica {id} is in a TPM: say in which (--tpm)");
            }
            let key = keys::load(&path)?;
            let public = key.public();
            if identity != public.into() {
                return Err(not_its(&path, id));
            }
            let counter = CounterFile::open(&or(&args.counter, paths::holder_counter), &public)?;
            let last = counter.last();
            serve(args, &group, id, FileVault::new(key, counter), last)
        }
    }
}

fn enroll(tcti: &str, path: &Path) -> Result<()> {
    let key = tpm::enroll(tcti, path)?;
    tell!("{key}");
    say!(
        "{} says which key of the TPM it is; it is for the key holder's user alone. Make the group with:\n\
         quorate init --identity N={key} ...",
        path.display()
    );
    Ok(())
}

fn check_identity(path: &Path, id: u8, vault: &impl Vault, identity: IdentityKey) -> Result<()> {
    match vault.identity() == identity {
        true => Ok(()),
        false => Err(not_its(path, id)),
    }
}

fn not_its(path: &Path, id: u8) -> anyhow::Error {
    anyhow::anyhow!(
        "{} is not the identity key of replica {id}: the group file lists another one. Give the key that was made for its \
         key holder (--key), or the id that belongs to this key (--id)",
        path.display()
    )
}

fn serve(args: &Keyholder, group: &Group, id: u8, vault: impl Vault, last: u64) -> Result<()> {
    let directory = args.group.as_deref().map(paths::beside).unwrap_or_default();
    let usual = || paths::holder_socket(&directory, id);
    let socket = args.socket.clone().unwrap_or_else(usual);
    let user = match args.user.as_deref().map(|user| (user, user.parse())) {
        None => getuid().as_raw(),
        Some((_, Ok(number))) => number,
        Some((name, Err(_))) => Account::named(name)?.uid,
    };
    let holder = Holder::bind(&socket, vault, (group, ReplicaId(id)), user)?;
    if args.with_parent {
        // There is nothing to put in order: what is signed was counted before.
        std::thread::spawn(|| {
            commands::wait_for_parent(|_| {});
            std::process::exit(0);
        });
    }
    say!(
        "the key holder of replica {id} listens at {} for user {user}; its counter is at {last}",
        socket.display()
    );
    let ended = holder.serve();
    ended
        .map(|never| match never {})
        .context("the key holder stopped")
}
