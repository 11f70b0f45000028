//! Calls that change something, each done once: the duplicate request cache.
//!
//! A client sends a call again when its connection broke before the reply came, under the same number (xid): it gets the reply of
//! the first. And when the group does not answer in time, it is told to come again (`JUKEBOX`), which it does with a new number;
//! meanwhile the first goes on, since what was sent to the group can't be called back. If the second were sent too, the first
//! could be done after it, and after what the client has done since. So a call that says the same as one that is *overdue* takes
//! its place, and gets its reply.
//!
//! A call is known by its client's address and port, whether it came over TCP or UDP, its number, and a checksum of what it says. Linux comes back from the same
//! port; who comes from another port is another client here, so that two clients with the same call are never taken for one. But libraries come back from
//! another port: a call that is still under way when its connection has ended, and comes again over another one by the same number from the same address, is that
//! client's. (If it is not: nobody was told of the first, so it may be that it was never done, and that this one was.)
//! All this is lost with the process: a call that is sent again to a new front is done again.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::Peer;

/// The most calls that are remembered. Their replies have some 300 bytes each.
const MAX_CALLS: usize = 8192;
/// The most calls that are under way: what they hold in memory is bounded elsewhere.
const MAX_UNDER_WAY: usize = 1024;
/// How long a reply is remembered for the same number. Clients send again within a minute or so.
const REMEMBERED: Duration = Duration::from_secs(180);
/// How long the reply to an overdue call waits for the client to come again: Linux does after 5 s. Not for long: who has given up
/// and means the same anew would be told that it is done.
const FETCHED_WITHIN: Duration = Duration::from_secs(15);

/// What a call says, in short, and who says it.
pub type Checksum = [u8; 16];

/// A reply, from the status on, and when it was there.
type Done = Option<(Instant, Arc<[u8]>)>;

/// A call that is remembered.
#[derive(Debug)]
struct Slot {
    /// When it came, or was looked at last: there is one entry with this in the order, and others with its key are of slots before it.
    since: Instant,
    done: watch::Receiver<Done>,
    sent: Arc<AtomicBool>,
    overdue: bool,
    /// What it says, whoever's it is from that address; where it is looked for so.
    said: Option<Checksum>,
}

impl Slot {
    fn is_under_way(&self) -> bool {
        self.done.borrow().is_none() && self.done.has_changed().is_ok()
    }

    /// Who should have done it has gone before it was sent, as when his connection broke: it is as if it had never come.
    fn is_void(&self) -> bool {
        let is_closed = self.done.has_changed().is_err();
        is_closed && self.done.borrow().is_none() && !self.sent.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct Table {
    /// By what they say, then by number.
    calls: BTreeMap<(Checksum, u32), Slot>,
    /// The same by what they say and by number, and from where each came last.
    said: BTreeMap<(Checksum, u32), (Checksum, SocketAddr)>,
    /// In the order in which they came.
    order: VecDeque<(Instant, (Checksum, u32))>,
    under_way: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Replays(Arc<Mutex<Table>>);

/// What is to be done about a call.
#[derive(Debug)]
pub enum Begun {
    /// Do it.
    New(Work),
    /// It is being done, or was.
    Known(Wait),
    /// There is no room: nothing was done.
    Full,
}

/// A call that is being done. It counts as under way until this goes.
#[derive(Debug)]
pub struct Work {
    table: Replays,
    done: watch::Sender<Done>,
    sent: Arc<AtomicBool>,
}

/// Somebody who waits for a reply.
#[derive(Debug)]
pub struct Wait {
    table: Replays,
    key: (Checksum, u32),
    done: watch::Receiver<Done>,
    sent: Arc<AtomicBool>,
}

/// What a client says: who it is, as whom it acts, and its call. Not the stamp in its credential, which may be another each time.
pub fn checksum(peer: Peer, ids: &[u32], procedure: u32, arguments: &[u8]) -> Checksum {
    from_port(said(peer, ids, procedure, arguments), peer.address.port())
}

/// The same of whatever port of its address, but for the ports that only a superuser has: what others ask may be refused.
pub fn said(peer: Peer, ids: &[u32], procedure: u32, arguments: &[u8]) -> Checksum {
    let mut hasher = blake3::Hasher::new();
    let mut address = peer.address;
    address.set_port(0);
    let address = address.to_string();
    hasher.update(&(address.len() as u32).to_be_bytes());
    hasher.update(address.as_bytes());
    // UDP has ports of its own, with other clients.
    let is_low = peer.address.port() < 1024;
    hasher.update(&[u8::from(peer.is_datagram), u8::from(is_low)]);
    hasher.update(&(ids.len() as u32).to_be_bytes());
    for id in ids {
        hasher.update(&id.to_be_bytes());
    }
    hasher.update(&procedure.to_be_bytes());
    hasher.update(arguments);
    short(&hasher)
}

/// What [`checksum`] makes of what is said from a port.
pub fn from_port(said: Checksum, port: u16) -> Checksum {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&said);
    hasher.update(&port.to_be_bytes());
    short(&hasher)
}

fn short(hasher: &blake3::Hasher) -> Checksum {
    let mut out = [0; 16];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    out
}

#[allow(clippy::disallowed_methods, reason = "how long to remember")]
fn now() -> Instant {
    Instant::now()
}

impl Replays {
    /// Looks whether a call is known. `New` must be done then, and its reply be given to [`Work::finish`].
    pub fn begin(&self, sum: Checksum, xid: u32) -> Begun {
        self.begin_at(sum, xid, now())
    }

    /// The same of a call that came over a connection, from where it [`said`] so. One that is under way for a connection from another port that `has_ended` is
    /// taken for the same one.
    pub fn begin_on_connection(
        &self,
        said: Checksum,
        from: SocketAddr,
        xid: u32,
        has_ended: impl Fn(SocketAddr) -> bool,
    ) -> Begun {
        let sum = from_port(said, from.port());
        self.begin_as(sum, xid, now(), Some((said, from)), has_ended)
    }

    fn begin_at(&self, sum: Checksum, xid: u32, now: Instant) -> Begun {
        self.begin_as(sum, xid, now, None, |_| false)
    }

    fn begin_as(
        &self,
        sum: Checksum,
        xid: u32,
        now: Instant,
        from: Option<(Checksum, SocketAddr)>,
        has_ended: impl Fn(SocketAddr) -> bool,
    ) -> Begun {
        let mut table = self.lock();
        table.forget(now);
        let key = (sum, xid);
        let wait = |slot: &Slot| {
            Begun::Known(Wait {
                table: self.clone(),
                key,
                done: slot.done.clone(),
                sent: slot.sent.clone(),
            })
        };
        match table.calls.get(&key) {
            Some(slot) if slot.is_void() => drop(table.remove(&key)),
            Some(slot) => return wait(slot),
            None => {}
        }
        if let Some(old) = table.overdue(sum, now)
            && let Some(slot) = table.remove(&old)
        {
            let begun = wait(&slot);
            table.keep(key, (slot.done, slot.sent), from, now);
            return begun;
        }
        if table.calls.len() >= MAX_CALLS {
            return Begun::Full;
        }
        if let Some((said, _)) = from
            && let Some(slot) = table.left(said, xid, has_ended)
        {
            let (begun, kept) = (wait(slot), (slot.done.clone(), slot.sent.clone()));
            table.keep(key, kept, from, now);
            return begun;
        }
        if table.under_way >= MAX_UNDER_WAY {
            return Begun::Full;
        }
        let (sender, done) = watch::channel(None);
        let sent = Arc::new(AtomicBool::new(false));
        table.keep(key, (done, sent.clone()), from, now);
        table.under_way += 1;
        Begun::New(Work {
            table: self.clone(),
            done: sender,
            sent,
        })
    }

    /// Waits for the reply to a call that was begun with this number.
    pub fn wait(&self, sum: Checksum, xid: u32) -> Option<Wait> {
        let key = (sum, xid);
        let table = self.lock();
        let slot = table.calls.get(&key)?;
        Some(Wait {
            table: self.clone(),
            key,
            done: slot.done.clone(),
            sent: slot.sent.clone(),
        })
    }

    /// How many calls are under way.
    pub fn under_way(&self) -> usize {
        self.lock().under_way
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // What is held here stays right whoever panics in between.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn keep(
        &mut self,
        key: (Checksum, u32),
        (done, sent): (watch::Receiver<Done>, Arc<AtomicBool>),
        from: Option<(Checksum, SocketAddr)>,
        now: Instant,
    ) {
        let (sum, xid) = key;
        if let Some((said, address)) = from {
            self.said.insert((said, xid), (sum, address));
        }
        let slot = Slot {
            since: now,
            done,
            sent,
            overdue: false,
            said: from.map(|(said, _)| said),
        };
        self.calls.insert(key, slot);
        self.order.push_back((now, key));
    }

    fn remove(&mut self, key: &(Checksum, u32)) -> Option<Slot> {
        let slot = self.calls.remove(key)?;
        if let Some(said) = slot.said {
            // Another one may say the same by now.
            let own = |(sum, _): &(Checksum, SocketAddr)| *sum == key.0;
            if self.said.get(&(said, key.1)).is_some_and(own) {
                self.said.remove(&(said, key.1));
            }
        }
        Some(slot)
    }

    /// A call that says this and is under way for a client whose connection has ended.
    fn left(
        &self,
        said: Checksum,
        xid: u32,
        has_ended: impl Fn(SocketAddr) -> bool,
    ) -> Option<&Slot> {
        let (sum, from) = self.said.get(&(said, xid))?;
        let slot = self.calls.get(&(*sum, xid))?;
        (slot.is_under_way() && has_ended(*from)).then_some(slot)
    }

    /// Forgets what is old, and the oldest where there is much: of what is done.
    fn forget(&mut self, now: Instant) {
        // Those that are under way go to the end, so as many steps find one that is done.
        for _ in 0..=MAX_UNDER_WAY {
            let Some((since, key)) = self.order.front().copied() else {
                return;
            };
            let crowded = self.calls.len() >= MAX_CALLS;
            if !crowded && now.saturating_duration_since(since) < REMEMBERED {
                return;
            }
            self.order.pop_front();
            match self.calls.get_mut(&key) {
                // It was void, and was begun anew.
                Some(slot) if slot.since != since => {}
                Some(slot) if slot.is_under_way() => {
                    slot.since = now;
                    self.order.push_back((now, key));
                }
                Some(_) => drop(self.remove(&key)),
                // It goes on under another number.
                None => {}
            }
        }
    }

    /// A call that says this, whose client was told to come again.
    fn overdue(&self, sum: Checksum, now: Instant) -> Option<(Checksum, u32)> {
        let mut same = self.calls.range((sum, 0)..=(sum, u32::MAX));
        let good = |slot: &Slot| {
            let done = slot.done.borrow();
            let fresh = |since: Instant| now.saturating_duration_since(since) < FETCHED_WITHIN;
            slot.overdue && !slot.is_void() && done.as_ref().is_none_or(|(since, _)| fresh(*since))
        };
        same.find(|(_, slot)| good(slot)).map(|(key, _)| *key)
    }
}

impl Work {
    /// From now on it may be done, whatever becomes of who does it.
    pub fn send(&self) {
        self.sent.store(true, Ordering::Release);
    }

    /// Hands in the reply, for all who wait and will ask.
    pub fn finish(self, reply: Vec<u8>) {
        self.done.send_replace(Some((now(), reply.into())));
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.table.lock().under_way -= 1;
    }
}

impl Wait {
    /// The reply; none if it is not there in time, or was never sent, and then the client will come again. Who did the call may
    /// also have failed, which is an error.
    pub async fn reply(mut self, patience: Duration) -> Option<Result<Arc<[u8]>, ()>> {
        let waiting = self.done.wait_for(Option::is_some);
        let found = match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(done)) => done.as_ref().map(|(_, reply)| Ok(reply.clone())),
            Ok(Err(_)) if self.sent.load(Ordering::Acquire) => Some(Err(())),
            Ok(Err(_)) => None,
            Err(_) => None,
        };
        if let Some(slot) = self.table.lock().calls.get_mut(&self.key) {
            slot.overdue = found.is_none();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Checksum = [1; 16];
    const B: Checksum = [2; 16];
    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn new(replays: &Replays, sum: Checksum, xid: u32) -> Work {
        match replays.begin(sum, xid) {
            Begun::New(work) => work,
            other => panic!("{other:?}"),
        }
    }

    fn known(begun: Begun) -> Wait {
        match begun {
            Begun::Known(wait) => wait,
            other => panic!("{other:?}"),
        }
    }

    async fn reply(wait: Wait, patience: Duration) -> Option<Vec<u8>> {
        wait.reply(patience)
            .await
            .map(|reply| reply.unwrap().to_vec())
    }

    /// The same call gets the same reply, while it is done and after it; another number or another call is done anew.
    #[tokio::test]
    async fn a_call_that_comes_again_is_done_once() {
        let replays = Replays::default();
        let work = new(&replays, A, 1);
        let again = known(replays.begin(A, 1));
        let _other_number = new(&replays, A, 2);
        let _other_call = new(&replays, B, 1);
        assert_eq!(replays.under_way(), 3);
        work.finish(vec![7]);
        assert_eq!(reply(again, LONG).await, Some(vec![7]));
        assert_eq!(reply(known(replays.begin(A, 1)), LONG).await, Some(vec![7]));
        assert_eq!(replays.under_way(), 2);
    }

    /// A client that was told to come again comes with another number and gets what became of its first call: once.
    #[tokio::test]
    async fn an_overdue_call_is_taken_up() {
        let replays = Replays::default();
        let work = new(&replays, A, 1);
        assert_eq!(reply(replays.wait(A, 1).unwrap(), SOON).await, None);
        assert_eq!(reply(known(replays.begin(A, 2)), SOON).await, None);
        work.finish(vec![7]);
        assert_eq!(reply(known(replays.begin(A, 3)), LONG).await, Some(vec![7]));
        drop(new(&replays, A, 4));
        // Nobody came for this one in time.
        let work = new(&replays, B, 1);
        assert_eq!(reply(replays.wait(B, 1).unwrap(), SOON).await, None);
        work.finish(vec![8]);
        let later = now() + FETCHED_WITHIN;
        assert!(matches!(replays.begin_at(B, 2, later), Begun::New(_)));
    }

    /// A call that comes again from another port, when the connection over which it came has ended, is the one that is under way: as often as that
    /// happens. Not while that connection is there, nor when the call is done; and another number is another call.
    #[tokio::test]
    async fn who_comes_back_from_another_port_is_known() {
        let replays = Replays::default();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let begin = |port, xid, ended: &[u16]| {
            let has_ended = |from: SocketAddr| ended.contains(&from.port());
            replays.begin_on_connection(A, at(port), xid, has_ended)
        };
        let new = |begun| match begun {
            Begun::New(work) => work,
            other => panic!("{other:?}"),
        };
        let _other = new(begin(1, 1, &[]));
        let work = new(begin(2, 1, &[]));
        let again = known(begin(3, 1, &[2]));
        let later = known(begin(4, 1, &[2, 3]));
        drop(new(begin(5, 2, &[1, 2, 3, 4])));
        assert_eq!(replays.under_way(), 2);
        work.finish(vec![7]);
        for wait in [again, later, known(begin(4, 1, &[]))] {
            assert_eq!(reply(wait, LONG).await, Some(vec![7]));
        }
        drop(new(begin(6, 1, &[1, 2, 3, 4])));
    }

    /// A client has a port, and what is said from another one of its address is alike only where both are of the same kind.
    #[test]
    fn a_checksum_is_of_a_client() {
        let peer = |port, is_datagram| Peer {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            is_datagram,
        };
        let (sum, said) = (
            |peer| checksum(peer, &[1], 7, b"call"),
            |peer| said(peer, &[1], 7, b"call"),
        );
        assert_eq!(sum(peer(2000, false)), sum(peer(2000, false)));
        assert_ne!(sum(peer(2000, false)), sum(peer(2001, false)));
        assert_eq!(said(peer(2000, false)), said(peer(2001, false)));
        assert_ne!(said(peer(2000, false)), said(peer(2000, true)));
        assert_ne!(said(peer(2000, false)), said(peer(1000, false)));
    }

    /// Work that is given up leaves nobody waiting.
    #[tokio::test]
    async fn work_that_fails_is_told() {
        let replays = Replays::default();
        let work = new(&replays, A, 1);
        work.send();
        let wait = replays.wait(A, 1).unwrap();
        drop(work);
        assert_eq!(wait.reply(LONG).await, Some(Err(())));
        assert_eq!(replays.under_way(), 0);
        assert!(matches!(replays.begin(A, 1), Begun::Known(_)));
    }

    /// What was given up before it was sent is done when it comes again, by whatever number.
    #[tokio::test]
    async fn what_was_never_sent_is_done_anew() {
        let replays = Replays::default();
        drop(new(&replays, A, 1));
        let work = new(&replays, A, 1);
        let wait = replays.wait(A, 1).unwrap();
        drop(work);
        assert_eq!(wait.reply(LONG).await, None);
        let work = new(&replays, A, 2);
        work.send();
        let wait = replays.wait(A, 2).unwrap();
        work.finish(vec![7]);
        assert_eq!(reply(wait, LONG).await, Some(vec![7]));
        assert_eq!(replays.under_way(), 0);
    }

    /// What is done anew is remembered from then on.
    #[test]
    fn what_is_done_anew_is_remembered_as_long() {
        let replays = Replays::default();
        let start = now();
        let begin = |at| match replays.begin_at(A, 1, at) {
            Begun::New(work) => work,
            other => panic!("{other:?}"),
        };
        drop(begin(start));
        begin(start + REMEMBERED / 2).finish(vec![7]);
        let known = |at| matches!(replays.begin_at(A, 1, at), Begun::Known(_));
        assert!(known(start + REMEMBERED));
        assert!(!known(start + REMEMBERED * 3 / 2));
    }

    /// What is remembered is bounded, in number and in time; what is under way is not forgotten.
    #[test]
    fn memory_is_bounded() {
        let replays = Replays::default();
        let mut works: Vec<Work> = (0..MAX_UNDER_WAY as u32)
            .map(|n| new(&replays, A, n))
            .collect();
        assert!(matches!(replays.begin(A, u32::MAX), Begun::Full));
        works.truncate(10);
        for n in 0..3 * MAX_CALLS as u32 {
            new(&replays, B, n).finish(vec![0]);
            assert!(replays.lock().calls.len() <= MAX_CALLS);
            assert!(replays.lock().order.len() <= 2 * MAX_CALLS);
            let from = SocketAddr::from(([127, 0, 0, 1], n as u16));
            drop(replays.begin_on_connection(B, from, n, |_| false));
            assert!(replays.lock().said.len() <= MAX_CALLS);
        }
        assert!((0..10).all(|n| replays.wait(A, n).is_some()));
        let later = now() + REMEMBERED;
        for n in 0..2 * MAX_CALLS as u32 {
            drop(replays.begin_at([n as u8; 16], u32::MAX - n, later));
        }
        assert!(replays.wait(B, 3 * MAX_CALLS as u32 - 1).is_none());
        assert!((0..10).all(|n| replays.wait(A, n).is_some()));
    }
}
