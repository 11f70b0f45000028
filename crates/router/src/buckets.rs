//! Where each bucket is: what is asked about a bucket goes to the server of its volume, in that server's words.
//!
//! Above this, objects are called by their keys, which they keep as long as they live; below, by what their server calls them now.
//! While a bucket moves, what changes in it is written down here; and its last calls on the old server are waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Call, Fh, How, NewAttrs, Place};
use quorate_nfs::status::Status;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use crate::ask::{Ask, Given, Object, Servers};
use crate::handle::Shown;
use crate::kernel::Shortcut;
use crate::layout::{Bucket, Volume};
use crate::map::Map;
use crate::table::{Names, Numbers};

/// How much of a file is copied at a time, and again when any of it has changed.
pub const CHUNK: u64 = 1 << 20;
/// The most changes that are written down; a move that sees more is given up.
const MAX_CHANGES: usize = 1 << 18;
/// No bucket.
const NONE: u64 = u64::MAX;

type Gate = Arc<tokio::sync::RwLock<()>>;
/// No move ends meanwhile.
pub type Passage = OwnedRwLockReadGuard<()>;

/// Where a bucket is, and what its objects are called there.
#[derive(Clone, Debug)]
pub struct Located {
    /// On which volume.
    pub volume: Volume,
    /// The move that brought it there.
    pub moved: u64,
    /// Names.
    pub names: Arc<Names>,
}

impl Located {
    /// What its server calls an object.
    ///
    /// # Errors
    /// [`Status::Stale`]: it was gone before the bucket came.
    pub fn server(&self, key: &Fh) -> Result<Fh, Status> {
        self.names.server(self.volume, key).ok_or(Status::Stale)
    }

    /// What clients call what its server calls so.
    ///
    /// # Errors
    /// [`Status::ServerFault`] if the server's handle is too long, or none.
    pub fn shown(&self, bucket: Bucket, server: &[u8]) -> Result<Shown, Status> {
        let (volume, called) = self.names.first(self.volume, server);
        Shown::new(bucket, volume, called)
    }

    /// The key of what its server calls so; no bytes for no handle.
    pub fn key(&self, server: &Fh) -> Fh {
        match server.is_empty() {
            true => Fh::new(),
            false => self.names.key(self.volume, server),
        }
    }
}

/// What has changed in a bucket since it was asked for last. Objects by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names that were made or taken away. True: what they stand for may have been cut as well.
    pub names: BTreeMap<(Fh, Bytes), bool>,
    /// Attributes.
    pub attrs: BTreeSet<Fh>,
    /// Chunks of files.
    pub chunks: BTreeSet<(Fh, u64)>,
    /// Files of which anything may have changed.
    pub whole: BTreeSet<Fh>,
    /// There were more than are written down.
    pub too_many: bool,
}

impl Changes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len() + self.attrs.len() + self.chunks.len() + self.whole.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.too_many
    }

    fn add(&mut self, more: Changes) {
        self.too_many |= more.too_many;
        if self.len() + more.len() > MAX_CHANGES {
            self.too_many = true;
            return;
        }
        for (name, cut) in more.names {
            *self.names.entry(name).or_default() |= cut;
        }
        self.attrs.extend(more.attrs);
        self.chunks.extend(more.chunks);
        self.whole.extend(more.whole);
    }

    fn name(&mut self, place: &Place, cut: bool) {
        self.attrs.insert(place.dir.clone());
        let name = (place.dir.clone(), place.name.clone());
        *self.names.entry(name).or_default() |= cut;
    }

    fn set(&mut self, object: &Fh, new: &NewAttrs) {
        self.attrs.insert(object.clone());
        if new.size.is_some() {
            self.whole.insert(object.clone());
        }
    }

    fn written(&mut self, file: &Fh, offset: u64, len: u64) {
        self.attrs.insert(file.clone());
        let last = offset.saturating_add(len.saturating_sub(1)) / CHUNK;
        let chunks = offset / CHUNK..=last;
        self.chunks
            .extend(chunks.map(|chunk| (file.clone(), chunk)));
    }

    /// Nobody knows which: a move that sees them is given up.
    pub fn unknown() -> Changes {
        Changes {
            too_many: true,
            ..Changes::default()
        }
    }

    /// What a WRITE of so many bytes may change.
    pub fn of_write(file: &Fh, offset: u64, len: u64) -> Changes {
        let mut changes = Changes::default();
        changes.written(file, offset, len);
        changes
    }

    /// What a call in one bucket may change, but for RENAME and LINK, which are orders. `key`: of a handle in the call.
    pub fn of_call(call: &Call, key: impl Fn(&Bytes) -> Fh) -> Changes {
        let mut changes = Changes::default();
        let at = |place: &Place| Place {
            dir: key(&place.dir),
            name: place.name.clone(),
        };
        match call {
            Call::SetAttr { object, attrs, .. } => changes.set(&key(object), attrs),
            Call::Write { file, offset, data } => {
                changes.written(&key(file), *offset, data.len() as u64);
            }
            Call::Create(place, how) => {
                let cut = matches!(how, How::Unchecked(new) if *new != NewAttrs::default());
                changes.name(&at(place), cut);
            }
            Call::Mkdir(place, _)
            | Call::Symlink(place, ..)
            | Call::Mknod(place, _)
            | Call::Remove(place)
            | Call::Rmdir(place) => changes.name(&at(place), false),
            _ => {}
        }
        changes
    }

    /// What an order may change; its handles are keys.
    pub fn of_ask(ask: &Ask) -> Changes {
        let mut changes = Changes::default();
        match ask {
            Ask::SetAttr(object, new) => changes.set(object, new),
            Ask::Write {
                file, offset, data, ..
            } => {
                changes.written(file, *offset, data.len() as u64);
            }
            Ask::Mkdir(place, _)
            | Ask::Symlink(place, _)
            | Ask::Remove(place)
            | Ask::Rmdir(place)
            | Ask::Link(_, place) => changes.name(place, false),
            Ask::Create(place, _) | Ask::Mknod { at: place, .. } => changes.name(place, true),
            Ask::Rename(from, to) => {
                changes.name(from, false);
                changes.name(to, false);
            }
            Ask::GetAttr(_)
            | Ask::Lookup(_)
            | Ask::Access(..)
            | Ask::Readlink(_)
            | Ask::ReadDir { .. }
            | Ask::Read { .. }
            | Ask::Commit(_) => {}
        }
        changes
    }
}

/// See the module.
#[derive(Debug)]
pub struct Buckets<S> {
    /// The servers of all volumes.
    pub servers: S,
    places: Vec<RwLock<Arc<Located>>>,
    map: RwLock<Arc<Map>>,
    numbers: RwLock<Vec<Arc<Numbers>>>,
    /// For calls that change names, which may touch several buckets.
    changing: Gate,
    /// For the others, by bucket.
    gates: Vec<Gate>,
    /// The bucket that is moving.
    watched: AtomicU64,
    changes: Mutex<Changes>,
    /// Who passes calls on beside the proxy, if anybody does.
    shortcuts: RwLock<Vec<Arc<dyn Shortcut>>>,
}

/// Writes down what may have changed, once the call has ended one way or the other.
#[derive(Debug)]
pub struct Mark<'a, S> {
    buckets: &'a Buckets<S>,
    changes: Option<(Bucket, Changes)>,
}

impl<S> Drop for Mark<'_, S> {
    fn drop(&mut self) {
        if let Some((bucket, changes)) = self.changes.take() {
            self.buckets.changed(bucket, changes);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn get<T: Clone>(value: &RwLock<T>) -> T {
    value.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn put<T>(value: &RwLock<T>, new: T) {
    *value.write().unwrap_or_else(PoisonError::into_inner) = new;
}

impl<S> Buckets<S> {
    /// Buckets as a map has them. `names`: of those that have moved; `numbers`: by volume.
    pub fn new(
        servers: S,
        map: Map,
        mut names: BTreeMap<Bucket, Names>,
        numbers: Vec<Numbers>,
    ) -> Buckets<S> {
        let places = map.places().map(|(bucket, place)| {
            RwLock::new(Arc::new(Located {
                volume: place.volume,
                moved: place.moved,
                names: names.remove(&bucket).unwrap_or_default().into(),
            }))
        });
        Buckets {
            servers,
            places: places.collect(),
            gates: map.buckets.iter().map(|_| Gate::default()).collect(),
            map: RwLock::new(map.into()),
            numbers: RwLock::new(numbers.into_iter().map(Arc::new).collect()),
            changing: Gate::default(),
            watched: AtomicU64::new(NONE),
            changes: Mutex::default(),
            shortcuts: RwLock::default(),
        }
    }

    /// The map as it is now.
    pub fn map(&self) -> Arc<Map> {
        get(&self.map)
    }

    /// Takes over a map that says the same of all buckets.
    pub(crate) fn set_map(&self, map: Map) {
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        numbers.resize_with(map.volumes.len(), Default::default);
        drop(numbers);
        put(&self.map, map.into());
    }

    /// Where a bucket is now.
    ///
    /// # Errors
    /// [`Status::Stale`] if there is no such bucket.
    pub fn locate(&self, bucket: Bucket) -> Result<Arc<Located>, Status> {
        let place = self.places.get(bucket.0 as usize).ok_or(Status::Stale)?;
        Ok(get(place))
    }

    /// What clients see for a file's number on a volume.
    pub fn shown(&self, volume: Volume, number: u64) -> u64 {
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        match numbers.get(usize::from(volume.0)) {
            Some(numbers) => numbers.shown(volume, number),
            None => crate::attrs::fileid(volume, number),
        }
    }

    /// To be kept while a call goes to a bucket. Nobody who has one waits for another.
    ///
    /// # Errors
    /// [`Status::Stale`] if there is no such bucket.
    pub async fn pass(&self, bucket: Bucket) -> Result<Passage, Status> {
        let gate = self.gates.get(bucket.0 as usize).ok_or(Status::Stale)?;
        Ok(gate.clone().read_owned().await)
    }

    /// The same, if nobody is to be waited for.
    pub fn try_pass(&self, bucket: Bucket) -> Option<Passage> {
        let gate = self.gates.get(bucket.0 as usize)?;
        gate.clone().try_read_owned().ok()
    }

    /// To be kept while a call changes names or looks at several buckets; before any name is held.
    pub async fn pass_all(&self) -> Passage {
        self.changing.clone().read_owned().await
    }

    /// Waits for the calls of both kinds that touch a bucket, and keeps further ones waiting.
    pub(crate) async fn close(&self, bucket: Bucket) -> Option<[OwnedRwLockWriteGuard<()>; 2]> {
        let gate = self.gates.get(bucket.0 as usize)?.clone();
        let all = self.changing.clone().write_owned().await;
        Some([all, gate.write_owned().await])
    }

    /// Writes down what a call that has ended may have changed.
    pub(crate) fn changed(&self, bucket: Bucket, changes: Changes) {
        if self.watched.load(Ordering::SeqCst) == u64::from(bucket.0) {
            lock(&self.changes).add(changes);
        }
    }

    /// To be kept until a call has ended that may make these changes.
    pub fn mark(&self, bucket: Bucket, changes: Changes) -> Mark<'_, S> {
        Mark {
            buckets: self,
            changes: (!changes.is_empty()).then_some((bucket, changes)),
        }
    }

    /// From here on the changes of one bucket are written down, or of none.
    pub(crate) fn watch(&self, bucket: Option<Bucket>) {
        let number = bucket.map_or(NONE, |bucket| bucket.0.into());
        self.watched.store(number, Ordering::SeqCst);
        *lock(&self.changes) = Changes::default();
        self.tell_shortcuts();
    }

    /// Who passes calls on beside the proxy is told from here on where it may.
    pub(crate) fn add_shortcut(&self, shortcut: Arc<dyn Shortcut>) {
        let mut shortcuts = self
            .shortcuts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        shortcuts.push(shortcut);
        drop(shortcuts);
        self.tell_shortcuts();
    }

    fn tell_shortcuts(&self) {
        let shortcuts = get(&self.shortcuts);
        if shortcuts.is_empty() {
            return;
        }
        for bucket in (0..self.places.len() as u32).map(Bucket) {
            let volume = self.plain(bucket);
            shortcuts.iter().for_each(|to| to.set(bucket, volume));
        }
    }

    /// Whether nobody who passes calls on beside the proxy has one under way to a bucket, of which he was told that it is not for him.
    pub(crate) fn is_clear(&self, bucket: Bucket, patience: bool) -> bool {
        let shortcuts = get(&self.shortcuts);
        shortcuts.iter().all(|of| of.is_clear(bucket, patience))
    }

    /// The volume of a bucket that does not move and never has, if numbers there are what they were when it was new.
    fn plain(&self, bucket: Bucket) -> Option<Volume> {
        if self.watched.load(Ordering::SeqCst) == u64::from(bucket.0) {
            return None;
        }
        let at = self.locate(bucket).ok()?;
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        let is_plain = numbers
            .get(usize::from(at.volume.0))
            .is_none_or(|numbers| numbers.is_plain());
        (at.moved == 0 && at.names.is_plain() && is_plain).then_some(at.volume)
    }

    /// The changes since last time.
    pub(crate) fn take_changes(&self) -> Changes {
        std::mem::take(&mut lock(&self.changes))
    }

    /// A bucket has moved.
    pub(crate) fn moved(
        &self,
        bucket: Bucket,
        located: Located,
        map: Map,
        table: (Volume, &crate::table::Table),
    ) {
        let way = (table.0, located.volume);
        {
            let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
            for volume in [way.0, way.1] {
                if let Some(of) = numbers.get_mut(usize::from(volume.0)) {
                    Arc::make_mut(of).add(volume, way, table.1);
                }
            }
        }
        if let Some(place) = self.places.get(bucket.0 as usize) {
            put(place, located.into());
        }
        self.set_map(map);
        self.tell_shortcuts();
    }
}

/// Handles in a question and in what is given are keys.
impl<S: Servers> Servers<Bucket> for Arc<Buckets<S>> {
    async fn ask(&self, bucket: Bucket, who: &Who, ask: Ask) -> Result<Given, Status> {
        let at = self.locate(bucket)?;
        let _mark = self.mark(bucket, Changes::of_ask(&ask));
        let ask = ask.in_words_of(&at)?;
        let given = self.servers.ask(at.volume, who, ask).await?;
        Ok(match given {
            Given::Object(Object { handle, attrs }) => Given::Object(Object {
                handle: at.key(&handle),
                attrs,
            }),
            other => other,
        })
    }

    async fn pause(&self) {
        self.servers.pause().await;
    }

    async fn patience(&self) {
        self.servers.patience().await;
    }
}
