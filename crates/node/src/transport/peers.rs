//! Links to the other replicas: one each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_wire::message::{LinkReport, MAX_FRAME_BYTES};
use quorate_wire::{Quorum, ReplicaId};
use tokio::sync::Semaphore;

use super::{Event, Limits, Shared, outbox_limits};
use crate::event::LogLimit;
use crate::link::{self, Credit, Intake, Stream};
use crate::outbox::{Frame, Outbox};

pub(super) struct Peers(Vec<Peer>);

struct Peer {
    /// The queue of the newest connection.
    newest: Mutex<Option<Arc<Outbox>>>,
    /// Held by the connection that is served, so that one's "up" comes after the other's "down".
    turn: tokio::sync::Mutex<()>,
    /// Outlives connections, so that dialing anew gives a flooding replica no new budget.
    intake: Intake,
    dropped: AtomicU64,
    log: LogLimit,
}

impl Peers {
    pub fn new(quorum: Quorum, limits: &Limits) -> Peers {
        let peer = |_| Peer {
            newest: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            intake: Intake {
                max_frame_bytes: MAX_FRAME_BYTES,
                budget: Arc::new(Semaphore::new(limits.peer_intake_bytes)),
            },
            dropped: AtomicU64::new(0),
            log: LogLimit::default(),
        };
        Peers(quorum.replicas().map(peer).collect())
    }

    pub fn send(&self, to: ReplicaId, frame: &Frame) -> bool {
        let Some(peer) = self.0.get(usize::from(to.0)) else {
            return false;
        };
        let Some(outbox) = peer.outbox() else {
            return false;
        };
        let queued = outbox.push(frame);
        if !queued {
            peer.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queued
    }

    pub fn close(&self, id: ReplicaId) {
        if let Some(outbox) = self.0.get(usize::from(id.0)).and_then(Peer::outbox) {
            outbox.close();
        }
    }

    pub fn report(&self, id: ReplicaId) -> LinkReport {
        let peer = &self.0[usize::from(id.0)];
        LinkReport {
            peer: id,
            up: peer.outbox().is_some_and(|o| !o.is_closed()),
            dropped: peer.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Peer {
    fn newest(&self) -> MutexGuard<'_, Option<Arc<Outbox>>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> Option<Arc<Outbox>> {
        self.newest().clone()
    }

    /// Forgets a connection, unless a newer one has taken its place.
    fn leave(&self, outbox: &Arc<Outbox>) {
        let mut newest = self.newest();
        if newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, outbox)) {
            *newest = None;
        }
    }
}

/// Runs a connection with another replica, from up to down.
pub(super) async fn serve(shared: &Arc<Shared>, id: ReplicaId, stream: Stream) {
    let peer = &shared.peers.0[usize::from(id.0)];
    let limits = outbox_limits(shared.limits.peer_queue_bytes, &shared.limits);
    let outbox = Arc::new(Outbox::new(limits));
    if let Some(older) = peer.newest().replace(outbox.clone()) {
        older.close();
    }
    let _turn = peer.turn.lock().await;
    // Flapping costs credit too, so that it can't fill the core's queue.
    let credit = tokio::select! {
        credit = peer.intake.credit(0) => credit,
        () = outbox.closed() => return peer.leave(&outbox),
    };
    (shared.deliver)(Event::PeerUp(id), credit);
    let end = link::run(stream, &outbox, &peer.intake, |message, credit| {
        (shared.deliver)(Event::Peer(id, message), credit);
    })
    .await;
    if let Some(more) = peer.log.pass() {
        if end.is_misbehaviour() {
            tracing::warn!(peer = %id, more, "the link to a replica ended: {end}");
        } else {
            tracing::info!(peer = %id, more, "the link to a replica ended: {end}");
        }
    }
    peer.leave(&outbox);
    (shared.deliver)(Event::PeerDown(id), Credit::default());
}
