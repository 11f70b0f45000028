//! `quorate grant` and `quorate delegate`.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::fuse::OBJECT;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window, armour};
use quorate_net::{Group, hex, keys};
use quorate_wire::{Digest, PublicKey};
use rustix::io::Errno;

use super::credential;
use crate::args::{Delegate, Grant, Link};
use crate::paths;

pub fn run(args: &Grant) -> Result<()> {
    let found = object(&args.path)?;
    let group_file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let file = match &args.key {
        Some(file) => file.clone(),
        None => paths::owner_key(&paths::beside(&group_file)),
    };
    let key = keys::load(&file)?;
    // Without the group file the owner is not known; whoever checks the credential will.
    if args.group.is_some() || group_file.exists() {
        let group = Group::load(&group_file)?;
        check_signer(&group, &found, &key.public(), args.group.is_some())?;
    }
    let scope = Scope {
        object: found.object,
        subtree: found.is_directory && !args.this_only,
    };
    let window = Window {
        not_before: args.from.unwrap_or_else(credential::now),
        not_after: args.until,
    };
    let terms = terms(&args.link, scope, args.rights, window)?;
    let chain = Chain::issue(found.volume, &key, terms);
    say(&chain.map_err(|why| anyhow!("such a credential can't be: {why}"))?);
    Ok(())
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
    print!("{}", armour::write(chain));
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
