//! Replies that go together. A batch with requests of many clients has each replica write to each client, a small message and a
//! system call every time. Instead the replicas that would only send a digest send their word for it, a MAC, to the replica that
//! has the result to send, one message for all that the batch has for it; and the client hears from that one alone.
//!
//! What a faulty replica can do with it is to withhold or spoil others' words, or to send too many of its own: then clients repeat
//! their requests, and are answered by each replica itself.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_agreement::{LOG_WINDOW, Millis, Part};
use quorate_wire::message::{
    MAX_BATCH_REQUESTS, RepliedTo, Reply, ReplyBody, Vouched, Voucher, Vouchers,
};
use quorate_wire::{MacKey, Quorum, ReplicaId, RequestNumber, Seq, SessionId, View};

use crate::clients::ConnectionId;

/// Longer results go out at once, so that what waits for vouchers takes little memory.
pub(crate) const MAX_RESULT_BYTES: usize = 8 << 10;
/// How long a result waits for vouchers: then it goes out with those that are there.
const HOLD_MS: Millis = 10;
/// How long after that late ones are passed on.
const LATE_MS: Millis = 1_000;
/// Results that wait at the most; the oldest goes out if there are more.
const MAX_HELD: usize = 4096;
/// Vouchers of one replica that wait for a result at the most; more are dropped.
const MAX_EARLY: usize = 4096;

/// A request, and the place where it was executed.
type Key = (Seq, SessionId, RequestNumber);

/// A message to the connections of a client.
pub(crate) type Ready = (Vec<ConnectionId>, Vouched);

/// What waits at a replica, and what it gives to others.
#[derive(Debug)]
pub(crate) struct Bundles {
    /// Vouchers with which a reply is complete: 2f.
    enough: usize,
    pub now: Millis,
    held: BTreeMap<Key, Held>,
    /// How many results were held so far: the number of the newest.
    attempts: u64,
    /// When those that are held go out, complete or not; some have gone since.
    due: VecDeque<(Millis, Key, u64)>,
    /// When those that went out incomplete are forgotten.
    late: VecDeque<(Millis, Key, u64)>,
    /// What other replicas have sent before the result was here.
    early: BTreeMap<ReplicaId, BTreeMap<Key, Voucher>>,
    /// Words for others to pass on: by receiver, place, view, and whether they are tentative.
    leaving: BTreeMap<(ReplicaId, Seq, View, bool), Vec<RepliedTo>>,
}

/// A reply of this replica's own.
#[derive(Debug)]
struct Held {
    /// After a view change a request may be executed again, and have another reply under the same key.
    attempt: u64,
    to: Vec<ConnectionId>,
    /// Once it has gone out, with the result's digest in place of the result.
    reply: Reply,
    /// The best word of each replica.
    vouchers: Vec<Voucher>,
    /// A bit for each replica whose word has not gone out.
    unsent: u64,
    has_left: bool,
}

/// What a word is worth for a reply.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// It is for a batch that prepared in another view, and does not count together with the reply.
    Other,
    Tentative,
    Final,
}

impl Held {
    fn worth(&self, voucher: &Voucher) -> Worth {
        match voucher.tentative {
            false => Worth::Final,
            true if voucher.view == self.reply.view => Worth::Tentative,
            true => Worth::Other,
        }
    }

    /// Takes a replica's word; whether it is worth more than what the replica said before.
    fn add(&mut self, voucher: Voucher) -> bool {
        let mut vouchers = self.vouchers.iter();
        let before = vouchers.position(|v| v.replica == voucher.replica);
        match before {
            Some(at) if self.worth(&self.vouchers[at]) >= self.worth(&voucher) => return false,
            Some(at) => drop(self.vouchers.remove(at)),
            None => {}
        }
        self.unsent |= bit(voucher.replica);
        self.vouchers.push(voucher);
        true
    }

    /// Whether the client can count it together with so many words. Those of a former view may have been for a batch that was dropped.
    fn is_complete(&self, enough: usize) -> bool {
        let counts = |voucher: &&Voucher| self.worth(voucher) > Worth::Other;
        self.vouchers.iter().filter(counts).count() >= enough
    }

    fn take_unsent(&mut self) -> Vec<Voucher> {
        let unsent = core::mem::take(&mut self.unsent);
        let vouchers = self.vouchers.iter();
        let vouchers = vouchers.filter(|voucher| unsent & bit(voucher.replica) != 0);
        vouchers.cloned().collect()
    }

    /// What goes out before all of it is here; of the result its digest is kept.
    fn part(&mut self) -> Ready {
        let vouchers = self.take_unsent();
        let digest = ReplyBody::Digest(self.reply.body.digest());
        let rest = Reply {
            body: digest,
            ..self.reply
        };
        let reply = core::mem::replace(&mut self.reply, rest);
        self.has_left = true;
        (self.to.clone(), Vouched { reply, vouchers })
    }

    fn rest(mut self) -> Ready {
        let vouchers = self.take_unsent();
        let Held { to, reply, .. } = self;
        (to, Vouched { reply, vouchers })
    }
}

fn bit(replica: ReplicaId) -> u64 {
    1u64.checked_shl(replica.0.into()).unwrap_or(0)
}

impl Bundles {
    pub fn new(quorum: Quorum, me: ReplicaId) -> Bundles {
        Bundles {
            enough: quorum.commit() - 1,
            now: 0,
            held: BTreeMap::new(),
            attempts: 0,
            due: VecDeque::new(),
            late: VecDeque::new(),
            early: quorum.others(me).map(|r| (r, BTreeMap::new())).collect(),
            leaving: BTreeMap::new(),
        }
    }

    /// Has `replier` bring a client this replica's word for a reply.
    pub fn vouch(&mut self, replier: ReplicaId, seq: Seq, reply: &Reply, key: &MacKey) {
        let replied = RepliedTo {
            session: reply.session,
            number: reply.number,
            mac: reply.voucher(key),
        };
        let to = (replier, seq, reply.view, reply.tentative);
        self.leaving.entry(to).or_default().push(replied);
    }

    /// What is to be sent to other replicas.
    pub fn take_leaving(&mut self) -> impl Iterator<Item = (ReplicaId, Vouchers)> + use<> {
        let leaving = core::mem::take(&mut self.leaving).into_iter();
        leaving.flat_map(|((to, seq, view, tentative), replies)| {
            let parts = replies
                .chunks(MAX_BATCH_REQUESTS)
                .map(<[RepliedTo]>::to_vec);
            let parts: Vec<_> = parts.collect();
            parts.into_iter().map(move |replies| {
                let vouchers = Vouchers {
                    seq,
                    view,
                    tentative,
                    replies,
                };
                (to, vouchers)
            })
        })
    }

    /// A result of this replica's own, for which others vouch. Gives what is ready to leave.
    pub fn hold(&mut self, seq: Seq, to: Vec<ConnectionId>, reply: Reply) -> Option<Ready> {
        let key = (seq, reply.session, reply.number);
        self.attempts += 1;
        let mut held = Held {
            attempt: self.attempts,
            to,
            reply,
            vouchers: Vec::with_capacity(self.enough),
            unsent: 0,
            has_left: false,
        };
        // Executed again after a view change. Others may have been faster, and their words have come.
        let before = self.held.remove(&key);
        for voucher in before.iter().flat_map(|before| &before.vouchers) {
            held.add(voucher.clone());
        }
        for vouchers in self.early.values_mut() {
            if let Some(voucher) = vouchers.remove(&key) {
                held.add(voucher);
            }
        }
        if held.is_complete(self.enough) {
            return Some(held.rest());
        }
        self.due.push_back((self.now + HOLD_MS, key, held.attempt));
        self.held.insert(key, held);
        // What came before goes to the client as well.
        let before = before.filter(|held| !held.has_left).map(Held::rest);
        before.or_else(|| self.make_room())
    }

    /// How much is here, and how much may be.
    pub fn parts(&self) -> [Part; 2] {
        let early = self.early.values().map(BTreeMap::len).max();
        [
            Part::new("results that wait for vouchers", self.held.len(), MAX_HELD),
            Part::new("vouchers of a peer", early.unwrap_or(0), MAX_EARLY),
        ]
    }

    fn make_room(&mut self) -> Option<Ready> {
        let oldest = self.held.first_entry().map(|entry| *entry.key());
        let oldest = oldest.filter(|_| self.held.len() > MAX_HELD)?;
        let held = self.held.remove(&oldest)?;
        (!held.has_left).then(|| held.rest())
    }

    /// Another replica's word for replies. What is of use for none is dropped: all up to the place `done` was replied to.
    pub fn hear(&mut self, from: ReplicaId, message: Vouchers, done: Seq) -> Vec<Ready> {
        let mut ready = Vec::new();
        let Vouchers {
            seq,
            view,
            tentative,
            replies,
        } = message;
        let is_ahead = seq > done && seq.0 <= done.0.saturating_add(2 * LOG_WINDOW);
        for RepliedTo {
            session,
            number,
            mac,
        } in replies
        {
            let key = (seq, session, number);
            let voucher = Voucher {
                replica: from,
                view,
                tentative,
                mac,
            };
            if let Some(held) = self.held.get_mut(&key) {
                let is_new = held.add(voucher);
                if held.is_complete(self.enough) {
                    ready.extend(self.held.remove(&key).map(Held::rest));
                } else if is_new && held.has_left {
                    ready.push(held.part());
                }
            } else if is_ahead
                && let Some(early) = self.early.get_mut(&from)
                && early.len() < MAX_EARLY
            {
                early.insert(key, voucher);
            }
        }
        ready
    }

    /// Forgets what came too late for a result at the places up to `done`, and gives what has waited for too long.
    pub fn clean(&mut self, done: Seq) -> Vec<Ready> {
        for early in self.early.values_mut() {
            while let Some(first) = early.first_entry()
                && first.key().0 <= done
            {
                first.remove();
            }
        }
        while let Some((at, key, attempt)) = self.late.front().copied()
            && at <= self.now
        {
            if self.is_held(&key, attempt) {
                self.held.remove(&key);
            }
            self.late.pop_front();
        }
        let mut ready = Vec::new();
        while let Some((at, key, attempt)) = self.due.front().copied() {
            let held = self.held.get_mut(&key);
            if let Some(held) = held.filter(|held| held.attempt == attempt && !held.has_left) {
                if at > self.now {
                    break;
                }
                ready.push(held.part());
                self.late.push_back((self.now + LATE_MS, key, attempt));
            }
            self.due.pop_front();
        }
        ready
    }

    /// Whether this very reply is still here.
    fn is_held(&self, key: &Key, attempt: u64) -> bool {
        let held = self.held.get(key);
        held.is_some_and(|held| held.attempt == attempt)
    }

    /// When [`Bundles::clean`] has something to do.
    pub fn next_timeout(&self) -> Option<Millis> {
        let (due, late) = (self.due.front(), self.late.front());
        due.into_iter().chain(late).map(|(at, ..)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;
    use quorate_wire::Mac;

    const ME: ReplicaId = ReplicaId(0);

    fn bundles() -> Bundles {
        Bundles::new(Quorum::new(4).expect("f = 1"), ME)
    }

    fn reply(number: u64) -> Reply {
        Reply {
            session: SessionId(1),
            number: RequestNumber(number),
            view: View(0),
            tentative: true,
            body: ReplyBody::Full(Bytes::from_static(b"result")),
        }
    }

    fn hold(bundles: &mut Bundles, seq: u64, number: u64) -> Option<Ready> {
        bundles.hold(Seq(seq), vec![ConnectionId(7)], reply(number))
    }

    fn word(seq: u64, numbers: core::ops::Range<u64>) -> Vouchers {
        let replied = |number| RepliedTo {
            session: SessionId(1),
            number: RequestNumber(number),
            mac: Mac([9; 16]),
        };
        Vouchers {
            seq: Seq(seq),
            view: View(0),
            tentative: true,
            replies: numbers.map(replied).collect(),
        }
    }

    fn hear(bundles: &mut Bundles, from: u8, seq: u64, number: u64, done: u64) -> Vec<Ready> {
        bundles.hear(ReplicaId(from), word(seq, number..number + 1), Seq(done))
    }

    fn vouching(ready: &Ready) -> Vec<u8> {
        ready.1.vouchers.iter().map(|v| v.replica.0).collect()
    }

    /// A result leaves with the words of 2f others, whichever came first; one replica's word counts once.
    #[test]
    fn a_result_leaves_with_2f_vouchers() {
        let mut b = bundles();
        assert!(hear(&mut b, 1, 5, 1, 4).is_empty(), "before the result");
        assert!(hold(&mut b, 5, 1).is_none());
        assert!(hear(&mut b, 1, 5, 1, 5).is_empty(), "the same once more");
        let ready = hear(&mut b, 3, 5, 1, 5);
        assert_eq!(vouching(&ready[0]), [1, 3]);
        assert_eq!(ready[0].1.reply, reply(1));
        assert!(hear(&mut b, 2, 5, 1, 5).is_empty(), "nobody needs it");

        hear(&mut b, 1, 6, 2, 5);
        hear(&mut b, 2, 6, 2, 5);
        let ready = hold(&mut b, 6, 2).expect("both were here before");
        assert_eq!(vouching(&ready), [1, 2]);
        assert!(b.held.is_empty() && b.early.values().all(BTreeMap::is_empty));
    }

    /// A result waits for 10 ms. Then it leaves with what is there, and later words follow without it, for a second.
    #[test]
    fn a_result_does_not_wait_for_ever() {
        let mut b = bundles();
        b.now = 100;
        hold(&mut b, 5, 1);
        hold(&mut b, 5, 2);
        hear(&mut b, 1, 5, 1, 5);
        b.now = 109;
        assert!(b.clean(Seq(5)).is_empty());
        assert_eq!(b.next_timeout(), Some(110));
        b.now = 110;
        let ready = b.clean(Seq(5));
        assert_eq!(
            ready.iter().map(vouching).collect::<Vec<_>>(),
            [vec![1], vec![]]
        );
        let late = hear(&mut b, 2, 5, 2, 5);
        assert_eq!(vouching(&late[0]), [2]);
        let ReplyBody::Digest(digest) = late[0].1.reply.body else {
            panic!("the result was sent before");
        };
        assert_eq!(digest, reply(2).body.digest());
        assert_eq!(b.next_timeout(), Some(1_110));
        b.now = 1_110;
        assert!(b.clean(Seq(5)).is_empty());
        assert!(b.held.is_empty() && b.next_timeout().is_none());
    }

    fn reply_in(view: u64, tentative: bool) -> Reply {
        Reply {
            view: View(view),
            tentative,
            ..reply(1)
        }
    }

    fn hold_in(bundles: &mut Bundles, view: u64) -> Option<Ready> {
        bundles.hold(Seq(5), vec![ConnectionId(7)], reply_in(view, true))
    }

    fn hear_in(bundles: &mut Bundles, from: u8, view: u64, tentative: bool) -> Vec<Ready> {
        let word = Vouchers {
            view: View(view),
            tentative,
            ..word(5, 1..2)
        };
        bundles.hear(ReplicaId(from), word, Seq(5))
    }

    /// What was executed again in a later view is held for as long as any other reply, whatever became of the one before it.
    #[test]
    fn an_old_reply_takes_no_new_one_with_it() {
        let mut b = bundles();
        assert!(hold_in(&mut b, 0).is_none());
        b.now = 10;
        assert_eq!(
            b.clean(Seq(5)).len(),
            1,
            "it leaves, and is forgotten at 1010"
        );
        b.now = 1_005;
        assert!(hold_in(&mut b, 1).is_none());
        b.now = 1_010;
        assert!(b.clean(Seq(5)).is_empty());
        assert!(hear_in(&mut b, 1, 1, true).is_empty());
        let ready = hear_in(&mut b, 2, 1, true);
        assert_eq!(vouching(&ready[0]), [1, 2]);
        assert_eq!(ready[0].1.reply, reply_in(1, true));
        // Nor does it leave when the one before it was due.
        let mut b = bundles();
        assert!(hold_in(&mut b, 0).is_none());
        b.now = 5;
        assert!(hold_in(&mut b, 1).is_some(), "the first one");
        b.now = 10;
        assert!(b.clean(Seq(5)).is_empty());
        assert_eq!(b.next_timeout(), Some(15));
    }

    /// A replica's word for what prepared in another view completes nothing, and its word for what the reply is for takes that one's place; so
    /// does a final one, which counts in any view.
    #[test]
    fn words_of_another_view_do_not_complete_a_reply() {
        let mut b = bundles();
        assert!(hold_in(&mut b, 1).is_none());
        assert!(hear_in(&mut b, 1, 0, true).is_empty());
        assert!(hear_in(&mut b, 2, 0, true).is_empty(), "not with these");
        assert!(hear_in(&mut b, 1, 1, true).is_empty());
        assert!(hear_in(&mut b, 1, 0, true).is_empty(), "an old one");
        let ready = hear_in(&mut b, 2, 2, false);
        let words = ready[0].1.vouchers.iter();
        let words: Vec<_> = words
            .map(|v| (v.replica.0, v.view.0, v.tentative))
            .collect();
        assert_eq!(words, [(1, 1, true), (2, 2, false)]);
        // Also where the reply has left.
        assert!(hold_in(&mut b, 1).is_none());
        hear_in(&mut b, 1, 0, true);
        b.now = 10;
        assert_eq!(vouching(&b.clean(Seq(5))[0]), [1]);
        assert_eq!(vouching(&hear_in(&mut b, 1, 1, true)[0]), [1]);
        assert!(hear_in(&mut b, 1, 1, true).is_empty(), "the same once more");
        assert_eq!(vouching(&hear_in(&mut b, 2, 1, true)[0]), [2]);
        assert!(b.held.is_empty());
    }

    /// Others may have been faster in the new view: their words are here before the reply that they are for, and under the one before it.
    #[test]
    fn words_for_the_next_reply_are_kept() {
        let mut b = bundles();
        assert!(hold_in(&mut b, 0).is_none());
        hear_in(&mut b, 1, 1, true);
        hear_in(&mut b, 3, 1, true);
        let ready = hold_in(&mut b, 1).expect("with both of them");
        assert_eq!(vouching(&ready), [1, 3]);
        assert_eq!(ready.1.reply, reply_in(1, true));
    }

    /// What one replica says of requests that nobody has heard of takes a bounded place, no other's, and goes when its place was
    /// replied to.
    #[test]
    fn a_replica_has_its_own_bounded_place() {
        let mut b = bundles();
        for seq in 1..=1_000 {
            b.hear(ReplicaId(3), word(seq, 0..64), Seq(0));
        }
        assert_eq!(b.early[&ReplicaId(3)].len(), MAX_EARLY);
        assert!(hear(&mut b, 3, u64::MAX, 1, 0).is_empty());
        assert!(hear(&mut b, 1, 5, 64, 0).is_empty());
        assert!(hear(&mut b, 2, 5, 64, 0).is_empty());
        assert!(hold(&mut b, 5, 64).is_some(), "the others were heard");
        b.clean(Seq(1_000));
        assert!(b.early.values().all(BTreeMap::is_empty));
    }

    /// More results than are to wait leave as they are.
    #[test]
    fn few_results_wait() {
        let mut b = bundles();
        let left = (0..5_000).filter_map(|n| hold(&mut b, 5, n)).count();
        assert_eq!((left, b.held.len()), (5_000 - MAX_HELD, MAX_HELD));
    }

    /// What leaves for a replica is one message for a batch, however many it is of.
    #[test]
    fn words_leave_together() {
        let mut b = bundles();
        let key = MacKey([1; 32]);
        for number in 0..70 {
            b.vouch(ReplicaId(1), Seq(5), &reply(number), &key);
        }
        b.vouch(ReplicaId(2), Seq(5), &reply(70), &key);
        let sent: Vec<_> = b.take_leaving().collect();
        let sizes: Vec<_> = sent.iter().map(|(to, m)| (to.0, m.replies.len())).collect();
        assert_eq!(sizes, [(1, 64), (1, 6), (2, 1)]);
        let said = &sent[2].1.replies[0];
        assert_eq!(reply(70).check_voucher(&key, &said.mac), Ok(()));
        let other = Reply {
            tentative: false,
            ..reply(70)
        };
        assert!(other.check_voucher(&key, &said.mac).is_err());
        assert_eq!(b.take_leaving().count(), 0);
    }
}
