//! Clients' connections, and where replies go.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_wire::{ClientId, RequestNumber, SessionId};

/// A client's connection to this replica, as the driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The most repeated requests for which "in full" is remembered; beyond that a client repeats once more.
const MAX_REPEATED: usize = 4096;

#[derive(Debug)]
struct Connection {
    client: ClientId,
    session: Option<SessionId>,
}

/// The connections of clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    connections: BTreeMap<ConnectionId, Connection>,
    repeated: BTreeSet<(ClientId, SessionId, RequestNumber)>,
}

impl Clients {
    pub fn up(&mut self, id: ConnectionId, client: ClientId) {
        self.connections.insert(
            id,
            Connection {
                client,
                session: None,
            },
        );
    }

    pub fn down(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    pub fn client(&self, id: ConnectionId) -> Option<ClientId> {
        self.connections.get(&id).map(|c| c.client)
    }

    pub fn attach(&mut self, id: ConnectionId, session: SessionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.session = Some(session);
        }
    }

    /// The client has repeated this request: it wants the result in full from everyone.
    pub fn remember_repeated(
        &mut self,
        client: ClientId,
        session: SessionId,
        number: RequestNumber,
    ) {
        if self.repeated.len() == MAX_REPEATED {
            self.repeated.pop_first();
        }
        self.repeated.insert((client, session, number));
    }

    pub fn take_repeated(
        &mut self,
        client: ClientId,
        session: SessionId,
        number: RequestNumber,
    ) -> bool {
        self.repeated.remove(&(client, session, number))
    }

    /// The connections over which replies to a session go: those that were attached to it, and the client's others
    /// that have not said whose they are.
    pub fn route(&self, client: ClientId, session: SessionId) -> Vec<ConnectionId> {
        let to = |c: &Connection| {
            c.client == client
                && (session == SessionId(0) || c.session.is_none_or(|attached| attached == session))
        };
        self.connections
            .iter()
            .filter(|(_, c)| to(c))
            .map(|(id, _)| *id)
            .collect()
    }

    pub fn count(&self) -> usize {
        self.connections.len()
    }
}
