//! Calls that go to one server as they are, and their replies: from the buffer of one connection to that of another, with no task of their own.
//!
//! Here is what most calls are, and nothing that waits, is held or asks twice: whatever is not quite so is left to [`Proxy::nfs`], which
//! answers for every call.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use quorate_files::layout::MAX_SYMLINK_BYTES;
use quorate_files::op::MAX_IO_BYTES;
use quorate_nfs::call::{self, Fh};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::rpc::{Accepted, MAX_AUTH_BYTES, MAX_GROUPS, MAX_MACHINE_BYTES, write_accepted};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Read, View, Writer};
use quorate_nfs::{Client, Ticket, take_back};

use super::{AUTH_SYS, FSINFO, LOOKUP, Proxy, refusal, room_for_handles};
use crate::attrs::{Attrs, STUB_OWNER};
use crate::buckets::{Changes, Located, Passage};
use crate::handle::{key, parts};
use crate::intent::Log;
use crate::layout::Bucket;
use crate::rewrite::limit;
use crate::upstream::{self, Passed, Waiter};

const WRITE: u32 = 7;
const READDIR: u32 = 16;
const READDIRPLUS: u32 = 17;
const COMMIT: u32 = 21;
/// What is made ready for a reply without data.
const SMALL: usize = 1024;
/// The longest name that is passed on.
const MAX_NAME_BYTES: usize = 255;
/// What a reply has beside its results, with what may be added to a handle in them.
const OVERHEAD: usize = 64;
/// `stable_how` has no more.
const FILE_SYNC: u32 = 2;

/// A call that can be passed on, as it lies in the connection's buffer.
#[derive(Debug)]
struct Call<'a> {
    xid: u32,
    procedure: u32,
    uid: u32,
    gid: u32,
    groups: [u32; MAX_GROUPS],
    count: usize,
    handle: &'a [u8],
    /// The arguments after the handle.
    rest: &'a [u8],
    shape: Shape,
}

/// What follows from a call's arguments.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    /// The most bytes of its reply.
    reply: usize,
    /// For a WRITE, where and how much.
    written: Option<(u64, u64)>,
    /// For a listing, after which entry, and how many bytes the server may give.
    listed: Option<(u64, u32)>,
}

impl<'a> Call<'a> {
    /// Reads a record; none if it is not to be passed on, or is no call at all. `most`: the most bytes that READ may have here.
    fn read(record: &'a [u8], most: usize) -> Option<Call<'a>> {
        let r = &mut View::new(record);
        let words: [u32; 6] = r.words()?;
        let [xid, kind, rpc, program, version, procedure] = words;
        if (kind, rpc, program, version) != (0, 2, call::PROGRAM, call::VERSION) {
            return None;
        }
        if r.u32().ok()? != AUTH_SYS {
            return None;
        }
        let credential = &mut View::new(r.opaque(MAX_AUTH_BYTES, "credential").ok()?);
        let _stamp = credential.u32().ok()?;
        credential.opaque(MAX_MACHINE_BYTES, "machine name").ok()?;
        let [uid, gid, count] = credential.words()?;
        let mut groups = [0; MAX_GROUPS];
        let count = count as usize;
        for group in groups.get_mut(..count)? {
            *group = credential.u32().ok()?;
        }
        let _flavor = r.u32().ok()?;
        r.opaque(MAX_AUTH_BYTES, "verifier").ok()?;
        let handle = r.opaque(MAX_HANDLE_BYTES, "handle").ok()?;
        let rest = r.rest();
        let shape = shape(procedure, rest, most)?;
        Some(Call {
            xid,
            procedure,
            uid,
            gid,
            groups,
            count,
            handle,
            rest,
            shape,
        })
    }

    /// As a server gets it that calls the object `called`, from after its number on, in the name of these ids.
    fn write(&self, w: &mut Writer, ids: (u32, u32, &[u32]), called: &[u8]) {
        upstream::head(w, (call::PROGRAM, call::VERSION), self.procedure, ids);
        w.opaque(called);
        match (self.shape.listed, self.rest.split_last_chunk::<4>()) {
            (Some((_, bytes)), Some((rest, _))) => {
                w.fixed(rest);
                w.u32(bytes);
            }
            _ => w.fixed(self.rest),
        }
    }
}

/// For the fuzz targets: a record as it would be passed on to a server that calls its object `called`, with its number, in the caller's own name.
pub(crate) fn passed_on(record: &[u8], most: usize, called: &[u8]) -> Option<Vec<u8>> {
    let call = Call::read(record, most)?;
    let mut w = Writer::default();
    w.u32(call.xid);
    let ids = (call.uid, call.gid, &call.groups[..call.count]);
    call.write(&mut w, ids, called);
    Some(w.out)
}

trait Words {
    fn words<const N: usize>(&mut self) -> Option<[u32; N]>;
}

impl Words for View<'_> {
    fn words<const N: usize>(&mut self) -> Option<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u32().ok()?;
        }
        Some(words)
    }
}

/// Of a procedure that can be passed on, if these are just its arguments after the handle.
fn shape(procedure: u32, rest: &[u8], most: usize) -> Option<Shape> {
    let r = &mut View::new(rest);
    let (mut written, mut listed) = (None, None);
    let reply = match procedure {
        // GETATTR, FSINFO, PATHCONF.
        1 | 19 | 20 => SMALL,
        LOOKUP => match r.opaque(MAX_NAME_BYTES, "name").ok()? {
            // Looked for where the directory was placed.
            b".." => return None,
            _ => SMALL,
        },
        // ACCESS.
        4 => {
            r.u32().ok()?;
            SMALL
        }
        // READLINK.
        5 => SMALL + MAX_SYMLINK_BYTES,
        // READ.
        6 => {
            let (_offset, count) = (r.u64().ok()?, r.u32().ok()? as usize);
            if count > most {
                return None;
            }
            SMALL + count
        }
        WRITE => {
            let (offset, [count, stable]) = (r.u64().ok()?, r.words()?);
            let data = r.opaque(MAX_IO_BYTES, "data").ok()?;
            if data.len() != count as usize || stable > FILE_SYNC {
                return None;
            }
            written = Some((offset, u64::from(count)));
            SMALL
        }
        READDIR => {
            let (cookie, _verifier, [count]) = (r.u64().ok()?, r.u64().ok()?, r.words()?);
            let count = most.min(count as usize);
            listed = Some((cookie, count as u32));
            SMALL + count
        }
        READDIRPLUS => {
            let (cookie, _verifier, [_names, count]) = (r.u64().ok()?, r.u64().ok()?, r.words()?);
            let count = most.min(count as usize);
            listed = Some((cookie, room_for_handles(count as u32)));
            SMALL + count
        }
        // An offset and a count.
        COMMIT => {
            r.array::<12>().ok()?;
            SMALL
        }
        _ => return None,
    };
    r.rest().is_empty().then_some(Shape {
        reply,
        written,
        listed,
    })
}

/// A call that is at its server.
#[derive(Debug)]
struct OnItsWay<L: Log + Debug + 'static> {
    proxy: Arc<Proxy<L>>,
    ticket: Option<Ticket>,
    xid: u32,
    procedure: u32,
    bucket: Bucket,
    at: Arc<Located>,
    /// The call itself, where the answer may have to be found another way.
    record: Option<Bytes>,
    /// What it may change: a file by its key, where, and how much.
    written: Option<(Fh, u64, u64)>,
    load: Arc<upstream::Load>,
    _passage: Passage,
}

impl<L: Log + Debug + 'static> Proxy<L> {
    /// Passes a call on, if it can be.
    pub(super) fn pass_straight(
        self: &Arc<Self>,
        record: &[u8],
        client: &Arc<Client>,
    ) -> Option<()> {
        let peer = client.peer();
        let call = Call::read(record, peer.io_bytes())?;
        let export = self.export(peer).ok()?;
        // Over UDP a WRITE may come again late, so it is remembered.
        if call.shape.written.is_some() && (export.read_only || peer.is_datagram) {
            return None;
        }
        let mut groups = call.groups;
        let (uid, gid, count) = export.squashed(call.uid, call.gid, &mut groups[..call.count]);
        if uid == STUB_OWNER {
            return None;
        }
        let (bucket, first, called_there) = parts(call.handle).ok()?;
        let buckets = self.buckets();
        let passage = buckets.try_pass(bucket)?;
        let at = buckets.locate(bucket).ok()?;
        let (server, load) = buckets.servers.server(at.volume)?;
        if self.waits.are_wanted() && !server.line().is_up() {
            return None;
        }
        // A listing that was begun before a move is looked after.
        if call.shape.listed.is_some_and(|(cookie, _)| cookie != 0) && at.moved != 0 {
            return None;
        }
        let ticket = client.try_ticket(record, call.shape.reply)?;
        let called = at.names.server_of(at.volume, (first, called_there))?;
        let passed = || {
            Box::new(OnItsWay {
                proxy: self.clone(),
                ticket: Some(ticket),
                xid: call.xid,
                procedure: call.procedure,
                bucket,
                at: at.clone(),
                record: (call.procedure == LOOKUP).then(|| Bytes::copy_from_slice(record)),
                written: call
                    .shape
                    .written
                    .map(|(at, len)| (key(first, called_there), at, len)),
                load: load.clone(),
                _passage: passage,
            })
        };
        let write = |w: &mut Writer| call.write(w, (uid, gid, &groups[..count]), called);
        // As it came: what changes nothing may go twice.
        let datagrams = match peer.is_datagram && !matches!(call.procedure, WRITE | COMMIT) {
            true => server.datagrams(),
            false => None,
        };
        match datagrams.and_then(|datagrams| datagrams.slot(call.shape.reply)) {
            Some(slot) => slot.send(passed(), write),
            None => {
                let sent = server.line().send(|| Waiter::Passed(passed()), write);
                sent.ok()?;
            }
        }
        load.calls.fetch_add(1, Ordering::Relaxed);
        Some(())
    }
}

impl<L: Log + Debug + 'static> Passed for OnItsWay<L> {
    fn answered(mut self: Box<Self>, reply: &[u8]) {
        let Ok(results) = upstream::results(reply) else {
            return;
        };
        if let Some(record) = self.record.take()
            && is_to_be_followed(results).unwrap_or(false)
        {
            if let Some(ticket) = self.ticket.take() {
                take_back(ticket, &self.proxy, record);
            }
            return;
        }
        let Some(ticket) = &self.ticket else {
            return;
        };
        let is_short = results.len() + OVERHEAD <= ticket.room();
        let most = ticket.client().peer().io_bytes() as u32;
        self.end(|w, this| {
            let rewrite = this.proxy.rewrite(this.bucket, &this.at);
            let start = w.out.len();
            match rewrite.results(this.procedure, results, w) {
                Ok(()) if is_short => {}
                _ => return Err(Status::ServerFault),
            }
            if this.procedure == FSINFO {
                limit(&mut w.out[start..], most);
            }
            Ok(())
        });
    }
}

/// Whether the results of a LOOKUP are a stub, or can't be told from one.
pub(crate) fn is_to_be_followed(results: &[u8]) -> Read<bool> {
    let r = &mut View::new(results);
    if r.u32()? != 0 {
        return Ok(false);
    }
    r.opaque(MAX_HANDLE_BYTES, "handle")?;
    let attrs = r.option(View::array)?;
    Ok(attrs.is_none_or(|attrs| Attrs(*attrs).stub().is_some()))
}

impl<L: Log + Debug + 'static> OnItsWay<L> {
    /// Answers the client.
    fn end(&mut self, results: impl FnOnce(&mut Writer, &Self) -> Result<(), Status>) {
        if let Some((file, at, len)) = self.written.take() {
            let changes = Changes::of_write(&file, at, len);
            self.proxy.buckets().changed(self.bucket, changes);
        }
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        ticket.reply(|w| {
            write_accepted(w, self.xid, Accepted::Success);
            let start = w.out.len();
            if let Err(status) = results(w, self) {
                w.out.truncate(start);
                w.fixed(&refusal(self.procedure, status));
            }
        });
    }
}

/// There is no answer.
impl<L: Log + Debug + 'static> Drop for OnItsWay<L> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.load.unanswered.fetch_add(1, Ordering::Relaxed);
            self.end(|_, _| Err(Status::Jukebox));
        }
    }
}
