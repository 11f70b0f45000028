//! Clients that flood, and how much a replica has in memory.
//!
//! Each has a key that the group names, and keeps to nothing: it sends all that it can think of, far more at once than any of it is done. What it sends is
//! there at once: it is as near to the replicas as it likes.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_agreement::{Memory, Part};
use quorate_wire::message::{AuthRequest, Control, EVERYONE, Read, Request};
use quorate_wire::{Authentication, Authenticator, KeyPair, Mac, RequestNumber, SessionId};

use super::clients::key_of_link;
use super::*;
use crate::client::flooder_key;
use crate::keys::GROUP;

/// How often each sends some, in microseconds, and how many messages.
const EVERY: u64 = 20_000;
const AT_ONCE: u64 = 48;
/// How many it sends in a run, and how many of them may be long: beyond what may wait for one client, and less than a simulator can bear for each replica.
const MOST: u64 = 2_400;
const MOST_LONG: u64 = 100;
/// The first of their dice.
const DICE: u64 = 1 << 38;

/// A client that floods.
#[derive(Debug)]
pub(super) struct Flooder {
    key: KeyPair,
    dice: Dice,
    /// Its link with each server, and in which life of that.
    links: BTreeMap<usize, (u64, ConnectionId)>,
    /// The one server that takes its long requests for right: where nobody else does they wait.
    victim: usize,
    number: u64,
    left: u64,
    long_left: u64,
    long: Bytes,
}

impl Flooder {
    pub fn new(seed: u64, number: usize, replicas: usize) -> Flooder {
        let mut dice = Dice::new(seed, DICE + number as u64);
        Flooder {
            key: flooder_key(number),
            links: BTreeMap::new(),
            victim: dice.below(replicas as u64) as usize,
            number: 0,
            left: MOST,
            long_left: MOST_LONG,
            long: vec![number as u8; 1 << 20].into(),
            dice,
        }
    }

    fn request(&mut self, session: SessionId, op: Bytes) -> Request {
        self.number += 1;
        Request::new(self.key.public(), session, RequestNumber(self.number), op)
    }

    fn read(&mut self, session: SessionId, op: Bytes) -> ClientMessage {
        ClientMessage::Read(Read {
            session,
            number: RequestNumber(self.number),
            replier: EVERYONE,
            early: self.dice.per_mille(500),
            op,
        })
    }

    fn signed(&self, request: Request) -> AuthRequest {
        AuthRequest {
            auth: Authenticator::Signed(self.key.sign_in(&GROUP, &request.digest()).into()),
            replier: EVERYONE,
            request,
        }
    }

    /// With MACs that are right for all servers, or for one.
    fn with_macs(&self, request: Request, right_for: Option<usize>, n: usize) -> AuthRequest {
        let digest = request.digest();
        let mac = |server: usize| match self.links.get(&server) {
            Some((_, id)) if right_for.is_none_or(|it| it == server) => {
                key_of_link(*id).mac(&digest)
            }
            _ => Mac([7; 16]),
        };
        AuthRequest {
            auth: Authenticator::Macs((0..n).map(mac).collect()),
            replier: EVERYONE,
            request,
        }
    }

    /// A message, and the server for which it is if it is for one alone.
    fn message(&mut self, n: usize, signs: bool) -> (ClientMessage, Option<usize>) {
        let session = SessionId(1 + self.dice.below(4));
        let small = Bytes::from(self.number.to_le_bytes().to_vec());
        if self.long_left > 0 && self.dice.per_mille(400) {
            self.long_left -= 1;
            let request = self.request(session, self.long.clone());
            let request = self.with_macs(request, Some(self.victim), n);
            return (ClientMessage::Request(request), Some(self.victim));
        }
        match self.dice.below(8) {
            0 => (self.read(session, self.long.slice(..60_000)), None),
            1 | 2 => (self.read(session, small.slice(..4)), None),
            3 => {
                let request = self.request(session, small);
                (ClientMessage::Watch(self.signed(request)), None)
            }
            4 => {
                let request = self.request(session, small);
                (ClientMessage::Repeat(self.signed(request)), None)
            }
            5 => {
                let request = self.request(SessionId(0), Control::Open(()).to_bytes().into());
                (ClientMessage::Request(self.signed(request)), None)
            }
            6 if !signs => {
                let request = self.request(session, small);
                (
                    ClientMessage::Request(self.with_macs(request, None, n)),
                    None,
                )
            }
            _ => {
                let request = self.request(session, small);
                (ClientMessage::Request(self.signed(request)), None)
            }
        }
    }
}

impl World {
    /// Lets the clients begin that flood.
    pub(super) fn begin_floods(&mut self) {
        for flooder in 0..self.flooders.len() {
            self.after(EVERY, Event::Flood(flooder));
        }
    }

    pub(super) fn on_flood(&mut self, flooder: usize) -> Result<(), Failure> {
        if self.healed || self.flooders[flooder].left == 0 {
            return Ok(());
        }
        self.note(&[60, flooder as u64], || format!("flooder {flooder} sends"));
        self.link_flooder(flooder)?;
        let (n, signs) = (
            self.quorum.n(),
            self.knobs.authentication == Authentication::Signature,
        );
        let mut sent: BTreeMap<usize, Vec<ClientMessage>> = BTreeMap::new();
        for _ in 0..AT_ONCE {
            let it = &mut self.flooders[flooder];
            it.left = it.left.saturating_sub(1);
            let (message, to) = it.message(n, signs);
            if let ClientMessage::Request(m) | ClientMessage::Watch(m) | ClientMessage::Repeat(m) =
                &message
            {
                self.validity.on_sent(&m.request);
            }
            for server in (0..n).filter(|s| to.is_none_or(|to| to == *s)) {
                sent.entry(server).or_default().push(message.clone());
            }
        }
        for (server, messages) in sent {
            let Some((_, connection)) = self.flooders[flooder].links.get(&server).copied() else {
                continue;
            };
            let messages = messages.into_iter();
            let inputs = messages.map(|message| Input::Client(connection, message));
            self.handle_at_once(server, inputs.collect())?;
        }
        self.after(EVERY, Event::Flood(flooder));
        Ok(())
    }

    /// A link with each server that runs.
    fn link_flooder(&mut self, flooder: usize) -> Result<(), Failure> {
        for server in 0..self.quorum.n() {
            let life = self.servers[server].incarnation;
            let it = &mut self.flooders[flooder];
            let is_linked = it.links.get(&server).is_some_and(|(of, _)| *of == life);
            if is_linked || self.servers[server].replica.is_none() {
                continue;
            }
            let connection = ConnectionId(self.next_connection);
            self.next_connection += 1;
            it.links.insert(server, (life, connection));
            let up = Input::ClientUp(connection, it.key.public(), key_of_link(connection));
            self.handle(server, up)?;
        }
        Ok(())
    }

    /// What a correct server has in memory is what it may have.
    pub(super) fn check_memory(&self, server: usize) -> Result<(), Failure> {
        let it = &self.servers[server];
        let Some(replica) = it.replica.as_ref().filter(|_| it.is_correct()) else {
            return Ok(());
        };
        let clients = self.knobs.clients + self.flooders.len();
        let (held, most) = (replica.memory(), Memory::bound(self.quorum, clients));
        let whole = [
            Part::new("bytes of requests", held.requests, most.requests),
            Part::new("bytes of places", held.places, most.places),
            Part::new("bytes of view changes", held.views, most.views),
            Part::new("bytes of the rest", held.rest, most.rest),
        ];
        let parts = replica.parts();
        match parts
            .iter()
            .chain(&whole)
            .find(|part| part.held > part.most)
        {
            None => Ok(()),
            Some(Part { what, held, most }) => Err(Failure::new(
                "memory",
                format!("server {server} has {held} {what}, and may have {most}"),
            )),
        }
    }
}
