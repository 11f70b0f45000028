//! What comes on links, on its way to the replica: at once, or by way of the verifiers.

use quorate_execution::Service;
use quorate_net::{Event, Origin};
use quorate_replica::{ConnectionId, Input, Sealed};
use quorate_wire::ReplicaId;
use quorate_wire::message::{ClientMessage, ReplicaMessage};

use super::super::staging::{Staging, Verdict};
use super::super::verifier::Verifiers;
use super::{Core, DaemonError, INPUTS_AT_ONCE, now};

/// The verifiers, and what waits for them.
#[derive(Debug)]
pub(super) struct Verifying {
    staging: Staging<Arrived>,
    verifiers: Verifiers,
}

impl Verifying {
    pub fn new(verifiers: Verifiers) -> Verifying {
        Verifying {
            staging: Staging::new(verifiers.verification()),
            verifiers,
        }
    }

    /// Gives verifiers that are idle what there is to check.
    fn employ(&mut self) {
        while let Some(batch) = self.staging.next_batch() {
            self.verifiers.check(batch);
        }
    }
}

/// Something that has come.
#[derive(Debug)]
struct Arrived {
    origin: Origin,
    what: What,
}

#[derive(Debug)]
enum What {
    Peer(ReplicaId, Sealed),
    Other(Event),
}

impl<S: Service> Core<S> {
    /// Takes what came on links in this turn.
    pub(super) fn take_from_links(&mut self) -> Result<(), DaemonError> {
        let mut inputs = 0;
        while let Some(event) = self.outgoing.links().next_event() {
            let origin = self.outgoing.links().origin();
            self.arrive(origin, event);
            inputs += 1;
            if inputs % INPUTS_AT_ONCE == 0 {
                self.hand_out();
                self.end_turn()?;
                self.now = now(self.started);
            }
        }
        self.hand_out();
        Ok(())
    }

    fn arrive(&mut self, origin: Origin, event: Event) {
        let what = match event {
            Event::Peer(from, message) => match self.outgoing.signing().look(from, message) {
                Ok(sealed) => What::Peer(from, sealed),
                Err(reason) => return self.refuse(from, origin, reason),
            },
            event => What::Other(event),
        };
        let arrived = Arrived { origin, what };
        // A client's new key is known before anything comes that it speaks for, also by way of other replicas: so these don't wait behind
        // what an older connection has brought. Nor need they, being of no older one; and they keep their order among themselves.
        let is_coming = matches!(
            arrived.what,
            What::Other(Event::ClientUp { .. } | Event::GuestComes { .. } | Event::GuestGone(_))
        );
        let Some(verifying) = self.verifying.as_mut().filter(|_| !is_coming) else {
            return self.hand_over(arrived, Vec::new());
        };
        let open = match &arrived.what {
            What::Peer(from, sealed) => {
                let outer = self.outgoing.signing().unchecked(*from, sealed);
                let inner = self.replica.unchecked_in(*from, sealed.message());
                outer.into_iter().chain(inner).collect()
            }
            What::Other(Event::Client(connection, message)) => {
                let open = self.replica.unchecked_of(id(*connection), message);
                open.into_iter().collect()
            }
            What::Other(_) => Vec::new(),
        };
        let staging = &mut verifying.staging;
        match staging.take(origin.who, arrived, origin.bytes, open) {
            Some(arrived) => self.hand_over(arrived, Vec::new()),
            None => self.rest_when_full(),
        }
    }

    /// Nothing more is read as long as enough waits for the verifiers.
    fn rest_when_full(&mut self) {
        if let Some(verifying) = &self.verifying {
            let [peers, clients] = verifying.staging.is_full();
            self.outgoing.links().rest(peers, clients);
        }
    }

    /// Hands to the verifiers what came in this turn, or goes on with it as it is if it is little.
    fn hand_out(&mut self) {
        let Some(verifying) = &mut self.verifying else {
            return;
        };
        verifying.employ();
        for arrived in verifying.staging.take_few() {
            self.hand_over(arrived, Vec::new());
        }
        self.rest_when_full();
    }

    /// Goes on with what verifiers have checked.
    pub(super) fn take_checked(&mut self) {
        let Some(verifying) = &mut self.verifying else {
            return;
        };
        let mut checked = Vec::new();
        for batch in verifying.verifiers.take_done() {
            checked.extend(verifying.staging.judged(batch));
        }
        // They need not wait for what follows here.
        verifying.employ();
        for (arrived, verdicts) in checked {
            self.hand_over(arrived, verdicts);
        }
        self.rest_when_full();
    }

    /// Hands something to the replica, after what its signatures were found to be, if they were checked.
    fn hand_over(&mut self, Arrived { origin, what }: Arrived, mut verdicts: Vec<Verdict>) {
        let input = match what {
            What::Peer(from, sealed) => {
                let signing = self.outgoing.signing();
                let outer = signing.unchecked(from, &sealed);
                let at = verdicts
                    .iter()
                    .position(|(signed, _)| Some(*signed) == outer);
                let is_right = at.map(|at| verdicts.remove(at).1);
                let opened = signing.open_sealed(from, sealed, is_right);
                for evidence in signing.take_evidence() {
                    self.evidence.keep(evidence);
                }
                match opened {
                    Ok(message) => Some(Input::Peer(from, message)),
                    Err(reason) => return self.refuse(from, origin, reason),
                }
            }
            What::Other(event) => self.input(origin, event),
        };
        let Some(input) = input else {
            return;
        };
        if !verdicts.is_empty() {
            self.replica.take(self.now, Input::Checked(verdicts));
        }
        let from = match &input {
            Input::Client(connection, _) => Some(*connection),
            _ => None,
        };
        let before = self.replica.refusals();
        self.replica.take(self.now, input);
        if self.replica.refusals() > before {
            self.outgoing.links().refused(origin);
        }
        self.hold(from);
    }

    fn refuse(&mut self, from: ReplicaId, origin: Origin, reason: quorate_agreement::Rejected) {
        tracing::debug!(peer = from.0, %reason, "a message was refused");
        self.outgoing.links().refused(origin);
    }

    fn input(&mut self, origin: Origin, event: Event) -> Option<Input> {
        match event {
            Event::PeerUp(peer) => {
                tracing::info!(peer = peer.0, "link to a replica is up");
                Some(Input::PeerLink(peer, true))
            }
            Event::PeerDown(peer) => {
                tracing::info!(peer = peer.0, "link to a replica is down");
                Some(Input::PeerLink(peer, false))
            }
            Event::Peer(from, message) => Some(Input::Peer(from, message)),
            Event::ClientUp {
                connection,
                client,
                mac_key,
            } => {
                tracing::debug!(client = %client, "a client connected");
                Some(Input::ClientUp(id(connection), client, mac_key))
            }
            Event::Client(connection, ClientMessage::ReportPlease(nonce)) => {
                let report = ReplicaMessage::Report(Box::new(self.report(nonce)));
                self.outgoing.reply_as_is(id(connection), &report);
                // It is seldom that people look, and it brings the group nothing.
                self.outgoing.links().refused(origin);
                None
            }
            Event::Client(connection, message) => {
                // A read that is not ordered, nor early, waits for the batch that is executed tentatively, here and at the others.
                if matches!(&message, ClientMessage::Read(read) if !read.early) {
                    self.outgoing.hurry();
                }
                Some(Input::Client(id(connection), message))
            }
            Event::ClientDown(connection) => Some(Input::ClientDown(id(connection))),
            Event::GuestComes { client, is_owners } => Some(Input::Guest(client, is_owners)),
            Event::GuestGone(client) => Some(Input::GuestGone(client)),
        }
    }
}

fn id(connection: quorate_net::ConnectionId) -> ConnectionId {
    ConnectionId(connection.0)
}
