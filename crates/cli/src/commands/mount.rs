//! `quorate mount`, and what `quorate up` shares with it.

mod background;
mod options;
pub mod spanning;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_client::fuse::{self, MountOptions, Mounted, UnmountError};
use quorate_client::{Session, Volume};
use quorate_net::{Group, Identity, keys};
use quorate_router::config::Config;
use tokio::process::Command;

use super::guest::Guest;
use crate::args::{Mount, MountHelper};
use crate::{commands, paths};

/// How long a mount by credentials waits for the group to take them.
const FIRST_WAIT: Duration = Duration::from_secs(20);

pub fn run(args: &Mount, verbose: u8) -> Result<()> {
    if args.background {
        return background::start(args, verbose);
    }
    if args.in_background {
        background::leave();
    }
    if Config::is_at(&args.group) {
        return spanning::run(args);
    }
    let group = commands::with_routes(Group::load(&args.group)?, &args.route)?;
    commands::check_files(&group)?;
    let options = options::parse(group.name(), &args.options)?;
    let key = args.key.clone().or(options.key);
    let credentials = [args.credential.as_slice(), &options.credential].concat();
    if key.is_none() && !credentials.is_empty() {
        bail!("a credential is for a key: give the key's file too (--key, or -o key=FILE)");
    }
    let key = key.unwrap_or_else(|| paths::client_key(&paths::beside(&args.group)));
    let log = args.log.clone().or(options.log);
    let directory = &args.directory;
    clear_dead_mount(directory)?;
    commands::runtime()?.block_on(async {
        // From here on: who is told to end as soon as there is a mount must not leave a dead one.
        let stop = commands::asked_to_end();
        tokio::pin!(stop);
        let starting = async {
            match credentials.as_slice() {
                [] => start(&group, &key, directory, options.mount).await,
                places => start_as_guest(&group, &key, places, directory, options.mount).await,
            }
        };
        let mounted = tokio::select! {
            mounted = starting => mounted?,
            () = &mut stop => bail!("asked to end before it was mounted"),
        };
        match args.in_background {
            true => background::mounted(log.as_ref())?,
            false => say!("mounted {} at {}", group.name(), directory.display()),
        }
        let ended = tokio::select! {
            () = &mut stop => Ok(()),
            () = commands::parent_gone(args.with_parent) => Ok(()),
            ended = ended(Some(&mounted)) => ended,
        };
        let finished = finish(&mounted).await;
        ended.and(finished)
    })
}

/// What mount(8) has a helper for.
pub fn run_as_helper(helper: MountHelper) -> Result<()> {
    if helper.fake {
        match Config::is_at(&helper.group) {
            true => drop(Config::load(&helper.group)?),
            false => drop(Group::load(&helper.group)?),
        }
        options::parse("", &helper.options)?;
        return Ok(());
    }
    let args = Mount {
        group: helper.group,
        directory: helper.directory,
        options: helper.options,
        background: true,
        ..Mount::default()
    };
    run(&args, helper.verbose)
}

/// The options of a mount for which nobody has said any.
pub fn default_options(group: &Group) -> MountOptions {
    named_options(group.name())
}

/// The same for a mount that is not of one group.
pub fn named_options(name: &str) -> MountOptions {
    MountOptions {
        name: name.into(),
        ..MountOptions::default()
    }
}

/// Whether there can be a mount at a path, of which the last part may be missing; makes nothing.
pub fn check(directory: &Path) -> Result<()> {
    fuse::check_device()?;
    match std::fs::metadata(directory) {
        Ok(found) if !found.is_dir() => {
            bail!(
                "can't mount at {}: that is not a directory; choose another place (--mount DIR)",
                directory.display()
            )
        }
        // What is wrong else, such as a dead mount, is seen to later.
        _ => Ok(()),
    }
}

/// Makes a directory ready to be mounted on: it is there, and no dead mount is in the way.
pub fn prepare(directory: &Path) -> Result<()> {
    clear_dead_mount(directory)?;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("can't make the directory {}", directory.display()))
}

/// Takes away what an agent that was killed has left behind: nobody can use it any more.
fn clear_dead_mount(directory: &Path) -> Result<()> {
    if fuse::is_dead(directory) {
        fuse::unmount_at(directory, true)?;
    }
    Ok(())
}

/// Opens a session and mounts.
///
/// Within a tokio runtime; the first operation on the mount waits for the group, this does not.
pub async fn start(
    group: &Group,
    key: &Path,
    directory: &Path,
    options: MountOptions,
) -> Result<Mounted> {
    let identity = Identity::new(&keys::load(key)?);
    if !group.is_client(&identity.public()) {
        bail!(
            "{} is not the key of a client of this group: give one that the group file lists (--key), or a credential for it \
             (--credential)",
            key.display()
        );
    }
    let session = Session::connect(group, &identity).context("connecting to the group")?;
    let volume = Volume::new(session);
    let directory = directory.to_owned();
    let mounting = tokio::task::spawn_blocking(move || fuse::mount(volume, &directory, &options));
    Ok(mounting.await.context("mounting")??)
}

/// The same for somebody whom the group file does not name, by credentials.
async fn start_as_guest(
    group: &Group,
    key: &Path,
    places: &[PathBuf],
    directory: &Path,
    options: MountOptions,
) -> Result<Mounted> {
    let mut guest = Guest::new(group, keys::load(key)?, places).await?;
    let session = Session::connect(group, &guest.identity()).context("connecting to the group")?;
    let volume = guest.volume(&session);
    let start = guest.start();
    // What is mounted can be used at once. If the group does not answer, that is told by the mount's calls, as for others.
    let _ = tokio::time::timeout(FIRST_WAIT, guest.bring(&session, &volume)).await;
    let (shown, directory) = (volume.clone(), directory.to_owned());
    let mounting =
        tokio::task::spawn_blocking(move || fuse::mount_from(shown, start, &directory, &options));
    let mounted = mounting.await.context("mounting")??;
    tokio::spawn(guest.keep(session, volume));
    Ok(mounted)
}

/// Ends a mount. If it is in use it is detached: what uses it has a moment to finish. Then its session is closed, so that
/// others have its locks at once.
pub async fn finish(mounted: &Mounted) -> Result<()> {
    const MOMENT: Duration = Duration::from_secs(5);
    match tokio::time::timeout(MOMENT, mounted.unmount()).await {
        Ok(Err(UnmountError::Busy(directory))) => {
            say!(
                "quorate: {} is in use: what programs have written there is taken to the group, for {} s at most; then it is \
                 detached, and programs that still use it get errors",
                directory.display(),
                MOMENT.as_secs()
            );
            if !sync(&directory, MOMENT).await {
                say!(
                    "quorate: not all of it is at the group yet; what was neither synced nor closed may be lost"
                );
            }
            fuse::unmount_at(&directory, true)?;
            if let Ok(ended) = tokio::time::timeout(MOMENT, mounted.wait()).await {
                return Ok(ended?);
            }
        }
        Ok(ended) => return Ok(ended?),
        // Somebody has detached it earlier, and it is in use; or the group is slow to take what is left.
        Err(_) => {}
    }
    Ok(mounted.abandon().await?)
}

/// Has the kernel hand over what it has not written yet, such as pages of files that are mapped. Whether it did in time.
///
/// It is another process that asks: one that waits for the kernel here could not end before the answer, which this
/// process has to give.
async fn sync(directory: &Path, time: Duration) -> bool {
    let child = Command::new("sync")
        .arg("--file-system")
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let Ok(mut child) = child else { return false };
    let ended = tokio::time::timeout(time, child.wait()).await;
    // One that still waits ends with the mount.
    matches!(ended, Ok(Ok(status)) if status.success())
}

/// Done when the mount has ended, whoever ended it.
///
/// # Errors
/// Where a session of its own has failed: the mount is there, and all that is asked of it fails.
pub async fn ended(mounted: Option<&Mounted>) -> Result<()> {
    let Some(mounted) = mounted else {
        return std::future::pending().await;
    };
    tokio::select! {
        // What was not written in time is told when the mount is finished.
        _ = mounted.wait() => Ok(()),
        failed = mounted.failed() => Err(failed.into()),
    }
}
