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
    /// The few connections of each client, in their order.
    of_client: BTreeMap<ClientId, BTreeSet<ConnectionId>>,
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
        self.of_client.entry(client).or_default().insert(id);
    }

    pub fn down(&mut self, id: ConnectionId) {
        let Some(Connection { client, .. }) = self.connections.remove(&id) else {
            return;
        };
        if let Some(own) = self.of_client.get_mut(&client) {
            own.remove(&id);
            if own.is_empty() {
                self.of_client.remove(&client);
            }
        }
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
        let own = self.of_client.get(&client).into_iter().flatten().copied();
        let to = |id: &ConnectionId| {
            let attached = self.connections.get(id).and_then(|c| c.session);
            session == SessionId(0) || attached.is_none_or(|attached| attached == session)
        };
        own.filter(to).collect()
    }

    pub fn count(&self) -> usize {
        self.connections.len()
    }
}
