//! What replicas have answered to one question, and when that is enough.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::message::{Reply, Voucher};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Quorum, ReplicaId, View};

#[derive(Clone, Copy, Debug)]
struct Answer {
    digest: Digest,
    view: View,
    tentative: bool,
    /// Whether it came over the replica's own link.
    direct: bool,
}

/// Answers by replica: the last of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    answers: BTreeMap<ReplicaId, Answer>,
    /// Full results by sender: at most one each, so that a liar can't crowd the true one out.
    full: BTreeMap<ReplicaId, (Digest, Bytes)>,
}

impl Answers {
    pub fn add(&mut self, from: ReplicaId, reply: Reply) {
        let digest = reply.body.digest();
        let Reply {
            view, tentative, ..
        } = reply;
        let answer = Answer {
            digest,
            view,
            tentative,
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

    /// The most replicas that say the same, whatever it is.
    pub fn most_alike(&self) -> usize {
        let alike = |a: &Answer| {
            self.answers
                .values()
                .filter(|b| a.digest == b.digest)
                .count()
        };
        self.answers.values().map(alike).max().unwrap_or(0)
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
