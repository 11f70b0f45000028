//! All links of one owner: who of them has something to read, and who has something to write.
//!
//! In each turn a link is read once at most, so that one that floods does not keep others from being heard; and it is
//! written to once, with all that was queued for it meanwhile.
//!
//! Aardvark (Clement et al., NSDI 2009, sect. 4): replicas are heard apart from clients, and everyone in turn. Links have a *source*,
//! who is at their other end. Those of a source share what it may have handled in a turn; sources of the first lane go first,
//! and all of the second lane together have a bound, so that the first lane is heard again soon. What is over waits for the next
//! turn, and meanwhile nothing more is read from that link. A source that is *put aside* is not read at all, nor is one that is
//! *held* because its owner has enough of it, nor a link of the second lane whose other end does not take what it is sent.

mod lending;
mod waker;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::event::Event;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::clock;
use crate::conduct::units;
use crate::frame::{Frame, LinkEnd};
use crate::link::Link;
use crate::sealers::Sealers;

use waker::WAKER;
pub use waker::Waker;

/// How much is read from a link at a time.
const READ_BYTES: usize = 128 << 10;
/// And of the second lane, where not so much of one message is missing: there may be a thousand links, each of which keeps what it
/// was read until its turn.
const SHORT_READ_BYTES: usize = 16 << 10;
/// Units that one source may have handled in a turn, by lane: some windows of votes, and a window of requests. A long message may go
/// beyond, at the cost of the next turns.
const SOURCE_UNITS: [u64; 2] = [256, 64];
/// Units that all sources of a lane together may have handled in a turn.
const LANE_UNITS: [u64; 2] = [u64::MAX, 512];
/// A link of the second lane for which so many bytes wait is not read: who does not take its answers is asked for no more questions.
const UNTAKEN_BYTES: usize = 2 << 20;
/// As long as less waits for all links of the second lane together, frames for them share memory with what they were made of. That may keep more than what
/// is sent: a value of 64 KiB is perhaps a slice of a request of a MiB. So what more waits, for peers that do not take it, has memory of its own.
const SHARED_BYTES: usize = 4 << 20;
/// Links of which one poll tells.
const EVENTS: usize = 256;
/// How long a frame may wait for others to go along with: longer than a client takes for its next small operation where votes wait for a
/// disk. What it is for, COMMITs of a batch that was answered, nobody waits for.
const LATER: Duration = Duration::from_millis(4);
/// How long a thread that has nothing to do looks for more before it sleeps, giving way to all others that can run.
///
/// To be woken costs more than most messages do, for the one who wakes (an interrupt to another processor, which virtual
/// machines make worse) and for the one who is woken; and the next message of an operation is seldom further off than this.
const LOOK: Duration = Duration::from_micros(100);
/// Whoever has waited for longer than this sleeps at once the next time: nothing much is going on.
const QUIET: Duration = Duration::from_millis(1);

/// What a link gives.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Bytes),
    /// So many units it has cost beside what came of it.
    Overhead(u64),
    /// It is over, and is not in the hub any more.
    End(LinkEnd),
}

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    First,
    Second,
}

/// Who is at the other end of some links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct SourceId(usize);

#[derive(Debug)]
struct Source {
    lane: Lane,
    /// The turn in which it was looked at last, and the units that were not paid for by then.
    turn: u64,
    used: u64,
    is_aside: bool,
    is_held: bool,
}

impl Source {
    /// Each turn pays for a share. Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): who had a long message handled that
    /// went beyond its share is passed over until that is paid for.
    fn begin(&mut self, turn: u64) {
        let paid = SOURCE_UNITS[self.lane as usize].saturating_mul(turn - self.turn);
        self.used = self.used.saturating_sub(paid);
        self.turn = turn;
    }

    fn may_go_on(&mut self, turn: u64) -> bool {
        self.begin(turn);
        self.is_heard() && self.used < SOURCE_UNITS[self.lane as usize]
    }

    fn is_heard(&self) -> bool {
        !self.is_aside && !self.is_held
    }

    fn charge(&mut self, units: u64) {
        self.used += units;
    }
}

/// What bounds the memory of all links of the second lane together. When it is reached, the link that has most is ended; of guests', where those have
/// more than half of it: many who have little each could else have the others' links ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HubLimits {
    /// Bytes that wait to be sent.
    pub waiting_bytes: usize,
    /// Bytes of messages that have not come whole.
    pub partial_bytes: usize,
}

/// Links, each with a note of its owner's.
pub(crate) struct Hub<N> {
    poll: Poll,
    events: Events,
    waker: Waker,
    scratch: Box<[u8]>,
    links: BTreeMap<usize, Entry<N>>,
    next: usize,
    sources: Vec<Source>,
    turn: u64,
    /// Units that were handled in this turn, by lane.
    used: [u64; 2],
    /// Lanes of which nothing is read.
    rests: [bool; 2],
    limits: HubLimits,
    /// What the links of the second lane have of what is bounded.
    waiting_bytes: usize,
    partial_bytes: usize,
    /// Links that may have something to give, in turn, by lane.
    ready: [VecDeque<usize>; 2],
    /// Those of them that had their share of this turn and may have more.
    again: [VecDeque<usize>; 2],
    /// Links that may have something to write.
    dirty: Vec<usize>,
    /// Links with frames that may wait for others, and since when.
    later: Vec<usize>,
    later_since: Option<Instant>,
    /// Whether the last wait was a short one.
    brisk: bool,
    /// Where there are threads that seal.
    sealers: Option<Sealers>,
}

struct Entry<N> {
    link: Box<Link>,
    note: N,
    source: SourceId,
    lane: Lane,
    is_of_guest: bool,
    queued: bool,
    dirty: bool,
    read: bool,
    /// Whether its channel is back, and what came meanwhile was not read.
    owed: bool,
}

impl<N> fmt::Debug for Hub<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} links", self.links.len())
    }
}

impl<N: Copy> Hub<N> {
    pub fn new(limits: HubLimits) -> io::Result<Hub<N>> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry())?;
        Ok(Hub {
            poll,
            events: Events::with_capacity(EVENTS),
            waker,
            scratch: vec![0; READ_BYTES].into(),
            links: BTreeMap::new(),
            next: 0,
            sources: Vec::new(),
            turn: 0,
            used: [0; 2],
            rests: [false; 2],
            limits,
            waiting_bytes: 0,
            partial_bytes: 0,
            ready: Default::default(),
            again: Default::default(),
            dirty: Vec::new(),
            later: Vec::new(),
            later_since: None,
            brisk: false,
            sealers: None,
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

    /// A link's note.
    pub fn note(&self, token: usize) -> Option<N> {
        self.links.get(&token).map(|entry| entry.note)
    }

    /// The number of the certificate that a link was made with.
    pub fn certified(&self, token: usize) -> u64 {
        self.links
            .get(&token)
            .map_or(0, |entry| entry.link.certified())
    }

    /// The links' notes.
    pub fn notes(&self) -> impl Iterator<Item = (usize, N)> {
        self.links.iter().map(|(token, entry)| (*token, entry.note))
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The token of the next link: those of all links that are here are below it.
    pub fn next_token(&self) -> usize {
        self.next
    }

    /// Makes a source, which stays as long as the hub does.
    pub fn source(&mut self, lane: Lane) -> SourceId {
        self.sources.push(Source {
            lane,
            turn: 0,
            used: 0,
            is_aside: false,
            is_held: false,
        });
        SourceId(self.sources.len() - 1)
    }

    /// Nothing is read from a source any more, until it is taken back.
    pub fn put_aside(&mut self, source: SourceId) {
        self.sources[source.0].is_aside = true;
    }

    /// A source is heard again, unless it is held.
    pub fn take_back(&mut self, source: SourceId) {
        self.sources[source.0].is_aside = false;
        self.hear(source);
    }

    /// Nothing is read from a source as long as it is held.
    pub fn hold(&mut self, source: SourceId, is_held: bool) {
        self.sources[source.0].is_held = is_held;
        self.hear(source);
    }

    /// Nothing is read from a lane as long as it rests, and what it has does not keep [`Hub::poll`] from waiting.
    pub fn rest(&mut self, lane: Lane, rests: bool) {
        self.rests[lane as usize] = rests;
    }

    fn hear(&mut self, source: SourceId) {
        if !self.sources[source.0].is_heard() {
            return;
        }
        for (&token, entry) in &mut self.links {
            if entry.source == source && entry.has_more() {
                entry.queue(token, &mut self.ready);
            }
        }
    }

    /// Takes a link whose handshake is done; its token is not used again.
    pub fn insert(&mut self, mut link: Box<Link>, note: N, source: SourceId) -> io::Result<usize> {
        let lane = self.sources[source.0].lane;
        let token = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(link.stream(), Token(token), interest)?;
        // Some frames may have come together with the end of the handshake.
        link.readable = true;
        // Handshakes are paid for as such.
        link.take_overhead(0);
        let entry = Entry {
            is_of_guest: link.is_of_guest(),
            link,
            note,
            source,
            lane,
            queued: true,
            dirty: false,
            read: false,
            owed: false,
        };
        self.links.insert(token, entry);
        self.ready[lane as usize].push_back(token);
        Ok(token)
    }

    /// Ends a link at once; nothing more is heard of it.
    pub fn remove(&mut self, token: usize) {
        // Closing the socket ends its registration.
        if let Some(entry) = self.links.remove(&token)
            && entry.lane == Lane::Second
        {
            self.waiting_bytes -= entry.link.idle_bytes();
            self.partial_bytes -= entry.link.partial_bytes();
        }
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
        self.turn += 1;
        self.used = [0; 2];
        for (ready, again) in self.ready.iter_mut().zip(&mut self.again) {
            ready.append(again);
        }
        let mut lanes = self.ready.iter().zip(self.rests);
        let busy = lanes.any(|(ready, rests)| !rests && !ready.is_empty());
        let busy = busy || !self.dirty.is_empty();
        let later = self
            .later_since
            .map(|since| LATER.saturating_sub(since.elapsed()));
        let timeout = match busy {
            true => Some(Duration::ZERO),
            false => [timeout, later].into_iter().flatten().min(),
        };
        self.wait(timeout)?;
        self.waker.rearm();
        self.take_errands();
        for event in &self.events {
            let token = event.token().0;
            let Some(entry) = self.links.get_mut(&token) else {
                if event.token() != WAKER {
                    other(token, event);
                }
                continue;
            };
            entry.link.on_ready(event);
            if entry.link.is_readable() && self.sources[entry.source.0].is_heard() {
                entry.queue(token, &mut self.ready);
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
        let began = clock::now();
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
            let lane = self.lane()?;
            let token = *self.ready[lane].front()?;
            let Some(entry) = self.links.get_mut(&token) else {
                self.ready[lane].pop_front();
                continue;
            };
            let source = &mut self.sources[entry.source.0];
            let may_go_on = source.may_go_on(self.turn) && entry.takes_answers();
            if may_go_on && let Some(frame) = entry.link.next_frame() {
                let units = units(frame.len());
                source.charge(units);
                self.used[lane] += units;
                return Some((token, entry.note, Item::Frame(frame)));
            }
            let is_empty = entry.link.inbox.is_empty();
            if is_empty && let Some(end) = entry.link.end.take() {
                let note = entry.note;
                self.ready[lane].pop_front();
                self.remove(token);
                return Some((token, note, Item::End(end)));
            }
            let may_read = may_go_on && is_empty && entry.link.is_readable();
            if may_read && !std::mem::replace(&mut entry.read, true) {
                let (note, units) = (entry.note, self.read(token));
                if units > 0 {
                    return Some((token, note, Item::Overhead(units)));
                }
                continue;
            }
            self.ready[lane].pop_front();
            (entry.read, entry.owed) = (false, false);
            entry.queued = source.is_heard() && entry.takes_answers() && entry.has_more();
            if entry.queued {
                self.again[lane].push_back(token);
            }
            // Reading may have made TLS answer.
            if entry.link.wants_flush() && !std::mem::replace(&mut entry.dirty, true) {
                self.dirty.push(token);
            }
        }
    }

    /// Whose turn it is.
    fn lane(&self) -> Option<usize> {
        let has_turn = |&lane: &usize| {
            let may = !self.rests[lane] && self.used[lane] < LANE_UNITS[lane];
            may && !self.ready[lane].is_empty()
        };
        (0..self.ready.len()).find(has_turn)
    }

    /// Reads a link once; how many units of that are for nothing. Its source has paid for them.
    fn read(&mut self, token: usize) -> u64 {
        let Some(entry) = self.links.get_mut(&token) else {
            return 0;
        };
        let most = match entry.lane {
            Lane::First => READ_BYTES,
            Lane::Second => entry
                .link
                .missing_bytes()
                .clamp(SHORT_READ_BYTES, READ_BYTES),
        };
        let before = entry.link.partial_bytes();
        if let Err(end) = entry.link.read(&mut self.scratch[..most]) {
            entry.link.end = Some(end);
        }
        let units = entry.link.take_overhead(entry.link.inbox.len());
        self.sources[entry.source.0].charge(units);
        self.used[entry.lane as usize] += units;
        if entry.lane == Lane::Second {
            self.partial_bytes = self.partial_bytes - before + entry.link.partial_bytes();
            if self.partial_bytes > self.limits.partial_bytes {
                self.end_largest(self.limits.partial_bytes, Link::partial_bytes);
            }
        }
        units
    }

    /// Ends the link of the second lane that has most of something, of which all may have so much.
    fn end_largest(&mut self, limit: usize, of: impl Fn(&Link) -> usize) {
        let second = || self.links.iter().filter(|(_, e)| e.lane == Lane::Second);
        let guests = second().filter(|(_, entry)| entry.is_of_guest);
        let of_guests: usize = guests.map(|(_, entry)| of(&entry.link)).sum();
        let is_theirs = of_guests > limit / 2;
        let largest = second()
            .filter(|(_, entry)| !is_theirs || entry.is_of_guest)
            .max_by_key(|(_, entry)| of(&entry.link));
        if let Some((&token, _)) = largest
            && let Some(entry) = self.links.get_mut(&token)
        {
            let dropped = entry.link.drop_all();
            self.waiting_bytes -= dropped.waiting;
            self.partial_bytes -= dropped.partial;
            entry.end(token, LinkEnd::TooMuch, &mut self.ready);
        }
    }

    /// Queues a frame; false if it was dropped, because the link is over or full.
    pub fn push(&mut self, token: usize, frame: &Frame) -> bool {
        let Some(entry) = self.links.get_mut(&token) else {
            return false;
        };
        if entry.lane == Lane::Second {
            // Who asks for long answers has fewer questions heard, whether it takes them or not.
            let source = &mut self.sources[entry.source.0];
            source.begin(self.turn);
            source.charge(units(frame.wire_bytes()) - 1);
        }
        if entry.link.end.is_some() {
            return false;
        }
        let may_share = entry.lane == Lane::First || self.waiting_bytes < SHARED_BYTES;
        let own = (frame.is_shared() && !may_share).then(|| frame.unshared());
        if !entry.link.push(own.as_ref().unwrap_or(frame)) {
            return false;
        }
        if entry.lane == Lane::Second {
            self.waiting_bytes += frame.wire_bytes();
            if self.waiting_bytes > self.limits.waiting_bytes {
                self.end_largest(self.limits.waiting_bytes, Link::idle_bytes);
            }
        }
        self.mark(token);
        true
    }

    /// As [`Hub::push`], for a frame that goes along with the next one, or by itself after some milliseconds.
    pub fn push_later(&mut self, token: usize, frame: &Frame) -> bool {
        let Some(entry) = self.links.get_mut(&token) else {
            return false;
        };
        if entry.link.end.is_some() || !entry.link.push(frame) {
            return false;
        }
        if entry.lane == Lane::Second {
            self.waiting_bytes += frame.wire_bytes();
        }
        self.later.push(token);
        self.later_since.get_or_insert_with(clock::now);
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
        self.send_errands();
        let mut kept = 0;
        for at in 0..self.dirty.len() {
            let token = self.dirty[at];
            let Some(entry) = self.links.get_mut(&token) else {
                continue;
            };
            let before = entry.link.waiting_bytes();
            let took = entry.takes_answers();
            if let Err(end) = entry.link.flush() {
                entry.end(token, end, &mut self.ready);
            }
            if !took && entry.takes_answers() && entry.has_more() {
                entry.queue(token, &mut self.ready);
            }
            if entry.lane == Lane::Second {
                self.waiting_bytes = self.waiting_bytes - before + entry.link.waiting_bytes();
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
    fn end(&mut self, token: usize, end: LinkEnd, ready: &mut [VecDeque<usize>; 2]) {
        self.link.end.get_or_insert(end);
        self.queue(token, ready);
    }

    fn queue(&mut self, token: usize, ready: &mut [VecDeque<usize>; 2]) {
        if !std::mem::replace(&mut self.queued, true) {
            ready[self.lane as usize].push_back(token);
        }
    }

    /// Whether it is no more than a little behind with what it is sent.
    fn takes_answers(&self) -> bool {
        let waiting = self.link.waiting_bytes();
        self.lane == Lane::First || waiting < UNTAKEN_BYTES || self.link.end.is_some()
    }

    /// Whether it can give something in its next turn.
    fn has_more(&self) -> bool {
        self.link.is_readable() || self.link.end.is_some() || !self.link.inbox.is_empty()
    }
}
