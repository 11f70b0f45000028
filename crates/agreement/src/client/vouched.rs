//! Replies that come together: one replica's, with vouchers of the others.
//!
//! A voucher is a MAC, under the key of the client's link with the replica that gives it, over all that this replica's own reply
//! would say: the request, the result's digest, how final it is and in which view. So it counts as that reply. Who brings it can
//! withhold it or spoil it, which costs the client a repetition, or bring one that is older than what the replica has said since.

use alloc::vec::Vec;

use quorate_wire::message::{Reply, ReplyBody, Vouched, Voucher};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, ReplicaId};

use super::Client;
use crate::Millis;

/// So long after one that has come, replies are expected to come together.
const EXPECTED_MS: Millis = 10_000;

impl Client {
    /// A replica answers, and brings what others say.
    pub fn on_vouched(&mut self, from: ReplicaId, vouched: Vouched, now: Millis) {
        self.now = now;
        let Vouched { reply, vouchers } = vouched;
        let id = (reply.session, reply.number);
        if !self.quorum.contains(from) || !self.pending.contains_key(&id) {
            return;
        }
        if !vouchers.is_empty() {
            self.vouched_until = now + EXPECTED_MS;
        }
        let digest = reply.body.digest();
        let are_true = |voucher: &Voucher| self.is_true(voucher, digest, &reply);
        let (right, wrong): (Vec<_>, Vec<_>) = vouchers.into_iter().partition(are_true);
        if let Some(pending) = self.pending.get_mut(&id) {
            right
                .iter()
                .for_each(|voucher| pending.answers.add_voucher(digest, voucher));
        }
        self.on_reply(from, reply, now);
        if wrong.is_empty() {
            return;
        }
        self.repliers.distrust_vouchers(now);
        if let Some(pending) = self.pending.get_mut(&id)
            && !pending.is_repeated
        {
            pending.is_doubted = true;
            self.repeat(id);
        }
    }

    fn is_true(&self, voucher: &Voucher, digest: Digest, reply: &Reply) -> bool {
        let key = self.keys.get(usize::from(voucher.replica.0));
        let said = Reply {
            session: reply.session,
            number: reply.number,
            view: voucher.view,
            tentative: voucher.tentative,
            body: ReplyBody::Digest(digest),
        };
        let is_right = |key| said.check_voucher(key, &voucher.mac).is_ok();
        key.and_then(|key| key.as_ref()).is_some_and(is_right) || is_on(Mutant::VouchersUnchecked)
    }
}
