//! All links of one owner: who of them has something to read, and who has something to write.
//!
//! In each turn a link is read once at most, so that one that floods does not keep others from being heard; and it is
//! written to once, with all that was queued for it meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::event::Event;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::frame::{Frame, LinkEnd};
use crate::link::Link;
use crate::util;

/// How much is read from a link at a time.
const READ_BYTES: usize = 128 << 10;
/// Links of which one poll tells.
const EVENTS: usize = 256;
/// How long a frame may wait for others to go along with.
const LATER: Duration = Duration::from_millis(1);
/// How long a thread that has nothing to do looks for more before it sleeps, giving way to all others that can run.
///
/// To be woken costs more than most messages do, for the one who wakes (an interrupt to another processor, which virtual
/// machines make worse) and for the one who is woken; and the next message of an operation is seldom further off than this.
const LOOK: Duration = Duration::from_micros(50);
/// Whoever has waited for longer than this sleeps at once the next time: nothing much is going on.
const QUIET: Duration = Duration::from_millis(1);
/// The waker's token; links count up from 0.
const WAKER: Token = Token(usize::MAX);

/// Wakes the thread that waits for links, from any other thread.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

struct Shared {
    waker: mio::Waker,
    /// Whether the thread has been woken and has not looked yet.
    woken: AtomicBool,
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

impl Waker {
    pub(crate) fn new(registry: &Registry) -> io::Result<Waker> {
        Ok(Waker(Arc::new(Shared {
            waker: mio::Waker::new(registry, WAKER)?,
            woken: AtomicBool::new(false),
        })))
    }

    /// Ends the present wait, or else the next one. What the thread is to find must be in place before.
    pub fn wake(&self) {
        if !self.0.woken.swap(true, Ordering::AcqRel)
            && let Err(e) = self.0.waker.wake()
        {
            tracing::error!("a thread can't be woken: {e}");
        }
    }

    /// To be called after a wait and before the thread looks for what others have left for it.
    pub(crate) fn rearm(&self) {
        self.0.woken.store(false, Ordering::Release);
    }
}

/// What a link gives.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Bytes),
    /// It is over, and is not in the hub any more.
    End(LinkEnd),
}

/// Links, each with a note of its owner's.
pub(crate) struct Hub<N> {
    poll: Poll,
    events: Events,
    waker: Waker,
    scratch: Box<[u8]>,
    links: BTreeMap<usize, Entry<N>>,
    next: usize,
    /// Links that may have something to give, in turn.
    ready: VecDeque<usize>,
    /// Those of them that were read in this turn and may have more.
    again: VecDeque<usize>,
    /// Links that may have something to write.
    dirty: Vec<usize>,
    /// Links with frames that may wait for others, and since when.
    later: Vec<usize>,
    later_since: Option<Instant>,
    /// Whether the last wait was a short one.
    brisk: bool,
}

struct Entry<N> {
    link: Box<Link>,
    note: N,
    queued: bool,
    dirty: bool,
    read: bool,
}

impl<N> fmt::Debug for Hub<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} links", self.links.len())
    }
}

impl<N: Copy> Hub<N> {
    pub fn new() -> io::Result<Hub<N>> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry())?;
        Ok(Hub {
            poll,
            events: Events::with_capacity(EVENTS),
            waker,
            scratch: vec![0; READ_BYTES].into(),
            links: BTreeMap::new(),
            next: 0,
            ready: VecDeque::new(),
            again: VecDeque::new(),
            dirty: Vec::new(),
            later: Vec::new(),
            later_since: None,
            brisk: false,
        })
    }

    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Readable when a poll would not wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }

    /// For what its owner watches besides links, and where it reads into.
    pub fn parts(&mut self) -> (&Registry, &mut [u8]) {
        (self.poll.registry(), &mut self.scratch)
    }

    /// The links' notes.
    pub fn notes(&self) -> impl Iterator<Item = (usize, N)> {
        self.links.iter().map(|(token, entry)| (*token, entry.note))
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Takes a link whose handshake is done; its token is not used again.
    pub fn insert(&mut self, mut link: Box<Link>, note: N) -> io::Result<usize> {
        let token = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(link.stream(), Token(token), interest)?;
        // Some frames may have come together with the end of the handshake.
        link.readable = true;
        let entry = Entry {
            link,
            note,
            queued: true,
            dirty: false,
            read: false,
        };
        self.links.insert(token, entry);
        self.ready.push_back(token);
        Ok(token)
    }

    /// Ends a link at once; nothing more is heard of it.
    pub fn remove(&mut self, token: usize) {
        // Closing the socket ends its registration.
        self.links.remove(&token);
    }

    /// Ends a link; its end comes in its turn.
    pub fn close(&mut self, token: usize) {
        self.fail(token, LinkEnd::ClosedHere);
    }

    /// Ends a link for what it has sent.
    pub fn fail(&mut self, token: usize, end: LinkEnd) {
        if let Some(entry) = self.links.get_mut(&token) {
            entry.link.inbox.clear();
            entry.end(token, end, &mut self.ready);
        }
    }

    /// Waits until something happens, for `timeout` at most. Events of other tokens go to `other`.
    pub fn poll(
        &mut self,
        timeout: Option<Duration>,
        mut other: impl FnMut(usize, &Event),
    ) -> io::Result<()> {
        self.ready.append(&mut self.again);
        let busy = !self.ready.is_empty() || !self.dirty.is_empty();
        let later = self.later_since.map(|_| LATER);
        let timeout = match busy {
            true => Some(Duration::ZERO),
            false => [timeout, later].into_iter().flatten().min(),
        };
        self.wait(timeout)?;
        self.waker.rearm();
        for event in &self.events {
            let token = event.token().0;
            let Some(entry) = self.links.get_mut(&token) else {
                if event.token() != WAKER {
                    other(token, event);
                }
                continue;
            };
            entry.link.on_ready(event);
            if entry.link.readable && !std::mem::replace(&mut entry.queued, true) {
                self.ready.push_back(token);
            }
            if entry.link.wants_flush() && !std::mem::replace(&mut entry.dirty, true) {
                self.dirty.push(token);
            }
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return self.wait_once(timeout);
        }
        let began = util::now();
        let look = timeout.map_or(LOOK, |t| t.min(LOOK));
        while self.brisk && began.elapsed() < look {
            self.wait_once(Some(Duration::ZERO))?;
            if !self.events.is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        self.wait_once(timeout)?;
        self.brisk = began.elapsed() < QUIET;
        Ok(())
    }

    fn wait_once(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            other => other,
        }
    }

    /// What came, until this turn has no more.
    pub fn next(&mut self) -> Option<(usize, N, Item)> {
        loop {
            let token = *self.ready.front()?;
            let Some(entry) = self.links.get_mut(&token) else {
                self.ready.pop_front();
                continue;
            };
            if let Some(frame) = entry.link.next_frame() {
                return Some((token, entry.note, Item::Frame(frame)));
            }
            if let Some(end) = entry.link.end.take() {
                let note = entry.note;
                self.ready.pop_front();
                self.links.remove(&token);
                return Some((token, note, Item::End(end)));
            }
            if entry.link.readable && !std::mem::replace(&mut entry.read, true) {
                if let Err(end) = entry.link.read(&mut self.scratch) {
                    entry.link.end = Some(end);
                }
                continue;
            }
            self.ready.pop_front();
            entry.read = false;
            entry.queued = entry.link.readable;
            if entry.queued {
                self.again.push_back(token);
            }
            // Reading may have made TLS answer.
            if entry.link.wants_flush() && !std::mem::replace(&mut entry.dirty, true) {
                self.dirty.push(token);
            }
        }
    }

    /// Queues a frame; false if it was dropped, because the link is over or full.
    pub fn push(&mut self, token: usize, frame: &Frame) -> bool {
        let Some(entry) = self.links.get_mut(&token) else {
            return false;
        };
        if entry.link.end.is_some() || !entry.link.push(frame) {
            return false;
        }
        self.mark(token);
        true
    }

    /// As [`Hub::push`], for a frame that goes along with the next one, or by itself after a millisecond.
    pub fn push_later(&mut self, token: usize, frame: &Frame) -> bool {
        let Some(entry) = self.links.get_mut(&token) else {
            return false;
        };
        if entry.link.end.is_some() || !entry.link.push(frame) {
            return false;
        }
        self.later.push(token);
        self.later_since.get_or_insert_with(util::now);
        true
    }

    /// Has frames that wait for others written with the next flush.
    pub fn hurry(&mut self) {
        self.later_since = None;
        for token in std::mem::take(&mut self.later) {
            self.mark(token);
        }
    }

    fn mark(&mut self, token: usize) {
        if let Some(entry) = self.links.get_mut(&token)
            && entry.link.wants_flush()
            && !std::mem::replace(&mut entry.dirty, true)
        {
            self.dirty.push(token);
        }
    }

    /// Writes what was queued, as far as the sockets take it.
    pub fn flush(&mut self) {
        if self
            .later_since
            .is_some_and(|since| since.elapsed() >= LATER)
        {
            self.hurry();
        }
        let mut kept = 0;
        for at in 0..self.dirty.len() {
            let token = self.dirty[at];
            let Some(entry) = self.links.get_mut(&token) else {
                continue;
            };
            if let Err(end) = entry.link.flush() {
                entry.end(token, end, &mut self.ready);
            }
            entry.dirty = entry.link.end.is_none() && entry.link.wants_flush();
            if entry.dirty {
                self.dirty[kept] = token;
                kept += 1;
            }
        }
        self.dirty.truncate(kept);
        if self.later_since.is_some() {
            // Some have gone along by now.
            let links = &self.links;
            let waits = |t: &usize| links.get(t).is_some_and(|e| e.link.wants_flush());
            self.later.retain(waits);
            self.later_since = self.later_since.filter(|_| !self.later.is_empty());
        }
    }
}

impl<N> Entry<N> {
    fn end(&mut self, token: usize, end: LinkEnd, ready: &mut VecDeque<usize>) {
        self.link.end.get_or_insert(end);
        if !std::mem::replace(&mut self.queued, true) {
            ready.push_back(token);
        }
    }
}
