//! `quorate grant` and `quorate delegate`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::fuse::OBJECT;
use quorate_credential::{
    Caveat, Chain, ObjectId, Rights, Scope, Terms, Trust, VolumeId, Window, armour, calendar,
};
use quorate_net::{Group, Identity, hex, keys};
use quorate_wire::{Digest, KeyPair, PublicKey};
use rustix::io::Errno;

use super::credential;
use super::revocations;
use super::sharing::ask_within;
use crate::args::{Delegate, Grant, Link};
use crate::{paths, words};

/// How many seconds ago a credential begins that is to hold at once: it is used on machines whose clocks are behind this one's.
const DATED_BACK: u64 = 60;
/// How long the group has to say what was taken back: signing does not wait for more.
const ASKED: Duration = Duration::from_secs(5);
/// As whom a holder acts for whom the owner fixes no ids.
const NOBODY: u32 = 65_534;

pub fn run(args: &Grant) -> Result<()> {
    let found = object(&args.path)?;
    let group_file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let mut group = None;
    let file = match &args.key {
        Some(file) => file.clone(),
        None => paths::owner_key(&paths::beside(&group_file)),
    };
    let key = keys::load(&file)?;
    // Without the group file the owner is not known; whoever checks the credential will.
    if args.group.is_some() || group_file.exists() {
        let loaded = Group::load(&group_file)?;
        check_signer(&loaded, &found, &key.public(), args.group.is_some())?;
        group = Some(loaded).filter(|group| VolumeId(group.id()) == found.volume);
    }
    let scope = Scope {
        object: found.object,
        subtree: found.is_directory && !args.this_only,
    };
    let window = Window {
        not_before: args
            .from
            .unwrap_or_else(|| credential::now().saturating_sub(DATED_BACK)),
        not_after: args.until,
    };
    let terms = terms(&args.link, scope, args.rights, window)?;
    warn_of_depth(&args.link, args.rights, Rights::ALL);
    if let Some(why) = missing_modes(&args.path, &terms) {
        say!("quorate: {}: {why}", args.path.display());
    }
    let chain = Chain::issue(found.volume, &key, terms);
    let chain = chain.map_err(|why| anyhow!("such a credential can't be: {why}"))?;
    if let Some(group) = &group {
        warn_of_revocations(group, &key, &chain);
    }
    say(&chain);
    Ok(())
}

fn warn_of_depth(link: &Link, rights: Rights, own: Rights) {
    if let Some(why) = missing_with_depth(link.depth, rights, own) {
        say!("quorate: {why}");
    }
}

/// What a holder with these rights lacks to pass on, or to take back what it passes on; who signs has `own` to give.
fn missing_with_depth(depth: u8, rights: Rights, own: Rights) -> Option<&'static str> {
    if depth == 0 {
        return rights.contains(Rights::DELEGATE).then_some(
            "the right delegate is of no use without a depth: the holder can pass nothing on (--depth says how many times it can)",
        );
    }
    match (
        rights.contains(Rights::REVOKE),
        own.contains(Rights::REVOKE),
    ) {
        (true, _) => None,
        (false, true) => Some(
            "the holder can pass this on and take back nothing of what it has passed on: that is another right, revoke (--rights rw,revoke)",
        ),
        (false, false) => Some(
            "the holder can pass this on and take back nothing of what it has passed on: that is another right, revoke, which this credential has not",
        ),
    }
}

/// Whether what a path names is what a link is about, or below it, as this mount shows it now.
fn is_below(path: &Path, volume: VolumeId, above: ObjectId) -> bool {
    let Ok(path) = path.canonicalize() else {
        return false;
    };
    let found = path.ancestors().map(object);
    found
        .map_while(Result::ok)
        .take_while(|found| found.volume == volume)
        .any(|found| found.object == above)
}

/// Tells where what was signed is worth nothing, since it was taken back before. What the group keeps can change, so this refuses nothing.
fn warn_of_revocations(group: &Group, owner: &KeyPair, chain: &Chain) {
    let identity = Identity::new(owner);
    let taken_back = ask_within(ASKED, group, &identity, revocations::all);
    match taken_back {
        Ok(all) => {
            if let Some(kept) = revocations::against(&all, chain) {
                say!(
                    "quorate: this credential is worth nothing as long as a revocation holds: {} (until {}). `quorate revoke --undo` ends one",
                    revocations::words(&kept.what),
                    revocations::until(kept)
                );
            }
        }
        Err(why) => say!("quorate: whether this was taken back before is not known: {why:#}"),
    }
}

/// What the modes of an object keep from whoever holds a credential for it: they hold within what that allows.
fn missing_modes(path: &Path, terms: &Terms) -> Option<String> {
    let object = std::fs::metadata(path).ok()?;
    // What an ACL says is for people to read.
    let mut nothing = [0_u8; 0];
    let has_acl = rustix::fs::getxattr(path, "system.posix_acl_access", &mut nothing[..]).is_ok();
    let mode = Mode {
        bits: object.mode(),
        owner: (object.uid(), object.gid()),
        is_directory: object.is_dir(),
    };
    mode.missing(terms).filter(|_| !has_acl)
}

struct Mode {
    bits: u32,
    owner: (u32, u32),
    is_directory: bool,
}

impl Mode {
    fn missing(&self, terms: &Terms) -> Option<String> {
        let ids = terms.caveats.iter().find_map(|caveat| match caveat {
            Caveat::Ids { uid, gid } => Some((*uid, *gid)),
            _ => None,
        });
        let (uid, gid) = ids.unwrap_or((NOBODY, NOBODY));
        let class = match (uid, gid) {
            (0, _) => return None,
            (uid, _) if uid == self.owner.0 => 6,
            (_, gid) if gid == self.owner.1 => 3,
            _ => 0,
        };
        let wants = |rights: Rights| !(terms.rights & rights).is_empty();
        let moves = Rights::RENAME_FROM | Rights::RENAME_INTO;
        let (reads, writes) = match self.is_directory {
            true => (
                Rights::READDIR,
                Rights::CREATE | Rights::UNLINK | Rights::LINK | moves,
            ),
            false => (Rights::READ, Rights::WRITE | Rights::APPEND),
        };
        let asked = [(reads, 4, "read"), (writes, 2, "write")];
        let missing = asked
            .into_iter()
            .filter(|(of, bit, _)| wants(*of) && self.bits >> class & bit == 0);
        let mut words: Vec<_> = missing.map(|(_, _, word)| word).collect();
        // To use anything in a directory it must be searched.
        if self.is_directory && self.bits >> class & 1 == 0 {
            words.push("enter");
        }
        (!words.is_empty()).then(|| {
            format!(
                "its mode {:04o} (user {}, group {}) does not let user {uid}, group {gid} {}, as whom the holder will act: modes hold within what \
                 the credential allows. Change the mode, or have the holder act as somebody else (--caveat ids=UID:GID)",
                self.bits & 0o7777,
                self.owner.0,
                self.owner.1,
                words.join(" or "),
            )
        })
    }
}

/// Refuses to sign what nobody would take. A group file that was not named may be another volume's.
fn check_signer(group: &Group, found: &Found, signer: &PublicKey, is_named: bool) -> Result<()> {
    if VolumeId(group.id()) != found.volume {
        if is_named {
            bail!("the path is on another volume than that of the group file");
        }
        return Ok(());
    }
    match group.owner() {
        None => bail!(
            "the group has no owner, so nobody can grant: name one when the group is made (`quorate init --owner`)"
        ),
        Some(owner) if owner != *signer => bail!(
            "the owner of the volume is {owner}, and the key file holds {signer}: give the owner's (--key)"
        ),
        Some(_) => Ok(()),
    }
}

/// Refuses to sign below a credential with which what is signed would be worth nothing anywhere: one that was changed, or has ended. Whose it is to issue the
/// first link, only who has the group file can tell.
fn check_parent(chain: &Chain, now: u64) -> Result<()> {
    let trust = Trust {
        volume: chain.volume(),
        owners: &[chain.owner()],
    };
    let grant = chain.verify(&trust).map_err(|why| {
        anyhow!("it does not hold, so nothing can be passed on from it: {why}. Ask who has sent it for it again")
    })?;
    let end = grant.window.not_after;
    if end < now {
        bail!(
            "it ended with {} UTC, so nothing can be passed on from it: ask for a new one (by this machine's clock it is {} UTC)",
            calendar::show(end),
            calendar::show(now)
        );
    }
    Ok(())
}

pub fn delegate(args: &Delegate) -> Result<()> {
    let read = credential::read(&args.file)?;
    let chain = read.chain;
    let key = keys::load(&args.key)?;
    if key.public() != chain.subject() {
        bail!(
            "{} is for the key {}, and {} holds another one: only the holder can pass it on",
            args.file.display(),
            chain.subject(),
            args.key.display()
        );
    }
    check_parent(&chain, credential::now()).with_context(|| args.file.display().to_string())?;
    let last = &chain.links().last().context("a chain has a link")?.terms;
    let scope = match &args.path {
        None => last.scope,
        Some(path) => {
            let found = object(path)?;
            if found.volume != chain.volume() {
                bail!(
                    "{} is on another volume than the credential's",
                    path.display()
                );
            }
            if !is_below(path, chain.volume(), last.scope.object) {
                say!(
                    "quorate: {} is not below what the credential is about, as far as this mount shows: as long as it is not, what is \
                     signed for it allows nothing",
                    path.display()
                );
            }
            Scope {
                object: found.object,
                subtree: found.is_directory && last.scope.subtree,
            }
        }
    };
    let own = Rights::DELEGATE | Rights::REVOKE;
    let rights = args.rights.unwrap_or_else(|| last.rights.without(own));
    let window = Window {
        not_before: args.from.unwrap_or(last.window.not_before),
        not_after: args.until.unwrap_or(last.window.not_after),
    };
    warn_of_depth(&args.link, rights, last.rights);
    let terms = terms(&args.link, scope, rights, window)?;
    let longer = chain.delegate(&key, terms);
    say(&longer.map_err(|why| anyhow!("it can't be passed on so: {why}"))?);
    Ok(())
}

fn terms(link: &Link, scope: Scope, rights: Rights, window: Window) -> Result<Terms> {
    // Rising, so that an epoch is all that was signed before a moment.
    let serial = link.serial.unwrap_or_else(credential::nanoseconds);
    let mut caveats = link.caveats.clone();
    caveats.sort_by_key(|caveat| caveat.kind());
    // Whoever asks for depth means the right as well.
    let passing_on = match link.depth {
        0 => Rights::NONE,
        _ => Rights::DELEGATE,
    };
    Ok(Terms {
        subject: link.to,
        scope,
        rights: rights | passing_on,
        window,
        depth: link.depth,
        serial,
        caveats,
    })
}

fn say(chain: &Chain) {
    words::put(&armour::write(chain));
}

/// What a path on a mount is to credentials.
pub struct Found {
    pub volume: VolumeId,
    pub object: ObjectId,
    is_directory: bool,
}

pub fn object(path: &Path) -> Result<Found> {
    let name = || path.display().to_string();
    let mut buffer = [0; 256];
    let length = match rustix::fs::getxattr(path, OBJECT, &mut buffer[..]) {
        Ok(length) => length,
        Err(Errno::NODATA | Errno::NOTSUP) => bail!(
            "{} is not on a mount of Quorate: name a file or directory below one (`quorate mount`, `quorate up`)",
            name()
        ),
        Err(e) => return Err(e).with_context(name),
    };
    let said = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
    let (volume, object) = parse(said)
        .with_context(|| format!("{}: the mount says {said:?}, which is no object", name()))?;
    let is_directory = std::fs::metadata(path).with_context(name)?.is_dir();
    Ok(Found {
        volume,
        object,
        is_directory,
    })
}

fn parse(said: &str) -> Option<(VolumeId, ObjectId)> {
    let (volume, object) = said.split_once(' ')?;
    let volume = VolumeId(Digest(hex::decode32(volume)?));
    Some((volume, ObjectId(object.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who may pass on and can't take back is told so, and who can't pass on what it has the right to.
    #[test]
    fn what_passing_on_lacks_is_told() {
        let (reads, both) = (Rights::READ, Rights::DELEGATE | Rights::REVOKE);
        let said = |depth, rights, own| missing_with_depth(depth, rights, own).unwrap_or_default();
        assert_eq!(said(0, reads, Rights::ALL), "");
        assert!(said(0, reads | Rights::DELEGATE, Rights::ALL).contains("--depth"));
        assert!(said(1, reads, Rights::ALL).contains("--rights rw,revoke"));
        assert_eq!(said(1, reads | both, Rights::ALL), "");
        assert_eq!(said(3, reads | Rights::REVOKE, Rights::ALL), "");
        // It could not be given either.
        assert!(said(1, reads, reads | Rights::DELEGATE).contains("has not"));
    }

    /// Nothing is signed below what has ended or was changed; below what is still to begin it is.
    #[test]
    fn what_is_worth_nothing_is_not_passed_on() {
        let [owner, bob, carol] = [1, 2, 3].map(|seed| KeyPair::from_seed(&[seed; 32]));
        let terms = |to: &KeyPair, depth| Terms {
            subject: to.public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights: Rights::READ | Rights::DELEGATE,
            window: Window {
                not_before: 100,
                not_after: 200,
            },
            depth,
            serial: 7,
            caveats: Vec::new(),
        };
        let chain = Chain::issue(VolumeId(Digest([9; 32])), &owner, terms(&bob, 2)).unwrap();
        let chain = chain.delegate(&bob, terms(&carol, 1)).unwrap();
        for now in [0, 100, 200] {
            check_parent(&chain, now).unwrap();
        }
        let said = |chain: &Chain, now| check_parent(chain, now).unwrap_err().to_string();
        let ended = said(&chain, 201);
        assert!(
            ended.contains("ended with 1970-01-01 00:03:20 UTC"),
            "{ended}"
        );
        // The last byte of each link's signature.
        let bytes = chain.to_bytes();
        for (link, at) in [(2, bytes.len() - 1), (1, 66 + 141 - 1)] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = Chain::from_bytes(changed.into()).unwrap();
            let said = said(&changed, 100);
            assert!(
                said.contains(&format!("link {link} is not signed by its issuer")),
                "{said}"
            );
        }
    }

    /// Who signs what modes keep the holder from is told: as whom the holder acts, and what it can't do.
    #[test]
    fn modes_that_are_in_the_way_are_told() {
        let terms = |rights, ids: Option<(u32, u32)>| Terms {
            subject: KeyPair::from_seed(&[1; 32]).public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights,
            window: Window {
                not_before: 0,
                not_after: 1,
            },
            depth: 0,
            serial: 0,
            caveats: ids
                .map(|(uid, gid)| Caveat::Ids { uid, gid })
                .into_iter()
                .collect(),
        };
        let said = |bits, is_directory, rights, ids| {
            let owner = (1000, 100);
            let mode = Mode {
                bits,
                owner,
                is_directory,
            };
            let said = mode.missing(&terms(rights, ids));
            said.map(|said| said.split(" group 65534 ").last().unwrap().to_string())
        };
        let both = Rights::ALL;
        let read = Rights::READING;
        assert_eq!(said(0o40755, true, read, None), None);
        assert_eq!(said(0o40777, true, both, None), None);
        assert!(
            said(0o40755, true, both, None)
                .unwrap()
                .starts_with("write, as")
        );
        assert!(
            said(0o40700, true, both, None)
                .unwrap()
                .starts_with("read or write or enter, as")
        );
        assert!(
            said(0o100640, false, read, None)
                .unwrap()
                .starts_with("read, as")
        );
        // As the owner, or in the group, or as the superuser.
        assert_eq!(said(0o40700, true, both, Some((1000, 5))), None);
        assert_eq!(said(0o40770, true, both, Some((5, 100))), None);
        assert!(
            said(0o40750, true, both, Some((5, 100)))
                .unwrap()
                .contains("write")
        );
        assert_eq!(said(0o40000, true, both, Some((0, 0))), None);
    }
}
