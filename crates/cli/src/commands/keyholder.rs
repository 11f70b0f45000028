//! `quorate keyholder`.

use anyhow::{Context, Result, bail};
use quorate_net::holder::{CounterFile, Holder};
use quorate_net::{Group, keys};
use quorate_wire::ReplicaId;
use rustix::process::{DumpableBehavior, getuid, set_dumpable_behavior};

use crate::args::Keyholder;
use crate::{commands, paths};

pub fn run(args: &Keyholder) -> Result<()> {
    // Before the key is here: neither a core dump nor a debugger of the same user is to have it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("can't keep this process's memory from others")?;
    let group = Group::load(&args.group)?;
    let id = args.id;
    let Some(identities) = group.identities() else {
        bail!(
            "{} is of a group without key holders: its replicas' own keys speak for them",
            args.group.display()
        );
    };
    commands::check_id(&group, id)?;
    let identity = &identities[usize::from(id)];
    let directory = paths::beside(&args.group);
    let or = |given: &Option<_>, usual: fn(&_, u8) -> _| {
        given.clone().unwrap_or_else(|| usual(&directory, id))
    };
    let path = or(&args.key, |d: &std::path::PathBuf, id| {
        paths::holder_key(d, id)
    });
    let key = keys::load(&path)?;
    if key.public() != *identity {
        bail!(
            "{} is not the identity key of replica {id}: the group file lists another one. Give the key that was made for its \
             key holder (--key), or the id that belongs to this key (--id)",
            path.display()
        );
    }
    let counter = or(&args.counter, |d, id| paths::holder_counter(d, id));
    let counter = CounterFile::open(&counter, identity)?;
    let socket = or(&args.socket, |d, id| paths::holder_socket(d, id));
    let user = args.user.unwrap_or_else(|| getuid().as_raw());
    let last = counter.last();
    let holder = Holder::bind(&socket, key, (group.id(), ReplicaId(id)), counter, user)?;
    if args.with_parent {
        // There is nothing to put in order: what is signed was counted before.
        std::thread::spawn(|| {
            commands::wait_for_parent();
            std::process::exit(0);
        });
    }
    eprintln!(
        "the key holder of replica {id} listens at {} for user {user}; it has signed {last} statements so far",
        socket.display()
    );
    let ended = holder.serve();
    ended
        .map(|never| match never {})
        .context("the key holder stopped")
}
