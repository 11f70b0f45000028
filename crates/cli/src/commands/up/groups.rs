//! `quorate up --groups N`: several groups on this machine, and one mount that spans them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use quorate_net::group::{Files, Purpose};
use quorate_net::{Epochs, Group, disk};
use quorate_router::config::Config;

use super::display::Display;
use super::lock::Lock;
use super::{LOOK, PERIOD, START_TIMEOUT};
use crate::args::Up;
use crate::commands::mount::spanning::{self, Spanned};
use crate::commands::{self, init, mount, status};
use crate::paths;
use crate::supervision::{Children, Schedule};

/// The most groups of one machine.
pub const MAX_GROUPS: usize = 4;
/// Parts of the volume for each group: more let directories spread more evenly, and cost a directory each at every mount.
const BUCKETS: usize = 4;
/// The directory of the group that keeps what mounts share.
const COORDINATOR: &str = "coordinator";

/// A group that runs.
pub struct Member {
    /// The name of its directory.
    pub name: String,
    /// Its file.
    pub group: Group,
    children: Children,
    watch: status::Watch,
}

impl Member {
    /// What its replicas say of themselves.
    pub fn reports(&self) -> status::Reports {
        self.watch.reports()
    }
}

/// Whether a directory is of this kind, or is to be.
pub fn is_wanted(args: &Up, data: &Path) -> bool {
    args.groups.is_some() || paths::volume_file(data).exists()
}

pub fn run(args: &Up, data: &Path, directory: Option<PathBuf>) -> Result<()> {
    if args.every.is_some() {
        bail!("--recover-every is for one group: leave it away, or leave --groups away");
    }
    let held = Lock::take_if_there(data, directory.as_deref())?;
    if let Some(directory) = &directory {
        mount::check(directory)?;
    }
    if !paths::volume_file(data).exists() {
        check_new(args, data)?;
    }
    let _lock = match held {
        Some(lock) => lock,
        None => Lock::take(data, directory.as_deref())?,
    };
    if let Some(directory) = &directory {
        mount::prepare(directory)?;
    }
    let groups = match paths::volume_file(data).exists() {
        true => find(args, data)?,
        false => make(args, data)?,
    };
    commands::runtime()?.block_on(serve(args, data, groups, directory))
}

fn file_groups(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("group-{n}")).collect()
}

/// The addresses of all groups, the coordinator's last, if there can be such groups.
fn check_new(args: &Up, data: &Path) -> Result<Vec<Vec<String>>> {
    let count = args.groups.unwrap_or(2);
    if paths::group_file(data).exists() {
        bail!(
            "{} is of one group: leave --groups away, or choose another --data",
            data.display()
        );
    }
    let replicas = super::replicas(args)?.n();
    let mut sizes = vec![replicas; count];
    sizes.push(1);
    let mut addresses = super::addresses(args, sizes.iter().sum())?.into_iter();
    Ok(sizes
        .into_iter()
        .map(|size| addresses.by_ref().take(size).collect())
        .collect())
}

/// Makes all groups, and the file of the volume at last: without it there is nothing.
fn make(args: &Up, data: &Path) -> Result<Vec<(String, Group)>> {
    let addresses = check_new(args, data)?;
    let mut names = file_groups(addresses.len() - 1);
    let volumes: Vec<String> = names
        .iter()
        .map(|name| format!("\"{name}/group.toml\""))
        .collect();
    names.push(COORDINATOR.into());
    let mut groups = Vec::new();
    for (name, addresses) in names.into_iter().zip(addresses) {
        let directory = data.join(&name);
        let file = paths::group_file(&directory);
        if file.exists() {
            // Of an attempt that did not go to its end; its ports may be others.
            std::fs::remove_file(&file).with_context(|| format!("{}", file.display()))?;
        }
        let purpose = match name == COORDINATOR {
            true => Purpose::Coordinator,
            false => Purpose::Demonstration,
        };
        let kind = init::Kind {
            files: match purpose {
                Purpose::Coordinator => Files::default(),
                _ => super::files(args, data, volumes.len(), addresses.len())?,
            },
            purpose,
            protocol: args.protocol.protocol(),
            key_holders: super::key_holders(args),
            owner: init::Owner::Nobody,
            clients: 1,
            supervisors: false,
        };
        let none = BTreeMap::new();
        let group = init::create(&directory, &name, &addresses, Vec::new(), kind, &none)?;
        groups.push((name, group));
    }
    let text = format!(
        "# Several groups as one volume: `quorate mount volume.toml DIR`.\nvolumes = [{}]\nbuckets = {}\n\n[coordinator]\ngroup = \
         \"{COORDINATOR}/group.toml\"\n",
        volumes.join(", "),
        BUCKETS * volumes.len()
    );
    let file = paths::volume_file(data);
    // With this file the volume is there: whole, or not at all.
    let written = disk::replace(&file, text.as_bytes(), 0o644);
    written.with_context(|| format!("can't write {}", file.display()))?;
    Ok(groups)
}

fn find(args: &Up, data: &Path) -> Result<Vec<(String, Group)>> {
    let config = Config::load(&paths::volume_file(data))?;
    let count = config.volumes.len();
    if args.groups.is_some_and(|groups| groups != count) {
        bail!(
            "the volume in {} has {count} groups: leave --groups away, or choose another --data",
            data.display()
        );
    }
    let mut names = file_groups(count);
    names.push(COORDINATOR.into());
    let mut groups = Vec::new();
    for name in names {
        let group = Group::load(&paths::group_file(&data.join(&name)))?;
        groups.push((name, group));
    }
    let first = &groups[0].1;
    super::check_existing(args, data, count, first)?;
    super::check_faults(args, first.quorum())?;
    Ok(groups)
}

async fn serve(
    args: &Up,
    data: &Path,
    groups: Vec<(String, Group)>,
    directory: Option<PathBuf>,
) -> Result<()> {
    super::warn_of_too_many_faults(args, groups[0].1.quorum());
    let mut display = Display::new(args.json);
    let stop = commands::asked_to_end();
    tokio::pin!(stop);
    display.say("starting the replicas");
    let mut members = Vec::new();
    for (name, group) in groups {
        let own = data.join(&name);
        let launches = super::launches(args, &own, &group);
        let mut schedule = Schedule::load(&own);
        super::set_key_refresh(args, &group, &mut schedule)?;
        let told = schedule.look();
        told.iter()
            .for_each(|text| display.event(&format!("{name}: {text}")));
        let refresh = schedule.key_refresh();
        let children = Children::start(launches, !args.no_restart, None, None, refresh, None)?;
        let identity = status::of_directory(&group, &own)?;
        let watch = status::Watch::start(&group, &identity, Epochs::of(&group));
        members.push(Member {
            name,
            group,
            children,
            watch: watch.context("connecting to a group")?,
        });
    }
    let begun = async {
        for member in &mut members {
            answers(member).await?;
        }
        display.say("mounting");
        match &directory {
            Some(directory) => {
                let config = Config::load(&paths::volume_file(data))?;
                let options = mount::named_options("volume");
                spanning::start(&config, directory, options).await.map(Some)
            }
            None => Ok(None),
        }
    };
    let begun = tokio::select! {
        () = &mut stop => Ok(None),
        begun = begun => begun.map(Some),
    };
    let ended = match begun {
        Ok(Some(mounted)) => {
            let ended = run_on(
                &mut display,
                &mut members,
                directory.as_deref(),
                mounted.as_ref(),
                stop,
            )
            .await;
            display.say("unmounting and stopping");
            let finished = match mounted {
                Some(mounted) => mounted.finish().await.context("unmounting"),
                None => Ok(()),
            };
            ended.and(finished)
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    for member in &mut members {
        member.children.stop().await?;
    }
    display.done();
    ended
}

/// Waits until a group answers.
async fn answers(member: &mut Member) -> Result<()> {
    let quorum = member.group.quorum();
    let answers = async {
        while status::Health::judge(quorum, &member.watch.reports()) == status::Health::Down {
            tokio::time::sleep(LOOK).await;
        }
    };
    let name = &member.name;
    tokio::select! {
        answered = tokio::time::timeout(START_TIMEOUT, answers) => match answered {
            Ok(()) => Ok(()),
            Err(_) => bail!("{name} does not come up.{}", member.children.explain()),
        },
        () = member.children.too_many_refuse(quorum.f()) => {
            bail!("too many replicas of {name} do not start.{}", member.children.explain())
        }
    }
}

/// Looks after all until it is asked to end, or the mount is gone.
async fn run_on(
    display: &mut Display,
    members: &mut [Member],
    directory: Option<&Path>,
    spanned: Option<&Spanned>,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<()> {
    display.all_ready(members, directory);
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            ended = mount::ended(spanned.map(|spanned| &spanned.mounted)) => {
                if ended.is_ok() {
                    display.event("the files were unmounted by somebody else, so the groups are stopped too");
                }
                return ended;
            }
            _ = period.tick() => display.status_of_all(members, directory),
        }
        for member in &mut *members {
            for text in member.children.look_after()? {
                display.event(&format!("{}: {text}", member.name));
            }
        }
    }
}
