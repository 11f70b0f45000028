//! `quorate quota`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::{CallError, Session, Volume};
use quorate_files::answer::QuotaRow;
use quorate_files::op::{self, Limits};
use quorate_files::{Errno, Ino, Who};
use quorate_net::{Group, Identity, keys};
use serde_json::{Value, json};

use super::grant;
use crate::args::{Access, Quota, QuotaClear, QuotaList, QuotaSet, QuotaShow};
use crate::{commands, paths};

/// How long the group has to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a tree is looked through for what has moved on meanwhile.
const MAX_PASSES: usize = 8;

pub fn run(args: &Quota) -> Result<ExitCode> {
    match args {
        Quota::Set(args) => set(args).map(|()| ExitCode::SUCCESS),
        Quota::Show(args) => show(args),
        Quota::List(args) => list(args).map(|()| ExitCode::SUCCESS),
        Quota::Clear(args) => clear(args).map(|()| ExitCode::SUCCESS),
    }
}

/// A volume, and as whom it is asked.
struct Asked {
    volume: Volume,
    who: Who,
}

impl Asked {
    /// What the group answers in time.
    async fn wait<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T> {
        let done = tokio::time::timeout(PATIENCE, call).await;
        let done = done.map_err(|_| anyhow!("the group does not answer"))?;
        done.map_err(|error| match error {
            CallError::Refused(Errno::EPERM) => {
                anyhow!("only user 0 does this, or who has the key of the volume's owner (--key)")
            }
            other => anyhow!(other),
        })
    }

    /// The quota that an object counts under.
    async fn of(&self, ino: Ino) -> Result<Option<QuotaRow>> {
        let op = op::Quotas {
            about: Some(ino),
            after: 0,
        };
        let found = self.wait(self.volume.quotas(&self.who, op)).await?;
        Ok(found.quotas.into_iter().next())
    }

    /// Has all below a directory count under its quota; how many objects did not.
    async fn adopt(&self, top: Ino) -> Result<u64> {
        let mut adopted = 0;
        let mut left = vec![(top, 0)];
        while let Some((dir, after)) = left.pop() {
            let op = op::Adopt { dir, after };
            let call = self.volume.adopt(&self.who, op);
            let part = match tokio::time::timeout(PATIENCE, call).await {
                // It was removed, or moved away, meanwhile.
                Ok(Err(CallError::Refused(Errno::ESTALE | Errno::ENODATA))) => continue,
                Ok(done) => done?,
                Err(_) => bail!("the group does not answer: say it again to go on"),
            };
            adopted += u64::from(part.adopted);
            left.extend(part.next.map(|after| (dir, after)));
            left.extend(part.dirs.into_iter().map(|dir| (dir, 0)));
        }
        Ok(adopted)
    }
}

/// Has a session do something.
fn ask<T>(access: &Access, work: impl AsyncFnOnce(&Group, &Asked) -> Result<T>) -> Result<T> {
    let file = match &access.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let group = Group::load(&file)?;
    commands::check_files(&group)?;
    let key = match &access.key {
        Some(key) => key.clone(),
        None => paths::manager_key(&paths::beside(&file)),
    };
    let key = keys::load(&key)?;
    let is_owner = group.owner() == Some(key.public());
    if !is_owner && !group.is_client(&key.public()) {
        bail!(
            "the key {} is neither the owner's nor a client's of this group (--key)",
            key.public()
        );
    }
    let who = match is_owner {
        true => Who::root(),
        false => Who::new(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    commands::runtime()?.block_on(async {
        let session =
            Session::connect(&group, &Identity::new(&key)).context("connecting to the group")?;
        let asked = Asked {
            volume: Volume::new(session.clone()),
            who,
        };
        let done = work(&group, &asked).await;
        // A group that does not answer does not answer this either.
        let _ = tokio::time::timeout(PATIENCE, session.close()).await;
        done
    })
}

fn object(group: &Group, path: &Path) -> Result<Ino> {
    let found = grant::object(path)?;
    if found.volume.0 != group.id() {
        bail!(
            "{} is on another volume than that of the group file (--group)",
            path.display()
        );
    }
    let number = u64::try_from(found.object.0).context("there is no such object")?;
    Ok(Ino(number))
}

fn set(args: &QuotaSet) -> Result<()> {
    let counted = ask(&args.access, async |group, asked| {
        let dir = object(group, &args.directory)?;
        let own = asked.of(dir).await?.filter(|row| row.dir == dir);
        let now = own.map_or(
            Limits {
                bytes: None,
                files: None,
            },
            |row| row.limits,
        );
        let limits = Limits {
            bytes: args.bytes.map_or(now.bytes, |limit| limit.0),
            files: args.files.map_or(now.files, |limit| limit.0),
        };
        let op = op::SetQuota {
            dir,
            limits: Some(limits),
        };
        asked.wait(asked.volume.set_quota(&asked.who, op)).await?;
        for _ in 0..MAX_PASSES {
            if asked.adopt(dir).await? == 0 {
                break;
            }
        }
        asked.of(dir).await
    })?;
    if let Some(row) = counted {
        tell!("{}", text(&row, &args.directory.display().to_string()));
    }
    Ok(())
}

fn clear(args: &QuotaClear) -> Result<()> {
    ask(&args.access, async |group, asked| {
        let dir = object(group, &args.directory)?;
        if asked.of(dir).await?.is_none_or(|row| row.dir != dir) {
            bail!("{} has no quota of its own", args.directory.display());
        }
        let op = op::SetQuota { dir, limits: None };
        asked.wait(asked.volume.set_quota(&asked.who, op)).await?;
        Ok(())
    })
}

fn show(args: &QuotaShow) -> Result<ExitCode> {
    let found = ask(&args.access, async |group, asked| {
        asked.of(object(group, &args.path)?).await
    })?;
    let Some(row) = found else {
        match args.json {
            true => tell!("null"),
            false => tell!("{} counts under no quota", args.path.display()),
        }
        return Ok(ExitCode::FAILURE);
    };
    match args.json {
        true => tell!("{}", as_json(&row)),
        false => tell!("{}", text(&row, &name(&row))),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &QuotaList) -> Result<()> {
    let rows = ask(&args.access, async |_, asked| {
        let (mut rows, mut after) = (Vec::new(), 0);
        loop {
            let op = op::Quotas { about: None, after };
            let part = asked.wait(asked.volume.quotas(&asked.who, op)).await?;
            rows.extend(part.quotas);
            match part.next {
                Some(next) => after = next,
                None => return Ok(rows),
            }
        }
    })?;
    for row in &rows {
        match args.json {
            true => tell!("{}", as_json(row)),
            false => tell!("{}", text(row, &name(row))),
        }
    }
    Ok(())
}

/// Where the directory is in the volume, or its number where that is not told.
fn name(row: &QuotaRow) -> String {
    match row.path.is_empty() {
        true => format!("object {}", row.dir.0),
        false => String::from_utf8_lossy(&row.path).into_owned(),
    }
}

fn text(row: &QuotaRow, name: &str) -> String {
    let of = |limit: Option<u64>| match limit {
        Some(limit) => limit.to_string(),
        None => "any".into(),
    };
    format!(
        "{name}: {} of {} bytes, {} of {} files",
        row.used_bytes,
        of(row.limits.bytes),
        row.used_files,
        of(row.limits.files)
    )
}

fn as_json(row: &QuotaRow) -> Value {
    json!({
        "path": String::from_utf8_lossy(&row.path),
        "object": row.dir.0,
        "bytes": row.limits.bytes,
        "files": row.limits.files,
        "used_bytes": row.used_bytes,
        "used_files": row.used_files,
    })
}
