//! A client's links: one to each replica, dialed again for ever.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use mio::Token;
use quorate_wire::message::{MAX_RESULT_BYTES, ReplicaMessage};
use quorate_wire::{Decode, EpochCertificate, MacKey, ReplicaId};

use crate::clock;
use crate::dial::Dialer;
use crate::epochs::{CertificateError, Epochs};
use crate::frame::{Frame, LinkEnd};
use crate::group::Group;
use crate::hub::{Hub, HubLimits, Item, Lane, SourceId, Waker};
use crate::link::{Link, LinkLimits};
use crate::log_limit::LogLimit;
use crate::outbox::OutboxLimits;
use crate::replica::FORMER_HEARD;
use crate::tls::Identity;

/// The longest frame of a replica is a full result and its head, or a report. What may wait to be sent to one replica: a
/// window of large writes.
const LIMITS: LinkLimits = LinkLimits {
    max_frame_bytes: MAX_RESULT_BYTES + (8 << 10),
    outbox: OutboxLimits {
        bytes: 64 << 20,
        frames: 4096,
    },
};
/// In this time a replica is heard on two certificates of each other one. A sound one passes on one of each in a second at most.
const PASSED_ON_IN: Duration = Duration::from_secs(1);
/// Tokens of dialers; those of links count up from 0.
const FIRST_DIALER: usize = usize::MAX / 2;

/// What happens on a client's links.
#[derive(Debug)]
pub enum ClientEvent {
    /// A link stands, perhaps in the place of another. Requests sent to any replica from now on need this key for this replica's MAC.
    Up(ReplicaId, MacKey),
    /// A link has ended.
    Down(ReplicaId),
    /// A replica says something. One replica alone is not to be believed.
    Message(ReplicaId, ReplicaMessage),
}

/// A client's links, driven by the thread that owns them: [`poll`](Self::poll), then
/// [`next_event`](Self::next_event) until there is none, then [`flush`](Self::flush); and again. What is sent is
/// queued until then. Links end when this is dropped.
#[derive(Debug)]
pub struct ClientLinks {
    hub: Hub<ReplicaId>,
    slots: Vec<Slot>,
    /// Where replicas have epoch keys.
    epochs: Option<Epochs>,
    /// Comings and goings that were not told yet.
    told: VecDeque<ClientEvent>,
    /// When [`ClientLinks::poll`] was called last.
    looked: Instant,
}

#[derive(Debug)]
struct Slot {
    dialer: Dialer,
    source: SourceId,
    link: Option<usize>,
    /// The link before it, while it is heard, and until when.
    former: Option<(usize, Instant)>,
    /// How many certificates it has passed on since.
    passed_on: (usize, Instant),
    log: LogLimit,
}

/// For a program that waits for many clients in a loop of its own: readable when [`ClientLinks::poll`] would not wait for
/// sockets. Time-outs of dialing, and of certificates that none follows, still need a poll now and then.
impl AsFd for ClientLinks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hub.fd()
    }
}

impl ClientLinks {
    /// Starts to dial all replicas of the group. Links are made while the owner polls, and told as events.
    ///
    /// # Errors
    /// If the system gives no more file descriptors.
    pub fn connect(group: &Group, identity: &Identity) -> io::Result<ClientLinks> {
        ClientLinks::connect_with(group, identity, Epochs::of_client(group))
    }

    /// The same, where something is known of the replicas' certificates: none before these counts, and what none follows goes on to.
    ///
    /// # Errors
    /// As [`ClientLinks::connect`].
    pub fn connect_with(
        group: &Group,
        identity: &Identity,
        epochs: Option<Epochs>,
    ) -> io::Result<ClientLinks> {
        // Each replica has one link, which has bounds of its own.
        let mut hub = Hub::new(HubLimits {
            waiting_bytes: usize::MAX,
            partial_bytes: usize::MAX,
        })?;
        let dial = |id: ReplicaId| Slot {
            source: hub.source(Lane::First),
            dialer: Dialer::new(
                (group, id),
                identity,
                LIMITS,
                Token(FIRST_DIALER + usize::from(id.0)),
                hub.waker().clone(),
            ),
            link: None,
            former: None,
            passed_on: (0, clock::now()),
            log: LogLimit::default(),
        };
        Ok(ClientLinks {
            slots: group.quorum().replicas().map(dial).collect(),
            epochs,
            hub,
            told: VecDeque::new(),
            looked: clock::now(),
        })
    }

    /// Links that are made from now on are made with this identity; those that stand are made anew.
    pub fn renew(&mut self, group: &Group, identity: &Identity) {
        let now = clock::now();
        for slot in &mut self.slots {
            slot.dialer.renew(group, identity, now);
        }
    }

    /// Wakes the thread that waits in [`ClientLinks::poll`].
    pub fn waker(&self) -> Waker {
        self.hub.waker().clone()
    }

    /// Waits until a link has something to give or to take, or somebody wakes it; for `timeout` at most.
    ///
    /// # Errors
    /// Those of the operating system, which are final.
    pub fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // By the time of the turn before: who could not look for long may find a newer certificate in this one.
        let looked = std::mem::replace(&mut self.looked, clock::now());
        self.end_overdue(looked);
        let ends = (0..).zip(&self.slots).filter(|(_, s)| s.link.is_some());
        let ends = ends.filter_map(|(id, _)| self.epochs.as_ref()?.over_at(ReplicaId(id)));
        let due = self.slots.iter().filter_map(|s| s.dialer.next_due());
        let due = due.chain(ends).min();
        let due = due.map(|due| due.saturating_duration_since(clock::now()));
        let timeout = [timeout, due].into_iter().flatten().min();
        let slots = &mut self.slots;
        self.hub.poll(timeout, |token, event| {
            if let Some(slot) = token
                .checked_sub(FIRST_DIALER)
                .and_then(|i| slots.get_mut(i))
            {
                slot.dialer.on_ready(event);
            }
        })?;
        if self
            .slots
            .iter()
            .any(|s| !s.dialer.rests() || s.former.is_some())
        {
            let now = clock::now();
            self.end_formers(now);
            self.dial(now);
        }
        Ok(())
    }

    fn dial(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let (registry, scratch) = self.hub.parts();
            if let Some(link) = slot
                .dialer
                .advance(registry, now, scratch, &mut self.epochs)
            {
                self.on_link(ReplicaId(at as u8), link, now);
            }
        }
    }

    /// What happened, until this turn has no more. Each link gives up to 128 KiB in a turn.
    pub fn next_event(&mut self) -> Option<ClientEvent> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Some(event);
            }
            let (token, id, item) = self.hub.next()?;
            match item {
                // The replica has a new key: a link under it takes this one's place.
                Item::Frame(frame) if frame.is_empty() => {
                    let slot = &mut self.slots[usize::from(id.0)];
                    if slot.link == Some(token) {
                        slot.dialer.again(clock::now());
                    }
                }
                Item::Frame(frame) => match ReplicaMessage::from_bytes(frame) {
                    Ok(ReplicaMessage::Certificate(it)) => self.on_certificate(token, id, &it),
                    Ok(message) => return Some(ClientEvent::Message(id, message)),
                    Err(e) => self.hub.fail(token, LinkEnd::Malformed(e)),
                },
                // Each replica has its turn.
                Item::Overhead(_) => {}
                Item::End(end) => self.on_end(token, id, &end),
            }
        }
    }

    /// Writes what was queued, as far as the sockets take it now.
    pub fn flush(&mut self) {
        self.hub.flush();
    }

    /// Queues a frame for a replica; false if it was dropped, because the link is down or full.
    pub fn send(&mut self, to: ReplicaId, frame: &Frame) -> bool {
        let link = self.slots.get(usize::from(to.0)).and_then(|s| s.link);
        link.is_some_and(|link| self.hub.push(link, frame))
    }

    fn on_link(&mut self, id: ReplicaId, link: Box<Link>, now: Instant) {
        let slot = &mut self.slots[usize::from(id.0)];
        let key = link.mac_key();
        let key = key.map_err(|e| format!("no key for MACs: {e}"));
        // The system may have no room for it now: it is as a call that has failed.
        let inserted = key.and_then(|key| {
            let token = self.hub.insert(link, id, slot.source);
            token
                .map(|token| (token, key))
                .map_err(|e| format!("a link can't be kept: {e}"))
        });
        match inserted {
            Ok((token, key)) => {
                if let Some(older) = slot.link.replace(token) {
                    let former = (older, now + FORMER_HEARD);
                    if let Some((oldest, _)) = slot.former.replace(former) {
                        self.hub.remove(oldest);
                    }
                }
                slot.passed_on = (0, now);
                self.told.push_back(ClientEvent::Up(id, key));
            }
            Err(why) => {
                tracing::warn!(replica = %id, "{why}");
                slot.dialer.ended(now);
            }
        }
    }

    /// A replica passes on the newest certificate of another one that it has seen. A link that rests on one that is void by that is a thief's: whoever has a
    /// stolen key, and stands between a replica and this client, would else be that replica to it as long as nobody else says better.
    fn on_certificate(&mut self, token: usize, from: ReplicaId, certificate: &EpochCertificate) {
        let (most, now) = (2 * self.slots.len(), clock::now());
        let (passed_on, since) = &mut self.slots[usize::from(from.0)].passed_on;
        if now >= *since + PASSED_ON_IN {
            (*passed_on, *since) = (0, now);
        }
        *passed_on += 1;
        // One of each replica with the link, and one as it sees a newer one: more have somebody check signatures for nothing.
        if *passed_on > most {
            return;
        }
        let Some(epochs) = &mut self.epochs else {
            return;
        };
        match epochs.learn(certificate) {
            Ok(true) => self.end_void(certificate.replica),
            Ok(false) => {}
            Err(e) => self.hub.fail(token, LinkEnd::Certificate(e)),
        }
    }

    /// Ends what rests on a certificate of this replica that counts no more.
    fn end_void(&mut self, id: ReplicaId) {
        let slot = &self.slots[usize::from(id.0)];
        let former = slot.former.map(|(token, _)| token);
        for token in [slot.link, former].into_iter().flatten() {
            let number = self.hub.certified(token);
            if self
                .epochs
                .as_ref()
                .is_some_and(|it| it.is_void(id, number))
            {
                tracing::warn!(replica = %id, "a link ends: the replica has certified newer keys, as others show");
                self.hub.close(token);
            }
        }
    }

    /// Ends links that rested on a certificate which none had followed for too long, at some time.
    fn end_overdue(&mut self, at: Instant) {
        let Some(epochs) = &self.epochs else {
            return;
        };
        for (id, slot) in (0..).zip(&self.slots) {
            let former = slot.former.map(|(token, _)| token);
            for token in [slot.link, former].into_iter().flatten() {
                let number = self.hub.certified(token);
                if let Some(longest) = epochs.overdue(ReplicaId(id), number, at) {
                    let end = LinkEnd::Certificate(CertificateError::NotFollowed(longest));
                    self.hub.fail(token, end);
                }
            }
        }
    }

    /// Ends older links whose time is over.
    fn end_formers(&mut self, now: Instant) {
        for slot in &mut self.slots {
            if let Some((former, _)) = slot.former.take_if(|(_, until)| *until <= now) {
                self.hub.remove(former);
            }
        }
    }

    fn on_end(&mut self, token: usize, id: ReplicaId, end: &LinkEnd) {
        let slot = &mut self.slots[usize::from(id.0)];
        if slot
            .former
            .take_if(|(former, _)| *former == token)
            .is_some()
        {
            return;
        }
        slot.link = None;
        slot.dialer.ended(clock::now());
        if let Some(more) = slot.log.pass() {
            match end {
                LinkEnd::Certificate(_) => {
                    tracing::warn!(replica = %id, more, "the link to a replica ended: {end}");
                }
                _ => tracing::info!(replica = %id, more, "the link to a replica ended: {end}"),
            }
        }
        self.told.push_back(ClientEvent::Down(id));
    }
}

#[cfg(test)]
mod tests;
