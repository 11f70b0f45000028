//! The group file's text form.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use quorate_wire::{Authentication, IdentityKey, PublicKey};
use serde::Deserialize;
use toml::Spanned;

use super::{
    Client, Durability, Files, Group, GroupError, Place, Problem, Protocol, Purpose, Replica,
};
use crate::hex;

/// How a group file begins.
const TITLE: &str = "# A Quorate group";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    name: String,
    id: Spanned<String>,
    purpose: Option<Spanned<String>>,
    owner: Option<Spanned<String>>,
    protocol: Option<ProtocolText>,
    files: Option<FilesText>,
    #[serde(default)]
    replica: Vec<Spanned<ReplicaText>>,
    #[serde(default)]
    client: Vec<Spanned<ClientText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtocolText {
    durability: Option<Spanned<String>>,
    authentication: Option<Spanned<String>>,
    unordered_reads: Option<bool>,
    key_refresh_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesText {
    capacity: Option<Spanned<String>>,
    inodes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaText {
    id: Spanned<u64>,
    address: String,
    key: Spanned<String>,
    identity: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientText {
    name: String,
    key: Spanned<String>,
}

/// Reads the text of a group file; `path` is for the messages.
pub(super) fn parse(path: &Path, text: &str) -> Result<Group, GroupError> {
    let raw: GroupText = toml::from_str(text).map_err(|e| match is_meant_as_one(text) {
        true => GroupError::Syntax {
            path: path.into(),
            message: e.to_string().trim_end().into(),
        },
        false => GroupError::NotAGroup(path.into()),
    })?;
    let line_at = |offset: usize| 1 + text.bytes().take(offset).filter(|&b| b == b'\n').count();
    let invalid = |offset: usize, problem: Problem| GroupError::Invalid {
        path: path.into(),
        line: line_at(offset),
        problem,
    };

    let purpose = match &raw.purpose {
        None => Purpose::Service,
        Some(p) if p.get_ref() == "demonstration" => Purpose::Demonstration,
        Some(p) if p.get_ref() == "coordinator" => Purpose::Coordinator,
        Some(p) => {
            let problem = Problem::BadPurpose(p.get_ref().clone());
            return Err(invalid(p.span().start, problem));
        }
    };
    let mut protocol = Protocol::default();
    if let Some(raw) = &raw.protocol {
        if let Some(durability) = &raw.durability {
            protocol.durability = match durability.get_ref().as_str() {
                "disk" => Durability::Disk,
                "memory" => Durability::Memory,
                other => {
                    let problem = Problem::BadDurability(other.into());
                    return Err(invalid(durability.span().start, problem));
                }
            };
        }
        if let Some(authentication) = &raw.authentication {
            protocol.authentication = match authentication.get_ref().as_str() {
                "mac" => Authentication::Mac,
                "signature" => Authentication::Signature,
                other => {
                    let problem = Problem::BadAuthentication(other.into());
                    return Err(invalid(authentication.span().start, problem));
                }
            };
        }
        protocol.unordered_reads = raw.unordered_reads.unwrap_or(protocol.unordered_reads);
        protocol.key_refresh = raw.key_refresh_ms.map(Duration::from_millis);
    }
    let mut files = Files::default();
    if let Some(raw) = &raw.files {
        if let Some(capacity) = &raw.capacity {
            files.capacity_bytes = parse_capacity(capacity.get_ref()).ok_or_else(|| {
                let problem = Problem::BadCapacity(capacity.get_ref().clone());
                invalid(capacity.span().start, problem)
            })?;
        }
        files.inodes = raw.inodes.unwrap_or(files.inodes);
    }
    let key = |text: &Spanned<String>| {
        hex::decode32(text.get_ref())
            .map(PublicKey)
            .ok_or_else(|| invalid(text.span().start, Problem::BadKey(text.get_ref().clone())))
    };
    let identity = |text: &Spanned<String>| {
        IdentityKey::from_text(text.get_ref())
            .ok_or_else(|| invalid(text.span().start, Problem::BadKey(text.get_ref().clone())))
    };
    let mut replicas = Vec::new();
    for (expected, entry) in raw.replica.iter().enumerate() {
        let replica = entry.get_ref();
        let found = *replica.id.get_ref();
        if found != expected as u64 {
            let problem = Problem::OutOfOrder { expected, found };
            return Err(invalid(replica.id.span().start, problem));
        }
        let mut read = Replica::new(replica.address.clone(), key(&replica.key)?);
        read.identity = replica.identity.as_ref().map(&identity).transpose()?;
        replicas.push(read);
    }
    let mut clients = Vec::new();
    for entry in &raw.client {
        clients.push(Client {
            name: entry.get_ref().name.clone(),
            key: key(&entry.get_ref().key)?,
        });
    }

    let name = raw.name.clone();
    let owner = raw.owner.as_ref().map(&key).transpose()?;
    let group = Group::check(name, purpose, protocol, files, replicas, clients, owner);
    let group = group.map_err(|(problem, place)| {
        let offset = match place {
            Place::Whole => 0,
            Place::Owner => raw.owner.as_ref().map_or(0, |owner| owner.span().start),
            Place::Replica(at) => raw.replica[at].span().start,
            Place::Client(at) => raw.client[at].span().start,
        };
        invalid(offset, problem)
    })?;
    let start = raw.id.span().start;
    let id = hex::decode32(raw.id.get_ref())
        .ok_or_else(|| invalid(start, Problem::BadId(raw.id.get_ref().clone())))?;
    if id != group.id().0 {
        return Err(GroupError::Changed {
            path: path.into(),
            line: line_at(start),
        });
    }
    Ok(group)
}

/// Whether a text that can't be read was a group file once, or is the start of one. Of another file nothing is shown.
fn is_meant_as_one(text: &str) -> bool {
    text.starts_with(TITLE) || text.lines().any(|line| line.trim() == "[[replica]]")
}

/// Writes the text of a group file. Names and addresses hold nothing that TOML would have to escape.
pub(super) fn write(group: &Group, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let quorum = group.quorum();
    writeln!(
        f,
        "{TITLE}: {} replicas, of which {} may be faulty. All members hold this same file.",
        quorum.n(),
        quorum.f()
    )?;
    writeln!(f, "name = \"{}\"", group.name())?;
    writeln!(
        f,
        "# The digest of all that stands here; a changed file is refused."
    )?;
    writeln!(f, "id = \"{}\"", group.id())?;
    if group.is_demonstration() {
        writeln!(
            f,
            "# Faults may be injected. Not for files that matter to somebody."
        )?;
        writeln!(f, "purpose = \"demonstration\"")?;
    }
    if group.is_coordinator() {
        writeln!(
            f,
            "# For routers (quorate route): it keeps what they share, and no files."
        )?;
        writeln!(f, "purpose = \"coordinator\"")?;
    }
    if let Some(owner) = group.owner() {
        writeln!(
            f,
            "# Who shows a credential that goes back to this key is let in as a guest."
        )?;
        writeln!(f, "owner = \"{owner}\"")?;
    }
    write_protocol(group.protocol(), f)?;
    writeln!(f, "\n[files]")?;
    let capacity = show_capacity(group.files().capacity_bytes);
    writeln!(f, "capacity = \"{capacity}\"")?;
    writeln!(f, "inodes = {}", group.files().inodes)?;
    for (id, replica) in group.replicas().iter().enumerate() {
        writeln!(f, "\n[[replica]]\nid = {id}")?;
        writeln!(f, "address = \"{}\"", replica.address)?;
        writeln!(f, "key = \"{}\"", replica.key)?;
        if let Some(identity) = replica.identity {
            writeln!(f, "identity = \"{identity}\"")?;
        }
    }
    for client in group.clients() {
        writeln!(f, "\n[[client]]\nname = \"{}\"", client.name)?;
        writeln!(f, "key = \"{}\"", client.key)?;
    }
    Ok(())
}

/// What is as it is by default is left out.
fn write_protocol(protocol: Protocol, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if protocol == Protocol::default() {
        return Ok(());
    }
    writeln!(f, "\n[protocol]")?;
    if protocol.durability == Durability::Memory {
        writeln!(
            f,
            "# Votes are not written down: a replica that has stopped can't come back."
        )?;
        writeln!(f, "durability = \"memory\"")?;
    }
    if protocol.authentication == Authentication::Signature {
        writeln!(
            f,
            "# Every ordered request and every message between replicas is signed."
        )?;
        writeln!(f, "authentication = \"signature\"")?;
    }
    if !protocol.unordered_reads {
        writeln!(f, "unordered_reads = false")?;
    }
    if let Some(every) = protocol.key_refresh {
        writeln!(
            f,
            "# Replicas take other keys so often at least. Clients let go of those that do not for three times as long, and 15 s."
        )?;
        writeln!(f, "key_refresh_ms = {}", every.as_millis())?;
    }
    Ok(())
}

const UNITS: [(&str, u32); 6] = [
    ("PiB", 50),
    ("TiB", 40),
    ("GiB", 30),
    ("MiB", 20),
    ("KiB", 10),
    ("B", 0),
];

/// Bytes from text such as `500 GiB`.
pub(super) fn parse_capacity(text: &str) -> Option<u64> {
    let (unit, shift) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let digits = text.strip_suffix(unit)?.trim();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Bytes in the largest unit of which they are a whole number.
pub fn show_capacity(bytes: u64) -> String {
    let whole = |shift: u32| bytes.is_multiple_of(1 << shift);
    let (unit, shift) = UNITS
        .into_iter()
        .find(|&(_, shift)| whole(shift))
        .unwrap_or(("B", 0));
    format!("{} {unit}", bytes >> shift)
}
