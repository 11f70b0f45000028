//! `quorate init`, and what `quorate up` shares with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_net::group::{Files, Group, Protocol, Purpose, show_capacity};
use quorate_net::holder::{CounterError, CounterFile};
use quorate_net::{disk, hex, keys};
use quorate_node::daemon::directory::make as make_directory;
use quorate_wire::{IdentityKey, KeyPair, PublicKey};

use crate::args::Init;
use crate::commands::{self, room};
use crate::paths;

pub fn run(args: &Init) -> Result<()> {
    let mut clients = Vec::new();
    for client in &args.client {
        let (name, key) = client
            .split_once('=')
            .with_context(|| format!("--client {client:?}: write it as NAME=PUBLIC-KEY"))?;
        let key = hex::decode32(key)
            .with_context(|| format!("--client {name}: the public key is 64 hexadecimal digits"))?;
        clients.push((name.to_string(), PublicKey(key)));
    }
    let files = files(args)?;
    let identities = identities(&args.identity, args.replicas.len())?;
    let directory = &args.directory;
    let owner = match &args.owner {
        Some(owner) => Owner::Is(owner_of(owner)?),
        None => Owner::Nobody,
    };
    create(
        directory,
        &args.name,
        &args.replicas,
        clients,
        Kind {
            files,
            purpose: match args.coordinator {
                true => Purpose::Coordinator,
                false => Purpose::Service,
            },
            protocol: args.protocol.protocol(),
            key_holders: (!args.no_key_holders)
                .then(|| args.key_refresh.unwrap_or(commands::KEY_REFRESH)),
            owner,
            clients: args.clients,
            supervisors: true,
        },
        &identities,
    )?;
    tell!(
        "Made a group of {} in {}.",
        args.replicas.len(),
        directory.display()
    );
    if args.capacity.is_none() && !args.coordinator {
        tell!(
            "Its volume may hold {}, going by this machine's disk, and that stays: if a replica's disk is smaller, make the group anew with --capacity.",
            show_capacity(files.capacity_bytes)
        );
    }
    tell!("On each server N, with group.toml and the directory replica-N:");
    if args.no_key_holders {
        tell!("                   quorate replica --id N --group group.toml");
    } else {
        tell!("                   quorate replica --id N --group group.toml --key-holder SOCKET");
        tell!("and, as another user, with group.toml and the directory holder-N:");
        tell!(
            "                   quorate keyholder --id N --group group.toml --user USER --socket SOCKET"
        );
        tell!(
            "where USER is the replica's, and SOCKET such as /run/quorate-N/socket: where both may get at it."
        );
    }
    match args.coordinator {
        true => tell!(
            "In each router's configuration: [coordinator] group = \"group.toml\", key = \"client.key\""
        ),
        false => {
            tell!("On each client:    quorate mount group.toml DIR --key client.key");
        }
    }
    Ok(())
}

/// How much the volume may hold. The replicas' disks are on other machines; where nothing is said of them, they are taken to be like this one's: a volume
/// that is larger than all of them would have all replicas stop at a full disk, where a writer should have been told.
fn files(args: &Init) -> Result<Files> {
    let capacity_bytes = match args.capacity {
        Some(bytes) => bytes,
        None if args.coordinator => return Ok(Files::default()),
        None => {
            let mut here = args.directory.ancestors();
            let disk = here.find(|at| at.is_dir()).unwrap_or(Path::new("."));
            room::shared(disk, 1)?
        }
    };
    Ok(Files {
        capacity_bytes,
        inodes: room::objects(capacity_bytes),
    })
}

/// The identity keys that key holders have already, by their replicas' ids.
fn identities(said: &[String], replicas: usize) -> Result<BTreeMap<u8, IdentityKey>> {
    let mut out = BTreeMap::new();
    for said in said {
        let read = said.split_once('=').and_then(|(id, key)| {
            let id = id.parse::<u8>().ok()?;
            Some((id, IdentityKey::from_text(key)?))
        });
        let (id, key) = read.with_context(|| {
            format!("--identity {said:?}: write it as N=KEY, with the key that `quorate keyholder --enroll` has printed")
        })?;
        if usize::from(id) >= replicas {
            bail!(
                "--identity {said:?}: the group has replicas 0 to {}",
                replicas - 1
            );
        }
        if out.insert(id, key).is_some() {
            bail!("--identity {said:?}: replica {id} has one already");
        }
    }
    Ok(out)
}

/// A public key, as it is or in the key file of which it is a half.
fn owner_of(said: &str) -> Result<PublicKey> {
    match hex::decode32(said) {
        Some(key) => Ok(PublicKey(key)),
        None => Ok(keys::load(Path::new(said)).context("--owner")?.public()),
    }
}

/// Whose credentials let others in.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// Nobody's.
    Nobody,
    /// The holder's of this key.
    Is(PublicKey),
    /// The holder's of a key that is made, in the group's directory.
    Made,
}

/// What kind of group is made.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub files: Files,
    pub purpose: Purpose,
    pub protocol: Protocol,
    /// Where there are any, how often they certify other keys at least; zero: nothing is said of that.
    pub key_holders: Option<Duration>,
    pub owner: Owner,
    /// How many clients get a key.
    pub clients: u16,
    /// Whether each replica's supervisor gets one as well.
    pub supervisors: bool,
}

/// Makes keys, the replicas' directories and the group file. Nothing that is there is overwritten.
pub fn create(
    directory: &Path,
    name: &str,
    addresses: &[String],
    more_clients: Vec<(String, PublicKey)>,
    kind: Kind,
    identities: &BTreeMap<u8, IdentityKey>,
) -> Result<Group> {
    let Kind {
        files,
        purpose,
        mut protocol,
        key_holders,
        owner,
        clients: count,
        supervisors,
    } = kind;
    protocol.key_refresh = key_holders.filter(|every| !every.is_zero());
    let key_holders = key_holders.is_some();
    let group_file = paths::group_file(directory);
    if group_file.exists() {
        bail!(
            "{} is there already: choose another directory",
            group_file.display()
        );
    }
    let mut keys = Vec::new();
    let mut replicas = Vec::new();
    for (id, address) in (0..).zip(addresses) {
        let key = Key::find_or_generate(paths::replica_key(directory, id))?;
        replicas.push((address.clone(), key.pair.public()));
        keys.push(key);
    }
    let mut named = paths::client_keys(directory, count);
    if supervisors {
        let ids = (0..).take(addresses.len());
        named.extend(ids.map(|id| {
            let file = paths::supervisor_key(directory, id);
            (format!("supervisor-{id}"), file)
        }));
    }
    let mut clients = Vec::new();
    for (name, file) in named {
        let key = Key::find_or_generate(file)?;
        clients.push((name, key.pair.public()));
        keys.push(key);
    }
    clients.extend(more_clients);
    let group = Group::new(name, replicas, clients, files, purpose)
        .map_err(|problem| anyhow::anyhow!("no such group can be: {problem}"))?
        .with_protocol(protocol);
    let mut holders = BTreeMap::new();
    let mut all = Vec::new();
    if key_holders {
        for id in group.quorum().replicas() {
            if let Some(&identity) = identities.get(&id.0) {
                all.push(identity);
                continue;
            }
            let key = Key::find_or_generate(paths::holder_key(directory, id.0))?;
            all.push(key.pair.public().into());
            holders.insert(id.0, key);
        }
    }
    let group = match key_holders {
        true => group
            .with_identities(&all)
            .map_err(|problem| anyhow::anyhow!("no such group can be: {problem}"))?,
        false => group,
    };
    let owner = match owner {
        Owner::Nobody => None,
        Owner::Is(key) => Some(key),
        Owner::Made => {
            let key = Key::find_or_generate(paths::owner_key(directory))?;
            let public = key.pair.public();
            keys.push(key);
            Some(public)
        }
    };
    let group = match owner {
        Some(owner) => group
            .with_owner(owner)
            .map_err(|problem| anyhow::anyhow!("no such group can be: {problem}"))?,
        None => group,
    };
    // Nothing is left behind of a group that can't be.
    let make = |directory: &Path| {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("can't make {}", directory.display()))
    };
    make(directory)?;
    for id in group.quorum().replicas() {
        let replica = paths::replica(directory, id.0);
        disk::make_private_directory(&replica)
            .with_context(|| format!("can't make {}", replica.display()))?;
    }
    if key_holders {
        // Another user, the replica's, is to reach the key holder's socket in it.
        for id in group.quorum().replicas() {
            make(&paths::holder(directory, id.0))?;
        }
    }
    for (&id, key) in &holders {
        key.save()?;
        let counter = paths::holder_counter(directory, id);
        match CounterFile::create(&counter, &key.pair.public()) {
            // Of an earlier attempt, as the key.
            Err(CounterError::Exists(_)) if !key.is_new => {}
            made => made?,
        }
    }
    for key in &keys {
        key.save()?;
    }
    for id in group.quorum().replicas() {
        make_directory(&paths::replica(directory, id.0), &group)?;
    }
    group.save(&group_file)?;
    Ok(group)
}

/// A member's key, and the file that it is in or will be.
struct Key {
    file: PathBuf,
    pair: KeyPair,
    is_new: bool,
}

impl Key {
    /// A key that an earlier attempt has made is used again.
    fn find_or_generate(file: PathBuf) -> Result<Key> {
        let is_new = !file.exists();
        let pair = match is_new {
            true => keys::generate()?,
            false => keys::load(&file)?,
        };
        Ok(Key { file, pair, is_new })
    }

    fn save(&self) -> Result<()> {
        if self.is_new {
            keys::save(&self.file, &self.pair)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each client has a key of its own, and so has each supervisor, in a file that has its name in the group file.
    #[test]
    fn clients_share_no_key() {
        let place = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = (0..4)
            .map(|id| format!("127.0.0.1:{}", 7400 + id))
            .collect();
        let kind = Kind {
            files: Files::default(),
            purpose: Purpose::Service,
            protocol: Protocol::default(),
            key_holders: None,
            owner: Owner::Nobody,
            clients: 3,
            supervisors: true,
        };
        let group = create(
            place.path(),
            "test",
            &addresses,
            Vec::new(),
            kind,
            &BTreeMap::new(),
        );
        let mut names = Vec::new();
        for client in group.unwrap().clients() {
            let file = place.path().join(format!("{}.key", client.name));
            assert_eq!(keys::load(&file).unwrap().public(), client.key);
            names.push(client.name.clone());
        }
        let supervisors = (0..4).map(|id| format!("supervisor-{id}"));
        let expected: Vec<String> = ["client", "client-2", "client-3"]
            .map(String::from)
            .into_iter()
            .chain(supervisors)
            .collect();
        assert_eq!(names, expected);
    }
}
