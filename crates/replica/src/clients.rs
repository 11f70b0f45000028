//! Clients' connections, and where replies go.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_agreement::Part;
use quorate_execution::SESSIONS_PER_CLIENT;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::{ClientId, MacKey, RequestNumber, SessionId};

/// A client's connection to this replica, as the driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The most repeated requests of a client for which "in full" is remembered; beyond that it repeats once more. As many as its
/// sessions may have in flight.
const MAX_REPEATED: usize = SESSIONS_PER_CLIENT * SESSION_WINDOW as usize;

#[derive(Debug)]
struct Connection {
    client: ClientId,
    key: MacKey,
    session: Option<SessionId>,
}

/// The connections of clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    connections: BTreeMap<ConnectionId, Connection>,
    /// The few connections of each client, in their order.
    of_client: BTreeMap<ClientId, BTreeSet<ConnectionId>>,
    repeated: BTreeMap<ClientId, BTreeSet<(SessionId, RequestNumber)>>,
}

impl Clients {
    pub fn up(&mut self, id: ConnectionId, client: ClientId, key: MacKey) {
        self.connections.insert(
            id,
            Connection {
                client,
                key,
                session: None,
            },
        );
        self.of_client.entry(client).or_default().insert(id);
    }

    /// Whose it was, and its key.
    pub fn down(&mut self, id: ConnectionId) -> Option<(ClientId, MacKey)> {
        let Connection { client, key, .. } = self.connections.remove(&id)?;
        if let Some(own) = self.of_client.get_mut(&client) {
            own.remove(&id);
            if own.is_empty() {
                self.of_client.remove(&client);
            }
        }
        Some((client, key))
    }

    /// A guest has been gone for long.
    pub fn forget(&mut self, client: &ClientId) {
        self.repeated.remove(client);
    }

    pub fn client(&self, id: ConnectionId) -> Option<ClientId> {
        self.connections.get(&id).map(|c| c.client)
    }

    /// The key that this replica shares with the client at the other end.
    pub fn key(&self, id: ConnectionId) -> Option<&MacKey> {
        self.connections.get(&id).map(|c| &c.key)
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
        let own = self.repeated.entry(client).or_default();
        own.insert((session, number));
        if own.len() > MAX_REPEATED {
            own.pop_first();
        }
    }

    pub fn take_repeated(
        &mut self,
        client: ClientId,
        session: SessionId,
        number: RequestNumber,
    ) -> bool {
        let Some(own) = self.repeated.get_mut(&client) else {
            return false;
        };
        let was_repeated = own.remove(&(session, number));
        if own.is_empty() {
            self.repeated.remove(&client);
        }
        was_repeated
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

    /// How many repeated requests of a client are remembered, and how many may be.
    pub fn part(&self) -> Part {
        let most = self.repeated.values().map(BTreeSet::len).max();
        Part::new("repeats of a client", most.unwrap_or(0), MAX_REPEATED)
    }

    pub fn count(&self) -> usize {
        self.connections.len()
    }
}
