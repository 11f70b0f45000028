//! The log and what is held, on a group: several routers serve one bucket.
//!
//! A router registers an epoch and renews its lease. It holds a directory among routers when a name in it is to change, and for a moment longer, so that many changes in one
//! directory cost one operation of the group; after [`TERM`] others have their turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_client::Session;
pub use quorate_ledger::op::Refused;
use quorate_ledger::op::{
    Begin, Ended, Epoch, Key, Keys, MAX_KEYS, Op, Open, Put, Register, Reply, TakeOver, Value,
};
use quorate_nfs::status::Status;
use quorate_wire::Time;
use quorate_wire::codec::Decode;

use crate::coordinator::moves;
use crate::handle::Handle;
use crate::intent::{Intent, Log, Number};
use crate::journal::Set;
use crate::map::Map;
use crate::silence::Silence;

/// How long a directory stays held that nobody uses.
const LINGER: Duration = Duration::from_millis(150);
/// After how long one that is in use is given to others who want it.
const TERM: Duration = Duration::from_secs(1);
/// Before a directory is asked for again that another holds.
const AGAIN: Duration = Duration::from_millis(5);
const AGAIN_AT_MOST: Duration = Duration::from_millis(100);
/// The value with the identity of the set of buckets.
const SET: Bytes = Bytes::from_static(b"set");

/// Why a group does not coordinate.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The session with it was lost.
    #[error("the coordinator's group has closed the session")]
    Lost,
    /// What it answers is no answer: it keeps files, or is of another version.
    #[error("the group is no coordinator's: make one with `quorate init --coordinator`")]
    Foreign,
    /// It says no.
    #[error("the coordinator's group refuses: {0:?}")]
    Refused(Refused),
    /// It belongs to others.
    #[error("the group coordinates other buckets")]
    Other,
}

/// A way to the group.
pub trait Group: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Has an operation executed, once.
    fn call(&self, op: Bytes) -> impl Future<Output = Result<Bytes, SharedError>> + Send;

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl Group for Session {
    async fn call(&self, op: Bytes) -> Result<Bytes, SharedError> {
        let called = Session::call(self, op).await;
        called.map_err(|_| SharedError::Lost)
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

#[derive(Debug)]
struct Inner<G> {
    group: G,
    epoch: Epoch,
    /// What stands in the lease, and a quarter less: clocks differ.
    lease: Duration,
    until: Mutex<Instant>,
    lost: AtomicBool,
    dirs: Mutex<BTreeMap<Key, Arc<Dir>>>,
}

/// A directory, as it is held among routers.
#[derive(Debug, Default)]
struct Dir {
    /// Whether it is; whoever changes that has the lock.
    standing: tokio::sync::Mutex<Standing>,
    /// How many changes are under way in it. Rises under the lock alone.
    users: AtomicU32,
}

/// Whether a directory is held among routers.
#[derive(Clone, Copy, Debug, Default)]
enum Standing {
    #[default]
    Free,
    /// It was asked for or let go of, and the answer is not there: who waited for it may have been cut off. It is let go of once more.
    Unknown,
    /// Since then.
    Held(Instant),
}

impl Standing {
    fn is_older(self, than: Duration) -> bool {
        match self {
            Standing::Free => false,
            Standing::Unknown => true,
            Standing::Held(since) => now() - since >= than,
        }
    }
}

/// One router's epoch on a group.
#[derive(Clone, Debug)]
pub struct Shared<G>(Arc<Inner<G>>);

/// Directories that are in use until this goes.
#[derive(Debug)]
pub struct Hold(Vec<Arc<Dir>>);

impl Drop for Hold {
    fn drop(&mut self) {
        for dir in &self.0 {
            dir.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What a directory is called at the group.
fn key(dir: &Handle) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key("quorate v1 router directory");
    hasher.update(&dir.bucket.0.to_be_bytes());
    hasher.update(&dir.key);
    hasher.finalize().into()
}

#[allow(clippy::disallowed_methods)] // Leases are kept by this machine's clock as well.
fn now() -> Instant {
    Instant::now()
}

async fn ask<G: Group>(group: &G, op: Op) -> Result<Reply, SharedError> {
    let told = group.call(op.write()).await?;
    match Reply::from_bytes(told) {
        Ok(Reply::Refused(why)) => Err(SharedError::Refused(why)),
        Ok(reply) => Ok(reply),
        Err(_) => Err(SharedError::Foreign),
    }
}

/// The set of buckets that a group coordinates, if it does.
///
/// # Errors
/// [`SharedError`].
pub async fn set_of<G: Group>(group: &G) -> Result<Option<Set>, SharedError> {
    match ask(group, Op::Get(SET)).await? {
        Reply::Value(Value { version: 0, .. }) => Ok(None),
        Reply::Value(Value { value, .. }) => {
            let set = value[..].try_into().map_err(|_| SharedError::Foreign)?;
            Ok(Some(set))
        }
        _ => Err(SharedError::Foreign),
    }
}

impl<G: Group> Shared<G> {
    /// Begins an epoch of a router. `instance`: the same in all its lives.
    ///
    /// # Errors
    /// [`SharedError`].
    pub async fn register(
        group: G,
        set: Set,
        instance: [u8; 16],
        lease: Duration,
    ) -> Result<Shared<G>, SharedError> {
        let value = Bytes::copy_from_slice(&set);
        let put = Op::Put(Put {
            name: SET,
            version: 0,
            value,
        });
        match ask(&group, put).await {
            Ok(_) | Err(SharedError::Refused(Refused::Version(_))) => {}
            Err(error) => return Err(error),
        }
        if set_of(&group).await? != Some(set) {
            return Err(SharedError::Other);
        }
        let register = Register {
            instance,
            lease: u32::try_from(lease.as_millis()).unwrap_or(u32::MAX),
        };
        let before = now();
        match ask(&group, Op::Register(register)).await? {
            Reply::Begun(begun) => Ok(Shared::new(group, begun.epoch, lease, before)),
            _ => Err(SharedError::Foreign),
        }
    }

    fn new(group: G, epoch: Epoch, lease: Duration, before: Instant) -> Shared<G> {
        let lease = lease - lease / 4;
        Shared(Arc::new(Inner {
            group,
            epoch,
            lease,
            until: Mutex::new(before + lease),
            lost: AtomicBool::new(false),
            dirs: Mutex::default(),
        }))
    }

    /// Its number.
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// How often it is to be renewed.
    pub fn renewal(&self) -> Duration {
        self.0.lease / 4
    }

    async fn ask(&self, op: Op) -> Result<Reply, SharedError> {
        let told = ask(&self.0.group, op).await;
        if let Err(SharedError::Lost | SharedError::Refused(Refused::NoEpoch(()))) = &told {
            self.0.lost.store(true, Ordering::Release);
        }
        told
    }

    /// For what a client is told.
    async fn ask_for_client(&self, op: Op) -> Result<Reply, Status> {
        self.ask(op).await.map_err(|error| {
            tracing::warn!(%error, epoch = self.0.epoch, "the coordinator's group");
            Status::Jukebox
        })
    }

    /// Renews the lease. Gives the epochs that have run out.
    ///
    /// # Errors
    /// [`SharedError`]: others may have taken over.
    pub async fn renew(&self) -> Result<Vec<Epoch>, SharedError> {
        let before = now();
        let Reply::Renewed(dead) = self.ask(Op::Renew(self.0.epoch)).await? else {
            return Err(SharedError::Foreign);
        };
        let mut until = self.0.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = before + self.0.lease;
        Ok(dead)
    }

    /// As [`renew`](Self::renew). Gives those that are to be taken over, of all that have run out.
    ///
    /// # Errors
    /// [`SharedError`]: others may have taken over.
    pub async fn renew_and_look(&self, silence: &mut Silence) -> Result<Vec<Epoch>, SharedError> {
        let run_out = self.run_out().await?;
        Ok(silence.told(&run_out, self.0.lease, now()))
    }

    /// As [`renew`](Self::renew). Gives the epochs that have run out with the agreed time when they did so, which is 0 where their router has
    /// begun anew.
    ///
    /// # Errors
    /// [`SharedError`]: others may have taken over.
    pub async fn run_out(&self) -> Result<BTreeMap<Epoch, Time>, SharedError> {
        let dead = self.renew().await?;
        if dead.is_empty() {
            return Ok(BTreeMap::new());
        }
        let Reply::Epochs(all) = self.ask(Op::List(())).await? else {
            return Err(SharedError::Foreign);
        };
        let all = all.into_iter().filter(|one| dead.contains(&one.epoch));
        Ok(all.map(|one| (one.epoch, one.expires)).collect())
    }

    /// How long it has its place after its last renewal, by its own clock.
    pub fn lease(&self) -> Duration {
        self.0.lease
    }

    /// Takes over epochs that have run out, in a new one; and which those are, with those that they had taken over.
    ///
    /// # Errors
    /// [`SharedError`]; another may have been faster.
    pub async fn take_over(
        &self,
        dead: Vec<Epoch>,
    ) -> Result<(Shared<G>, Vec<Epoch>), SharedError> {
        let by = self.0.epoch;
        let before = now();
        // A refusal need not be for its own epoch: another may have been faster with one of these. The next renewal tells of a loss.
        let take = Op::TakeOver(TakeOver { by, dead });
        match ask(&self.0.group, take).await? {
            Reply::Begun(begun) => {
                let group = self.0.group.clone();
                let lease = self.0.lease + self.0.lease / 3;
                let heir = Shared::new(group, begun.epoch, lease, before);
                Ok((heir, begun.ancestors))
            }
            _ => Err(SharedError::Foreign),
        }
    }

    /// What was begun and has not ended.
    ///
    /// # Errors
    /// [`SharedError`].
    pub async fn open(&self) -> Result<BTreeMap<u64, Intent>, SharedError> {
        let (mut all, mut after) = (BTreeMap::new(), 0);
        loop {
            let epoch = self.0.epoch;
            let Reply::Open(told) = self.ask(Op::Open(Open { epoch, after })).await? else {
                return Err(SharedError::Foreign);
            };
            let Some(last) = told.last() else {
                return Ok(all);
            };
            after = last.number;
            for one in told {
                let intent = Intent::read(one.record).map_err(|_| SharedError::Foreign)?;
                all.insert(one.number, intent);
            }
        }
    }

    /// Those that it has taken over can do nothing any more.
    ///
    /// # Errors
    /// [`SharedError`].
    pub async fn fenced(&self) -> Result<(), SharedError> {
        self.ask(Op::Fenced(self.0.epoch)).await.map(drop)
    }

    /// Ends the epoch, in which nothing is under way.
    ///
    /// # Errors
    /// [`SharedError`].
    pub async fn leave(&self) -> Result<(), SharedError> {
        let left = self.ask(Op::Leave(self.0.epoch)).await.map(drop);
        self.0.lost.store(true, Ordering::Release);
        left
    }

    fn dirs(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Dir>>> {
        self.0.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of directories that nobody has used for a while.
    pub async fn sweep(&self) {
        let all: Vec<(Key, Arc<Dir>)> = {
            let mut dirs = self.dirs();
            let is_idle = |dir: &Dir| {
                let standing = dir.standing.try_lock();
                standing.is_ok_and(|standing| matches!(*standing, Standing::Free))
                    && dir.users.load(Ordering::Acquire) == 0
            };
            // Who is about to use one has it as well.
            dirs.retain(|_, dir| Arc::strong_count(dir) > 1 || !is_idle(dir));
            dirs.iter().map(|(key, dir)| (*key, dir.clone())).collect()
        };
        for some in all.chunks(MAX_KEYS) {
            let (mut keys, mut guards) = (Vec::new(), Vec::new());
            for (key, dir) in some {
                let Ok(guard) = dir.standing.try_lock() else {
                    continue;
                };
                if guard.is_older(LINGER) && dir.users.load(Ordering::Acquire) == 0 {
                    keys.push(*key);
                    guards.push(guard);
                }
            }
            if keys.is_empty() {
                continue;
            }
            if self.release(keys).await.is_ok() {
                for mut standing in guards {
                    *standing = Standing::Free;
                }
            }
        }
    }

    async fn release(&self, keys: Vec<Key>) -> Result<(), Status> {
        let epoch = self.0.epoch;
        let released = self.ask_for_client(Op::Release(Keys { epoch, keys }));
        released.await.map(drop)
    }

    /// Waits until nobody uses a directory whose lock is held, so that nobody begins to. False: that takes longer than a term.
    async fn unused(&self, dir: &Dir) -> Result<bool, Status> {
        let start = now();
        while dir.users.load(Ordering::Acquire) > 0 {
            if !self.is_current() {
                return Err(Status::Jukebox);
            }
            if now() - start >= TERM {
                return Ok(false);
            }
            self.0.group.pause(AGAIN).await;
        }
        Ok(true)
    }

    /// Asks for keys: true if it has them all now, false if another has one.
    async fn acquire(&self, keys: Vec<Key>) -> Result<bool, Status> {
        let epoch = self.0.epoch;
        if !self.is_current() {
            return Err(Status::Jukebox);
        }
        match self.ask(Op::Hold(Keys { epoch, keys })).await {
            Ok(_) => Ok(true),
            Err(SharedError::Refused(Refused::Held(_) | Refused::TooMany(()))) => Ok(false),
            Err(error) => {
                tracing::warn!(%error, epoch, "the coordinator's group");
                Err(Status::Jukebox)
            }
        }
    }
}

impl<G: Group> Log for Shared<G> {
    type Hold = Hold;

    fn is_current(&self) -> bool {
        let until = *self.0.until.lock().unwrap_or_else(PoisonError::into_inner);
        !self.0.lost.load(Ordering::Acquire) && now() < until
    }

    async fn confirm(&self) -> bool {
        self.renew().await.is_ok()
    }

    async fn hold(&self, dirs: Vec<Handle>) -> Result<Hold, Status> {
        // In one order, so that no two calls wait for each other.
        let mut keys: Vec<Key> = dirs.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let dirs: Vec<Arc<Dir>> = {
            let mut all = self.dirs();
            let dir = |key: &Key| all.entry(*key).or_default().clone();
            keys.iter().map(dir).collect()
        };
        let mut guards = Vec::new();
        for dir in &dirs {
            guards.push(dir.standing.lock().await);
        }
        let mut old = Vec::new();
        for ((key, dir), standing) in keys.iter().zip(&dirs).zip(&mut guards) {
            if standing.is_older(TERM) {
                if self.unused(dir).await? {
                    **standing = Standing::Unknown;
                    old.push(*key);
                } else {
                    // What is under way there may wait for a server that is away. Others do not get it before that ends; own changes
                    // of other names go on.
                    **standing = Standing::Held(now());
                }
            }
        }
        if !old.is_empty() {
            self.release(old).await?;
            self.0.group.pause(AGAIN * 2).await;
        }
        let mut wait = AGAIN;
        loop {
            let mut missing = Vec::new();
            for (key, standing) in keys.iter().zip(&mut guards) {
                if !matches!(**standing, Standing::Held(_)) {
                    **standing = Standing::Unknown;
                    missing.push(*key);
                }
            }
            if missing.is_empty() {
                if !self.is_current() {
                    return Err(Status::Jukebox);
                }
                break;
            }
            if self.acquire(missing).await? {
                break;
            }
            // Who has it may wait for one of those that are still held here from before: they go, and all are asked for at once.
            let mut unused = Vec::new();
            for ((key, dir), standing) in keys.iter().zip(&dirs).zip(&mut guards) {
                let is_held = matches!(**standing, Standing::Held(_));
                if is_held && dir.users.load(Ordering::Acquire) == 0 {
                    **standing = Standing::Unknown;
                    unused.push(*key);
                }
            }
            if !unused.is_empty() {
                self.release(unused).await?;
            }
            self.0.group.pause(wait).await;
            wait = (wait * 2).min(AGAIN_AT_MOST);
        }
        for (dir, standing) in dirs.iter().zip(&mut guards) {
            if !matches!(**standing, Standing::Held(_)) {
                **standing = Standing::Held(now());
            }
            dir.users.fetch_add(1, Ordering::AcqRel);
        }
        drop(guards);
        Ok(Hold(dirs))
    }

    async fn begin(&self, intent: &Intent) -> Result<Number, Status> {
        let mut keys: Vec<Key> = intent.names().iter().map(|name| key(&name.dir)).collect();
        if intent.changes_parent() {
            keys.push(key(&moves()));
        }
        keys.sort_unstable();
        keys.dedup();
        let begin = Begin {
            epoch: self.0.epoch,
            keys,
            record: intent.write().into(),
        };
        match self.ask_for_client(Op::Begin(begin)).await? {
            Reply::Number(number) => Ok(Number(number)),
            _ => Err(Status::ServerFault),
        }
    }

    async fn end(&self, Number(number): Number) -> Result<(), Status> {
        let epoch = self.0.epoch;
        let ended = self.ask_for_client(Op::End(Ended { epoch, number }));
        ended.await.map(drop)
    }

    /// Buckets do not move while several routers serve them: each would have to know at the same moment.
    async fn keep(&self, _map: &Map) -> Result<(), Status> {
        Err(Status::NotSupp)
    }
}

#[cfg(test)]
mod tests;
