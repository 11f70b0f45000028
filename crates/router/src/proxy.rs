//! Which call goes where, and what comes back.

mod away;
mod mount;
mod reply;
pub(crate) mod space;
pub(crate) mod straight;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{self, Call, How, NewAttrs, Place, refusal_words};
use quorate_nfs::exports::Export;
use quorate_nfs::replays::{Begun, Replays, checksum};
use quorate_nfs::rpc::{Accepted, Credential, Head, accepted, denied, read_head};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};
use quorate_nfs::{Answers, Carried, Client, Exports, Peer};
use tokio::net::TcpStream;

use crate::attrs::STUB_OWNER;
use crate::buckets::{Buckets, Changes, Located, Mark};
use crate::config::Away;
use crate::coordinator::Coordinator;
use crate::handle::Handle;
use crate::intent::{Log, Name};
use crate::kernel::TcpSwitch;
use crate::layout::{Bucket, Layout, Volume};
use crate::names::{Held, Names};
use crate::rewrite::{Rewrite, limit};
use crate::shelf::Shelves;
use crate::upstream::Upstreams;
use away::Waits;
use space::Space;

/// The program and version of MOUNT.
const MOUNT: (u32, u32) = (100_005, 3);
const LOOKUP: u32 = 3;
const FSINFO: u32 = 19;
/// `AUTH_SYS`, the one flavor that says who calls.
const AUTH_SYS: u32 = 1;
/// How long a client waits for a change; then it is told to come again.
const PATIENCE: Duration = Duration::from_secs(25);

/// All that calls share.
#[derive(Debug)]
pub struct Proxy<L> {
    coordinator: Coordinator<Arc<Buckets<Upstreams>>, L>,
    layout: Arc<Layout>,
    exports: Exports,
    /// For what is asked of all volumes.
    shelves: Arc<Shelves>,
    /// What each has said of its space last.
    spaces: Mutex<BTreeMap<Volume, Space>>,
    fsid: u64,
    replays: Replays,
    /// Of WRITE and SETATTR over UDP, which are many.
    writes: Replays,
    names: Names,
    waits: Waits,
    /// Who carries connections, if anybody does.
    streams: Option<Arc<TcpSwitch>>,
}

/// A call that was read.
#[derive(Debug)]
pub enum Parsed {
    /// Refused before any procedure sees it.
    Answered(Vec<u8>),
    /// NFS, with its arguments as they came.
    Nfs(Head, Box<Call>, Bytes),
    /// MOUNT.
    Mount(Head, Reader),
}

/// Results from the status on, or a status with which no attributes go.
type Done = Result<Vec<u8>, Status>;

impl<L: Log + std::fmt::Debug + 'static> Answers for Proxy<L> {
    type Call = Parsed;

    fn admits(&self, address: IpAddr) -> bool {
        self.exports.admit(address)
    }

    async fn carry(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> Carried {
        match &self.streams {
            Some(streams) => streams.carry(stream, peer).await,
            None => Carried::from(stream),
        }
    }

    fn pass(self: &Arc<Self>, record: &[u8], client: &Arc<Client>) -> bool {
        self.pass_straight(record, client).is_some()
    }

    fn parse(&self, record: Bytes) -> Option<Parsed> {
        let mut r = Reader::new(record);
        let head = match read_head(&mut r) {
            Ok(head) => head,
            Err(refused) => return denied(refused).map(|w| Parsed::Answered(w.out)),
        };
        let xid = head.xid;
        let no = |why| Parsed::Answered(accepted(xid, why, 0).out);
        let arguments = r.rest().clone();
        Some(match (head.program, head.version) {
            (call::PROGRAM, call::VERSION) => match Call::read(head.procedure, &mut r) {
                None => no(Accepted::NoProcedure),
                Some(Err(_)) => no(Accepted::Garbage),
                Some(Ok(call)) => {
                    // What follows the arguments goes no further.
                    let len = arguments.len() - r.rest().len();
                    Parsed::Nfs(head, Box::new(call), arguments.slice(..len))
                }
            },
            program if program == MOUNT => Parsed::Mount(head, r),
            (call::PROGRAM, _) => no(Accepted::OtherVersion(call::VERSION)),
            (program, _) if program == MOUNT.0 => no(Accepted::OtherVersion(MOUNT.1)),
            _ => no(Accepted::NoProgram),
        })
    }

    fn reply_bytes(&self, call: &Parsed) -> usize {
        match call {
            Parsed::Answered(reply) => reply.len(),
            Parsed::Nfs(_, call, _) => call.reply_bytes(),
            Parsed::Mount(..) => 1024,
        }
    }

    async fn answer(self: &Arc<Self>, peer: Peer, call: Parsed) -> Vec<u8> {
        match call {
            Parsed::Answered(reply) => reply,
            Parsed::Mount(head, arguments) => self.mount(peer, &head, arguments).await.out,
            Parsed::Nfs(head, call, arguments) => {
                let (xid, procedure) = (head.xid, head.procedure);
                let body = self.nfs(peer, head, *call, arguments).await;
                let body = body.unwrap_or_else(|status| refusal(procedure, status));
                let mut w = accepted(xid, Accepted::Success, body.len());
                w.fixed(&body);
                w.out
            }
        }
    }
}

impl<L: Log + std::fmt::Debug + 'static> Proxy<L> {
    /// A proxy. `set`: the identity of all volumes.
    pub fn new(
        coordinator: Coordinator<Arc<Buckets<Upstreams>>, L>,
        layout: Arc<Layout>,
        exports: Exports,
        shelves: Arc<Shelves>,
        set: [u8; 16],
    ) -> Proxy<L> {
        let mut fsid = [0; 8];
        fsid.copy_from_slice(&set[..8]);
        Proxy {
            coordinator,
            layout,
            exports,
            shelves,
            spaces: Mutex::default(),
            fsid: u64::from_be_bytes(fsid),
            replays: Replays::default(),
            writes: Replays::default(),
            names: Names::default(),
            waits: Waits::new(Away::Jukebox),
            streams: None,
        }
    }

    /// From here on connections are carried by the system, where that can be.
    pub fn set_streams(&mut self, streams: Arc<TcpSwitch>) {
        self.streams = Some(streams);
    }

    /// What becomes of calls to servers that can't be reached from here on.
    pub fn set_away(&mut self, away: Away) {
        self.waits = Waits::new(away);
    }

    /// The one number of all file systems that clients see.
    pub fn fsid(&self) -> u64 {
        self.fsid
    }

    fn export(&self, peer: Peer) -> Result<&Export, Status> {
        let export = self.exports.all().first().ok_or(Status::Acces)?;
        let from = peer.address;
        match !export.admits(from.ip()) || export.secure && from.port() >= 1024 {
            true => Err(Status::Acces),
            false => Ok(export),
        }
    }

    pub(super) fn buckets(&self) -> &Arc<Buckets<Upstreams>> {
        &self.coordinator.servers
    }

    fn handle(&self, bytes: &Bytes) -> Result<Handle, Status> {
        let handle = Handle::read(bytes)?;
        self.buckets().locate(handle.bucket)?;
        Ok(handle)
    }

    fn name(&self, place: &Place) -> Result<Name, Status> {
        Ok(Name {
            dir: self.handle(&place.dir)?,
            name: place.name.clone(),
        })
    }

    async fn nfs(self: &Arc<Self>, peer: Peer, head: Head, call: Call, arguments: Bytes) -> Done {
        if matches!(call, Call::Null) {
            return Ok(Vec::new());
        }
        let export = self.export(peer)?;
        let who = export.who(&head.credential);
        if export.read_only && call.is_change() {
            return Err(Status::RoFs);
        }
        if who.uid == STUB_OWNER || owner(&call) == Some(STUB_OWNER) {
            return Err(Status::Acces);
        }
        if changes_names(&call) || peer.is_datagram && call.is_change() {
            return self.change(peer, head, who, call, arguments).await;
        }
        let most = peer.io_bytes() as u32;
        self.wait_for(peer.address, &call, &arguments).await;
        let mut done = self
            .other(head.procedure, &who, call, &arguments, most)
            .await?;
        if head.procedure == FSINFO {
            limit(&mut done, most);
        }
        Ok(done)
    }

    /// A call that changes no names. `most`: the most bytes that may come back.
    async fn other(
        &self,
        procedure: u32,
        who: &Who,
        call: Call,
        arguments: &Bytes,
        most: u32,
    ) -> Done {
        let _passage = match &call {
            // These see to it themselves: they may touch several buckets.
            Call::Lookup(_) | Call::FsStat(_) => None,
            call => match first(call) {
                Some(first) => Some(self.buckets().pass(self.handle(first)?.bucket).await?),
                None => None,
            },
        };
        let _mark = self.mark(&call);
        self.work(procedure, who, call, arguments, most).await
    }

    /// What a call that goes straight may change, for when its bucket moves.
    fn mark(&self, call: &Call) -> Option<Mark<'_, Upstreams>> {
        if !call.is_change() {
            return None;
        }
        let handle = self.handle(first(call)?).ok()?;
        let key = |bytes: &Bytes| Handle::read(bytes).map(|handle| handle.key);
        let changes = Changes::of_call(call, |bytes| key(bytes).unwrap_or_default());
        Some(self.buckets().mark(handle.bucket, changes))
    }

    /// A call that changes names, or may come again by itself, is done once, to its end, whether its client waits or not.
    async fn change(
        self: &Arc<Self>,
        peer: Peer,
        head: Head,
        who: Who,
        call: Call,
        arguments: Bytes,
    ) -> Done {
        let (procedure, xid) = (head.procedure, head.xid);
        let sum = checksum(peer, &ids(&head.credential), procedure, &arguments);
        let replays = match changes_names(&call) {
            true => &self.replays,
            false => &self.writes,
        };
        let wait = match replays.begin(sum, xid) {
            Begun::Full => return Err(Status::Jukebox),
            Begun::Known(wait) => wait,
            Begun::New(work) => {
                let wait = replays.wait(sum, xid).ok_or(Status::Jukebox)?;
                let proxy = self.clone();
                work.send();
                tokio::spawn(async move {
                    proxy.wait_for(peer.address, &call, &arguments).await;
                    let done = proxy.changed(procedure, &who, call, &arguments).await;
                    work.finish(done.unwrap_or_else(|status| refusal(procedure, status)));
                });
                wait
            }
        };
        match wait.reply(PATIENCE).await {
            Some(Ok(reply)) => Ok(reply.to_vec()),
            Some(Err(())) => Err(Status::ServerFault),
            None => Err(Status::Jukebox),
        }
    }

    async fn changed(&self, procedure: u32, who: &Who, call: Call, arguments: &Bytes) -> Done {
        if !changes_names(&call) {
            return self.other(procedure, who, call, arguments, 0).await;
        }
        let _passage = self.buckets().pass_all().await;
        let _mark = self.mark(&call);
        match self.work(procedure, who, call, arguments, 0).await {
            // It is not known what comes of it. NFS clients expect servers that come again, and send it once more.
            Err(Status::Io) if !self.coordinator.log().is_current() => Err(Status::Jukebox),
            done => done,
        }
    }

    async fn work(
        &self,
        procedure: u32,
        who: &Who,
        call: Call,
        arguments: &Bytes,
        most: u32,
    ) -> Done {
        match call {
            Call::Null => Ok(Vec::new()),
            Call::Lookup(place) => self.lookup(who, &place).await,
            Call::FsStat(object) => self.fs_stat(who, &object).await,
            Call::Mkdir(place, new) => self.mkdir(who, &place, new, arguments).await,
            Call::Rmdir(place) => self.rmdir(who, &place, arguments).await,
            Call::Remove(place) => self.remove(who, &place, arguments).await,
            Call::Rename(from, to) => self.rename(who, &from, &to).await,
            Call::Link { file, new } => self.link(who, &file, &new).await,
            Call::Create(place, how) => self.create(who, &place, how, arguments).await,
            Call::Symlink(place, ..) | Call::Mknod(place, _) => {
                let name = self.name(&place)?;
                let _held = self.hold(vec![name]).await?;
                self.straight(procedure, who, &place.dir, arguments).await
            }
            Call::GetAttr(object)
            | Call::Readlink(object)
            | Call::FsInfo(object)
            | Call::PathConf(object)
            | Call::Commit(object)
            | Call::SetAttr { object, .. }
            | Call::Access { object, .. } => {
                self.straight(procedure, who, &object, arguments).await
            }
            Call::Write { file, .. } => self.straight(procedure, who, &file, arguments).await,
            Call::Read { file, count, .. } => {
                let arguments = bounded(arguments, count.min(most));
                self.straight(procedure, who, &file, &arguments).await
            }
            Call::ReadDir(listing) => {
                let most = listing.bytes.min(most);
                let most = match listing.names_bytes {
                    Some(_) => room_for_handles(most),
                    None => most,
                };
                let mut arguments = bounded(arguments, most);
                self.turn_back(who, &listing, &mut arguments).await?;
                self.straight(procedure, who, &listing.dir, &arguments)
                    .await
            }
        }
    }

    /// Holds names until what it gives goes.
    async fn hold(&self, names: Vec<Name>) -> Result<Held<'_, L::Hold>, Status> {
        self.names.hold(self.coordinator.log(), names).await
    }

    /// Holds a directory that is to be removed until what it gives goes.
    async fn hold_removal(&self, dir: &Handle) -> Result<Held<'_, L::Hold>, Status> {
        self.names.hold_removal(self.coordinator.log(), dir).await
    }

    /// Sends a call to the server of the handle that its arguments begin with.
    async fn straight(&self, procedure: u32, who: &Who, first: &Bytes, arguments: &[u8]) -> Done {
        let handle = self.handle(first)?;
        let at = self.buckets().locate(handle.bucket)?;
        let after = 4 + first.len().next_multiple_of(4);
        let mut w = Writer::with_capacity(arguments.len());
        w.opaque(&at.server(&handle.key)?);
        w.fixed(arguments.get(after..).ok_or(Status::ServerFault)?);
        self.forward(procedure, who, handle.bucket, &at, &w.out)
            .await
    }

    async fn forward(
        &self,
        procedure: u32,
        who: &Who,
        bucket: Bucket,
        at: &Located,
        arguments: &[u8],
    ) -> Done {
        let servers = &self.buckets().servers;
        let results = servers.nfs(at.volume, procedure, who, arguments).await?;
        self.rewritten(bucket, at, procedure, &results)
    }

    /// Results as clients are to see them.
    fn rewritten(&self, bucket: Bucket, at: &Located, procedure: u32, results: &[u8]) -> Done {
        let mut w = Writer::with_capacity(results.len() + 64);
        let rewritten = self.rewrite(bucket, at).results(procedure, results, &mut w);
        rewritten.map_err(|_| Status::ServerFault)?;
        Ok(w.out)
    }

    fn rewrite<'a>(
        &'a self,
        bucket: Bucket,
        at: &'a Located,
    ) -> Rewrite<'a, impl Fn(Volume, u64) -> u64 + 'a> {
        Rewrite {
            bucket,
            at,
            fsid: self.fsid,
            shown: |volume, number| self.buckets().shown(volume, number),
        }
    }
}

/// The handle of what a call is about, or of the directory where it makes a name.
fn first(call: &Call) -> Option<&Bytes> {
    Some(match call {
        Call::Null => return None,
        Call::Lookup(place)
        | Call::Create(place, _)
        | Call::Mkdir(place, _)
        | Call::Symlink(place, ..)
        | Call::Mknod(place, _)
        | Call::Remove(place)
        | Call::Rmdir(place)
        | Call::Rename(place, _)
        | Call::Link { new: place, .. } => &place.dir,
        Call::ReadDir(listing) => &listing.dir,
        Call::GetAttr(object)
        | Call::Readlink(object)
        | Call::FsStat(object)
        | Call::FsInfo(object)
        | Call::PathConf(object)
        | Call::Commit(object)
        | Call::SetAttr { object, .. }
        | Call::Access { object, .. } => object,
        Call::Write { file, .. } | Call::Read { file, .. } => file,
    })
}

/// The body of a refusal without attributes.
fn refusal(procedure: u32, status: Status) -> Vec<u8> {
    let mut out = (status as u32).to_be_bytes().to_vec();
    out.resize(4 + 4 * refusal_words(procedure).unwrap_or(0), 0);
    out
}

/// How many bytes of entries with handles a server may give: ours are longer by 8 bytes, and an entry with one has more than 128.
fn room_for_handles(most: u32) -> u32 {
    most - most / 16
}

/// Arguments whose last word is how much may come back.
fn bounded(arguments: &Bytes, most: u32) -> Vec<u8> {
    let mut out = arguments.to_vec();
    if let Some(last) = out.last_chunk_mut::<4>() {
        *last = most.to_be_bytes();
    }
    out
}

fn changes_names(call: &Call) -> bool {
    call.is_change() && !matches!(call, Call::Write { .. } | Call::SetAttr { .. })
}

/// The owner that a call sets.
fn owner(call: &Call) -> Option<u32> {
    let new: &NewAttrs = match call {
        Call::SetAttr { attrs, .. } | Call::Mkdir(_, attrs) | Call::Symlink(_, attrs, _) => attrs,
        Call::Create(_, How::Unchecked(attrs) | How::Guarded(attrs)) => attrs,
        Call::Mknod(_, special) => &special.attrs,
        _ => return None,
    };
    new.uid
}

fn ids(credential: &Credential) -> Vec<u32> {
    match credential {
        Credential::None => Vec::new(),
        Credential::Sys { uid, gid, groups } => [&[*uid, *gid], &groups[..]].concat(),
    }
}
