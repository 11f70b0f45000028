//! What replicas have answered to one question, and when that is enough.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::message::{ReadReply, Reply, Voucher};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Quorum, ReplicaId, Seq, View};

#[derive(Clone, Copy, Debug)]
struct Answer {
    digest: Digest,
    view: View,
    tentative: bool,
    /// Of a read: the place of the last batch in the state.
    at: Seq,
    /// Whether it came over the replica's own link.
    direct: bool,
}

impl Answer {
    /// Whether this answer to a read and a tentative one, `other`, are from one state.
    fn is_of_state_of(&self, other: &Answer) -> bool {
        let of_view = !self.tentative || self.view == other.view;
        of_view && (self.at == other.at || is_on(Mutant::EarlyReadsOfAnyPlace))
    }
}

/// Answers by replica: the last of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    answers: BTreeMap<ReplicaId, Answer>,
    /// Full results by sender: at most one each, so that a liar can't crowd the true one out.
    full: BTreeMap<ReplicaId, (Digest, Bytes)>,
}

impl Answers {
    /// A replica answers a read.
    pub fn add_read(&mut self, from: ReplicaId, ReadReply { reply, at }: ReadReply) {
        self.add(from, reply);
        if let Some(answer) = self.answers.get_mut(&from) {
            answer.at = at;
        }
    }

    pub fn add(&mut self, from: ReplicaId, reply: Reply) {
        let digest = reply.body.digest();
        let Reply {
            view, tentative, ..
        } = reply;
        let answer = Answer {
            digest,
            view,
            tentative,
            at: Seq(0),
            direct: true,
        };
        self.answers.insert(from, answer);
        if let Some(result) = reply.body.result() {
            self.full.insert(from, (digest, result));
        }
    }

    /// A replica's word that another has brought. It may be an old one, so it takes the place of none that the replica has sent
    /// itself.
    pub fn add_voucher(&mut self, digest: Digest, voucher: &Voucher) {
        let known = self.answers.get(&voucher.replica);
        if known.is_some_and(|answer| answer.direct) {
            return;
        }
        let answer = Answer {
            digest,
            view: voucher.view,
            tentative: voucher.tentative,
            at: Seq(0),
            direct: false,
        };
        self.answers.insert(voucher.replica, answer);
    }

    pub fn clear(&mut self) {
        self.answers.clear();
        self.full.clear();
    }

    pub fn len(&self) -> usize {
        self.answers.len()
    }

    pub fn has(&self, replica: ReplicaId) -> bool {
        self.answers.contains_key(&replica)
    }

    /// Whether a replica has given this result.
    pub fn says(&self, replica: ReplicaId, digest: Digest) -> bool {
        let answer = self.answers.get(&replica);
        answer.is_some_and(|answer| answer.digest == digest)
    }

    /// The result that `finals` replicas give as final; or `all` give, those that gave it tentatively in one view.
    ///
    /// One view: a batch that prepared in two views may have been dropped between them, and then neither certificate is one
    /// of 2f+1.
    pub fn agreed(&self, finals: usize, all: usize) -> Option<Digest> {
        let count = |answer: &Answer| {
            let same = self.answers.values().filter(|a| a.digest == answer.digest);
            let is_final = same.clone().filter(|a| !a.tentative).count();
            let any = is_on(Mutant::TentativeOfAnyView);
            let tentative = same.filter(|a| a.tentative && (any || a.view == answer.view));
            is_final >= finals || is_final + tentative.count() >= all
        };
        self.answers.values().find(|a| count(a)).map(|a| a.digest)
    }

    /// What a read has brought: the result that `enough` replicas give as final, or have found in one state.
    ///
    /// One state, that is one place, and of those to whom its last batch is tentative one view: then f+1 correct replicas hold a certificate for
    /// that batch, and it will last. To say the same of different states is not enough: the result may be that of an old state and of one that
    /// is undone, and of none between them.
    pub fn agreed_read(&self, enough: usize) -> Option<Digest> {
        let count = |answer: &&Answer| self.alike_in_read(answer) >= enough;
        self.answers.values().find(count).map(|a| a.digest)
    }

    /// How many have answered a read so that it counts together with this answer.
    fn alike_in_read(&self, answer: &Answer) -> usize {
        let same = self.answers.values().filter(|a| a.digest == answer.digest);
        let counts = |a: &&Answer| match answer.tentative {
            true => a.is_of_state_of(answer),
            false => !a.tentative,
        };
        same.filter(counts).count()
    }

    /// The most replicas whose answers to a read count together, whatever they say.
    pub fn most_alike(&self) -> usize {
        let alike = self.answers.values().map(|a| self.alike_in_read(a));
        alike.max().unwrap_or(0)
    }

    /// Whether somebody has answered from a state that may be undone.
    pub fn has_tentative(&self) -> bool {
        self.answers.values().any(|a| a.tentative)
    }

    /// The result with this digest, if somebody sent it in full.
    pub fn full(&self, digest: Digest) -> Option<Bytes> {
        let full = self.full.values().find(|(d, _)| *d == digest);
        full.map(|(_, result)| result.clone())
    }

    /// The latest view that f+1 of those who gave this result have reached: one of them is correct.
    pub fn view(&self, digest: Digest, quorum: Quorum) -> Option<View> {
        let same = self.answers.values().filter(|a| a.digest == digest);
        let mut views: Vec<View> = same.map(|a| a.view).collect();
        views.sort();
        views.into_iter().rev().nth(quorum.f())
    }
}
