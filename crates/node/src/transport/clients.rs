//! Connections of clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_wire::ClientId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ConnectionId, Event, Limits, MAX_CLIENT_FRAME_BYTES, Shared, outbox_limits, welcome};
use crate::event::LogLimit;
use crate::link::{self, Credit, Intake, Stream};
use crate::outbox::{Frame, Outbox};

pub(super) struct Clients {
    table: Mutex<Table>,
    /// One for each connection, given back when the core has seen its end.
    slots: Arc<Semaphore>,
    dropped: AtomicU64,
    log: LogLimit,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: BTreeMap<ConnectionId, (ClientId, Arc<Outbox>)>,
}

impl Clients {
    pub fn new(limits: &Limits) -> Clients {
        Clients {
            table: Mutex::default(),
            slots: Arc::new(Semaphore::new(limits.clients)),
            dropped: AtomicU64::new(0),
            log: LogLimit::default(),
        }
    }

    pub fn send(&self, to: ConnectionId, frame: &Frame) -> bool {
        let Some(outbox) = self.outbox(to) else {
            return false;
        };
        let queued = outbox.push(frame);
        if !queued {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queued
    }

    pub fn close(&self, id: ConnectionId) {
        if let Some(outbox) = self.outbox(id) {
            outbox.close();
        }
    }

    pub fn count(&self) -> u32 {
        self.table().open.len() as u32
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn outbox(&self, id: ConnectionId) -> Option<Arc<Outbox>> {
        self.table().open.get(&id).map(|(_, outbox)| outbox.clone())
    }

    /// Enters a connection, and closes the client's oldest one if it has too many.
    fn enter(&self, client: ClientId, outbox: &Arc<Outbox>, most: usize) -> ConnectionId {
        let mut table = self.table();
        table.last += 1;
        let id = ConnectionId(table.last);
        let of_client = table.open.values().filter(|(c, _)| *c == client);
        let open: Vec<_> = of_client.filter(|(_, o)| !o.is_closed()).collect();
        if open.len() >= most
            && let Some((_, oldest)) = open.first()
        {
            oldest.close();
        }
        table.open.insert(id, (client, outbox.clone()));
        id
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the connection out of the table also where its task is cut short.
struct Entered<'a>(&'a Clients, ConnectionId);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.table().open.remove(&self.1);
    }
}

/// Runs a client's connection, from up to down.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    client: ClientId,
    stream: Stream,
    handshake: OwnedSemaphorePermit,
) {
    let clients = &shared.clients;
    let Ok(slot) = clients.slots.clone().try_acquire_owned() else {
        return shared.grumble(None, "too many connections of clients");
    };
    let mac_key = match link::mac_key(&stream) {
        Ok(key) => key,
        Err(e) => return shared.grumble(None, &format!("no key for MACs: {e}")),
    };
    let limits = outbox_limits(shared.limits.client_queue_bytes, &shared.limits);
    let outbox = Arc::new(Outbox::new(limits));
    let connection = clients.enter(client, &outbox, shared.limits.connections_per_client);
    let entered = Entered(clients, connection);
    // The core knows the key before the client can send anything that it speaks for.
    let up = Event::ClientUp {
        connection,
        client,
        mac_key,
    };
    (shared.deliver)(up, Credit::default());
    if let Some(stream) = welcome(stream, handshake).await {
        let intake = Intake {
            max_frame_bytes: MAX_CLIENT_FRAME_BYTES,
            budget: Arc::new(Semaphore::new(shared.limits.client_intake_bytes)),
        };
        let end = link::run(stream, &outbox, &intake, |message, credit| {
            (shared.deliver)(Event::Client(connection, message), credit);
        })
        .await;
        if end.is_misbehaviour()
            && let Some(more) = clients.log.pass()
        {
            tracing::warn!(?client, more, "a client's connection ended: {end}");
        }
    }
    drop(entered);
    (shared.deliver)(Event::ClientDown(connection), Credit::of(slot));
}
