//! What happens to clients and their connections.

use quorate_agreement::client::{ClientOutput, NoResult};
use quorate_wire::message::{Outcome, Request};
use quorate_wire::{Authentication, RequestNumber};

use super::*;
use crate::checks::kept::Gone;
use crate::client::client_key;

/// How long until a client tries again to connect.
const RECONNECT: u64 = 200_000;

/// What both ends of a link take from their handshake.
pub(super) fn key_of_link(connection: ConnectionId) -> MacKey {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&connection.0.to_le_bytes());
    MacKey(key)
}

impl World {
    /// The key that a client shares with a server, if they have a link: what a faulty client would tell others.
    pub fn link_key(&self, client: usize, server: usize) -> Option<MacKey> {
        let links = &self.clients[client].links;
        links.get(&server).map(|id| key_of_link(*id))
    }

    /// A faulty client has made this request, and gives it to whom it likes.
    pub fn made_by_hand(&mut self, request: &Request) {
        self.validity.on_sent(request);
    }

    fn client_node(&self, client: usize) -> usize {
        self.servers.len() + client
    }

    pub(super) fn start_client(&mut self, client: usize) {
        if self.clients[client].core.is_some() {
            return;
        }
        self.note(&[20, client as u64], || format!("client {client} starts"));
        let nonce = self.dice.any();
        let options = self.knobs.options;
        let is_guest = client >= self.knobs.named();
        let signed = is_guest || self.knobs.authentication == Authentication::Signature;
        let key = client_key(client);
        self.clients[client].start(self.quorum, options, key, signed, nonce, self.now);
        for id in self.quorum.replicas() {
            let node = self.client_node(client);
            if let Some(server) = self.instance(id, node) {
                let delay = self.dice.range(self.knobs.delay);
                self.after(delay, Event::Connect(client, server));
            }
        }
        self.think(client);
    }

    /// A client is gone.
    pub fn crash_client(&mut self, client: usize) {
        if self.clients[client].core.is_none() {
            return;
        }
        self.note(&[21, client as u64], || format!("client {client} crashes"));
        let links = self.clients[client].links.clone();
        for operation in self.clients[client].crash() {
            self.operations[operation].lost = true;
        }
        for (server, id) in links {
            self.connections.remove(&id);
            // A correct replica notices; what it does about it can't fail.
            let _ = self.handle(server, Input::ClientDown(id));
        }
    }

    pub(super) fn on_connect(&mut self, client: usize, server: usize) -> Result<(), Failure> {
        let node = self.client_node(client);
        let id = self.servers[server].id;
        if self.clients[client].core.is_none()
            || self.clients[client].links.contains_key(&server)
            || self.instance(id, node) != Some(server)
        {
            return Ok(());
        }
        let reachable = !self.net.is_blocked(node, server) && !self.net.is_blocked(server, node);
        if self.servers[server].replica.is_none() || !reachable {
            self.after(RECONNECT, Event::Connect(client, server));
            return Ok(());
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let key = key_of_link(connection);
        self.connections
            .insert(connection, Connection { client, server });
        let it = &mut self.clients[client];
        it.links.insert(server, connection);
        let public = it.key;
        if let Some(core) = &mut it.core {
            core.on_link(id, Some(key.clone()));
        }
        self.note(&[22, client as u64, server as u64], || {
            format!("client {client} has a link with server {server}")
        });
        self.handle(server, Input::ClientUp(connection, public, key))?;
        self.carry_out_client(client);
        Ok(())
    }

    /// A client's link with a server is gone.
    pub(super) fn unlink(&mut self, client: usize, server: usize) {
        let id = self.servers[server].id;
        let it = &mut self.clients[client];
        it.links.remove(&server);
        if let Some(core) = &mut it.core {
            core.on_link(id, None);
            self.carry_out_client(client);
            self.after(RECONNECT, Event::Connect(client, server));
        }
    }

    fn carry_out_client(&mut self, client: usize) {
        let Some(core) = &mut self.clients[client].core else {
            return;
        };
        let outputs: Vec<ClientOutput> = core.drain().collect();
        for output in outputs {
            match output {
                ClientOutput::Send(to, message) => self.send_to_replica(client, to, message),
                ClientOutput::Done(token, result) => self.done(client, token, result),
                ClientOutput::Opened(session) => {
                    self.note(&[23, client as u64, session.0], || {
                        format!("client {client} has session {session:?}")
                    });
                }
            }
        }
        self.schedule_client_tick(client);
    }

    fn done(&mut self, client: usize, token: u64, answer: Result<bytes::Bytes, NoResult>) {
        let index = token as usize;
        self.note(&[24, client as u64, token], || match &answer {
            Ok(_) => format!("client {client} has the result of operation {token}"),
            Err(why) => format!("client {client} has lost operation {token}: {why}"),
        });
        let operation = &mut self.operations[index];
        match answer {
            Ok(answer) => {
                let outcome = Outcome::Done(answer);
                operation.done = Some((self.now, outcome.to_bytes().into()));
                operation.agreed_at_end = match self.early {
                    // One batch at a time is tentative, and all before it are agreed on.
                    true => self.agreement.last().next(),
                    false => self.agreement.last(),
                };
                let op = operation.op.clone();
                self.clients[client].asker.learn(&self.knobs, &op, &outcome);
            }
            Err(why) => {
                operation.lost = true;
                let is_gone = why == NoResult::ResultGone;
                let sent_as = operation.sent_as.filter(|_| is_gone);
                operation.gone = sent_as.map(|(session, number)| Gone {
                    session,
                    number,
                    last: self.clients[client].last_number,
                });
            }
        }
        self.clients[client].open.remove(&index);
        self.think(client);
    }

    fn send_to_replica(&mut self, client: usize, to: ReplicaId, mut message: ClientMessage) {
        if let ClientMessage::Request(m) | ClientMessage::Watch(m) | ClientMessage::Repeat(m) =
            &message
        {
            self.validity.on_sent(&m.request);
            let core = self.clients[client].core.as_ref();
            let token = core.and_then(|c| c.token(m.request.session(), m.request.number()));
            if let Some(operation) = token {
                let operation = &mut self.operations[operation as usize];
                let sent_as = (m.request.session(), m.request.number());
                operation.request = Some(m.request.digest());
                operation.sent_as = Some(sent_as);
                let it = &mut self.clients[client];
                let before = match it.last_session == sent_as.0 {
                    true => it.last_number,
                    false => RequestNumber(0),
                };
                (it.last_session, it.last_number) = (sent_as.0, before.max(sent_as.1));
            }
        }
        let it = &self.clients[client];
        it.spoil(&mut message);
        let is_shown = match &message {
            ClientMessage::Repeat(_) | ClientMessage::Watch(_) => true,
            _ => it.core.as_ref().is_some_and(|core| core.primary() != to),
        };
        if it.stubborn && is_shown {
            return;
        }
        if let ClientMessage::Request(m) = &message {
            self.clients[client].last_sent = Some(m.clone());
        }
        let node = self.client_node(client);
        let links = &self.clients[client].links;
        let mut links = links.iter().map(|(s, c)| (*s, *c));
        let Some((server, connection)) = links.find(|(s, _)| self.servers[*s].id == to) else {
            return;
        };
        let arrivals = self.net.arrivals(&self.knobs, self.now, node, server);
        for at in arrivals.into_iter().flatten() {
            let message = match self.knobs.encode {
                true => ClientMessage::from_bytes(message.to_bytes().into())
                    .expect("what was encoded decodes"),
                false => message.clone(),
            };
            self.at(at, Event::ToServer(connection, message));
        }
    }

    pub(super) fn on_client_message(
        &mut self,
        connection: ConnectionId,
        message: ClientMessage,
    ) -> Result<(), Failure> {
        let Some(&Connection { client, server }) = self.connections.get(&connection) else {
            return Ok(());
        };
        self.note(&[25, client as u64, server as u64], || match &message {
            ClientMessage::Request(m) | ClientMessage::Watch(m) | ClientMessage::Repeat(m) => {
                format!(
                    "client {client} -> server {server}: request {:?} {:?} {:?}",
                    m.request.session(),
                    m.request.number(),
                    m.request.digest()
                )
            }
            other => format!("client {client} -> server {server}: {other:?}"),
        });
        self.handle(server, Input::Client(connection, message))
    }

    pub(super) fn reply(
        &mut self,
        server: usize,
        connection: ConnectionId,
        message: ReplicaMessage,
    ) {
        let Some(&Connection { client, .. }) = self.connections.get(&connection) else {
            return;
        };
        let node = self.client_node(client);
        for (message, delay_ms) in self.servers[server].for_client(message) {
            let arrivals = self.net.arrivals(&self.knobs, self.now, server, node);
            for at in arrivals.into_iter().flatten() {
                let event = Event::ToClient(connection, message.clone());
                self.at(at + delay_ms * 1000, event);
            }
        }
    }

    pub(super) fn on_reply(&mut self, connection: ConnectionId, message: ReplicaMessage) {
        let Some(&Connection { client, server }) = self.connections.get(&connection) else {
            return;
        };
        let reply = match &message {
            ReplicaMessage::Reply(reply) => reply,
            ReplicaMessage::Read(answer) => &answer.reply,
            ReplicaMessage::Vouched(vouched) => &vouched.reply,
            ReplicaMessage::Unsigned(refused) => {
                let (id, now_ms) = (self.servers[server].id, self.now / 1000);
                self.note(
                    &[28, client as u64, server as u64, refused.number.0],
                    || format!("server {server} -> client {client}: unsigned {refused:?}"),
                );
                if let Some(core) = &mut self.clients[client].core {
                    core.on_unsigned(id, refused, now_ms);
                }
                return self.carry_out_client(client);
            }
            ReplicaMessage::Report(_) | ReplicaMessage::Certificate(_) => return,
        };
        self.note(&[26, client as u64, server as u64, reply.number.0], || {
            format!(
                "server {server} -> client {client}: reply {:?} {:?} {:?}",
                reply.session,
                reply.number,
                reply.body.digest()
            )
        });
        let (id, now_ms) = (self.servers[server].id, self.now / 1000);
        if let ReplicaMessage::Read(answer) = &message {
            let early = &mut self.clients[client].early;
            if answer.reply.tentative {
                early.insert(answer.reply.number);
            }
            self.early = early.contains(&answer.reply.number);
        }
        if let Some(core) = &mut self.clients[client].core {
            match message {
                ReplicaMessage::Reply(reply) => core.on_reply(id, reply, now_ms),
                ReplicaMessage::Read(answer) => core.on_read(id, answer, now_ms),
                ReplicaMessage::Vouched(vouched) => core.on_vouched(id, vouched, now_ms),
                ReplicaMessage::Report(_)
                | ReplicaMessage::Certificate(_)
                | ReplicaMessage::Unsigned(_) => {}
            }
        }
        self.carry_out_client(client);
        self.early = false;
    }

    fn schedule_client_tick(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let next = it.core.as_ref().and_then(|core| core.next_timeout());
        let Some(at) = next.map(|ms| (ms * 1000).max(self.now + 1000)) else {
            return;
        };
        if it.tick_at.is_none_or(|scheduled| at < scheduled) {
            it.tick_at = Some(at);
            self.at(at, Event::ClientTick(client, at));
        }
    }

    pub(super) fn on_client_tick(&mut self, client: usize, at: u64) {
        if self.clients[client].tick_at != Some(at) {
            return;
        }
        self.clients[client].tick_at = None;
        let now_ms = self.now / 1000;
        if let Some(core) = &mut self.clients[client].core {
            core.on_tick(now_ms);
        }
        self.carry_out_client(client);
    }

    fn think(&mut self, client: usize) {
        let it = &mut self.clients[client];
        if it.left > 0 && it.core.is_some() && !it.thinking {
            it.thinking = true;
            let delay = self.dice.range(self.knobs.think);
            self.after(delay, Event::Think(client));
        }
    }

    pub(super) fn on_think(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.thinking = false;
        if it.core.is_none() || it.left == 0 || it.open.len() >= self.knobs.window {
            return;
        }
        it.left -= 1;
        let token = self.operations.len() as u64;
        let (op, reads) = self.clients[client].asker.next(&self.knobs, token);
        self.call(client, op, reads);
        self.think(client);
    }

    /// A client asks for an operation; gives its number.
    pub fn call(&mut self, client: usize, op: bytes::Bytes, reads: bool) -> usize {
        let index = self.operations.len();
        self.note(&[27, client as u64, index as u64], || {
            format!("client {client} asks for operation {index}")
        });
        self.operations.push(Operation {
            client,
            id: index as u64,
            op: op.clone(),
            reads,
            begun: self.now,
            session: self.clients[client].core.as_ref().and_then(|c| c.session()),
            request: None,
            sent_as: None,
            done: None,
            gone: None,
            agreed_at_end: Seq(0),
            lost: false,
        });
        let now_ms = self.now / 1000;
        let it = &mut self.clients[client];
        it.open.insert(index);
        if let Some(core) = &mut it.core {
            match reads {
                true => core.read(index as u64, op, now_ms),
                false => core.call(index as u64, op, now_ms),
            }
        }
        self.carry_out_client(client);
        index
    }

    /// An operation.
    pub fn operation(&self, index: usize) -> &Operation {
        &self.operations[index]
    }

    /// A client, to make it misbehave.
    pub fn client_mut(&mut self, client: usize) -> &mut ClientNode {
        &mut self.clients[client]
    }
}
