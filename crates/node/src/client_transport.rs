//! A client's links: one to each replica, dialed again for ever.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_wire::message::{MAX_RESULT_BYTES, ReplicaMessage};
use quorate_wire::{MacKey, ReplicaId};
use tokio::sync::{Semaphore, mpsc};

use crate::event::LogLimit;
use crate::group::Group;
use crate::link::{self, Credit, Intake, Stream, Task};
use crate::outbox::{Frame, Outbox, OutboxLimits};
use crate::tls::Identity;

/// The longest frame of a replica: a full result and its head, or a report.
const MAX_REPLY_FRAME_BYTES: usize = MAX_RESULT_BYTES + (8 << 10);
/// Bytes of one replica's messages that may wait for the client.
const INTAKE_BYTES: usize = 16 << 20;
/// What may wait to be sent to one replica: a window of large writes.
const OUTBOX: OutboxLimits = OutboxLimits {
    bytes: 64 << 20,
    frames: 4096,
};

/// What happens on a client's links.
#[derive(Debug)]
pub enum ClientEvent {
    /// A link stands. Requests sent to any replica from now on need this key for this replica's MAC.
    Up(ReplicaId, MacKey),
    /// A link has ended.
    Down(ReplicaId),
    /// A replica says something. One replica alone is not to be believed.
    Message(ReplicaId, ReplicaMessage),
}

/// Where a client takes its events.
#[derive(Debug)]
pub struct ClientEvents(mpsc::UnboundedReceiver<(ClientEvent, Credit)>);

impl ClientEvents {
    /// Waits for the next event; `None` when the transport is gone.
    pub async fn recv(&mut self) -> Option<ClientEvent> {
        self.0.recv().await.map(|(event, _)| event)
    }

    /// The next event, if there is one already.
    pub fn try_recv(&mut self) -> Option<ClientEvent> {
        self.0.try_recv().ok().map(|(event, _)| event)
    }

    /// As [`ClientEvents::recv`], for a thread outside of the runtime.
    pub fn blocking_recv(&mut self) -> Option<ClientEvent> {
        self.0.blocking_recv().map(|(event, _)| event)
    }
}

/// A client's links. They end when this is dropped.
#[derive(Debug)]
pub struct ClientTransport {
    links: ClientLinks,
    _tasks: Vec<Task>,
}

/// The sending side of a client's links. No call of it waits.
#[derive(Clone, Debug)]
pub struct ClientLinks(Arc<Vec<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    outbox: Mutex<Option<Arc<Outbox>>>,
    log: LogLimit,
}

impl Slot {
    fn outbox(&self) -> MutexGuard<'_, Option<Arc<Outbox>>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientTransport {
    /// Starts to dial all replicas of the group. To be called within a tokio runtime.
    ///
    /// Returns at once; links that stand are told as events.
    pub fn connect(group: &Group, identity: &Identity) -> (ClientTransport, ClientEvents) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let slots = group.replicas().iter().map(|_| Slot::default());
        let links = ClientLinks(Arc::new(slots.collect()));
        let mut tasks = Vec::new();
        for (id, entry) in group.quorum().replicas().zip(group.replicas()) {
            let (address, config) = (entry.address.clone(), identity.client_config(entry.key));
            let (sender, links) = (sender.clone(), links.clone());
            let intake = Intake {
                max_frame_bytes: MAX_REPLY_FRAME_BYTES,
                budget: Arc::new(Semaphore::new(INTAKE_BYTES)),
            };
            tasks.push(Task::spawn(async move {
                let serve = |stream| links.serve(id, stream, &intake, &sender);
                crate::dial::for_ever(&address, config, serve).await;
            }));
        }
        let transport = ClientTransport {
            links,
            _tasks: tasks,
        };
        (transport, ClientEvents(receiver))
    }

    /// The sending side.
    pub fn links(&self) -> ClientLinks {
        self.links.clone()
    }
}

impl ClientLinks {
    /// Queues a frame for a replica; false if it was dropped, because the link is down or full.
    pub fn send(&self, to: ReplicaId, frame: &Frame) -> bool {
        let Some(slot) = self.0.get(usize::from(to.0)) else {
            return false;
        };
        slot.outbox().as_ref().is_some_and(|o| o.push(frame))
    }

    async fn serve(
        &self,
        id: ReplicaId,
        stream: Stream,
        intake: &Intake,
        events: &mpsc::UnboundedSender<(ClientEvent, Credit)>,
    ) {
        // A client that is gone misses nothing.
        let tell = |event, credit| drop(events.send((event, credit)));
        let mac_key = match link::mac_key(&stream) {
            Ok(key) => key,
            Err(e) => return tracing::warn!(replica = %id, "no key for MACs: {e}"),
        };
        let slot = &self.0[usize::from(id.0)];
        let outbox = Arc::new(Outbox::new(OUTBOX));
        let credit = intake.credit(0).await;
        *slot.outbox() = Some(outbox.clone());
        tell(ClientEvent::Up(id, mac_key), credit);
        let end = link::run(stream, &outbox, intake, |message, credit| {
            tell(ClientEvent::Message(id, message), credit);
        })
        .await;
        *slot.outbox() = None;
        if let Some(more) = slot.log.pass() {
            tracing::info!(replica = %id, more, "the link to a replica ended: {end}");
        }
        tell(ClientEvent::Down(id), Credit::default());
    }
}
