//! Volumes come and go: what operators order, and what goes on in the background until it is so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;

use crate::ask::Servers;
use crate::config::Location;
use crate::intent::Log;
use crate::journal::Set;
use crate::layout::{Bucket, Volume};
use crate::map::{Map, Use};
use crate::mover::{MoveError, Mover};
use crate::setup::{self, SetupError};
use crate::shelf::Shelves;
use crate::upstream::Upstreams;

/// How long until a move is tried again that did not work.
const AGAIN: Duration = Duration::from_secs(2);

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// It is no location.
    #[error("{0}")]
    Location(String),
    /// The volume can't be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is no such volume any more, or not yet.
    #[error("there is no volume {0}")]
    Unknown(u16),
    /// The volume is there already.
    #[error("{0} is volume {1} already")]
    Known(String, u16),
    /// Nothing could take what is on it.
    #[error("volume {0} is the last that may hold anything: add another first")]
    Last(u16),
    /// It is not empty.
    #[error("volume {0} still holds {1} buckets: `quorate volume drain {0}` moves them away")]
    InUse(u16, usize),
    /// Other routers would not know.
    #[error(
        "several routers may serve these volumes (their log is on a group): what moves would be moved behind the others' backs. Stop all but one, and \
         give that one a log = \"FILE\""
    )]
    Shared,
    /// The map can't be kept.
    #[error(transparent)]
    Move(#[from] MoveError),
}

/// How a volume is.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeState {
    /// Its number.
    pub number: u16,
    /// Where it is.
    pub url: String,
    /// `serving` or `draining`.
    pub state: &'static str,
    /// How many buckets it has.
    pub buckets: usize,
    /// Bytes that are free, as its server said last.
    pub free_bytes: u64,
    /// Whether there is a connection to its server.
    pub connected: bool,
    /// Calls that were sent to it.
    pub calls: u64,
    /// How many got no answer.
    pub unanswered: u64,
    /// How long half of the answered calls took at most, in microseconds, to a power of two.
    pub p50_us: u64,
    /// How long 99 of a hundred took at most.
    pub p99_us: u64,
}

/// A bucket that is on its way.
#[derive(Clone, Debug, Serialize)]
pub struct Moving {
    /// Which.
    pub bucket: u32,
    /// From which volume.
    pub from: u16,
    /// To which.
    pub to: u16,
    /// Objects that were copied.
    pub objects: u64,
    /// Bytes that were copied.
    pub bytes: u64,
}

/// How all volumes are.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// One more with each change of the map.
    pub version: u64,
    /// All that are part of the set.
    pub volumes: Vec<VolumeState>,
    /// How many buckets there are.
    pub buckets: usize,
    /// How many have to move yet.
    pub to_move: usize,
    /// What is moving now.
    pub moving: Option<Moving>,
    /// How many have moved since the router started.
    pub moved: u64,
    /// Why the last move did not work, until one does.
    pub trouble: Option<String>,
}

#[derive(Debug, Default)]
struct Doing {
    moving: Option<(Bucket, Volume, Volume)>,
    moved: u64,
    trouble: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Keeper<L> {
    mover: Mover<Upstreams, L>,
    shelves: Arc<Shelves>,
    set: Set,
    /// Whether no other router serves them.
    alone: bool,
    /// Whether volumes are to hold equally many.
    even: AtomicBool,
    doing: Mutex<Doing>,
    wake: Notify,
    /// One order at a time.
    ordering: tokio::sync::Mutex<()>,
}

impl<L: Log> Keeper<L> {
    /// Of a set of volumes. `alone`: no other router serves them; only then do buckets move.
    pub fn new(
        mover: Mover<Upstreams, L>,
        shelves: Arc<Shelves>,
        set: Set,
        alone: bool,
    ) -> Keeper<L> {
        Keeper {
            mover,
            shelves,
            set,
            alone,
            even: AtomicBool::new(false),
            doing: Mutex::default(),
            wake: Notify::new(),
            ordering: tokio::sync::Mutex::default(),
        }
    }

    fn doing(&self) -> std::sync::MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> Arc<Map> {
        self.mover.buckets().map()
    }

    fn servers(&self) -> &Upstreams {
        &self.mover.buckets().servers
    }

    /// Moves what has to move, for ever. A move that a crash has cut off is taken away first.
    pub async fn run(&self) {
        if !self.alone {
            return std::future::pending().await;
        }
        while let Err(error) = self.mover.sweep().await {
            tracing::warn!(%error, "what an earlier move has left can't be taken away yet");
            self.servers().pause().await;
        }
        loop {
            let map = self.map();
            let Some((bucket, to)) = map.next_move(self.even.load(Ordering::Relaxed)) else {
                self.even.store(false, Ordering::Relaxed);
                self.wake.notified().await;
                continue;
            };
            let from = map.volume(bucket).unwrap_or(to);
            self.doing().moving = Some((bucket, from, to));
            let moved = self.mover.move_bucket(bucket, to).await;
            {
                let mut doing = self.doing();
                doing.moving = None;
                doing.moved += u64::from(moved.is_ok());
                doing.trouble = moved.err().map(|error| {
                    format!(
                        "bucket {} from volume {} to {}: {error}",
                        bucket.0, from.0, to.0
                    )
                });
            }
            if let Err(error) = moved {
                tracing::warn!(bucket = bucket.0, from = from.0, to = to.0, %error, "a bucket stays where it is for now");
                let _ = tokio::time::timeout(AGAIN, self.wake.notified()).await;
            }
        }
    }

    /// Makes an export part of the set, and moves buckets there until volumes hold equally many; gives its number. `url`: as
    /// [`Location::parse`] takes it, with whole paths.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn add(&self, url: &str) -> Result<u16, OrderError> {
        self.must_be_alone()?;
        let _ordering = self.ordering.lock().await;
        let location = Location::parse(url).map_err(OrderError::Location)?;
        let map = self.map();
        for volume in map.present() {
            if map.member(volume).is_some_and(|member| member.url == url) {
                return Err(OrderError::Known(url.into(), volume.0));
            }
        }
        let volume = Volume(map.volumes.len() as u16);
        let visited = setup::visit(&location).await?;
        let shelf = setup::add(&visited, self.set, volume).await?;
        self.servers().set(volume, Some(visited.upstream));
        self.shelves.set(volume, Some(shelf));
        self.mover.join(url.into(), volume).await?;
        self.balance()?;
        Ok(volume.0)
    }

    /// Has volumes hold equally many buckets.
    ///
    /// # Errors
    /// [`OrderError::Shared`].
    pub fn balance(&self) -> Result<(), OrderError> {
        self.must_be_alone()?;
        self.even.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        Ok(())
    }

    fn must_be_alone(&self) -> Result<(), OrderError> {
        match self.alone {
            true => Ok(()),
            false => Err(OrderError::Shared),
        }
    }

    fn present(&self, number: u16) -> Result<Volume, OrderError> {
        let mut all = self.map().present().collect::<Vec<_>>().into_iter();
        all.find(|volume| volume.0 == number)
            .ok_or(OrderError::Unknown(number))
    }

    /// Moves all buckets of a volume to others; or no more, with `stop`.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn drain(&self, number: u16, stop: bool) -> Result<(), OrderError> {
        self.must_be_alone()?;
        let _ordering = self.ordering.lock().await;
        let volume = self.present(number)?;
        if !stop && self.map().serving().all(|other| other == volume) {
            return Err(OrderError::Last(number));
        }
        let new = if stop { Use::Serving } else { Use::Draining };
        self.mover.put_to(volume, new).await?;
        self.wake.notify_one();
        Ok(())
    }

    /// Ends a volume's part in the set. It must be empty.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn remove(&self, number: u16) -> Result<(), OrderError> {
        self.must_be_alone()?;
        let _ordering = self.ordering.lock().await;
        let volume = self.present(number)?;
        let map = self.map();
        let held = map.held(volume);
        if held > 0 {
            return Err(OrderError::InUse(number, held));
        }
        match self.mover.put_to(volume, Use::Removed).await {
            // It has got one meanwhile.
            Err(MoveError::Nowhere) => {
                return Err(OrderError::InUse(number, self.map().held(volume)));
            }
            removed => removed?,
        }
        self.servers().set(volume, None);
        self.shelves.set(volume, None);
        // Its label goes, so that it can be used again; a server that is away keeps it.
        let location = map
            .member(volume)
            .map(|member| Location::parse(&member.url));
        if let Some(Ok(location)) = location
            && let Err(error) = async { setup::visit(&location).await?.release().await }.await
        {
            tracing::warn!(%error, "a volume that was removed keeps its label");
        }
        Ok(())
    }

    /// How all volumes are. `free`: how many bytes are free on one.
    pub fn overview(&self, free: impl Fn(Volume) -> u64) -> Overview {
        let map = self.map();
        let state = |volume: Volume| {
            let member = map.member(volume);
            let upstream = self.servers().get(volume);
            let load = upstream.map(|upstream| upstream.load).unwrap_or_default();
            VolumeState {
                number: volume.0,
                url: member.map_or_else(String::new, |member| member.url.clone()),
                state: match member.map(|member| member.state) {
                    Some(Use::Draining) => "draining",
                    _ => "serving",
                },
                buckets: map.held(volume),
                free_bytes: free(volume),
                connected: load.up.load(Ordering::Relaxed) > 0,
                calls: load.calls.load(Ordering::Relaxed),
                unanswered: load.unanswered.load(Ordering::Relaxed),
                p50_us: load.times.quantile(50),
                p99_us: load.times.quantile(99),
            }
        };
        let doing = self.doing();
        let progress = &self.mover.progress;
        Overview {
            version: map.version,
            volumes: map.present().map(state).collect(),
            buckets: map.buckets.len(),
            to_move: left(&map, self.even.load(Ordering::Relaxed)),
            moving: doing.moving.map(|(bucket, from, to)| Moving {
                bucket: bucket.0,
                from: from.0,
                to: to.0,
                objects: progress.objects.load(Ordering::Relaxed),
                bytes: progress.bytes.load(Ordering::Relaxed),
            }),
            moved: doing.moved,
            trouble: doing.trouble.clone(),
        }
    }
}

/// How many moves there are until the map is as it is to be.
fn left(map: &Map, even: bool) -> usize {
    let mut map = map.clone();
    let mut moves = 0;
    while let Some((bucket, to)) = map.next_move(even) {
        if let Some(place) = map.buckets.get_mut(bucket.0 as usize) {
            place.volume = to;
        }
        moves += 1;
    }
    moves
}
