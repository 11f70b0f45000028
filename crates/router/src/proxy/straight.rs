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

use super::{AUTH_SYS, LOOKUP, Proxy, refusal};
use crate::attrs::{Attrs, STUB_OWNER};
use crate::buckets::{Changes, Located, Passage};
use crate::handle::{key, parts};
use crate::intent::Log;
use crate::layout::Bucket;
use crate::upstream::{self, Passed, Waiter};

const WRITE: u32 = 7;
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
    /// The most bytes of its reply.
    reply: usize,
    /// For a WRITE, where and how much.
    written: Option<(u64, u64)>,
}

impl<'a> Call<'a> {
    /// Reads a record; none if it is not to be passed on, or is no call at all.
    fn read(record: &'a [u8]) -> Option<Call<'a>> {
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
        let (reply, written) = shape(procedure, rest)?;
        Some(Call {
            xid,
            procedure,
            uid,
            gid,
            groups,
            count,
            handle,
            rest,
            reply,
            written,
        })
    }
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

/// The most bytes of the reply to a procedure that can be passed on, if these are just its arguments after the handle; and what it writes.
fn shape(procedure: u32, rest: &[u8]) -> Option<(usize, Option<(u64, u64)>)> {
    let r = &mut View::new(rest);
    let mut written = None;
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
            if count > MAX_IO_BYTES {
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
        // COMMIT: an offset and a count.
        21 => {
            r.array::<12>().ok()?;
            SMALL
        }
        _ => return None,
    };
    r.rest().is_empty().then_some((reply, written))
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
        let call = Call::read(record)?;
        let export = self.export(client.peer()).ok()?;
        if call.written.is_some() && export.read_only {
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
        let ticket = client.try_ticket(record.len(), call.reply)?;
        let called = at.names.server_of(at.volume, (first, called_there))?;
        let waiter = || {
            Waiter::Passed(Box::new(OnItsWay {
                proxy: self.clone(),
                ticket: Some(ticket),
                xid: call.xid,
                procedure: call.procedure,
                bucket,
                at: at.clone(),
                record: (call.procedure == LOOKUP).then(|| Bytes::copy_from_slice(record)),
                written: call
                    .written
                    .map(|(at, len)| (key(first, called_there), at, len)),
                load: load.clone(),
                _passage: passage,
            }))
        };
        let sent = server.line.send(waiter, |w| {
            let ids = (uid, gid, &groups[..count]);
            upstream::head(w, (call::PROGRAM, call::VERSION), call.procedure, ids);
            w.opaque(called);
            w.fixed(call.rest);
        });
        sent.ok()?;
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
        let room = self.ticket.as_ref().map_or(0, Ticket::room);
        let is_short = results.len() + OVERHEAD <= room;
        self.end(|w, this| {
            let rewrite = this.proxy.rewrite(this.bucket, &this.at);
            match rewrite.results(this.procedure, results, w) {
                Ok(()) if is_short => Ok(()),
                _ => Err(Status::ServerFault),
            }
        });
    }
}

/// Whether the results of a LOOKUP are a stub, or can't be told from one.
fn is_to_be_followed(results: &[u8]) -> Read<bool> {
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
