//! `quorate shares`, and how all commands about what is shared come to the group.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::{CallError, Session, Volume};
use quorate_credential::{Chain, calendar};
use quorate_files::answer::KeptGrant;
use quorate_files::op::{self, GrantPlace, MAX_ROWS};
use quorate_files::{Errno, Ino, Who};
use quorate_net::{Group, Identity, keys};
use quorate_wire::{Digest, KeyPair, PublicKey};
use serde_json::{Value, json};

use super::{credential, grant, revocations};
use crate::args::{Manager, Shares};
use crate::{commands, paths};

/// How long the group has to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Digits of a key in a table, which are enough to tell a few apart.
pub const SHORT: usize = 16;

/// The group file and the key of whoever manages shares.
pub fn manager(args: &Manager) -> Result<(Group, KeyPair)> {
    let file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let group = Group::load(&file)?;
    let key = match &args.key {
        Some(key) => key.clone(),
        None => paths::manager_key(&paths::beside(&file)),
    };
    let key = keys::load(&key)?;
    if group.owner().is_none() {
        bail!("the group has no owner, so nothing of it is shared by credentials");
    }
    Ok((group, key))
}

/// Has a session do something, for so long at most.
pub fn ask<T>(
    group: &Group,
    identity: &Identity,
    work: impl AsyncFnOnce(&Volume) -> Result<T>,
) -> Result<T> {
    ask_within(PATIENCE, group, identity, work)
}

/// Has a session do something, within a time.
pub fn ask_within<T>(
    patience: Duration,
    group: &Group,
    identity: &Identity,
    work: impl AsyncFnOnce(&Volume) -> Result<T>,
) -> Result<T> {
    commands::runtime()?.block_on(async {
        let session = Session::connect(group, identity).context("connecting to the group")?;
        let volume = Volume::new(session.clone());
        let done = tokio::time::timeout(patience, work(&volume)).await;
        let done =
            done.map_err(|_| anyhow!("the group does not answer, or does not let this key in"))?;
        session.close().await;
        done
    })
}

pub fn as_member(group: &Group, key: &KeyPair) -> Result<Identity> {
    if !group.is_client(&key.public()) {
        bail!(
            "the key {} is neither the owner's nor a client's of this group (--key)",
            key.public()
        );
    }
    Ok(Identity::new(key))
}

/// As a member; or by a credential, who is none.
fn identity(group: &Group, key: &KeyPair, credential: Option<&Path>) -> Result<Identity> {
    let is_member = group.is_client(&key.public());
    match credential {
        None if is_member => Ok(Identity::new(key)),
        None => bail!(
            "the key {} is neither the owner's nor a client's of this group (--key): give a credential for it (--credential), to see what it has itself",
            key.public()
        ),
        Some(_) if is_member => {
            bail!("the group file names this key: it sees all without --credential")
        }
        Some(file) => {
            let chain = credential::read(file)?.chain;
            if chain.subject() != key.public() {
                bail!(
                    "{} is for the key {}, and this one is {}",
                    file.display(),
                    chain.subject(),
                    key.public()
                );
            }
            Ok(Identity::of_guest(key, chain))
        }
    }
}

pub async fn all_grants(volume: &Volume, about: Option<Ino>) -> Result<Vec<KeptGrant>> {
    let (mut all, mut after): (Vec<KeptGrant>, Option<GrantPlace>) = (Vec::new(), None);
    loop {
        let op = op::Grants {
            about,
            after,
            count: MAX_ROWS,
        };
        let part = volume.grants(&Who::root(), op).await.context("listing")?;
        all.extend(part.grants);
        match part.next {
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}

/// What was passed on from a link; nothing where that is not the caller's to ask, since the group does not have its credential or it has no force.
async fn passed_on(
    volume: &Volume,
    link: Digest,
    about: Option<Ino>,
) -> Result<Option<Vec<KeptGrant>>> {
    let (mut all, mut after): (Vec<KeptGrant>, Option<GrantPlace>) = (Vec::new(), None);
    loop {
        let op = op::PassedOn {
            link,
            about,
            after,
            count: MAX_ROWS,
        };
        let part = match volume.passed_on(&Who::root(), op).await {
            Err(CallError::Refused(Errno::EPERM)) => return Ok(None),
            part => part.context("listing what was passed on")?,
        };
        all.extend(part.grants);
        match part.next {
            Some(next) => after = Some(next),
            None => return Ok(Some(all)),
        }
    }
}

pub fn read_kept(kept: &KeptGrant) -> Result<Chain> {
    let chain = Chain::from_bytes(kept.chain.clone());
    chain.map_err(|why| anyhow!("the group keeps what is no credential: {why}"))
}

pub fn shares(args: &Shares) -> Result<()> {
    let (group, key) = manager(&args.manager)?;
    let about = match &args.path {
        None => None,
        Some(path) => {
            let found = grant::object(path)?;
            if found.volume.0 != group.id() {
                bail!(
                    "{} is on another volume than that of the group file",
                    path.display()
                );
            }
            Some(Ino(
                u64::try_from(found.object.0).context("there is no such object")?
            ))
        }
    };
    let identity = identity(&group, &key, args.credential.as_deref())?;
    let own = match &args.credential {
        Some(file) => Some(credential::read(file)?.chain.id()),
        None => None,
    };
    let (grants, taken_back) = ask(&group, &identity, async |volume| {
        let mut grants = all_grants(volume, about).await?;
        if let Some(own) = own {
            match passed_on(volume, own, about).await? {
                Some(below) => grants.extend(below),
                None => say!(
                    "quorate: the group has not got this credential in force, and tells what was passed on from it only while it has"
                ),
            }
        }
        // They are about keys and serials, and about no object; and nothing that guests are told.
        let taken_back = match about {
            None if args.credential.is_none() => revocations::all(volume).await?,
            _ => Vec::new(),
        };
        Ok((grants, taken_back))
    })?;
    if !args.json {
        tell!(
            "{:SHORT$}  {:>8}  {:5}  {:19}  {:12}  WHERE: MAY",
            "WHO",
            "OBJECT",
            "BELOW",
            "UNTIL",
            "STATE"
        );
    }
    let now = credential::now();
    for kept in &grants {
        let chain = read_kept(kept)?;
        match args.json {
            true => tell!("{}", share_json(kept, &chain, now)),
            false => tell!("{}", share_row(kept, &chain, now)?),
        }
    }
    for kept in &taken_back {
        match args.json {
            true => tell!("{}", revocations::row_json(kept)),
            false => tell!("{}", revocations::row(kept)),
        }
    }
    Ok(())
}

fn state(kept: &KeptGrant, chain: &Chain, now: u64) -> &'static str {
    let window = chain.links().last().map(|link| link.terms.window);
    match window {
        _ if kept.is_revoked => "revoked",
        Some(window) if now > window.not_after => "ended",
        Some(window) if now < window.not_before => "not yet",
        // Nothing is in the scope of all links: something was moved, or is gone.
        _ if kept.reaches.is_none() => "out of scope",
        _ => "in force",
    }
}

pub fn short(key: &PublicKey) -> String {
    key.to_string().chars().take(SHORT).collect()
}

/// Where the object is, below the volume's root, for people.
fn place(kept: &KeptGrant) -> String {
    match &kept.path {
        Some(path) => String::from_utf8_lossy(path).escape_debug().to_string(),
        // Paths are told to members alone.
        None if kept.reaches.is_some() => "(path not told)".into(),
        None => "(gone)".into(),
    }
}

fn share_row(kept: &KeptGrant, chain: &Chain, now: u64) -> Result<String> {
    let terms = &chain.links().last().context("a chain has a link")?.terms;
    let below = if terms.scope.subtree { "yes" } else { "no" };
    // What all links come to together, which may be less than what the last is about.
    let object = match kept.reaches {
        Some(ino) => ino.0.into(),
        None => terms.scope.object.0,
    };
    let mut row = format!(
        "{:SHORT$}  {object:>8}  {below:5}  {:19}  {:12}  {}: {}",
        short(&terms.subject),
        calendar::show(terms.window.not_after),
        state(kept, chain, now),
        place(kept),
        terms.rights,
    );
    for (at, link) in chain.links().iter().enumerate() {
        // Names are limited in the link's own object, and quotas are shared with all who hold a part of it.
        let of = match at + 1 == chain.links().len() && object == link.terms.scope.object.0 {
            true => String::new(),
            false => format!(" (link {}, object {})", at + 1, link.terms.scope.object.0),
        };
        for caveat in &link.terms.caveats {
            row += &format!("; {caveat}{of}");
        }
    }
    row += &format!("; serial {}", terms.serial);
    if let Some(at) = chain.links().len().checked_sub(2) {
        row += &format!("; by {}", short(&chain.links()[at].terms.subject));
    }
    Ok(row)
}

fn share_json(kept: &KeptGrant, chain: &Chain, now: u64) -> Value {
    let links = credential::links_json(chain);
    let last = links.last().cloned().unwrap_or_default();
    json!({
        "id": chain.id().to_string(),
        "subject": last["subject"],
        "object": last["object"],
        "reaches": kept.reaches.map(|ino| ino.0),
        "path": kept.path.as_ref().map(|path| String::from_utf8_lossy(path)),
        "subtree": last["subtree"],
        "rights": last["rights"],
        "not_after": last["not_after"],
        "state": state(kept, chain, now),
        "written": kept.written,
        "links": links,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_credential::{Caveat, ObjectId, Rights, Scope, Terms, VolumeId, Window};
    use quorate_wire::Digest;

    fn terms(subject: u8, object: u128, caveat: Caveat) -> Terms {
        Terms {
            subject: KeyPair::from_seed(&[subject; 32]).public(),
            scope: Scope {
                object: ObjectId(object),
                subtree: true,
            },
            rights: Rights::READING | Rights::DELEGATE,
            window: Window {
                not_before: 10,
                not_after: 20,
            },
            depth: 5 - subject,
            serial: 0,
            caveats: vec![caveat],
        }
    }

    /// A row tells what all links come to together, with the caveats of each, and not what the last says alone.
    #[test]
    fn a_row_is_about_all_links() {
        let [owner, bob] = [0, 1].map(|seed| KeyPair::from_seed(&[seed; 32]));
        let volume = VolumeId(Digest([7; 32]));
        let first = terms(1, 50, Caveat::NamePrefix("pub-".into()));
        let chain = Chain::issue(volume, &owner, first).unwrap();
        let second = terms(2, 1, Caveat::ByteQuota(1000));
        let chain = chain.delegate(&bob, second).unwrap();
        let mut kept = KeptGrant {
            chain: chain.to_bytes().into(),
            is_revoked: false,
            written: vec![0],
            reaches: Some(Ino(50)),
            path: Some("shared".into()),
        };
        let row = share_row(&kept, &chain, 15).unwrap();
        let prefix = format!("{}", Caveat::NamePrefix("pub-".into()));
        for word in [
            "      50 ",
            "in force",
            "shared: ",
            &prefix,
            "(link 1, object 50)",
        ] {
            assert!(row.contains(word), "{word}: {row}");
        }
        assert_eq!(share_json(&kept, &chain, 15)["reaches"], 50);
        kept.reaches = None;
        assert_eq!(state(&kept, &chain, 15), "out of scope");
        assert_eq!(state(&kept, &chain, 25), "ended");
        assert_eq!(state(&kept, &chain, 5), "not yet");
    }
}
