//! Where `quorate route` writes down what is under way: a file of its own, or a group that several routers share.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::Session;
use quorate_execution::SESSIONS_PER_CLIENT;
use quorate_net::{Group, Identity, keys};
use quorate_nfs::status::Status;
use quorate_router::buckets;
use quorate_router::coordinator::{Coordinator, Hidden};
use quorate_router::fence::{adopt, enter, found, leave};
use quorate_router::handle::Handle;
use quorate_router::intent::{Intent, Log, Number};
use quorate_router::journal::{Journal, is_there};
use quorate_router::layout::Bucket;
use quorate_router::shared::{Refused, Shared, SharedError, set_of};
use quorate_router::silence::Silence;
use quorate_router::takeover::settle;
use quorate_router::upstream::Upstreams;

use super::AGAIN;
use crate::args::Route;
use crate::paths;

/// How long a router may be silent, in agreed time, before others begin to wait for it ([`Silence`]).
const LEASE: Duration = Duration::from_secs(8);
/// How often directories are looked at that nobody uses any more.
const SWEEP: Duration = Duration::from_millis(50);
/// The most routers of one volume.
const MAX_ROUTERS: usize = 64;
/// How long leaving may take.
const LEAVING: Duration = Duration::from_secs(2);

/// Where everything is.
pub type Buckets = Arc<buckets::Buckets<Upstreams>>;

/// What a router stands on.
#[derive(Clone)]
pub struct Ground {
    /// The identity of the set of volumes.
    pub set: [u8; 16],
    /// Whether it was used before.
    pub was_used: bool,
    /// All buckets.
    pub buckets: Buckets,
    /// What is hidden in each.
    pub hidden: Vec<Hidden>,
    /// What clients see as `/`.
    pub root: Handle,
}

fn tell(intent: &Intent, done: bool) {
    let what = if done { "finished" } else { "undone" };
    say!("an operation that was under way is {what}: {intent:?}");
}

fn lost_log(place: &str) -> anyhow::Error {
    anyhow!(
        "these volumes have been used, and their log {place} is not there: bring it back. If it is lost, an operation on two servers that was \
         under way may have left a name that leads nowhere: say --new-log to go on all the same"
    )
}

impl Ground {
    /// All buckets, with what is hidden there.
    fn each(&self) -> impl Iterator<Item = (Bucket, &Hidden)> {
        (0..).map(Bucket).zip(&self.hidden)
    }
}

/// What a bucket's server says, for as long as it takes until it answers.
async fn at_last<T>(
    servers: &Buckets,
    bucket: Bucket,
    ask: impl AsyncFn() -> Result<T, Status>,
) -> Result<T> {
    let mut told = false;
    loop {
        match ask().await {
            Ok(given) => return Ok(given),
            Err(Status::Jukebox) => {
                let map = servers.map();
                let member = map.volume(bucket).and_then(|volume| map.member(volume));
                if let (false, Some(member)) = (told, member) {
                    say!(
                        "waiting for the server of {}, which does not answer",
                        member.url
                    );
                    told = true;
                }
                tokio::time::sleep(AGAIN).await;
            }
            Err(status) => bail!("a volume refuses what recovery needs: {status:?}"),
        }
    }
}

/// The coordinator with a log in a file, when all is settled that was under way.
pub async fn in_file(
    args: &Route,
    log: &Path,
    ground: &Ground,
) -> Result<Coordinator<Buckets, Journal>> {
    let servers = &ground.buckets;
    if ground.was_used && !is_there(log) && !args.new_log {
        return Err(lost_log(&log.display().to_string()));
    }
    let mut ended = Vec::new();
    for (bucket, hidden) in ground.each() {
        let all = async || found(servers, bucket, hidden).await;
        ended.extend(at_last(servers, bucket, all).await?);
    }
    ended.sort_unstable();
    ended.dedup();
    let (journal, open) = Journal::open(log, ground.set, ended.last().copied().unwrap_or(0))?;
    let map = servers.map();
    if journal.map().as_ref() != Some(&*map) {
        let kept = journal.keep(&map).await;
        kept.map_err(|status| anyhow!("can't keep the map in {}: {status:?}", log.display()))?;
    }
    let mut own = Vec::new();
    for (bucket, hidden) in ground.each() {
        let entered = async || enter(servers, bucket, hidden, journal.epoch()).await;
        let entered = at_last(servers, bucket, entered).await?;
        for &epoch in &ended {
            let adopted = async || adopt(servers, bucket, hidden, &entered, epoch).await;
            at_last(servers, bucket, adopted).await?;
        }
        own.push(entered);
    }
    let coordinator = Coordinator::new(servers.clone(), journal, own, ground.root.clone());
    for (number, intent) in &open {
        let done = coordinator.recover(Number(*number), intent).await;
        tell(
            intent,
            done.map_err(|status| anyhow!("recovering: {status:?}"))?,
        );
    }
    Ok(coordinator)
}

/// A router's place among others.
pub struct Place {
    session: Session,
    shared: Shared<Session>,
    _instance: Arc<Instance>,
}

/// Takes a place among the routers of a group.
pub async fn on_group(
    new_log: bool,
    file: &Path,
    key: Option<PathBuf>,
    instance: Arc<Instance>,
    ground: &Ground,
) -> Result<Place> {
    let group = Group::load(file)?;
    if !group.is_coordinator() {
        bail!(
            "the group {} is for files: make one for routers with `quorate init --coordinator`",
            group.name()
        );
    }
    let key = key.unwrap_or_else(|| paths::client_key(&paths::beside(file)));
    let identity = Identity::new(&keys::load(&key)?);
    if !group.is_client(&identity.public()) {
        bail!(
            "{} is not the key of a client of the group {}: give one that the group file lists (key = ...)",
            key.display(),
            group.name()
        );
    }
    let session = Session::connect(&group, &identity).context("connecting to the group")?;
    if ground.was_used && set_of(&session).await?.is_none() && !new_log {
        return Err(lost_log(&format!("on the group {}", group.name())));
    }
    let registered = Shared::register(session.clone(), ground.set, instance.number, LEASE);
    let shared = match registered.await {
        Err(SharedError::Refused(Refused::TooMany(()))) => bail!(
            "the group {} has as many routers and mounts as it can: {MAX_ROUTERS}, and {SESSIONS_PER_CLIENT} with one key. End one of them",
            group.name()
        ),
        registered => registered?,
    };
    Ok(Place {
        session,
        shared,
        _instance: instance,
    })
}

/// Which router this is, in all its lives; no other process is it meanwhile.
#[derive(Debug)]
pub struct Instance {
    number: [u8; 16],
    _lock: File,
}

impl Instance {
    /// The one in a file; made at the first start.
    ///
    /// # Errors
    /// If another process has it, or the file can't be used.
    pub fn of(path: &Path) -> Result<Instance> {
        let found = Instance::open(path)?;
        found.with_context(|| format!("another router uses {}: give each its own", path.display()))
    }

    /// The first that no other process has, of a file and those named after it.
    ///
    /// # Errors
    /// If there are as many routers as there can be, or a file can't be used.
    pub fn first_free(path: &Path) -> Result<Instance> {
        for number in 0..MAX_ROUTERS {
            let mut name = path.as_os_str().to_owned();
            if number > 0 {
                name.push(format!("-{number}"));
            }
            if let Some(instance) = Instance::open(Path::new(&name))? {
                return Ok(instance);
            }
        }
        bail!(
            "{MAX_ROUTERS} mounts on this machine use {}",
            path.display()
        )
    }

    fn open(path: &Path) -> Result<Option<Instance>> {
        let failed = || format!("the router's instance file {}", path.display());
        let mut file = OpenOptions::new();
        let file = file.create(true).truncate(false).read(true).append(true);
        let mut file = file.open(path).with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let mut number = [0; 16];
        match std::io::Read::read_exact(&mut file, &mut number) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                getrandom::fill(&mut number).map_err(|e| anyhow!("no random numbers: {e}"))?;
                file.set_len(0).with_context(failed)?;
                file.write_all(&number).with_context(failed)?;
                file.sync_all().with_context(failed)?;
            }
            Err(error) => return Err(error).with_context(failed),
        }
        Ok(Some(Instance {
            number,
            _lock: file,
        }))
    }
}

impl Place {
    /// The coordinator of this router.
    pub async fn begin(&self, ground: &Ground) -> Result<Coordinator<Buckets, Shared<Session>>> {
        let mut own = Vec::new();
        for (bucket, hidden) in ground.each() {
            let entered = enter(&ground.buckets, bucket, hidden, self.shared.epoch()).await;
            own.push(entered.map_err(|status| anyhow!("bucket {}: {status:?}", bucket.0))?);
        }
        let (servers, root) = (ground.buckets.clone(), ground.root.clone());
        Ok(Coordinator::new(servers, self.shared.clone(), own, root))
    }

    /// Renews the lease, and takes over from those who did not. Ends when others may take over from this one.
    pub async fn keep(&self, ground: &Ground) -> Result<()> {
        let lost = "the coordinator's group has given this router up, or can't be reached: others finish what it had begun. Start it again";
        let renewals = async {
            let mut silence = Silence::default();
            loop {
                let renewed = self.shared.renew_and_look(&mut silence);
                match tokio::time::timeout(LEASE / 2, renewed).await {
                    Ok(Ok(dead)) if !dead.is_empty() => self.take_over(dead, ground),
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return Err(anyhow!(error).context(lost)),
                    Err(_) => tracing::warn!("the coordinator's group does not answer"),
                }
                if !quorate_router::intent::Log::is_current(&self.shared) {
                    bail!(lost);
                }
                tokio::time::sleep(self.shared.renewal()).await;
            }
        };
        let sweeps = async {
            loop {
                tokio::time::sleep(SWEEP).await;
                self.shared.sweep().await;
            }
        };
        tokio::select! {
            ended = renewals => ended,
            () = sweeps => Ok(()),
        }
    }

    /// Begins to finish what others have left.
    fn take_over(&self, dead: Vec<u64>, ground: &Ground) {
        let (shared, ground) = (self.shared.clone(), ground.clone());
        tokio::spawn(async move {
            let (heir, ancestors) = match shared.take_over(dead.clone()).await {
                Ok(taken) => taken,
                // Another was faster.
                Err(error) => return tracing::info!(%error, ?dead, "not taken over"),
            };
            tracing::info!(?dead, heir = heir.epoch(), "taking over");
            let settling = settle(
                &ground.buckets,
                &ground.hidden,
                &ground.root,
                &heir,
                &ancestors,
            );
            let renewals = async {
                loop {
                    tokio::time::sleep(heir.renewal()).await;
                    let _ = heir.renew().await;
                }
            };
            tokio::select! {
                settled = settling => match settled {
                    Ok(settled) => settled.iter().for_each(|(intent, done)| tell(intent, *done)),
                    Err(error) => tracing::warn!(%error, ?dead, "others take over"),
                },
                () = renewals => {}
            }
        });
    }

    /// Ends in order: nobody has to wait for the lease, unless something is under way.
    pub async fn leave(&self, ground: &Ground) {
        let left = async {
            if self.shared.leave().await.is_ok() {
                for (bucket, hidden) in ground.each() {
                    let _ = leave(&ground.buckets, bucket, hidden, self.shared.epoch()).await;
                }
            }
        };
        let _ = tokio::time::timeout(LEAVING, left).await;
        // What still waits for the group is told that it waits in vain.
        self.session.close().await;
    }
}
