//! The group file: who belongs to a group, and where its replicas are.
//!
//! All members hold the same file. Its `id` is the digest of its meaning, so an edit by hand is noticed: a
//! replica that runs with another list of keys than the others is as good as faulty.

mod error;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use quorate_wire::auth::AuthError;
use quorate_wire::digest::Content;
use quorate_wire::{
    Authentication, Digest, Encode, IdentityKey, PublicKey, Quorum, ReplicaId, ReplicaKeys,
    Signature,
};

use crate::disk;

pub use error::{GroupError, Problem};
pub use text::show_capacity;

/// The most clients in a group file.
pub const MAX_CLIENTS: usize = 4096;
/// The longest name of a group or client, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// What [`Protocol::key_refresh`] may be, in milliseconds.
pub const KEY_REFRESH_MS: RangeInclusive<u64> = 1_000..=3_600_000;
/// For so many periods of [`Protocol::key_refresh`] a client believes a key that no newer one has followed: two, for which a key counts, and one by which a
/// renewal may be late.
pub const BELIEVED_PERIODS: u32 = 3;
/// But for so long at the least: on a machine that is loaded, or whose disk is, a key holder or a link may be late by seconds.
pub const BELIEVED_AT_LEAST: Duration = Duration::from_secs(15);

/// A group whose parts fit together. Only valid ones can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: String,
    purpose: Purpose,
    protocol: Protocol,
    files: Files,
    replicas: Vec<Replica>,
    clients: Vec<Client>,
    quorum: Quorum,
    members: BTreeMap<PublicKey, Member>,
    identities: Option<Vec<IdentityKey>>,
    owner: Option<PublicKey>,
    id: Digest,
}

/// What a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Keeping people's files.
    #[default]
    Service,
    /// Trying and showing: faults may be injected into its replicas.
    Demonstration,
    /// Keeping what the routers of one volume share; it holds no files.
    Coordinator,
}

/// How the members deal with each other; all must do so in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// When a replica's word is given.
    pub durability: Durability,
    /// What the members' words rest on.
    pub authentication: Authentication,
    /// Whether clients send operations that only read to all replicas, and take results from 2f+1; else they take them from f+1.
    pub unordered_reads: bool,
    /// How often replicas with key holders take other keys at least: clients let go of what no newer one has followed for [`BELIEVED_PERIODS`] of it, and
    /// [`BELIEVED_AT_LEAST`].
    pub key_refresh: Option<Duration>,
}

impl Default for Protocol {
    fn default() -> Protocol {
        Protocol {
            durability: Durability::Disk,
            authentication: Authentication::Mac,
            unordered_reads: true,
            key_refresh: None,
        }
    }
}

/// When a replica's votes leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// When they are on disk: a power cut of all replicas loses nothing that was acknowledged.
    #[default]
    Disk,
    /// At once: replication alone keeps what was acknowledged, and a replica that has stopped can't come back. The papers' mode.
    Memory,
}

/// How much the file service of the group holds; part of the initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// Bytes of content.
    pub capacity_bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Default for Files {
    fn default() -> Files {
        Files {
            capacity_bytes: 1 << 40,
            inodes: 1 << 32,
        }
    }
}

/// A replica as the group file lists it; its id is its place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// `host:port`, as the other members reach it.
    pub address: String,
    /// Its long-lived key.
    pub key: PublicKey,
    /// The key that its key holder has, where the group has key holders: it certifies the keys of links.
    pub identity: Option<IdentityKey>,
    /// Where this process reaches it instead; nothing that the file says.
    route: Option<String>,
}

impl Replica {
    pub(crate) fn new(address: String, key: PublicKey) -> Replica {
        Replica {
            address,
            key,
            identity: None,
            route: None,
        }
    }

    /// Where it is dialed.
    pub(crate) fn dialed_at(&self) -> &str {
        self.route.as_ref().unwrap_or(&self.address)
    }
}

/// A client as the group file lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// For people.
    pub name: String,
    /// Its long-lived key, which is who it is.
    pub key: PublicKey,
}

/// Who a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A replica.
    Replica(ReplicaId),
    /// The client at this place of the file.
    Client(usize),
    /// The volume's owner, where that is no client that is listed: a client all the same.
    Owner,
}

/// The entry that a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Whole,
    Owner,
    Replica(usize),
    Client(usize),
}

impl Group {
    /// A group of replicas (address and key, in order of their ids) and clients (name and key).
    ///
    /// # Errors
    /// What keeps it from being one; the caller's fault.
    pub fn new(
        name: &str,
        replicas: Vec<(String, PublicKey)>,
        clients: Vec<(String, PublicKey)>,
        files: Files,
        purpose: Purpose,
    ) -> Result<Group, Problem> {
        let replicas = replicas
            .into_iter()
            .map(|(address, key)| Replica::new(address, key));
        let clients = clients.into_iter().map(|(name, key)| Client { name, key });
        Group::check(
            name.into(),
            purpose,
            Protocol::default(),
            files,
            replicas.collect(),
            clients.collect(),
            None,
        )
        .map_err(|(problem, _)| problem)
    }

    /// The same members, who deal with each other in another way. It is another group, with another id.
    pub fn with_protocol(mut self, protocol: Protocol) -> Group {
        self.protocol = protocol;
        self.id = Digest::of(Content::Group, &self.canonical());
        self
    }

    /// The same members, whose replicas have key holders with these identity keys, in order of their ids. It is another group, with
    /// another id.
    ///
    /// # Errors
    /// What keeps it from being one; the caller's fault.
    pub fn with_identities<K: Copy + Into<IdentityKey>>(
        mut self,
        identities: &[K],
    ) -> Result<Group, Problem> {
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            replica.identity = identities.get(at).map(|&key| key.into());
        }
        let (replicas, clients) = (self.replicas, self.clients);
        Group::check(
            self.name,
            self.purpose,
            self.protocol,
            self.files,
            replicas,
            clients,
            self.owner,
        )
        .map_err(|(problem, _)| problem)
    }

    /// The same members, and a key whose credentials let others in: the volume's owner. It may be that of a client. It is another group, with
    /// another id.
    ///
    /// # Errors
    /// What keeps it from being one; the caller's fault.
    pub fn with_owner(self, owner: PublicKey) -> Result<Group, Problem> {
        Group::check(
            self.name,
            self.purpose,
            self.protocol,
            self.files,
            self.replicas,
            self.clients,
            Some(owner),
        )
        .map_err(|(problem, _)| problem)
    }

    /// The same group, of which this process reaches one replica at another address: by another network, or through a tunnel.
    ///
    /// # Errors
    /// [`Problem::NoSuchReplica`], [`Problem::BadAddress`]; the caller's fault.
    pub fn with_route(mut self, id: ReplicaId, address: &str) -> Result<Group, Problem> {
        if !is_address(address) {
            return Err(Problem::BadAddress(address.into()));
        }
        let replica = self.replicas.get_mut(usize::from(id.0));
        replica.ok_or(Problem::NoSuchReplica(id))?.route = Some(address.into());
        Ok(self)
    }

    /// Reads a group file.
    ///
    /// # Errors
    /// Any [`GroupError`].
    pub fn load(path: &Path) -> Result<Group, GroupError> {
        let text = std::fs::read_to_string(path).map_err(|e| GroupError::from_read(path, e))?;
        text::parse(path, &text)
    }

    /// Writes the group file, in place of one that may be there.
    ///
    /// # Errors
    /// [`GroupError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), GroupError> {
        disk::replace(path, self.to_string().as_bytes(), 0o644).map_err(|source| GroupError::Io {
            path: path.into(),
            source,
        })
    }

    /// The digest of all that the file says.
    pub fn id(&self) -> Digest {
        self.id
    }

    /// The group's name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether faults may be injected into this group's replicas.
    pub fn is_demonstration(&self) -> bool {
        self.purpose == Purpose::Demonstration
    }

    /// Whether it keeps what routers share, and no files.
    pub fn is_coordinator(&self) -> bool {
        self.purpose == Purpose::Coordinator
    }

    /// How the members deal with each other.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// How much the file service holds.
    pub fn files(&self) -> Files {
        self.files
    }

    /// Quorum sizes.
    pub fn quorum(&self) -> Quorum {
        self.quorum
    }

    /// The replicas, in order of their ids.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// The clients, in the file's order.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// A replica's entry.
    pub fn replica(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(usize::from(id.0))
    }

    /// The replicas' keys, in order of their ids.
    pub fn replica_keys(&self) -> Vec<PublicKey> {
        self.replicas.iter().map(|r| r.key).collect()
    }

    /// What is checked against this file that replicas have signed for others to pass on.
    pub fn signing_keys(&self) -> ReplicaKeys {
        match self.identities() {
            None => ReplicaKeys::Standing {
                group: self.id(),
                keys: self.replica_keys(),
            },
            Some(identities) => ReplicaKeys::Certified {
                group: self.id(),
                identities: identities.to_vec(),
            },
        }
    }

    /// The keys that the replicas' key holders have, in order of the replicas' ids; `None` in a group without key holders, where
    /// the replicas' own keys speak on links.
    pub fn identities(&self) -> Option<&[IdentityKey]> {
        self.identities.as_deref()
    }

    /// The volume's owner, whose credentials let in keys that stand nowhere in the file; `None` where nobody can do so.
    pub fn owner(&self) -> Option<PublicKey> {
        self.owner
    }

    /// Whether the holder of this key needs no credential: it is a client's, or the owner's.
    pub fn is_client(&self, key: &PublicKey) -> bool {
        matches!(self.member(key), Some(Member::Client(_) | Member::Owner))
    }

    /// The keys of all who need no credential.
    pub fn client_keys(&self) -> impl Iterator<Item = PublicKey> {
        let clients = self.clients.iter().map(|client| client.key);
        let is_listed = |owner: &PublicKey| self.client_of_key(owner).is_some();
        clients.chain(self.owner.filter(|owner| !is_listed(owner)))
    }

    /// Who has this key.
    pub fn member(&self, key: &PublicKey) -> Option<Member> {
        self.members.get(key).copied()
    }

    /// The replica that has this key.
    pub fn replica_of_key(&self, key: &PublicKey) -> Option<ReplicaId> {
        match self.member(key)? {
            Member::Replica(id) => Some(id),
            Member::Client(_) | Member::Owner => None,
        }
    }

    /// The client that has this key.
    pub fn client_of_key(&self, key: &PublicKey) -> Option<&Client> {
        match self.member(key)? {
            Member::Replica(_) | Member::Owner => None,
            Member::Client(at) => self.clients.get(at),
        }
    }

    fn check(
        name: String,
        purpose: Purpose,
        protocol: Protocol,
        files: Files,
        replicas: Vec<Replica>,
        clients: Vec<Client>,
        owner: Option<PublicKey>,
    ) -> Result<Group, (Problem, Place)> {
        if !is_name(&name) {
            return Err((Problem::BadName(name), Place::Whole));
        }
        if files.capacity_bytes == 0 || files.inodes == 0 {
            return Err((Problem::NoRoom, Place::Whole));
        }
        let Some(quorum) = Quorum::new(replicas.len()) else {
            return Err((Problem::NotAQuorum(replicas.len()), Place::Whole));
        };
        if clients.len() > MAX_CLIENTS {
            return Err((Problem::TooManyClients(clients.len()), Place::Whole));
        }
        let mut members = BTreeMap::new();
        for (id, replica) in quorum.replicas().zip(&replicas) {
            let at = usize::from(id.0);
            check_replica(&replicas, at)
                .and_then(|()| admit(&mut members, replica.key, Member::Replica(id)))
                .map_err(|problem| (problem, Place::Replica(at)))?;
        }
        let mut names = std::collections::BTreeSet::new();
        for (at, client) in clients.iter().enumerate() {
            let here = |problem| (problem, Place::Client(at));
            if !is_name(&client.name) {
                return Err(here(Problem::BadName(client.name.clone())));
            }
            if !names.insert(&client.name) {
                return Err(here(Problem::NameTwice(client.name.clone())));
            }
            admit(&mut members, client.key, Member::Client(at)).map_err(here)?;
        }
        let identities = check_identities(&replicas, &members)
            .map_err(|(problem, at)| (problem, Place::Replica(at)))?;
        if let Some(owner) = owner {
            admit_owner(&mut members, identities.as_deref(), owner)
                .map_err(|problem| (problem, Place::Owner))?;
        }
        if identities.is_some() && protocol.authentication == Authentication::Signature {
            return Err((Problem::SignedWithHolders, Place::Whole));
        }
        if let Some(every) = protocol.key_refresh {
            let ms = every.as_millis() as u64;
            if !KEY_REFRESH_MS.contains(&ms) {
                return Err((Problem::BadKeyRefresh(ms), Place::Whole));
            }
            if identities.is_none() {
                return Err((Problem::RefreshWithoutHolders, Place::Whole));
            }
        }
        let mut group = Group {
            name,
            purpose,
            protocol,
            files,
            replicas,
            clients,
            quorum,
            members,
            identities,
            owner,
            id: Digest::ZERO,
        };
        group.id = Digest::of(Content::Group, &group.canonical());
        Ok(group)
    }

    /// All that the file says, in one byte form. Layout and comments of the file are not part of it.
    fn canonical(&self) -> Vec<u8> {
        let text = |s: &str| Bytes::copy_from_slice(s.as_bytes());
        let mut out = Vec::new();
        text(&self.name).encode(&mut out);
        // As a flag it was before there was a third.
        match self.purpose {
            Purpose::Service => 0u8,
            Purpose::Demonstration => 1,
            Purpose::Coordinator => 2,
        }
        .encode(&mut out);
        (self.protocol.durability == Durability::Memory).encode(&mut out);
        (self.protocol.authentication == Authentication::Signature).encode(&mut out);
        self.protocol.unordered_reads.encode(&mut out);
        self.files.capacity_bytes.encode(&mut out);
        self.files.inodes.encode(&mut out);
        let replicas = self.replicas.iter().map(|r| (text(&r.address), r.key));
        replicas.collect::<Vec<_>>().encode(&mut out);
        let clients = self.clients.iter().map(|c| (text(&c.name), c.key));
        clients.collect::<Vec<_>>().encode(&mut out);
        // What a group need not have comes last and is left out, so that the ids of groups without it are what they were.
        if self.identities.is_some() || self.owner.is_some() {
            self.identities.clone().unwrap_or_default().encode(&mut out);
        }
        if let Some(owner) = self.owner {
            owner.encode(&mut out);
        }
        if let Some(every) = self.protocol.key_refresh {
            (every.as_millis() as u64).encode(&mut out);
        }
        out
    }
}

impl fmt::Display for Group {
    /// The group file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(self, f)
    }
}

fn check_replica(replicas: &[Replica], at: usize) -> Result<(), Problem> {
    let address = &replicas[at].address;
    if !is_address(address) {
        return Err(Problem::BadAddress(address.clone()));
    }
    if replicas[..at].iter().any(|r| r.address == *address) {
        return Err(Problem::AddressTwice(address.clone()));
    }
    Ok(())
}

/// All replicas have key holders, or none; and an identity key is nobody's other key.
fn check_identities(
    replicas: &[Replica],
    members: &BTreeMap<PublicKey, Member>,
) -> Result<Option<Vec<IdentityKey>>, (Problem, usize)> {
    let first = replicas.first().and_then(|r| r.identity);
    let mut seen = members.clone();
    let mut identities = Vec::new();
    for (at, replica) in replicas.iter().enumerate() {
        match replica.identity {
            Some(identity) if first.is_some() => {
                let is_one = identity.check();
                is_one.map_err(|_| (Problem::BadKey(identity.to_string()), at))?;
                // Whose it is has no meaning among these.
                if seen.insert(identity.name(), Member::Client(at)).is_some() {
                    return Err((Problem::KeyTwice, at));
                }
                identities.push(identity);
            }
            None if first.is_none() => {}
            _ => return Err((Problem::SomeIdentities, at)),
        }
    }
    Ok(first.map(|_| identities))
}

/// The owner may be a client that is listed, and no replica.
fn admit_owner(
    members: &mut BTreeMap<PublicKey, Member>,
    identities: Option<&[IdentityKey]>,
    owner: PublicKey,
) -> Result<(), Problem> {
    match members.get(&owner) {
        Some(Member::Client(_)) => Ok(()),
        None if !identities.is_some_and(|keys| keys.contains(&owner.into())) => {
            admit(members, owner, Member::Owner)
        }
        _ => Err(Problem::OwnerIsReplica),
    }
}

fn admit(
    members: &mut BTreeMap<PublicKey, Member>,
    key: PublicKey,
    member: Member,
) -> Result<(), Problem> {
    // Any signature will do: only the answer to a key that is no point of the curve differs.
    if key.verify(&Digest::ZERO, &Signature([0; 64])) == Err(AuthError::BadKey) {
        return Err(Problem::BadKey(key.to_string()));
    }
    match members.insert(key, member) {
        None => Ok(()),
        Some(_) => Err(Problem::KeyTwice),
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-@".contains(&b);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_good = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            (1..=253).contains(&host.len()) && host.bytes().all(allowed)
        }
    };
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    host_is_good && digits && port.parse::<u16>().is_ok_and(|p| p != 0)
}

#[cfg(test)]
mod tests;
