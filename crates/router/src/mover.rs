//! Buckets go from volume to volume while they are in use.
//!
//! A move copies a bucket to a new directory on the other volume, then what has changed meanwhile, again and again until that is little.
//! For the last of it the calls that may change the bucket are kept waiting; then the map is kept, which is the commit: before it the
//! old place holds, and the copy is worth nothing; after it the new place, and what is left on the old volume. Either is taken
//! away then, or by [`Mover::sweep`] when a router starts: no step of a move has a record of its own. Other changes of the map go on
//! while a bucket is copied.

mod copy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_nfs::status::Status;
use tokio::sync::{Mutex, OwnedRwLockWriteGuard};

use crate::ask::Servers;
use crate::buckets::{Buckets, Located};
use crate::intent::Log;
use crate::layout::{Bucket, Volume};
use crate::map::{Map, Member, Place, Use};
use crate::shelf::{Shelf, Shelved, Shelves, bucket_name, bucket_of, table_name, table_number};
use crate::table::Names;
use copy::Copying;

/// So few changes are made up for while calls wait.
const FEW: usize = 64;
/// How often changes are made up for before calls have to wait for many.
const ROUNDS: usize = 12;
/// How often it is tried to have all calls wait, where one of them does not end.
const ATTEMPTS: usize = 60;
/// How often it is waited for calls that the system has passed on, before they are ended.
const PASSED_ON: u32 = 8;

/// Why a bucket did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// There is no such bucket or volume, or the volume takes none.
    #[error("there is no such bucket or volume, it is there already, or the volume takes none")]
    Nowhere,
    /// One of the servers says so.
    #[error("{0:?} from volume {1}")]
    Server(Status, u16),
    /// A copy is not what it was made of.
    #[error("volume {0} does not keep what it is given: {1}")]
    Differs(u16, &'static str),
    /// More changed than could be made up for.
    #[error("more changes in it than can be copied: try again when it is used less")]
    Busy,
    /// The map can't be kept.
    #[error("the log can't be written: {0:?}")]
    Log(Status),
}

/// How far the move is that is under way, or the last one.
#[derive(Debug, Default)]
pub struct Progress {
    /// Objects that were copied.
    pub objects: AtomicU64,
    /// Bytes that were copied.
    pub bytes: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub struct Mover<S, L> {
    buckets: Arc<Buckets<S>>,
    log: L,
    shelves: Arc<Shelves>,
    /// One move at a time. Locked before `changing`.
    moving: Mutex<()>,
    /// One change of the map at a time.
    changing: Mutex<()>,
    /// How far it is.
    pub progress: Progress,
}

impl<S: Servers, L: Log> Mover<S, L> {
    /// A mover between volumes with these directories.
    pub fn new(buckets: Arc<Buckets<S>>, log: L, shelves: Arc<Shelves>) -> Mover<S, L> {
        Mover {
            buckets,
            log,
            shelves,
            moving: Mutex::default(),
            changing: Mutex::default(),
            progress: Progress::default(),
        }
    }

    fn shelf(&self, volume: Volume) -> Result<(Shelved<'_, S>, Shelf), MoveError> {
        let servers = &self.buckets.servers;
        let shelf = self.shelves.get(volume).ok_or(MoveError::Nowhere)?;
        Ok((Shelved { servers, volume }, shelf))
    }

    /// Changes the map where nothing moves by it. False from `change`: there is nothing to change.
    ///
    /// # Errors
    /// [`MoveError::Log`].
    pub async fn change<T>(
        &self,
        change: impl FnOnce(&mut Map) -> Option<T>,
    ) -> Result<Option<T>, MoveError> {
        let _changing = self.changing.lock().await;
        let mut map = Map::clone(&self.buckets.map());
        let Some(changed) = change(&mut map) else {
            return Ok(None);
        };
        self.keep(&mut map).await?;
        self.buckets.set_map(map);
        Ok(Some(changed))
    }

    async fn keep(&self, map: &mut Map) -> Result<(), MoveError> {
        map.version += 1;
        self.log.keep(map).await.map_err(MoveError::Log)
    }

    /// Puts a volume to another use.
    ///
    /// # Errors
    /// [`MoveError::Nowhere`] if it can't be: nothing that has buckets is removed, and nothing that was removed comes back;
    /// [`MoveError::Log`].
    pub async fn put_to(&self, volume: Volume, new: Use) -> Result<(), MoveError> {
        // One that has no bucket may be getting one, or still have what is left of one.
        let _moving = match new {
            Use::Removed => Some(self.moving.lock().await),
            _ => None,
        };
        let changed = self.change(|map| {
            let free = map.held(volume) == 0;
            let member = map.volumes.get_mut(usize::from(volume.0))?;
            if member.state == Use::Removed || new == Use::Removed && !free {
                return None;
            }
            member.state = new;
            if new == Use::Removed {
                member.tables.clear();
            }
            Some(())
        });
        changed.await?.ok_or(MoveError::Nowhere)
    }

    /// A new volume, whose number follows on the last.
    ///
    /// # Errors
    /// [`MoveError::Log`].
    pub async fn join(&self, url: String, expected: Volume) -> Result<(), MoveError> {
        let joined = self.change(|map| {
            let number = map.volumes.len();
            (number == usize::from(expected.0)).then(|| map.volumes.push(Member::new(url)))
        });
        joined.await?.ok_or(MoveError::Nowhere)
    }

    /// Moves a bucket.
    ///
    /// # Errors
    /// [`MoveError`]: it is where it was.
    pub async fn move_bucket(&self, bucket: Bucket, to: Volume) -> Result<(), MoveError> {
        let _moving = self.moving.lock().await;
        // The number of this attempt, which no other has: that of the map's new version.
        let begun = self.change(|map| {
            let old = map.place(bucket).filter(|old| old.volume != to)?;
            takes(map, to).then_some((old, map.version + 1))
        });
        let (old, number) = begun.await?.ok_or(MoveError::Nowhere)?;
        self.progress.objects.store(0, Ordering::Relaxed);
        self.progress.bytes.store(0, Ordering::Relaxed);
        self.buckets.watch(Some(bucket));
        // What the system has passed on itself is written down nowhere, so it has to be over before the first look.
        for attempt in 0u32.. {
            if self.buckets.is_clear(bucket, attempt >= PASSED_ON) {
                break;
            }
            self.buckets.servers.pause().await;
        }
        let new = Place {
            volume: to,
            moved: number,
        };
        let moved = self.steps(bucket, old, new).await;
        self.buckets.watch(None);
        // What was written down of a move that failed may be on both.
        let (left, tables) = match moved {
            Ok(()) => (old, &[][..]),
            Err(_) => (new, &[old.volume, to][..]),
        };
        if let Err(error) = self.take_away(bucket, left, tables).await {
            tracing::warn!(bucket = bucket.0, %error, "what is left of a bucket stays until the next start");
        }
        moved
    }

    async fn steps(&self, bucket: Bucket, old: Place, new: Place) -> Result<(), MoveError> {
        let (to, number) = (new.volume, new.moved);
        let (from_server, from_shelf) = self.shelf(old.volume)?;
        let (to_server, to_shelf) = self.shelf(to)?;
        let at = self
            .buckets
            .locate(bucket)
            .map_err(|_| MoveError::Nowhere)?;
        let mut copying = Copying::new(&self.buckets, &at, from_server, to_server, &self.progress);
        copying
            .start(
                &from_shelf.buckets,
                &to_shelf.buckets,
                &bucket_name(bucket, old.moved),
                &bucket_name(bucket, number),
            )
            .await?;
        for _ in 0..ROUNDS {
            let changes = self.buckets.take_changes();
            let few = changes.len() <= FEW;
            copying.make_up(changes).await?;
            if few {
                break;
            }
        }
        let _closed = self.close(bucket, &mut copying).await?;
        // From here on nothing in the bucket changes, and calls wait; nor does the map, which may have changed since.
        let _changing = self.changing.lock().await;
        let mut map = Map::clone(&self.buckets.map());
        if map.place(bucket) != Some(old) || !takes(&map, to) {
            return Err(MoveError::Nowhere);
        }
        let name = table_name(number);
        let last = async {
            copying.make_up(self.buckets.take_changes()).await?;
            let table = copying.finish().await?;
            let bytes = table.write(old.volume, to).into();
            for (server, shelf) in [(to_server, &to_shelf), (from_server, &from_shelf)] {
                let written = server.write_file(&shelf.tables, &name, &bytes).await;
                written.map_err(|status| MoveError::Server(status, server.volume.0))?;
            }
            Ok(table)
        };
        let table = tokio::select! {
            biased;
            done = last => done?,
            () = self.buckets.servers.patience() => return Err(MoveError::Busy),
        };
        for volume in [old.volume, to] {
            if let Some(member) = map.volumes.get_mut(usize::from(volume.0)) {
                member.tables.push(number);
            }
        }
        if let Some(place) = map.buckets.get_mut(bucket.0 as usize) {
            *place = new;
        }
        map.version += 1;
        // The commit. If it fails, nobody knows which map is kept: neither place may be used until one is.
        while let Err(status) = self.log.keep(&map).await {
            tracing::error!(
                ?status,
                bucket = bucket.0,
                "the map can't be kept: calls wait"
            );
            self.buckets.servers.pause().await;
        }
        let located = Located {
            volume: to,
            moved: number,
            names: Names::of(&table).into(),
        };
        self.buckets
            .moved(bucket, located, map, (old.volume, &table));
        Ok(())
    }

    /// Waits for the calls that touch a bucket, but not long: those that come after them wait too. Between, changes are made up for.
    async fn close(
        &self,
        bucket: Bucket,
        copying: &mut Copying<'_, S>,
    ) -> Result<[OwnedRwLockWriteGuard<()>; 2], MoveError> {
        for _ in 0..ATTEMPTS {
            tokio::select! {
                biased;
                closed = self.buckets.close(bucket) => return closed.ok_or(MoveError::Nowhere),
                () = self.buckets.servers.pause() => {}
            }
            self.buckets.servers.pause().await;
            copying.make_up(self.buckets.take_changes()).await?;
        }
        Err(MoveError::Busy)
    }

    /// Takes away what is left of a bucket where it does not lie any more, or did not come to; and on some volumes its table.
    async fn take_away(
        &self,
        bucket: Bucket,
        place: Place,
        tables: &[Volume],
    ) -> Result<(), MoveError> {
        let (server, shelf) = self.shelf(place.volume)?;
        let failed = |status| MoveError::Server(status, place.volume.0);
        let name = bucket_name(bucket, place.moved);
        let gone = server.remove_all(&shelf.buckets, &name);
        gone.await.map_err(failed)?;
        let name = table_name(place.moved);
        for &volume in tables {
            let (server, shelf) = self.shelf(volume)?;
            let gone = server.remove_all(&shelf.tables, &name);
            let failed = |status| MoveError::Server(status, volume.0);
            gone.await.map_err(failed)?;
        }
        Ok(())
    }

    /// Takes away all that belongs to no bucket and no table of the map: what moves have left that did not go to their end.
    ///
    /// # Errors
    /// [`MoveError::Server`]: something may be left.
    pub async fn sweep(&self) -> Result<(), MoveError> {
        let _moving = self.moving.lock().await;
        let map = self.buckets.map();
        for volume in map.present() {
            let (server, shelf) = self.shelf(volume)?;
            let failed = |status| MoveError::Server(status, volume.0);
            for entry in server.list(&shelf.buckets).await.map_err(failed)? {
                let holds = bucket_of(&entry.name).is_some_and(|(bucket, moved)| {
                    map.place(bucket) == Some(Place { volume, moved })
                });
                if !holds {
                    let gone = server.remove_all(&shelf.buckets, &entry.name);
                    gone.await.map_err(failed)?;
                }
            }
            let tables = map.member(volume).map_or(&[][..], |member| &member.tables);
            for entry in server.list(&shelf.tables).await.map_err(failed)? {
                if !table_number(&entry.name).is_some_and(|number| tables.contains(&number)) {
                    let gone = server.remove_all(&shelf.tables, &entry.name);
                    gone.await.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Where everything is.
    pub fn buckets(&self) -> &Arc<Buckets<S>> {
        &self.buckets
    }
}

/// Whether buckets may go to a volume.
fn takes(map: &Map, volume: Volume) -> bool {
    map.member(volume)
        .is_some_and(|member| member.state == Use::Serving)
}
