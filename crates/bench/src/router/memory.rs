//! A server of NFS version 3 whose files are in memory: as little as can stand behind a router, so that it is the router that is measured.
//!
//! It knows what routers and the load ask for; links, devices and listings with attributes are refused as not supported.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use quorate_files::op::SetTime;
use quorate_files::{Attr, Ino, Kind, Stamp};
use quorate_nfs::call::{self, Call, Fh, How, Listing, NewAttrs, Place};
use quorate_nfs::reply::Reply;
use quorate_nfs::rpc::{Accepted, Head, accepted, read_head};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Reader;
use quorate_nfs::{Answers, Listeners, Peer};

use crate::rpc::{MNT, MOUNT};

/// The root's number.
const ROOT: usize = 0;
/// The longest file: a mistake must not take all memory.
const MAX_FILE_BYTES: usize = 64 << 20;

/// Serves on a free port of an address, over TCP and UDP, which it says on standard output, until standard input ends: with the benchmark,
/// however that ends.
///
/// # Errors
/// Where it can't serve.
pub fn run(at: IpAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")?;
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        std::process::exit(0);
    });
    runtime.block_on(async {
        let listeners = Listeners::bind((at, 0).into(), 1, true)?;
        println!("{}", listeners.address().port());
        std::io::stdout().flush()?;
        let served = listeners.serve(Arc::new(Memory::default())).await;
        served.context("serving")
    })
}

#[derive(Debug)]
struct Node {
    attr: Attr,
    /// For a directory, where `..` leads.
    parent: usize,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Names(BTreeMap<Bytes, usize>),
    Data(Vec<u8>),
    Target(Bytes),
}

/// The objects by their numbers, which are not used again.
#[derive(Debug)]
struct Tree(Vec<Option<Node>>);

#[derive(Debug, Default)]
struct Memory(Mutex<Tree>);

/// What a call wants.
#[derive(Debug)]
enum Wanted {
    Root,
    Of(Call),
    /// Nothing that there is.
    Nothing(Accepted),
}

impl Answers for Memory {
    type Call = (Head, Wanted);

    fn admits(&self, address: IpAddr) -> bool {
        // And the addresses that are for such measurements.
        address.is_loopback()
            || matches!(address, IpAddr::V4(v4) if matches!(v4.octets(), [198, 18 | 19, ..]))
    }

    fn parse(&self, record: Bytes) -> Option<Self::Call> {
        let mut r = Reader::new(record);
        let head = read_head(&mut r).ok()?;
        let wanted = match (head.program, head.procedure) {
            (MOUNT, MNT) => Wanted::Root,
            (call::PROGRAM, procedure) => match Call::read(procedure, &mut r) {
                Some(Ok(call)) => Wanted::Of(call),
                Some(Err(_)) => Wanted::Nothing(Accepted::Garbage),
                None => Wanted::Nothing(Accepted::NoProcedure),
            },
            _ => Wanted::Nothing(Accepted::NoProgram),
        };
        Some((head, wanted))
    }

    fn reply_bytes(&self, (_, wanted): &Self::Call) -> usize {
        match wanted {
            Wanted::Of(call) => call.reply_bytes(),
            Wanted::Root | Wanted::Nothing(_) => 256,
        }
    }

    async fn answer(self: &Arc<Self>, _: Peer, (head, wanted): Self::Call) -> Vec<u8> {
        let call = match wanted {
            Wanted::Nothing(why) => return accepted(head.xid, why, 0).out,
            Wanted::Root => {
                let mut w = accepted(head.xid, Accepted::Success, 64);
                w.u32(0);
                w.opaque(&handle(ROOT));
                // One flavour: AUTH_SYS.
                [1, 1].into_iter().for_each(|word| w.u32(word));
                return w.out;
            }
            Wanted::Of(Call::Null) => return accepted(head.xid, Accepted::Success, 0).out,
            Wanted::Of(call) => call,
        };
        let mut tree = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = tree.answer(call).unwrap_or_else(|status| {
            let mut reply = Reply::new(status, FSID);
            let absent = call::refusal_words(head.procedure).unwrap_or(0);
            (0..absent).for_each(|_| reply.w.u32(0));
            reply
        });
        drop(tree);
        let mut w = accepted(head.xid, Accepted::Success, reply.w.out.len());
        w.fixed(&reply.w.out);
        w.out
    }
}

const FSID: u64 = 1;
/// Nothing is ever lost but with the process.
const VERIFIER: u64 = 1;

fn handle(number: usize) -> Fh {
    Bytes::copy_from_slice(&(number as u64).to_be_bytes())
}

fn attr(number: usize, kind: Kind, new: &NewAttrs) -> Attr {
    let now = Stamp { secs: 1, nanos: 0 };
    Attr {
        ino: Ino(number as u64 + 1),
        kind,
        mode: new.mode.unwrap_or(0o755),
        nlink: if kind == Kind::Directory { 2 } else { 1 },
        uid: new.uid.unwrap_or(0),
        gid: new.gid.unwrap_or(0),
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change: 0,
        has_xattrs: false,
    }
}

impl Default for Tree {
    fn default() -> Tree {
        let mut tree = Tree(Vec::new());
        let names = Content::Names(BTreeMap::new());
        tree.add(ROOT, Kind::Directory, &NewAttrs::default(), names);
        tree
    }
}

impl Tree {
    fn add(&mut self, parent: usize, kind: Kind, new: &NewAttrs, content: Content) -> usize {
        let number = self.0.len();
        let attr = attr(number, kind, new);
        self.0.push(Some(Node {
            attr,
            parent,
            content,
        }));
        number
    }

    fn number(&self, handle: &Fh) -> Result<usize, Status> {
        let bytes = handle[..].try_into().map_err(|_| Status::BadHandle)?;
        let number = u64::from_be_bytes(bytes) as usize;
        self.at(number).map(|_| number)
    }

    fn at(&self, number: usize) -> Result<&Node, Status> {
        let node = self.0.get(number).and_then(Option::as_ref);
        node.ok_or(Status::Stale)
    }

    fn at_mut(&mut self, number: usize) -> Result<&mut Node, Status> {
        let node = self.0.get_mut(number).and_then(Option::as_mut);
        node.ok_or(Status::Stale)
    }

    fn names(&self, dir: usize) -> Result<&BTreeMap<Bytes, usize>, Status> {
        match &self.at(dir)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    fn names_mut(&mut self, dir: usize) -> Result<&mut BTreeMap<Bytes, usize>, Status> {
        match &mut self.at_mut(dir)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    fn data_mut(&mut self, file: usize) -> Result<&mut Vec<u8>, Status> {
        match &mut self.at_mut(file)?.content {
            Content::Data(data) => Ok(data),
            _ => Err(Status::Inval),
        }
    }

    /// Something in a directory.
    fn find(&self, place: &Place) -> Result<(usize, usize), Status> {
        let dir = self.number(&place.dir)?;
        let found = match &place.name[..] {
            b"." => dir,
            b".." => self.at(dir)?.parent,
            name => *self.names(dir)?.get(name).ok_or(Status::NoEnt)?,
        };
        Ok((dir, found))
    }

    fn answer(&mut self, call: Call) -> Result<Reply, Status> {
        let mut reply = Reply::new(Status::Ok, FSID);
        match call {
            Call::GetAttr(object) => reply.attr(&self.at(self.number(&object)?)?.attr),
            Call::SetAttr { object, attrs, .. } => {
                let number = self.number(&object)?;
                self.set(number, &attrs)?;
                reply.changed(None, Some(&self.at(number)?.attr));
            }
            Call::Lookup(place) => {
                let (dir, found) = self.find(&place)?;
                reply.w.opaque(&handle(found));
                reply.after(Some(&self.at(found)?.attr));
                reply.after(Some(&self.at(dir)?.attr));
            }
            Call::Access { object, mask } => {
                reply.after(Some(&self.at(self.number(&object)?)?.attr));
                reply.w.u32(mask);
            }
            Call::Readlink(object) => {
                let node = self.at(self.number(&object)?)?;
                let Content::Target(target) = &node.content else {
                    return Err(Status::Inval);
                };
                reply.after(Some(&node.attr));
                reply.w.opaque(target);
            }
            Call::Read {
                file,
                offset,
                count,
            } => self.read(&mut reply, &file, offset, count)?,
            Call::Write { file, offset, data } => self.write(&mut reply, &file, offset, &data)?,
            Call::Create(place, how) => {
                let (How::Unchecked(new) | How::Guarded(new)) = how else {
                    return Err(Status::NotSupp);
                };
                let content = Content::Data(Vec::new());
                self.make(&mut reply, place, Kind::Regular, &new, content)?;
            }
            Call::Mkdir(place, new) => {
                let content = Content::Names(BTreeMap::new());
                self.make(&mut reply, place, Kind::Directory, &new, content)?;
            }
            Call::Symlink(place, new, target) => {
                let content = Content::Target(target);
                self.make(&mut reply, place, Kind::Symlink, &new, content)?;
            }
            Call::Remove(place) => self.remove(&mut reply, &place, false)?,
            Call::Rmdir(place) => self.remove(&mut reply, &place, true)?,
            Call::Rename(from, to) => self.rename(&mut reply, &from, &to)?,
            Call::ReadDir(listing) => self.list(&mut reply, &listing)?,
            Call::FsStat(object) => {
                reply.after(Some(&self.at(self.number(&object)?)?.attr));
                (0..6).for_each(|_| reply.w.u64(1 << 40));
                reply.w.u32(0);
            }
            Call::FsInfo(object) => {
                reply.after(Some(&self.at(self.number(&object)?)?.attr));
                const IO: u32 = 1 << 20;
                for number in [IO, IO, 4096, IO, IO, 4096, 1 << 16] {
                    reply.w.u32(number);
                }
                reply.w.u64(MAX_FILE_BYTES as u64);
                // Times to the second; what of links and times there is.
                [1, 0, 0x2 | 0x8 | 0x10]
                    .into_iter()
                    .for_each(|word| reply.w.u32(word));
            }
            Call::Commit(file) => {
                reply.changed(None, Some(&self.at(self.number(&file)?)?.attr));
                reply.w.u64(VERIFIER);
            }
            Call::Null | Call::Link { .. } | Call::Mknod(..) | Call::PathConf(_) => {
                return Err(Status::NotSupp);
            }
        }
        Ok(reply)
    }

    fn set(&mut self, number: usize, new: &NewAttrs) -> Result<(), Status> {
        if let Some(size) = new.size {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > MAX_FILE_BYTES {
                return Err(Status::FBig);
            }
            self.data_mut(number)?.resize(size, 0);
        }
        let attr = &mut self.at_mut(number)?.attr;
        attr.size = new.size.unwrap_or(attr.size);
        attr.mode = new.mode.unwrap_or(attr.mode);
        attr.uid = new.uid.unwrap_or(attr.uid);
        attr.gid = new.gid.unwrap_or(attr.gid);
        if let Some(SetTime::At(at)) = new.mtime {
            attr.mtime = at;
        }
        Ok(())
    }

    fn read(&self, reply: &mut Reply, file: &Fh, offset: u64, count: u32) -> Result<(), Status> {
        let node = self.at(self.number(file)?)?;
        let Content::Data(data) = &node.content else {
            return Err(Status::Inval);
        };
        let from = data.len().min(offset as usize);
        let to = data.len().min(from + count as usize);
        reply.after(Some(&node.attr));
        reply.w.u32((to - from) as u32);
        reply.w.bool(to == data.len());
        reply.w.opaque(&data[from..to]);
        Ok(())
    }

    fn write(
        &mut self,
        reply: &mut Reply,
        file: &Fh,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Status> {
        let number = self.number(file)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let to = from.saturating_add(data.len());
        if to > MAX_FILE_BYTES {
            return Err(Status::FBig);
        }
        let kept = self.data_mut(number)?;
        kept.resize(kept.len().max(to), 0);
        kept[from..to].copy_from_slice(data);
        let size = kept.len() as u64;
        let attr = &mut self.at_mut(number)?.attr;
        attr.size = size;
        attr.change += 1;
        reply.changed(None, Some(attr));
        reply.w.u32(data.len() as u32);
        // FILE_SYNC: it will not be any safer.
        reply.w.u32(2);
        reply.w.u64(VERIFIER);
        Ok(())
    }

    fn make(
        &mut self,
        reply: &mut Reply,
        place: Place,
        kind: Kind,
        new: &NewAttrs,
        content: Content,
    ) -> Result<(), Status> {
        let dir = self.number(&place.dir)?;
        if self.names(dir)?.contains_key(&place.name) {
            return Err(Status::Exist);
        }
        let number = self.add(dir, kind, new, content);
        self.names_mut(dir)?.insert(place.name, number);
        self.at_mut(dir)?.attr.nlink += u32::from(kind == Kind::Directory);
        reply.handle(&handle(number));
        reply.after(Some(&self.at(number)?.attr));
        reply.changed(None, Some(&self.at(dir)?.attr));
        Ok(())
    }

    /// Whether an object may be taken from its name, or be replaced, by what is a directory or is none.
    fn may_go(&self, number: usize, by_dir: bool) -> Result<(), Status> {
        match (&self.at(number)?.content, by_dir) {
            (Content::Names(names), true) if !names.is_empty() => Err(Status::NotEmpty),
            (Content::Names(_), false) => Err(Status::IsDir),
            (Content::Data(_) | Content::Target(_), true) => Err(Status::NotDir),
            _ => Ok(()),
        }
    }

    fn remove(&mut self, reply: &mut Reply, place: &Place, is_dir: bool) -> Result<(), Status> {
        let (dir, number) = self.find(place)?;
        self.may_go(number, is_dir)?;
        self.names_mut(dir)?.remove(&place.name);
        self.0[number] = None;
        self.at_mut(dir)?.attr.nlink -= u32::from(is_dir);
        reply.changed(None, Some(&self.at(dir)?.attr));
        Ok(())
    }

    fn rename(&mut self, reply: &mut Reply, from: &Place, to: &Place) -> Result<(), Status> {
        let (dir, number) = self.find(from)?;
        let new_dir = self.number(&to.dir)?;
        let is_dir = self.at(number)?.attr.kind == Kind::Directory;
        let mut above = new_dir;
        while is_dir && above != ROOT {
            if above == number {
                return Err(Status::Inval);
            }
            above = self.at(above)?.parent;
        }
        if let Some(&other) = self.names(new_dir)?.get(&to.name)
            && other != number
        {
            self.may_go(other, is_dir)?;
            self.0[other] = None;
            self.at_mut(new_dir)?.attr.nlink -= u32::from(is_dir);
        }
        self.names_mut(dir)?.remove(&from.name);
        self.names_mut(new_dir)?.insert(to.name.clone(), number);
        self.at_mut(number)?.parent = new_dir;
        self.at_mut(dir)?.attr.nlink -= u32::from(is_dir);
        self.at_mut(new_dir)?.attr.nlink += u32::from(is_dir);
        reply.changed(None, Some(&self.at(dir)?.attr));
        reply.changed(None, Some(&self.at(new_dir)?.attr));
        Ok(())
    }

    fn list(&self, reply: &mut Reply, listing: &Listing) -> Result<(), Status> {
        if listing.names_bytes.is_some() {
            return Err(Status::NotSupp);
        }
        let dir = self.number(&listing.dir)?;
        let names = self.names(dir)?;
        reply.after(Some(&self.at(dir)?.attr));
        reply.w.u64(VERIFIER);
        let skipped = listing.cookie as usize;
        let most = (listing.bytes as usize).saturating_sub(128);
        let (mut told, mut bytes) = (skipped, 0);
        for (name, number) in names.iter().skip(skipped) {
            bytes += 32 + name.len();
            if bytes > most {
                break;
            }
            told += 1;
            reply.w.bool(true);
            reply.w.u64(self.at(*number)?.attr.ino.0);
            reply.w.opaque(name);
            reply.w.u64(told as u64);
        }
        reply.w.bool(false);
        reply.w.bool(told >= names.len());
        Ok(())
    }
}
