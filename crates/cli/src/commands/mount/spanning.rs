//! A mount of a volume that several groups keep together, with no server in between.
//!
//! The mount is one of the routers of the volume: what touches two groups it does itself, under the eyes of the coordinator's group.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_client::fuse::{self, MountOptions, Mounted, Start};
use quorate_router::config::{Config, Keeper};
use quorate_router::span::Span;
use tokio::sync::oneshot;

use super::{background, clear_dead_mount, ended, finish, options};
use crate::args::Mount;
use crate::commands;
use crate::commands::route::coordination::{Ground, Instance, Place, on_group};
use crate::commands::route::prepare;

/// Before it is tried again to take a place among the routers.
const AGAIN: Duration = Duration::from_secs(1);

/// How often groups are asked for their space.
const SPACE: Duration = Duration::from_secs(60);

/// A mount, and its place among the routers.
pub struct Spanned {
    /// The mount.
    pub mounted: Mounted,
    span: Span,
}

/// The group that keeps what routers share.
#[derive(Clone)]
struct Coordinator {
    group: PathBuf,
    key: Option<PathBuf>,
    instance: Arc<Instance>,
}

pub fn run(args: &Mount) -> Result<()> {
    if args.key.is_some() || !args.route.is_empty() || !args.credential.is_empty() {
        bail!(
            "{} is a volume of several groups: --key, --credential and --route are about one; give keys in the file, as \
             volumes = [\"GROUP.toml?key=FILE\"]",
            args.group.display()
        );
    }
    let config = Config::load(&args.group)?;
    let name = args.group.file_stem().unwrap_or_default();
    let options = options::parse(&name.to_string_lossy(), &args.options)?;
    if options.key.is_some() || !options.credential.is_empty() {
        bail!(
            "-o key= and -o credential= are about one group: give keys in the file of the volume"
        );
    }
    let log = args.log.clone().or(options.log);
    let directory = &args.directory;
    clear_dead_mount(directory)?;
    commands::runtime()?.block_on(async {
        let stop = commands::asked_to_end();
        tokio::pin!(stop);
        let spanned = tokio::select! {
            spanned = start(&config, directory, options.mount) => spanned?,
            () = &mut stop => return Ok(()),
        };
        match args.in_background {
            true => background::mounted(log.as_ref())?,
            false => say!(
                "mounted {} groups as one at {}",
                config.volumes.len(),
                directory.display()
            ),
        }
        let ended = tokio::select! {
            () = &mut stop => Ok(()),
            () = commands::parent_gone(args.with_parent) => Ok(()),
            ended = ended(Some(&spanned.mounted)) => ended,
        };
        let finished = spanned.finish().await;
        ended.and(finished)
    })
}

/// Mounts a volume. Within a runtime, on which changes of names are carried out.
///
/// # Errors
/// What is wrong with the configuration, or a group that does not answer.
pub async fn start(config: &Config, directory: &Path, options: MountOptions) -> Result<Spanned> {
    let Keeper::Group {
        group,
        key,
        instance,
    } = config.keeper.clone()
    else {
        bail!(
            "a mount needs a [coordinator] with group = \"GROUP FILE\" in the volume's file: each mount is one router among others"
        );
    };
    let (ground, shelves) = prepare(config).await?;
    let layout = Arc::new(config.layout());
    let span = Span::new(
        &ground.buckets,
        &ground.hidden,
        &ground.root,
        &shelves,
        layout,
    )?;
    let coordinator = Coordinator {
        group,
        key,
        instance: Arc::new(Instance::first_free(&instance)?),
    };
    let place = coordinator.register(&ground).await?;
    let (stop, stopped) = oneshot::channel();
    let (kept, asking) = (
        keep(coordinator, place, ground, span.clone(), stopped),
        ask_for_space(span.clone()),
    );
    let kept = tokio::spawn(async {
        tokio::select! {
            () = kept => {}
            () = asking => {}
        }
    });
    span.kept_by(stop, kept);
    // Before the first directory is made.
    span.learn_space().await;
    let (volume, start) = (span.volume(), Start::Object(span.root()));
    let directory = directory.to_owned();
    let mounting =
        tokio::task::spawn_blocking(move || fuse::mount_from(volume, start, &directory, &options));
    match mounting.await.context("mounting")? {
        Ok(mounted) => Ok(Spanned { mounted, span }),
        Err(error) => {
            span.end().await;
            Err(error.into())
        }
    }
}

async fn ask_for_space(span: Span) {
    loop {
        tokio::time::sleep(SPACE).await;
        span.learn_space().await;
    }
}

impl Coordinator {
    async fn register(&self, ground: &Ground) -> Result<Place> {
        on_group(
            false,
            &self.group,
            self.key.clone(),
            self.instance.clone(),
            ground,
        )
        .await
    }
}

/// Keeps a place among the routers; takes a new one when it is lost, and changes of names wait for it.
async fn keep(
    coordinator: Coordinator,
    first: Place,
    ground: Ground,
    span: Span,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut place = first;
    loop {
        let begun = async {
            let life = place.begin(&ground).await?;
            span.set_life(Some(Arc::new(life)));
            std::future::pending::<Result<()>>().await
        };
        let lost = tokio::select! {
            lost = begun => lost,
            lost = place.keep(&ground) => lost,
            _ = &mut stopped => {
                span.set_life(None);
                return place.leave(&ground).await;
            }
        };
        span.set_life(None);
        if let Err(error) = lost {
            tracing::warn!("changes of names wait: {error:#}");
        }
        place.leave(&ground).await;
        let again = async {
            loop {
                tokio::time::sleep(AGAIN).await;
                match coordinator.register(&ground).await {
                    Ok(place) => break place,
                    Err(error) => tracing::warn!("changes of names wait: {error:#}"),
                }
            }
        };
        place = tokio::select! {
            place = again => place,
            _ = &mut stopped => return,
        };
    }
}

impl Spanned {
    /// Ends the mount, and gives up its place.
    ///
    /// # Errors
    /// As of any mount.
    pub async fn finish(self) -> Result<()> {
        let finished = finish(&self.mounted).await;
        // The mount's own end has done so, unless it failed.
        self.span.end().await;
        finished
    }
}
