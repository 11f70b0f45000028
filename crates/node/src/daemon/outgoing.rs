//! What a replica sends; in a demonstration by way of a fault.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quorate_fault::{Fault, Faulty};
use quorate_net::{Frame, Identity, ReplicaLinks};
use quorate_replica::{ConnectionId, Signing};
use quorate_wire::message::{PeerMessage, ReplicaMessage};
use quorate_wire::{Encode, Quorum, ReplicaId, Seq, Signer};

/// How long a message may wait for others to be signed with.
const LATER_MS: u64 = 4;
/// Messages held back at most; a slow replica loses what is beyond.
const MAX_DELAYED: usize = 64 << 10;

/// The way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    quorum: Quorum,
    me: ReplicaId,
    links: ReplicaLinks,
    signing: Signing,
    /// What waits to be signed, all of it together, where messages are signed.
    unsigned: Vec<(To, PeerMessage)>,
    /// When it is to leave.
    unsigned_due: u64,
    /// Only where the operator of a group that was made for demonstrations has asked for it: `Daemon::start` sees to that.
    faulty: Option<Box<Faulty>>,
    delayed: BinaryHeap<Reverse<Delayed>>,
    delays: u64,
    /// Whether clients are answered before a batch commits: then COMMITs may take their time.
    tentative: bool,
    /// The newest place that this replica has voted for.
    newest: Seq,
    /// Connections that have not taken a reply.
    not_taking: Vec<ConnectionId>,
}

#[derive(Debug)]
struct Delayed {
    due: u64,
    order: u64,
    to: Destination,
    frame: Frame,
}

/// Which replicas something is for.
#[derive(Clone, Copy, Debug)]
enum To {
    One(ReplicaId),
    All,
}

#[derive(Clone, Copy, Debug)]
enum Destination {
    Peer(ReplicaId),
    Client(ConnectionId),
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

impl Outgoing {
    pub fn new(
        quorum: Quorum,
        me: ReplicaId,
        links: ReplicaLinks,
        signing: Signing,
        fault: Option<Fault>,
        key: Signer,
        tentative: bool,
    ) -> Outgoing {
        let faulty = fault.map(|fault| {
            tracing::warn!(%fault, "this replica misbehaves on purpose");
            Box::new(Faulty::new(fault, quorum, me, key, u64::from(me.0)))
        });
        Outgoing {
            quorum,
            me,
            links,
            signing,
            unsigned: Vec::new(),
            unsigned_due: u64::MAX,
            faulty,
            delayed: BinaryHeap::new(),
            delays: 0,
            tentative,
            newest: Seq(0),
            not_taking: Vec::new(),
        }
    }

    /// What checks the messages of others.
    pub fn signing(&mut self) -> &mut Signing {
        &mut self.signing
    }

    /// Links, and what is said for others to pass on, are under another key from now on.
    pub fn renew(&mut self, identity: &Identity) {
        self.links.renew_keys(identity);
        if let Some(faulty) = &mut self.faulty {
            faulty.renew(identity.signer(self.signing.group()));
        }
    }

    pub fn links(&mut self) -> &mut ReplicaLinks {
        &mut self.links
    }

    /// The fault's name; empty in a sound replica.
    pub fn fault_name(&self) -> String {
        self.faulty
            .as_ref()
            .map(|f| f.fault().to_string())
            .unwrap_or_default()
    }

    pub fn send(&mut self, to: ReplicaId, message: PeerMessage, now: u64) {
        match &mut self.faulty {
            None if self.signing.signs() => self.sign_later(To::One(to), message, now),
            None => drop(self.links.send(to, &Frame::encode(&message))),
            Some(faulty) => {
                let sent = faulty.for_peer(to, message).into_iter();
                let sent = sent
                    .map(|(m, delay)| (self.signing.seal(m), delay))
                    .collect();
                self.send_faulty(Destination::Peer(to), sent, now);
            }
        }
    }

    pub fn broadcast(&mut self, message: PeerMessage, now: u64) {
        if self.faulty.is_none() {
            let may_wait = self.may_wait(&message);
            if self.signing.signs() {
                let due = now + u64::from(may_wait) * LATER_MS;
                return self.sign_later(To::All, message, due);
            }
            let frame = Frame::encode(&message);
            return match may_wait {
                true => self.links.broadcast_later(&frame),
                false => self.links.broadcast(&frame),
            };
        }
        for to in self.quorum.others(self.me) {
            self.send(to, message.clone(), now);
        }
    }

    /// A message leaves with the others that do until it is due.
    fn sign_later(&mut self, to: To, message: PeerMessage, due: u64) {
        self.unsigned.push((to, message));
        self.unsigned_due = self.unsigned_due.min(due);
    }

    /// Has what may wait for others leave with the next [`Outgoing::flush`].
    pub fn hurry(&mut self) {
        if !self.unsigned.is_empty() {
            self.unsigned_due = 0;
        }
        self.links.hurry();
    }

    /// Writes what is to leave, as far as the sockets take it.
    pub fn flush(&mut self, now: u64) {
        if self.unsigned_due <= now {
            self.unsigned_due = u64::MAX;
            let (to, messages): (Vec<To>, Vec<_>) = self.unsigned.drain(..).unzip();
            for (to, message) in to.into_iter().zip(self.signing.seal_all(&messages)) {
                let frame = Frame::encode(&message);
                match to {
                    To::One(to) => drop(self.links.send(to, &frame)),
                    To::All => self.links.broadcast(&frame),
                }
            }
        }
        self.links.flush();
    }

    /// Whether a message may go along with the next one. PBFT 2002, 5.1.2: with tentative execution nobody waits for the COMMITs
    /// of the newest batch, and the PREPAREs of the next one carry them. Commits of earlier places hold that next one up.
    fn may_wait(&mut self, message: &PeerMessage) -> bool {
        match message {
            PeerMessage::Prepare(vote) => {
                self.newest = self.newest.max(vote.seq);
                false
            }
            PeerMessage::Commit(vote) => self.tentative && vote.seq >= self.newest,
            _ => false,
        }
    }

    pub fn reply(&mut self, to: ConnectionId, message: ReplicaMessage, now: u64) {
        match &mut self.faulty {
            None => self.reply_as_is(to, &message),
            Some(faulty) => {
                let sent = faulty.for_client(message);
                self.send_faulty(Destination::Client(to), sent, now);
            }
        }
    }

    /// Replies without any fault: a demonstration's status stays readable.
    pub fn reply_as_is(&mut self, to: ConnectionId, message: &ReplicaMessage) {
        self.deliver(Destination::Client(to), &Frame::encode_shared(message));
    }

    fn send_faulty<M: Encode>(&mut self, to: Destination, sent: Vec<(M, u64)>, now: u64) {
        for (message, delay_ms) in sent {
            let frame = Frame::encode(&message);
            if delay_ms == 0 {
                self.deliver(to, &frame);
            } else if self.delayed.len() < MAX_DELAYED {
                self.delays += 1;
                let (due, order) = (now + delay_ms, self.delays);
                self.delayed.push(Reverse(Delayed {
                    due,
                    order,
                    to,
                    frame,
                }));
            }
        }
    }

    fn deliver(&mut self, to: Destination, frame: &Frame) {
        match to {
            Destination::Peer(to) => drop(self.links.send(to, frame)),
            Destination::Client(to) => {
                let id = quorate_net::ConnectionId(to.0);
                if !self.links.reply(id, frame) && self.not_taking.last() != Some(&to) {
                    self.not_taking.push(to);
                }
            }
        }
    }

    /// Connections that have not taken a reply since the last time.
    pub fn not_taking(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.not_taking)
    }

    /// Sends what was held back long enough.
    pub fn send_due(&mut self, now: u64) {
        while self.delayed.peek().is_some_and(|Reverse(d)| d.due <= now) {
            if let Some(Reverse(delayed)) = self.delayed.pop() {
                self.deliver(delayed.to, &delayed.frame);
            }
        }
    }

    /// When [`Outgoing::send_due`] or [`Outgoing::flush`] has something to do.
    pub fn next_due(&self) -> u64 {
        let delayed = self.delayed.peek().map_or(u64::MAX, |Reverse(d)| d.due);
        delayed.min(self.unsigned_due)
    }
}
