//! Links of which much is to be sent are sealed and written by other threads.
//!
//! While a link's channel is lent the link is neither read nor written. That its socket has become readable or writable meanwhile is
//! remembered; what is queued meanwhile waits in its outbox, behind what is left of what was lent. Lent bytes count against the bounds until
//! the channel is back, also where the link has ended by then: that closes the socket.

use std::io;

use super::{Hub, Lane};
use crate::sealers::{Errand, Sealers, Sealing};
use crate::threads::Panicked;

impl<N: Copy> Hub<N> {
    /// Has links of which much is to be sent sealed and written by threads of their own; `died` is told where one of these panics.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn_sealers(
        &mut self,
        sealing: Sealing,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<()> {
        let waker = self.waker.clone();
        self.sealers = match sealing.threads {
            0 => None,
            _ => Some(Sealers::spawn(sealing, move || waker.wake(), died)?),
        };
        Ok(())
    }

    /// Hands over what is better sealed elsewhere.
    pub(super) fn send_errands(&mut self) {
        let Some(sealing) = self.sealers.as_ref().map(Sealers::sealing) else {
            return;
        };
        let errands = self.lend(sealing);
        if let Some(sealers) = &self.sealers {
            sealers.send(errands);
        }
    }

    /// Goes on with links whose channels are back.
    pub(super) fn take_errands(&mut self) {
        let done = self.sealers.as_ref().map(Sealers::take_done);
        for errand in done.into_iter().flatten() {
            self.on_errand(errand);
        }
    }

    /// Lends the channels of links with much to write. What stays is for [`Hub::flush`].
    fn lend(&mut self, sealing: Sealing) -> Vec<Errand> {
        let links = &mut self.links;
        let waiting = self.dirty.iter().filter_map(|token| links.get(token));
        let all = waiting.map(|entry| entry.link.waiting_bytes()).sum();
        let least = sealing.least(all).max(1);
        let mut errands = Vec::new();
        self.dirty.retain(|token| {
            let Some(entry) = links.get_mut(token) else {
                return false;
            };
            let is_much = entry.link.waiting_bytes() >= least;
            // Who is sent something all the time is to be heard all the same.
            let may_go = entry.link.end.is_none() && !entry.owed;
            let Some(lent) = (is_much && may_go).then(|| entry.link.lend()).flatten() else {
                return true;
            };
            entry.dirty = false;
            errands.push(Errand {
                token: *token,
                lane: entry.lane,
                lent,
            });
            false
        });
        errands
    }

    fn on_errand(&mut self, errand: Errand) {
        let Errand { token, lane, lent } = errand;
        let is_second = lane == Lane::Second;
        let Some(entry) = self.links.get_mut(&token) else {
            // It has ended, and its socket is closed here.
            if is_second {
                self.waiting_bytes -= lent.bytes;
            }
            return;
        };
        let before = entry.link.waiting_bytes();
        entry.link.give_back(lent);
        if is_second {
            self.waiting_bytes = self.waiting_bytes - before + entry.link.waiting_bytes();
        }
        let may_go_on = self.sources[entry.source.0].is_heard() && entry.takes_answers();
        entry.owed = may_go_on && entry.has_more();
        if entry.owed || entry.link.end.is_some() {
            entry.queue(token, &mut self.ready);
        }
        self.mark(token);
    }
}

#[cfg(test)]
mod tests;
