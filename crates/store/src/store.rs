//! Opening, checkpoints, and where the store stands.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_state::{Layer, Snapshot, tree};
use quorate_wire::{Body, Decode, Digest, Encode, Reader, Seq};
use redb::{Builder, Database, Durability, WriteTransaction};

use crate::blobs::Blobs;
use crate::blocks::{Blocks, Disk};
use crate::error::StoreError;
use crate::rows::{self, Damage, ENTRIES, Kind, META, NODES, REFS, SEGMENTS, StoreSnapshot};
use crate::space::{self, Entries, Space, WriteTable};

const POSITION: &[u8] = b"position";

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most memory for pages of the file, in bytes: those that were read, and those that a checkpoint is writing, which
    /// go to the file when they take half of it. However large the file is, no more of it is kept.
    pub cache_bytes: usize,
}

impl Default for Options {
    /// 64 MiB of cache: a group of four replicas runs on one machine when someone tries it.
    fn default() -> Options {
        Options {
            cache_bytes: 64 << 20,
        }
    }
}

/// Where a store stands.
#[derive(Clone, Debug)]
pub struct Position {
    /// The checkpoint last written; 0 in a new store.
    pub seq: Seq,
    /// The root digest of the contents.
    pub root: Digest,
    /// Whether the contents are that checkpoint. If not, a state transfer towards it was under way.
    pub complete: bool,
    /// The contents.
    pub snapshot: Arc<dyn Snapshot>,
}

/// The stable store of one replica's state.
pub struct Store {
    path: PathBuf,
    database: Database,
    space: Space,
    newest: Position,
    is_new: bool,
    damage: Damage,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path)
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in the file at `path`, at its last checkpoint; or makes a new one. The directory must be there. Large
    /// values lie in `blobs`, which are this store's and that of the log beside it.
    ///
    /// # Errors
    /// [`StoreError`] says whose fault it is and what to do.
    pub fn open(path: &Path, blobs: Arc<Blobs>, options: Options) -> Result<Store, StoreError> {
        let lock = lock(path)?;
        let exists = path.try_exists().map_err(|e| StoreError::io(path, e))?;
        let database = match exists {
            true => open_database(path, false, options, lock)?,
            false => create(path, options, lock)?,
        };
        Store::over(database, blobs, path)
    }

    pub(crate) fn over(
        database: Database,
        blobs: Arc<Blobs>,
        path: &Path,
    ) -> Result<Store, StoreError> {
        let live = {
            let read = begin_read(&database, path)?;
            let table = read.open_table(SEGMENTS);
            space::read_live(&table.map_err(|e| StoreError::redb(path, e))?, path)?
        };
        blobs.list().map_err(StoreError::blob)?;
        let mut space = Space::new(blobs, live);
        let damage = Damage::default();
        let (newest, is_new) = read_position(&database, &space.blobs, path, &damage)?;
        space.watch(&newest.snapshot);
        tracing::debug!(path = %path.display(), seq = newest.seq.0, complete = newest.complete, "opened the store");
        Ok(Store {
            path: path.to_owned(),
            database,
            space,
            newest,
            is_new,
            damage,
        })
    }

    /// Whether nothing was ever written.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether damage was found, here or by a snapshot.
    pub fn damage(&self) -> Damage {
        self.damage.clone()
    }

    /// Where the store stands.
    pub fn newest(&self) -> Position {
        self.newest.clone()
    }

    /// Takes note of the digests of a long operation's pieces: values that are these very bytes, and are written up to the checkpoint `seq`, are not
    /// hashed again.
    pub fn know(&self, body: Body, seq: Seq) {
        self.space.blobs.know(body, seq);
    }

    /// Writes `delta` over the newest contents, durably and as a whole, and returns the new root and a snapshot of the new
    /// contents. `complete` says whether they are checkpoint `seq`; otherwise they are a step of a transfer towards it.
    ///
    /// Blocks until the disk has it. After an error, drop the store and its snapshots and open it again: it is at the
    /// contents before or, seldom, after.
    ///
    /// # Errors
    /// [`StoreError`] says whose fault it is and what to do.
    pub fn checkpoint(
        &mut self,
        seq: Seq,
        delta: &Layer,
        complete: bool,
    ) -> Result<(Digest, Arc<dyn Snapshot>), StoreError> {
        let blobs = &self.space.blobs;
        let update = tree::update(&*self.newest.snapshot, delta, |value| blobs.digest(value))
            .map_err(|fault| self.damage.judge(&self.path, fault))?;
        let write = begin(&self.database, &self.path)?;
        Entries::open(&write, &mut self.space, &self.path)?.write(delta, &update.values)?;
        {
            let mut nodes = open_table(&write, NODES, &self.path)?;
            apply(&mut nodes, Kind::Node, &update.nodes, &self.path)?;
            let mut meta = open_table(&write, META, &self.path)?;
            let mut content = Vec::new();
            seq.encode(&mut content);
            update.root.encode(&mut content);
            complete.encode(&mut content);
            insert(&mut meta, Kind::Meta, POSITION, &content, &self.path)?;
        }
        write
            .commit()
            .map_err(|e| StoreError::redb(&self.path, e))?;
        let (database, blobs) = (&self.database, &self.space.blobs);
        (self.newest, self.is_new) = read_position(database, blobs, &self.path, &self.damage)?;
        assert!(!self.is_new && self.newest.root == update.root);
        self.space.blobs.forget(seq);
        self.space.sweep(&self.newest.snapshot)?;
        Ok((update.root, self.newest.snapshot.clone()))
    }
}

/// Keeps other processes out, and tells them who is here.
fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = beside(path, ".lock");
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path);
    let mut file = opened.map_err(|e| StoreError::io(path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreError::locked(path, &lock_path)),
        Err(TryLockError::Error(e)) => return Err(StoreError::io(path, e)),
    }
    let note = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    note.map_err(|e| StoreError::io(path, e))?;
    Ok(file)
}

/// Makes the store under another name first: a crash on the way leaves no half store.
fn create(path: &Path, options: Options, lock: File) -> Result<Database, StoreError> {
    let made = beside(path, ".new");
    match fs::remove_file(&made) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(StoreError::io(path, e)),
        _ => {}
    }
    let database = open_database(&made, true, options, lock)?;
    make_tables(&database, path)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let named = fs::rename(&made, path)
        .and_then(|()| File::open(directory))
        .and_then(|directory| directory.sync_all());
    named.map_err(|e| StoreError::io(path, e))?;
    Ok(database)
}

pub(crate) fn make_tables(database: &Database, path: &Path) -> Result<(), StoreError> {
    let write = begin(database, path)?;
    for table in [ENTRIES, NODES, META, REFS, SEGMENTS] {
        drop(open_table(&write, table, path)?);
    }
    write.commit().map_err(|e| StoreError::redb(path, e))
}

pub(crate) fn open_existing(path: &Path, options: Options) -> Result<Database, StoreError> {
    let lock = lock(path)?;
    open_database(path, false, options, lock)
}

fn open_database(
    path: &Path,
    create: bool,
    options: Options,
    lock: File,
) -> Result<Database, StoreError> {
    let blocks = Blocks::open(path, create, Some(lock)).map_err(|e| StoreError::io(path, e))?;
    database_on(blocks, options).map_err(|e| StoreError::redb(path, e))
}

pub(crate) fn database_on<D: Disk>(
    blocks: Blocks<D>,
    options: Options,
) -> Result<Database, redb::DatabaseError> {
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes);
    // The blocks that are there are whole, but redb panics over a file that was cut short: it takes that for a defect of
    // its own. Nothing of it is used afterwards.
    let opened = panic::catch_unwind(AssertUnwindSafe(|| builder.create_with_backend(blocks)));
    opened.unwrap_or_else(|_| {
        let what = "parts of the file are missing".into();
        Err(redb::StorageError::Corrupted(what).into())
    })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn begin(database: &Database, path: &Path) -> Result<WriteTransaction, StoreError> {
    let mut write = database
        .begin_write()
        .map_err(|e| StoreError::redb(path, e))?;
    // In one phase, redb takes a commit for whole if an unkeyed checksum says so, which a client who knows the file
    // could make come true; and after a crash it would read the whole file.
    write.set_two_phase_commit(true);
    write.set_quick_repair(true);
    write
        .set_durability(Durability::Immediate)
        .map_err(|e| StoreError::redb(path, e))?;
    Ok(write)
}

fn open_table<'a>(
    write: &'a WriteTransaction,
    table: rows::Definition,
    path: &Path,
) -> Result<WriteTable<'a>, StoreError> {
    write
        .open_table(table)
        .map_err(|e| StoreError::redb(path, e))
}

fn apply(
    table: &mut WriteTable<'_>,
    kind: Kind,
    delta: &Layer,
    path: &Path,
) -> Result<(), StoreError> {
    for (key, content) in delta {
        match content {
            Some(content) => insert(table, kind, key, content, path)?,
            None => {
                let removed = table.remove(&key[..]);
                removed.map_err(|e| StoreError::redb(path, e))?;
            }
        }
    }
    Ok(())
}

fn insert(
    table: &mut WriteTable<'_>,
    kind: Kind,
    key: &[u8],
    content: &[u8],
    path: &Path,
) -> Result<(), StoreError> {
    let row = rows::seal(kind, key, content);
    table
        .insert(key, &row[..])
        .map_err(|e| StoreError::redb(path, e))?;
    Ok(())
}

pub(crate) fn begin_read(
    database: &Database,
    path: &Path,
) -> Result<redb::ReadTransaction, StoreError> {
    use redb::ReadableDatabase;
    database.begin_read().map_err(|e| StoreError::redb(path, e))
}

/// The contents as a transaction reads them. `offers`: see [`StoreSnapshot`].
pub(crate) fn snapshot_of(
    read: &redb::ReadTransaction,
    blobs: &Arc<Blobs>,
    path: &Path,
    damage: &Damage,
    offers: bool,
) -> Result<StoreSnapshot, StoreError> {
    let table = |definition| {
        read.open_table(definition)
            .map_err(|e| StoreError::redb(path, e))
    };
    Ok(StoreSnapshot {
        entries: table(ENTRIES)?,
        nodes: table(NODES)?,
        blobs: blobs.clone(),
        path: path.to_owned(),
        damage: damage.clone(),
        offers,
    })
}

/// The newest position, and whether it is the one before any checkpoint.
fn read_position(
    database: &Database,
    blobs: &Arc<Blobs>,
    path: &Path,
    damage: &Damage,
) -> Result<(Position, bool), StoreError> {
    let read = begin_read(database, path)?;
    let snapshot = Arc::new(snapshot_of(&read, blobs, path, damage, false)?);
    let found = tree::root(&*snapshot).map_err(|fault| damage.judge(path, fault))?;
    let row = read
        .open_table(META)
        .map_err(|e| StoreError::redb(path, e))?
        .get(POSITION)
        .map_err(|e| StoreError::redb(path, e))?;
    let is_new = row.is_none();
    let (seq, root, complete) = match row {
        Some(row) => decode_position(row.value(), path)?,
        None => (Seq(0), tree::empty_root(), true),
    };
    if found != root {
        return Err(StoreError::Corrupt {
            path: path.to_owned(),
            what: "the tree's root is not the checkpoint's".into(),
        });
    }
    let position = Position {
        seq,
        root,
        complete,
        snapshot,
    };
    Ok((position, is_new))
}

fn decode_position(row: &[u8], path: &Path) -> Result<(Seq, Digest, bool), StoreError> {
    let content =
        rows::open(Kind::Meta, POSITION, row).map_err(|fault| StoreError::fault(path, fault))?;
    let mut r = Reader::new(content.to_vec().into());
    let mut decode = || {
        let position = (
            Seq::decode(&mut r)?,
            Digest::decode(&mut r)?,
            bool::decode(&mut r)?,
        );
        r.finish()?;
        Ok(position)
    };
    decode().map_err(|e: quorate_wire::DecodeError| StoreError::Corrupt {
        path: path.to_owned(),
        what: format!("its position can't be read: {e}"),
    })
}
