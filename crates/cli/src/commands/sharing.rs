//! `quorate revoke` and `quorate shares`, and how `quorate audit` comes to the group as well.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::{Session, Volume};
use quorate_credential::{Chain, calendar};
use quorate_files::answer::KeptGrant;
use quorate_files::op::{self, GrantPlace, MAX_ROWS, PutCredential, Revoked, Serial};
use quorate_files::{Ino, Who};
use quorate_net::{Group, Identity, keys};
use quorate_wire::{KeyPair, PublicKey};
use serde_json::{Value, json};

use super::{credential, grant};
use crate::args::{Manager, Revoke, Shares};
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
    commands::runtime()?.block_on(async {
        let session = Session::connect(group, identity).context("connecting to the group")?;
        let volume = Volume::new(session.clone());
        let done = tokio::time::timeout(PATIENCE, work(&volume)).await;
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

pub fn revoke(args: &Revoke) -> Result<()> {
    let (group, key) = manager(&args.manager)?;
    let by = args
        .by
        .as_ref()
        .map(|file| credential::read(file))
        .transpose()?;
    let by = by.map(|read| read.chain);
    let is_owner = group.owner() == Some(key.public());
    let identity = match &by {
        None if is_owner => Identity::new(&key),
        None => bail!(
            "the key {} is not the owner's: give your own credential, with the right to revoke (--by)",
            key.public()
        ),
        Some(chain) if chain.subject() != key.public() => {
            bail!("the credential that you revoke by is another key's (--by)")
        }
        Some(_) if group.is_client(&key.public()) => Identity::new(&key),
        Some(chain) => Identity::of_guest(&key, chain.clone()),
    };
    let (what, ends) = match (&args.file, args.holder, args.epoch) {
        (Some(file), _, _) => of_file(&credential::read(file)?.chain)?,
        (None, Some(holder), _) => (Revoked::Key(holder), None),
        (None, None, Some(serial)) => {
            let issuer = args.issuer.unwrap_or(key.public());
            (Revoked::Epoch(Serial { issuer, serial }), None)
        }
        (None, None, None) => bail!("say what: a credential, --holder or --epoch"),
    };
    let under = by.as_ref().map(Chain::id);
    ask(&group, &identity, async |volume| {
        if let Some(chain) = &by {
            let chain = chain.to_bytes().into();
            let put = volume
                .put_credential(&Who::root(), PutCredential { chain })
                .await;
            put.context("your own credential (--by)")?;
        }
        let until = match (args.until, ends, under) {
            (Some(until), _, _) => Some(until),
            // It is kept as long as what it hits could last: to the end of the credential by which it is done.
            (None, _, Some(_)) => None,
            (None, Some(ends), None) => Some(ends.max(last_end(volume, &what).await?)),
            (None, None, None) => None,
        };
        let by = under;
        let op = op::Revoke { what, by, until };
        volume.revoke(&Who::root(), op).await.context("revoking")?;
        Ok(())
    })?;
    println!("revoked");
    Ok(())
}

/// The last link of a credential, and when all that its issuer could have signed with that serial below the same link has ended.
fn of_file(chain: &Chain) -> Result<(Revoked, Option<u64>)> {
    let at = chain
        .links()
        .len()
        .checked_sub(1)
        .context("a chain has a link")?;
    let serial = chain.links()[at].terms.serial;
    let issuer = chain.issuer(at);
    // Nothing lasts longer than what it is passed on from.
    let widest = &chain.links()[at.saturating_sub(1)].terms;
    Ok((
        Revoked::Serial(Serial { issuer, serial }),
        Some(widest.window.not_after),
    ))
}

/// When the last link ends, of those that the group has, which an owner's revocation by serial hits: serials are the issuer's, and one may
/// have been given twice.
async fn last_end(volume: &Volume, what: &Revoked) -> Result<u64> {
    let Revoked::Serial(of) = what else {
        return Ok(0);
    };
    let mut last = 0;
    for kept in all_grants(volume, None).await? {
        let chain = read_kept(&kept)?;
        for (at, link) in chain.links().iter().enumerate() {
            if chain.issuer(at) == of.issuer && link.terms.serial == of.serial {
                last = last.max(link.terms.window.not_after);
            }
        }
    }
    Ok(last)
}

async fn all_grants(volume: &Volume, about: Option<Ino>) -> Result<Vec<KeptGrant>> {
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

fn read_kept(kept: &KeptGrant) -> Result<Chain> {
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
    let grants = ask(&group, &as_member(&group, &key)?, async |volume| {
        all_grants(volume, about).await
    })?;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:SHORT$}  {:>8}  {:5}  {:19}  {:9}  WHERE: MAY",
            "WHO", "OBJECT", "BELOW", "UNTIL", "STATE"
        )?;
    }
    let now = credential::now();
    for kept in &grants {
        let chain = read_kept(kept)?;
        match args.json {
            true => writeln!(out, "{}", share_json(kept, &chain, now))?,
            false => writeln!(out, "{}", share_row(kept, &chain, now)?)?,
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
        None => "(gone)".into(),
    }
}

fn share_row(kept: &KeptGrant, chain: &Chain, now: u64) -> Result<String> {
    let terms = &chain.links().last().context("a chain has a link")?.terms;
    let below = if terms.scope.subtree { "yes" } else { "no" };
    let mut row = format!(
        "{:SHORT$}  {:>8}  {below:5}  {:19}  {:9}  {}: {}",
        short(&terms.subject),
        terms.scope.object.0,
        calendar::show(terms.window.not_after),
        state(kept, chain, now),
        place(kept),
        terms.rights,
    );
    for caveat in &terms.caveats {
        row += &format!("; {caveat}");
    }
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
        "path": kept.path.as_ref().map(|path| String::from_utf8_lossy(path)),
        "subtree": last["subtree"],
        "rights": last["rights"],
        "not_after": last["not_after"],
        "state": state(kept, chain, now),
        "written": kept.written,
        "links": links,
    })
}
