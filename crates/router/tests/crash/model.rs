//! NFS servers in memory, which fail and lose answers where they are told to.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use bytes::Bytes;
use quorate_files::Who;
use quorate_files::op::SetTime;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_router::ask::{Ask, Entry, Given, Object, Servers};
use quorate_router::attrs::{ATTR_BYTES, Attrs, DIRECTORY};
use quorate_router::handle::Handle;
use quorate_router::intent::{Intent, Log, Number};
use quorate_router::layout::{Bucket, Volume};
use quorate_router::map::Map;

/// `ftype3` of a file, and of a symbolic link.
const REGULAR: u32 = 1;
const LINK: u32 = 5;
/// The number of each server's root.
pub const ROOT: u64 = 1;
/// Of each server's `placed`, where each is one bucket.
pub const PLACED: u64 = ROOT + 4;

#[derive(Clone, Debug)]
struct Node {
    parent: u64,
    /// Of a directory.
    names: Option<BTreeMap<Bytes, u64>>,
    /// Of a file or a device what is in it, of a symbolic link where it leads.
    text: Vec<u8>,
    kind: u32,
    mtime: u64,
    nlink: u32,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Of files that were written since, what is on the disk.
    on_disk: BTreeMap<u64, Vec<u8>>,
    /// Another after each start.
    verifier: u64,
    /// The bits that modes of directories can have.
    pub dir_modes: u32,
}

pub fn fh(number: u64) -> Fh {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

impl Default for Server {
    fn default() -> Server {
        let root = Node {
            parent: ROOT,
            names: Some(BTreeMap::new()),
            text: Vec::new(),
            kind: DIRECTORY,
            mtime: 0,
            nlink: 2,
            mode: 0o777,
            uid: 0,
            gid: 0,
        };
        Server {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            on_disk: BTreeMap::new(),
            verifier: 7,
            dir_modes: u32::MAX,
        }
    }
}

impl Server {
    fn number(&self, handle: &Fh) -> Result<u64, Status> {
        let bytes = handle[..].try_into().map_err(|_| Status::BadHandle)?;
        let number = u64::from_be_bytes(bytes);
        match self.nodes.contains_key(&number) {
            true => Ok(number),
            false => Err(Status::Stale),
        }
    }

    /// What was not yet on its disk is lost.
    fn restart(&mut self) {
        for (number, text) in std::mem::take(&mut self.on_disk) {
            if let Some(node) = self.nodes.get_mut(&number) {
                node.text = text;
            }
        }
        self.verifier += 1;
    }

    fn names(&mut self, dir: u64) -> Result<&mut BTreeMap<Bytes, u64>, Status> {
        let node = self.nodes.get_mut(&dir).ok_or(Status::Stale)?;
        node.names.as_mut().ok_or(Status::NotDir)
    }

    fn is_dir(&self, number: u64) -> bool {
        self.nodes[&number].names.is_some()
    }

    fn attrs(&self, number: u64) -> Attrs {
        let node = &self.nodes[&number];
        let mut out = Vec::new();
        for word in [node.kind, node.mode, node.nlink, node.uid, node.gid] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&(node.text.len() as u64).to_be_bytes());
        out.resize(52, 0);
        out.extend_from_slice(&number.to_be_bytes());
        out.resize(68, 0);
        out.extend_from_slice(&node.mtime.to_be_bytes());
        out.resize(ATTR_BYTES, 0);
        Attrs(out.try_into().unwrap())
    }

    fn object(&self, number: u64) -> Given {
        Given::Object(Object {
            handle: fh(number),
            attrs: Some(self.attrs(number)),
        })
    }

    fn make(
        &mut self,
        at: Place,
        kind: u32,
        text: Vec<u8>,
        new: NewAttrs,
    ) -> Result<Given, Status> {
        let dir = self.number(&at.dir)?;
        if self.names(dir)?.contains_key(&at.name) {
            return Err(Status::Exist);
        }
        let number = self.next;
        self.next += 1;
        self.names(dir)?.insert(at.name, number);
        let node = Node {
            parent: dir,
            names: (kind == DIRECTORY).then(BTreeMap::new),
            text,
            kind,
            mtime: number << 8,
            nlink: 1,
            mode: new.mode.unwrap_or(0o755),
            uid: new.uid.unwrap_or(0),
            gid: new.gid.unwrap_or(0),
        };
        self.nodes.insert(number, node);
        Ok(self.object(number))
    }

    fn take(&mut self, at: &Place, dir_wanted: bool) -> Result<Given, Status> {
        let dir = self.number(&at.dir)?;
        let number = *self.names(dir)?.get(&at.name).ok_or(Status::NoEnt)?;
        match (dir_wanted, self.is_dir(number)) {
            (true, false) => return Err(Status::NotDir),
            (false, true) => return Err(Status::IsDir),
            (true, true) if !self.names(number)?.is_empty() => return Err(Status::NotEmpty),
            _ => {}
        }
        self.names(dir)?.remove(&at.name);
        self.drop_name(number);
        Ok(Given::Done)
    }

    fn drop_name(&mut self, number: u64) {
        let node = self.nodes.get_mut(&number).unwrap();
        node.nlink -= 1;
        if node.nlink == 0 {
            self.nodes.remove(&number);
        }
    }

    fn rename(&mut self, from: &Place, to: &Place) -> Result<Given, Status> {
        let (dir, new_dir) = (self.number(&from.dir)?, self.number(&to.dir)?);
        let number = *self.names(dir)?.get(&from.name).ok_or(Status::NoEnt)?;
        let mut above = new_dir;
        while self.is_dir(number) && above != ROOT {
            if above == number {
                return Err(Status::Inval);
            }
            above = self.nodes[&above].parent;
        }
        if let Some(&other) = self.names(new_dir)?.get(&to.name) {
            if other == number {
                return Ok(Given::Done);
            }
            match (self.is_dir(number), self.is_dir(other)) {
                (true, false) => return Err(Status::NotDir),
                (false, true) => return Err(Status::IsDir),
                (true, true) if !self.names(other)?.is_empty() => return Err(Status::NotEmpty),
                _ => {}
            }
            self.drop_name(other);
        }
        self.names(dir)?.remove(&from.name);
        self.names(new_dir)?.insert(to.name.clone(), number);
        self.nodes.get_mut(&number).unwrap().parent = new_dir;
        Ok(Given::Done)
    }

    /// Removes an epoch's empty directory from `staging`.
    pub fn remove_staged(&mut self, epoch: u64) {
        let place = Place {
            dir: fh(ROOT + 3),
            name: format!("{epoch:016x}").into(),
        };
        self.ask(Ask::Rmdir(place)).expect("it is empty");
    }

    pub fn ask(&mut self, ask: Ask) -> Result<Given, Status> {
        Ok(match ask {
            Ask::GetAttr(fh) => {
                let number = self.number(&fh)?;
                Given::Attrs(self.attrs(number))
            }
            Ask::SetAttr(fh, new) => {
                let number = self.number(&fh)?;
                let node = self.nodes.get_mut(&number).unwrap();
                node.mode = new.mode.unwrap_or(node.mode);
                if node.names.is_some() {
                    node.mode &= self.dir_modes;
                }
                node.uid = new.uid.unwrap_or(node.uid);
                node.gid = new.gid.unwrap_or(node.gid);
                if let Some(size) = new.size {
                    node.text.resize(size as usize, 0);
                    if let Some(text) = self.on_disk.get_mut(&number) {
                        text.resize(size as usize, 0);
                    }
                }
                if let Some(SetTime::At(at)) = new.mtime {
                    node.mtime = (at.secs as u64) << 32 | u64::from(at.nanos);
                }
                Given::Done
            }
            Ask::Lookup(at) => {
                let dir = self.number(&at.dir)?;
                let names = self.names(dir)?;
                let number = match &at.name[..] {
                    b".." => self.nodes[&dir].parent,
                    _ => *names.get(&at.name).ok_or(Status::NoEnt)?,
                };
                self.object(number)
            }
            Ask::Access(fh, mask) => {
                self.number(&fh)?;
                Given::Allowed(mask)
            }
            Ask::Readlink(fh) => {
                let number = self.number(&fh)?;
                Given::Text(self.nodes[&number].text.clone().into())
            }
            Ask::Mkdir(at, new) => self.make(at, DIRECTORY, Vec::new(), new)?,
            Ask::Symlink(at, text) => self.make(at, LINK, text.to_vec(), NewAttrs::default())?,
            Ask::Create(at, new) => self.make(at, REGULAR, Vec::new(), new)?,
            Ask::Mknod { at, kind, new, .. } => self.make(at, kind, Vec::new(), new)?,
            Ask::Read {
                file,
                offset,
                count,
            } => {
                let number = self.number(&file)?;
                let text = &self.nodes[&number].text;
                let start = text.len().min(offset as usize);
                let end = text.len().min(start + count as usize);
                Given::Data {
                    data: Bytes::copy_from_slice(&text[start..end]),
                    end: end == text.len(),
                }
            }
            Ask::Write {
                file,
                offset,
                data,
                stable,
            } => {
                let number = self.number(&file)?;
                let node = self.nodes.get_mut(&number).unwrap();
                if stable {
                    self.on_disk.remove(&number);
                } else {
                    let entry = self.on_disk.entry(number);
                    entry.or_insert_with(|| node.text.clone());
                }
                let end = offset as usize + data.len();
                node.text.resize(node.text.len().max(end), 0);
                node.text[offset as usize..end].copy_from_slice(&data);
                node.mtime += 1;
                Given::Written {
                    count: data.len() as u32,
                    verifier: self.verifier,
                }
            }
            Ask::Commit(file) => {
                let number = self.number(&file)?;
                self.on_disk.remove(&number);
                Given::Written {
                    count: 0,
                    verifier: self.verifier,
                }
            }
            Ask::Remove(at) => self.take(&at, false)?,
            Ask::Rmdir(at) => self.take(&at, true)?,
            Ask::Rename(from, to) => self.rename(&from, &to)?,
            Ask::Link(fh, at) => {
                let (number, dir) = (self.number(&fh)?, self.number(&at.dir)?);
                if self.is_dir(number) {
                    return Err(Status::Perm);
                }
                if self.names(dir)?.contains_key(&at.name) {
                    return Err(Status::Exist);
                }
                self.names(dir)?.insert(at.name, number);
                self.nodes.get_mut(&number).unwrap().nlink += 1;
                Given::Done
            }
            Ask::ReadDir { dir, cookie, .. } => {
                let dir = self.number(&dir)?;
                // Few at a time, so that listings have to go on.
                let skip = cookie as usize;
                let names = self.names(dir)?;
                let entries: Vec<Entry> = names
                    .iter()
                    .enumerate()
                    .skip(skip)
                    .take(3)
                    .map(|(n, (name, &fileid))| Entry {
                        fileid,
                        name: name.clone(),
                        cookie: n as u64 + 1,
                    })
                    .collect();
                Given::Entries {
                    verifier: 0,
                    end: skip + entries.len() >= names.len(),
                    entries,
                }
            }
        })
    }
}

/// What happens at an order or a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The router dies before it.
    CrashBefore,
    /// The router dies after it.
    CrashAfter,
    /// It is not carried out, and nobody knows.
    LostOrder,
    /// It is carried out, and nobody knows.
    LostAnswer,
    /// It fails.
    Refused,
    /// It is on its way until the world is told to go on, and so is all that comes after it.
    Late,
    /// The same, and the router dies.
    LateAndLast,
    /// All servers start again before it.
    Restart,
}

pub const FAULTS: [Fault; 5] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::LostOrder,
    Fault::LostAnswer,
    Fault::Refused,
];

#[derive(Clone, Debug, Default)]
pub struct State {
    pub servers: Vec<Server>,
    pub open: BTreeMap<u64, Intent>,
    /// The map that is kept.
    pub map: Option<Map>,
    pub next: u64,
    /// How many orders and records there were.
    pub steps: u64,
    /// At which of them what is to happen.
    pub fault: Option<(u64, Fault)>,
    /// Whether others may do something before each of them.
    pub yields: bool,
    /// Directories of clients are told to be empty: what is in them comes right after the look.
    pub hides: bool,
    /// A server does not answer for names that begin so.
    pub unanswered: Option<Bytes>,
    /// Nothing is waited for that may take long.
    pub impatient: bool,
    /// Nobody may search a directory.
    pub unsearchable: bool,
    /// What is late stays so.
    pub holds_back: bool,
    /// Which life of the router this is.
    pub epoch: u64,
}

impl State {
    fn does_not_answer(&self, name: &Bytes) -> bool {
        let names = self.unanswered.as_ref();
        names.is_some_and(|names| name.starts_with(names))
    }
}

/// All servers, and the log.
#[derive(Debug, Default)]
pub struct World(pub Mutex<State>);

impl World {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub async fn step<T>(
        &self,
        can_be_lost: bool,
        act: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut waits = self.lock().yields;
        std::future::poll_fn(|_| match std::mem::take(&mut waits) {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        })
        .await;
        let fault = {
            let mut state = self.lock();
            state.steps += 1;
            match state.fault {
                Some((at, fault)) if at == state.steps => Some(fault),
                _ => None,
            }
        };
        if matches!(fault, Some(Fault::Late | Fault::LateAndLast)) {
            self.lock().holds_back = true;
            std::future::poll_fn(|_| match self.lock().holds_back {
                true => Poll::Pending,
                false => Poll::Ready(()),
            })
            .await;
        }
        let done = {
            let mut state = self.lock();
            if fault == Some(Fault::Restart) {
                state.servers.iter_mut().for_each(Server::restart);
            }
            let skipped = match fault {
                Some(Fault::CrashBefore) => true,
                Some(Fault::LostOrder | Fault::Refused) => can_be_lost,
                _ => false,
            };
            (!skipped).then(|| act(&mut state))
        };
        match (fault, done) {
            (Some(Fault::CrashBefore | Fault::CrashAfter | Fault::LateAndLast), _) => {
                std::future::pending().await
            }
            (Some(Fault::LostAnswer), Some(_)) if can_be_lost => Err(Status::Jukebox),
            (Some(Fault::Refused), None) => Err(Status::NoSpc),
            (_, Some(done)) => done,
            (_, None) => Err(Status::Jukebox),
        }
    }
}

/// Where buckets are not what is tested, each server is one.
impl Servers<Bucket> for &World {
    async fn ask(&self, bucket: Bucket, _: &Who, ask: Ask) -> Result<Given, Status> {
        self.step(true, |state| match &ask {
            Ask::ReadDir { dir, .. } if state.hides && *dir != fh(PLACED) => Ok(Given::Entries {
                verifier: 0,
                entries: Vec::new(),
                end: true,
            }),
            Ask::Lookup(at) if state.does_not_answer(&at.name) => Err(Status::Jukebox),
            Ask::Access(_, mask) if state.unsearchable => Ok(Given::Allowed(mask & !0x2)),
            _ => state.servers[bucket.0 as usize].ask(ask),
        })
        .await
    }

    async fn pause(&self) {}

    async fn patience(&self) {
        std::future::poll_fn(|_| match self.lock().impatient {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

impl Servers for &World {
    async fn ask(&self, volume: Volume, _: &Who, ask: Ask) -> Result<Given, Status> {
        self.step(true, |state| state.servers[usize::from(volume.0)].ask(ask))
            .await
    }

    async fn pause(&self) {}
}

impl Log for &World {
    async fn keep(&self, map: &Map) -> Result<(), Status> {
        // As it comes back from a disk.
        let map = Map::read(map.write().into()).unwrap();
        self.step(false, |state| {
            let kept = state.map.as_ref().expect("there is one from the start");
            assert_eq!(map.version, kept.version + 1);
            state.map = Some(map);
            Ok(())
        })
        .await
    }

    type Hold = ();

    fn is_current(&self) -> bool {
        true
    }

    async fn confirm(&self) -> bool {
        true
    }

    async fn hold(&self, _: Vec<Handle>) -> Result<(), Status> {
        Ok(())
    }

    async fn begin(&self, intent: &Intent) -> Result<Number, Status> {
        // As it comes back from a disk.
        let intent = Intent::read(intent.write().into()).unwrap();
        self.step(false, |state| {
            state.next += 1;
            let number = state.next;
            state.open.insert(number, intent);
            Ok(Number(number))
        })
        .await
    }

    async fn end(&self, number: Number) -> Result<(), Status> {
        self.step(false, |state| {
            state.open.remove(&number.0);
            Ok(())
        })
        .await
    }
}
