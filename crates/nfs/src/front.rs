//! Calls, from their bytes to the bytes of their replies.
//!
//! - `attrs`, `names`, `data`, `listing`: the procedures of NFS.
//! - `mount`: those of MOUNT.
//!
//! Each procedure is one operation of the file service wherever it can be: attributes before and after come with it
//! ([`WithAttrs`]), so they are those of that very moment.

mod attrs;
mod data;
mod listing;
mod mount;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quorate_client::{Accesses, CallError, Volume};
use quorate_files::answer::Version;
use quorate_files::op::{Lookup, WithAttrs};
use quorate_files::{Action, Answer, Attr, Ino, Stamp, Who};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::call::{self, Call, Place};
use crate::exports::{Export, Exports};
use crate::handle::{HANDLE_BYTES, Named, Secrets};
use crate::replays::{Begun, Replays, from_port, said};
use crate::reply::{Reply, version};
use crate::rpc::{Accepted, Credential, Head, accepted, denied, read_head};
use crate::server::Answers;
use crate::server::carrier::Carried;
use crate::server::client::Peer;
use crate::status::Status;
use crate::xdr::Reader;

/// The most bytes of calls that change something and are at the group, for all clients.
const CHANGES_BYTES: usize = 128 << 20;
/// The longest name (as the file service has it; longer ones need not be sent there).
const MAX_NAME_BYTES: usize = quorate_files::layout::MAX_NAME_BYTES;

/// What a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is offered to whom.
    pub exports: Exports,
    /// What the paths of exports begin at: the volume's root, or the directory that a guest was let in to.
    pub root: Ino,
    /// Makes handles.
    pub secrets: Secrets,
    /// How long a call may take until the client is told to come again.
    pub patience: Duration,
}

/// All that calls share. Of connections it knows only whether they are there.
#[derive(Debug)]
pub struct Front {
    volume: Volume,
    /// Made by the first call that needs it: those are in a runtime.
    accesses: OnceLock<Arc<Accesses>>,
    settings: Settings,
    replays: Replays,
    changes: Arc<Semaphore>,
    /// The root directories of exports, as they were found last.
    roots: Mutex<BTreeMap<u64, Ino>>,
    mounts: mount::Mounts,
    /// From where there are connections whose clients may say more.
    connected: Mutex<BTreeSet<SocketAddr>>,
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// From where.
    pub peer: Peer,
    /// As whom, as he says.
    pub credential: Credential,
}

/// What a handle names, and as whom its holder acts there.
#[derive(Debug)]
struct Object<'a> {
    ino: Ino,
    export: &'a Export,
    who: Who,
}

/// A call that was read.
#[derive(Debug)]
pub struct Parsed(What);

#[derive(Debug)]
enum What {
    /// Refused before any procedure sees it.
    Answered(Vec<u8>),
    Nfs(Head, Call, Bytes),
    Mount(Head, Reader),
}

impl Parsed {
    /// The most bytes that its reply can have.
    pub fn reply_bytes(&self) -> usize {
        match &self.0 {
            What::Answered(reply) => reply.len(),
            What::Nfs(_, call, _) => call.reply_bytes(),
            What::Mount(..) => mount::MAX_REPLY_BYTES,
        }
    }
}

/// Reads a record; none if it is no call.
pub fn parse(record: Bytes) -> Option<Parsed> {
    let mut r = Reader::new(record);
    let head = match read_head(&mut r) {
        Ok(head) => head,
        Err(refused) => return denied(refused).map(|w| Parsed(What::Answered(w.out))),
    };
    let xid = head.xid;
    let no = |why| What::Answered(accepted(xid, why, 0).out);
    let arguments = r.rest().clone();
    Some(Parsed(match (head.program, head.version) {
        (call::PROGRAM, call::VERSION) => match Call::read(head.procedure, &mut r) {
            None => no(Accepted::NoProcedure),
            Some(Err(_)) => no(Accepted::Garbage),
            Some(Ok(call)) => What::Nfs(head, call, arguments),
        },
        (mount::PROGRAM, mount::VERSION) => What::Mount(head, r),
        (call::PROGRAM, _) => no(Accepted::OtherVersion(call::VERSION)),
        (mount::PROGRAM, _) => no(Accepted::OtherVersion(mount::VERSION)),
        _ => no(Accepted::NoProgram),
    }))
}

/// What an operation came to, with the attributes of objects around it.
#[derive(Debug)]
struct Seen {
    before: Vec<Option<Version>>,
    after: Vec<Option<Attr>>,
    outcome: Result<Answer, Status>,
}

impl Seen {
    fn after(&self, index: usize) -> Option<&Attr> {
        self.after.get(index)?.as_ref()
    }

    fn status(&self) -> Status {
        self.outcome.as_ref().err().copied().unwrap_or(Status::Ok)
    }
}

/// What a procedure writes, or a status with which no attributes go.
type Done = Result<Reply, Status>;

impl Front {
    /// A front of a volume.
    pub fn new(volume: Volume, settings: Settings) -> Front {
        Front {
            accesses: OnceLock::new(),
            volume,
            settings,
            replays: Replays::default(),
            changes: Arc::new(Semaphore::new(CHANGES_BYTES)),
            roots: Mutex::default(),
            mounts: mount::Mounts::default(),
            connected: Mutex::default(),
        }
    }

    /// Something was read that has these attributes.
    fn was_read(&self, attr: &Attr) {
        let new = || Accesses::new(self.volume.clone(), Handle::current());
        self.accesses.get_or_init(new).note(attr);
    }

    /// What is offered to whom.
    pub fn exports(&self) -> &Exports {
        &self.settings.exports
    }

    /// Answers a call. Not longer than it was said that it may take, and at the group it goes on if it changes something.
    pub async fn answer(self: &Arc<Front>, peer: Peer, parsed: Parsed) -> Vec<u8> {
        match parsed.0 {
            What::Answered(reply) => reply,
            What::Mount(head, arguments) => self.mount(peer.address, head, arguments).await.out,
            What::Nfs(head, call, arguments) => {
                let body = self.nfs(peer, &head, call, arguments).await;
                let mut w = accepted(head.xid, Accepted::Success, body.len());
                w.fixed(&body);
                w.out
            }
        }
    }

    async fn nfs(
        self: &Arc<Front>,
        peer: Peer,
        head: &Head,
        call: Call,
        arguments: Bytes,
    ) -> Bytes {
        let procedure = head.procedure;
        let caller = Caller {
            peer,
            credential: head.credential.clone(),
        };
        if call.is_change() {
            return Bytes::from_owner(self.change(caller, head, call, arguments).await);
        }
        let patience = self.settings.patience;
        let done = tokio::time::timeout(patience, self.work(&caller, procedure, call)).await;
        let come_again = || refusal(procedure, Status::Jukebox);
        done.unwrap_or_else(|_| come_again()).into()
    }

    /// A call that changes something is done once, to its end, whether its client waits or not.
    async fn change(
        self: &Arc<Front>,
        caller: Caller,
        head: &Head,
        call: Call,
        arguments: Bytes,
    ) -> Arc<[u8]> {
        let (procedure, xid) = (head.procedure, head.xid);
        let patience = self.settings.patience;
        let peer = caller.peer;
        let said = said(peer, &ids(&caller.credential), procedure, &arguments);
        let sum = from_port(said, peer.address.port());
        let come_again = || refusal(procedure, Status::Jukebox).into();
        // Who has not come over a connection that is known here is never taken for another one.
        let has_ended = |from| self.is_connected(peer.address) && !self.is_connected(from);
        let from = peer.address;
        let begun = self.replays.begin_on_connection(said, from, xid, has_ended);
        let wait = match begun {
            Begun::Full => return come_again(),
            Begun::Known(wait) => wait,
            Begun::New(work) => {
                let room = arguments.len() as u32;
                let room = self.changes.clone().acquire_many_owned(room);
                let Ok(Ok(room)) = tokio::time::timeout(patience, room).await else {
                    // It was not sent: with its next number it is a new call.
                    work.finish(refusal(procedure, Status::Jukebox));
                    return come_again();
                };
                let Some(wait) = self.replays.wait(sum, xid) else {
                    return come_again();
                };
                let front = self.clone();
                work.send();
                tokio::spawn(async move {
                    let reply = front.work(&caller, procedure, call).await;
                    drop(room);
                    work.finish(reply);
                });
                wait
            }
        };
        match wait.reply(patience).await {
            Some(Ok(reply)) => reply,
            Some(Err(())) => refusal(procedure, Status::ServerFault).into(),
            None => come_again(),
        }
    }

    /// Does a call, however long it takes.
    async fn work(&self, caller: &Caller, procedure: u32, call: Call) -> Vec<u8> {
        let done = match call {
            Call::Null => return Vec::new(),
            Call::GetAttr(object) => self.get_attr(caller, &object).await,
            Call::SetAttr {
                object,
                attrs,
                guard,
            } => self.set_attr(caller, &object, attrs, guard).await,
            Call::Lookup(place) => self.lookup(caller, place).await,
            Call::Access { object, mask } => self.access(caller, &object, mask).await,
            Call::Readlink(object) => self.readlink(caller, &object).await,
            Call::Read {
                file,
                offset,
                count,
            } => self.read(caller, &file, offset, count).await,
            Call::Write { file, offset, data } => self.write(caller, &file, offset, data).await,
            Call::Create(place, how) => self.create(caller, place, how).await,
            Call::Mkdir(place, attrs) => self.mkdir(caller, place, attrs).await,
            Call::Symlink(place, attrs, target) => self.symlink(caller, place, attrs, target).await,
            Call::Mknod(place, special) => self.mknod(caller, place, special).await,
            Call::Remove(place) => self.remove(caller, place).await,
            Call::Rmdir(place) => self.rmdir(caller, place).await,
            Call::Rename(from, to) => self.rename(caller, from, to).await,
            Call::Link { file, new } => self.link(caller, &file, new).await,
            Call::ReadDir(listing) => self.read_dir(caller, listing).await,
            Call::FsStat(object) => self.fs_stat(caller, &object).await,
            Call::FsInfo(object) => self.fs_info(caller, &object).await,
            Call::PathConf(object) => self.path_conf(caller, &object).await,
            Call::Commit(object) => self.commit(caller, &object).await,
        };
        match done {
            Ok(reply) => reply.w.out,
            Err(status) => refusal(procedure, status),
        }
    }

    fn reply(&self, status: Status) -> Reply {
        Reply::new(status, self.settings.secrets.fsid)
    }

    fn handle(&self, export: &Export, ino: Ino) -> [u8; HANDLE_BYTES] {
        let export = export.id;
        self.settings.secrets.handle(Named { export, ino })
    }

    /// What a handle names, if it is offered to the caller.
    fn object(&self, caller: &Caller, handle: &[u8]) -> Result<Object<'_>, Status> {
        let named = self.settings.secrets.read(handle)?;
        // One that is not offered any more is as good as gone.
        let export = self
            .settings
            .exports
            .by_id(named.export)
            .ok_or(Status::Stale)?;
        let from = caller.peer.address;
        if !export.admits(from.ip()) || export.secure && from.port() >= 1024 {
            return Err(Status::Acces);
        }
        Ok(Object {
            ino: named.ino,
            export,
            who: export.who(&caller.credential),
        })
    }

    /// The same, to be changed.
    fn changeable(&self, caller: &Caller, handle: &[u8]) -> Result<Object<'_>, Status> {
        let object = self.object(caller, handle)?;
        match object.export.read_only {
            true => Err(Status::RoFs),
            false => Ok(object),
        }
    }

    /// A directory to be changed, and a name to be in it that can be one.
    fn place(&self, caller: &Caller, place: &Place) -> Result<Object<'_>, Status> {
        let dir = self.changeable(caller, &place.dir)?;
        match place.name.len() > MAX_NAME_BYTES {
            true => Err(Status::NameTooLong),
            false => Ok(dir),
        }
    }

    /// Does an action, with a look at objects before and after.
    async fn seen(&self, who: &Who, objects: Vec<Ino>, action: Action) -> Result<Seen, Status> {
        self.seen_if(who, objects, None, action).await
    }

    async fn seen_if(
        &self,
        who: &Who,
        objects: Vec<Ino>,
        guard: Option<Stamp>,
        action: Action,
    ) -> Result<Seen, Status> {
        let op = WithAttrs {
            guard,
            ..WithAttrs::new(objects, action)
        };
        let answer = self.volume.with_attrs(who, op).await?;
        let before = answer.before.iter();
        Ok(Seen {
            before: before.map(|attr| attr.as_ref().map(version)).collect(),
            after: answer.after,
            outcome: answer.outcome.0.map_err(Status::from),
        })
    }

    /// The root directory of an export.
    async fn root(&self, export: &Export) -> Result<Ino, Status> {
        if export.path.is_empty() {
            return Ok(self.settings.root);
        }
        let known = self.roots().get(&export.id).copied();
        match known {
            Some(ino) => Ok(ino),
            None => self.find_root(export).await,
        }
    }

    /// Looks for it; the operator has named it, so as the superuser.
    async fn find_root(&self, export: &Export) -> Result<Ino, Status> {
        let (who, mut ino) = (Who::root(), self.settings.root);
        for name in &export.path {
            let name = Bytes::copy_from_slice(name);
            ino = self
                .volume
                .lookup(&who, Lookup { parent: ino, name })
                .await?
                .ino;
        }
        self.roots().insert(export.id, ino);
        Ok(ino)
    }

    fn roots(&self) -> MutexGuard<'_, BTreeMap<u64, Ino>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_connected(&self, from: SocketAddr) -> bool {
        self.connected().contains(&from)
    }
}

impl Answers for Front {
    type Call = Parsed;

    fn admits(&self, address: IpAddr) -> bool {
        self.settings.exports.admit(address)
    }

    async fn carry(self: &Arc<Front>, stream: TcpStream, peer: SocketAddr) -> Carried {
        self.connected().insert(peer);
        Carried::from(stream)
    }

    fn left(&self, peer: Peer) {
        self.connected().remove(&peer.address);
    }

    fn parse(&self, record: Bytes) -> Option<Parsed> {
        parse(record)
    }

    fn reply_bytes(&self, call: &Parsed) -> usize {
        call.reply_bytes()
    }

    async fn answer(self: &Arc<Front>, peer: Peer, call: Parsed) -> Vec<u8> {
        Front::answer(self, peer, call).await
    }
}

impl Reply {
    /// What was before and after an operation of one of its objects.
    fn seen(&mut self, seen: &Seen, index: usize) {
        let before = seen.before.get(index).cloned().flatten();
        self.changed(before, seen.after(index));
    }
}

/// The body of a refusal without attributes.
fn refusal(procedure: u32, status: Status) -> Vec<u8> {
    let words = call::refusal_words(procedure).unwrap_or(0);
    let mut out = (status as u32).to_be_bytes().to_vec();
    out.resize(4 + 4 * words, 0);
    out
}

fn ids(credential: &Credential) -> Vec<u32> {
    match credential {
        Credential::None => Vec::new(),
        Credential::Sys { uid, gid, groups } => [&[*uid, *gid], &groups[..]].concat(),
    }
}

/// An answer of another kind than the operation has: the replicas run another version.
fn another_kind<T>() -> Result<T, Status> {
    Err(CallError::Garbled.into())
}
