//! `quorate revoke`, `quorate shares` and `quorate audit`.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::{Session, Volume};
use quorate_credential::{Chain, calendar};
use quorate_files::answer::{AuditRow, Decision, KeptGrant};
use quorate_files::op::{self, GrantPlace, MAX_ROWS, PutCredential, Revoked, Serial};
use quorate_files::{Ino, Who};
use quorate_net::{Group, Identity, keys};
use quorate_wire::{Digest, KeyPair, PublicKey};
use serde_json::{Value, json};

use super::{credential, grant};
use crate::args::{Audit, Manager, Revoke, Shares};
use crate::{commands, paths};

/// How long the group has to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Digits of a key in a table, which are enough to tell a few apart.
const SHORT: usize = 16;

/// What the actions of the audit log are called, by their numbers.
const ACTIONS: [&str; 36] = [
    "",
    "ping",
    "lookup",
    "getattr",
    "setattr",
    "access",
    "open",
    "create",
    "release",
    "read",
    "write",
    "mkdir",
    "mknod",
    "symlink",
    "readlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "readdir",
    "statfs",
    "fsync",
    "fallocate",
    "seek",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "lock",
    "",
    "create",
    "copy",
    "bring",
    "revoke",
    "grants",
    "audit",
];

/// The group file and the key of whoever manages shares.
fn manager(args: &Manager) -> Result<(Group, KeyPair)> {
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
fn ask<T>(
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

fn as_member(group: &Group, key: &KeyPair) -> Result<Identity> {
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
            let issuer = key.public();
            (Revoked::Epoch(Serial { issuer, serial }), None)
        }
        (None, None, None) => bail!("say what: a credential, --holder or --epoch"),
    };
    let op = op::Revoke {
        what,
        by: by.as_ref().map(Chain::id),
        until: args.until.or(ends),
    };
    ask(&group, &identity, async |volume| {
        if let Some(chain) = &by {
            let chain = chain.to_bytes().into();
            let put = volume
                .put_credential(&Who::root(), PutCredential { chain })
                .await;
            put.context("your own credential (--by)")?;
        }
        volume.revoke(&Who::root(), op).await.context("revoking")?;
        Ok(())
    })?;
    println!("revoked");
    Ok(())
}

/// The last link of a credential, and when it ends by itself.
fn of_file(chain: &Chain) -> Result<(Revoked, Option<u64>)> {
    let last = chain.links().last().context("a chain has a link")?;
    let issuer = chain.issuer(chain.links().len() - 1);
    let serial = last.terms.serial;
    Ok((
        Revoked::Serial(Serial { issuer, serial }),
        Some(last.terms.window.not_after),
    ))
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
    })?;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:SHORT$}  {:>8}  {:5}  {:19}  {:9}  MAY",
            "WHO", "OBJECT", "BELOW", "UNTIL", "STATE"
        )?;
    }
    let now = credential::now();
    for kept in &grants {
        let chain = Chain::from_bytes(kept.chain.clone());
        let chain = chain.map_err(|why| anyhow!("the group keeps what is no credential: {why}"))?;
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

fn short(key: &PublicKey) -> String {
    key.to_string().chars().take(SHORT).collect()
}

fn share_row(kept: &KeptGrant, chain: &Chain, now: u64) -> Result<String> {
    let terms = &chain.links().last().context("a chain has a link")?.terms;
    let below = if terms.scope.subtree { "yes" } else { "no" };
    let mut row = format!(
        "{:SHORT$}  {:>8}  {below:5}  {:19}  {:9}  {}",
        short(&terms.subject),
        terms.scope.object.0,
        calendar::show(terms.window.not_after),
        state(kept, chain, now),
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
        "subtree": last["subtree"],
        "rights": last["rights"],
        "not_after": last["not_after"],
        "state": state(kept, chain, now),
        "written": kept.written,
        "links": links,
    })
}

pub fn audit(args: &Audit) -> Result<()> {
    let (group, key) = manager(&args.manager)?;
    let (rows, head) = ask(&group, &as_member(&group, &key)?, async |volume| {
        let (mut rows, mut from): (Vec<AuditRow>, u64) = (Vec::new(), args.from);
        loop {
            let op = op::Audit {
                from,
                count: MAX_ROWS,
            };
            let part = volume
                .audit(&Who::root(), op)
                .await
                .context("reading the log")?;
            let last = part.rows.last().map(|row| row.sequence);
            rows.extend(part.rows);
            match last {
                // Who is asked later may have more rows; the head is of all that there were when the last part was read.
                Some(last) if last + 1 < part.next => from = last + 1,
                _ => return Ok((rows, part.head)),
            }
        }
    })?;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:>6}  {:19}  {:SHORT$}  {:12}  {:>8}  DECISION",
            "ROW", "TIME", "WHO", "WHAT", "OBJECT"
        )?;
    }
    for row in &rows {
        match args.json {
            true => writeln!(out, "{}", row_json(row))?,
            false => writeln!(out, "{}", row_text(row))?,
        }
    }
    check(&rows, &head)
}

/// Whether each row is bound to the one before, and the last to what the group vouches for.
fn check(rows: &[AuditRow], head: &Digest) -> Result<()> {
    for pair in rows.windows(2) {
        let [before, row] = pair else { continue };
        if row.before != before.digest() || row.sequence != before.sequence + 1 {
            bail!(
                "row {} is not bound to the one before: the log was changed",
                row.sequence
            );
        }
    }
    match rows.last() {
        Some(last) if last.digest() != *head => {
            bail!(
                "row {} is not the last that the group vouches for",
                last.sequence
            )
        }
        _ => Ok(()),
    }
}

fn action(row: &AuditRow) -> &'static str {
    ACTIONS.get(usize::from(row.action)).copied().unwrap_or("?")
}

fn decision(row: &AuditRow) -> &'static str {
    match row.decision {
        Decision::Denied => "denied",
        Decision::Allowed => "allowed",
    }
}

fn row_text(row: &AuditRow) -> String {
    let seconds = u64::try_from(row.time.secs).unwrap_or(0);
    let error = row.error().map(|errno| format!(": {errno}"));
    let tags = match row.tags.is_empty() {
        true => String::new(),
        false => format!(" [{}]", row.tag_text()),
    };
    format!(
        "{:>6}  {:19}  {:SHORT$}  {:12}  {:>8}  {}{}{tags}",
        row.sequence,
        calendar::show(seconds),
        short(&row.subject),
        action(row),
        row.object.0,
        decision(row),
        error.unwrap_or_default(),
    )
}

fn row_json(row: &AuditRow) -> Value {
    let links = row.links.iter().map(
        |link| json!({ "issuer": link.issuer.to_string(), "serial": link.serial.to_string() }),
    );
    json!({
        "sequence": row.sequence,
        "before": row.before.to_string(),
        "time": row.time.secs,
        "subject": row.subject.to_string(),
        "links": links.collect::<Vec<_>>(),
        "tags": row.tags.iter().map(|tag| String::from_utf8_lossy(tag)).collect::<Vec<_>>(),
        "action": action(row),
        "object": row.object.0,
        "decision": decision(row),
        "error": row.error().map(|errno| errno.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_files::Stamp;

    fn row(sequence: u64, before: Digest) -> AuditRow {
        AuditRow {
            sequence,
            before,
            time: Stamp { secs: 5, nanos: 0 },
            subject: PublicKey([7; 32]),
            links: Vec::new(),
            tags: Vec::new(),
            action: 10,
            object: Ino(2),
            decision: Decision::Allowed,
            errno: 0,
        }
    }

    /// A log that was changed anywhere is noticed, also at its end.
    #[test]
    fn a_changed_log_is_noticed() {
        let first = row(0, Digest::ZERO);
        let second = row(1, first.digest());
        let third = row(2, second.digest());
        let (head, rows) = (third.digest(), vec![first, second, third]);
        assert!(check(&rows, &head).is_ok());
        assert!(check(&rows[1..], &head).is_ok());
        assert!(check(&[], &head).is_ok());
        assert!(check(&rows[..2], &head).is_err());
        for at in 0..3 {
            let mut changed = rows.clone();
            changed[at].object = Ino(3);
            assert!(check(&changed, &head).is_err(), "row {at}");
            let mut shorter = rows.clone();
            shorter.remove(at);
            assert_eq!(check(&shorter, &head).is_err(), at > 0, "without row {at}");
        }
    }
}
