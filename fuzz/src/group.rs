//! Three correct replicas and a faulty one that says what the input says, over links that the input delays, cuts and reorders.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_agreement::Input;
use quorate_wire::message::{AuthRequest, EVERYONE, PeerMessage, Request};
use quorate_wire::{Authenticator, Digest, ReplicaId, RequestNumber, Seq, SessionId, Verified};

use crate::choices::Choices;
use crate::host::{GROUP, Host, client, key};
use crate::peers::{Aim, Known, request};

const STEPS: usize = 256;
/// The most messages under way between two replicas.
const LINK: usize = 128;
/// All correct replicas have a checkpoint after so many places.
const INTERVAL: u64 = 4;
/// How long the group may take to do what is asked once its links are whole: patience has doubled six times at the most, and
/// a few views may be led by the faulty one.
const HEALED_MS: u64 = 400_000;
const STEP_MS: u64 = 100;

struct Group<'a> {
    choices: Choices<'a>,
    hosts: Vec<Host>,
    faulty: ReplicaId,
    links: BTreeMap<(ReplicaId, ReplicaId), VecDeque<PeerMessage>>,
    known: Known,
    /// What committed at each place, and the root after it.
    agreed: BTreeMap<Seq, (Digest, Digest)>,
}

/// No two correct replicas execute different batches at one place, none fails, and once the faulty one is silent and the links
/// are whole, what a client asks is done.
pub fn group(data: &[u8]) {
    let mut choices = Choices::new(data);
    let faulty = ReplicaId(choices.below(4) as u8);
    let correct = (0..4).map(ReplicaId).filter(|r| *r != faulty);
    let mut group = Group {
        choices,
        hosts: correct.map(Host::new).collect(),
        faulty,
        links: BTreeMap::new(),
        known: Known::new(),
        agreed: BTreeMap::new(),
    };
    for _ in 0..STEPS {
        if group.choices.is_empty() {
            break;
        }
        group.step();
        group.collect();
    }
    group.heal();
}

impl Group<'_> {
    fn step(&mut self) {
        let choices = &mut self.choices;
        let host = choices.below(3);
        match choices.below(16) {
            0 => {
                let asked = request(choices.byte() % 16);
                let to = choices.byte();
                for (i, host) in self.hosts.iter_mut().enumerate() {
                    if to >> i & 1 == 0 {
                        let asked = Verified::from_link(asked.clone());
                        let _ = host.input(Input::Request(asked));
                    }
                }
            }
            1 => {
                let from = self.hosts[choices.below(3)].me;
                let count = 1 + choices.below(8);
                self.deliver(from, host, count);
            }
            2 => {
                let from = self.hosts[choices.below(3)].me;
                self.links.remove(&(from, self.hosts[host].me));
            }
            3 => {
                let count = choices.of(&[1, 2, usize::MAX]);
                self.hosts[host].persist(count);
            }
            4 => {
                let ms = choices.of(&[1, 100, 500, 1_000, 2_000, 20_000]);
                self.pass(ms);
            }
            5 => self.store(host),
            6 => {
                let cut = choices.flag();
                self.hosts[host].restart(cut);
            }
            7 => self.fetch(host),
            8 => self.round(),
            9 => {
                let links: Vec<ReplicaId> = self.hosts.iter().map(|h| h.me).collect();
                links
                    .into_iter()
                    .for_each(|from| self.deliver(from, host, LINK));
            }
            _ => {
                let aim = Aim::at(&self.hosts[host]);
                let by = self.faulty;
                let message = self.known.message(by, &aim, true, &mut self.choices);
                let _ = self.hosts[host].input(Input::Peer(by, message));
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        for host in &mut self.hosts {
            host.now += ms;
            let _ = host.input(Input::Tick);
        }
    }

    fn deliver(&mut self, from: ReplicaId, to: usize, count: usize) {
        let link = self.links.entry((from, self.hosts[to].me)).or_default();
        let messages: Vec<PeerMessage> = link.drain(..count.min(link.len())).collect();
        for message in messages {
            let _ = self.hosts[to].input(Input::Peer(from, message));
        }
    }

    /// The store of a replica has what is due. Each state that it holds is a checkpoint.
    fn store(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        if host.state.0.0.is_multiple_of(INTERVAL) {
            host.checkpoint();
        }
    }

    fn fetch(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        if let Some((seq, root)) = host.fetch {
            let right = self.agreed.get(&seq).map(|(_, root)| *root);
            let right = right.or((seq == Seq(0)).then_some(crate::host::GENESIS));
            assert_eq!(Some(root), right, "a state that no correct replica has");
            host.fetched();
        }
    }

    /// All that is under way arrives, and all disks are done.
    fn round(&mut self) {
        for to in 0..self.hosts.len() {
            self.hosts[to].persist(usize::MAX);
            self.store(to);
            self.fetch(to);
            let others: Vec<ReplicaId> = self.hosts.iter().map(|h| h.me).collect();
            for from in others {
                self.deliver(from, to, LINK);
            }
            self.collect();
        }
    }

    /// Takes what the replicas say, and compares what they have done.
    fn collect(&mut self) {
        let members: Vec<ReplicaId> = self.hosts.iter().map(|h| h.me).collect();
        for host in &mut self.hosts {
            assert_eq!(host.failed, None, "a correct replica can't go on");
            let convicted = host.accused.iter().all(|r| *r == self.faulty);
            assert!(convicted, "a correct replica is convicted");
            for (to, message) in std::mem::take(&mut host.sent) {
                self.known.hear(&message);
                for &member in members.iter().filter(|m| **m != host.me) {
                    if to.is_none_or(|to| to == member) {
                        let link = self.links.entry((host.me, member)).or_default();
                        link.push_back(message.clone());
                        if link.len() > LINK {
                            link.pop_front();
                        }
                    }
                }
            }
            for (seq, digest) in std::mem::take(&mut host.executed) {
                let root = host.roots[&seq];
                let agreed = *self.agreed.entry(seq).or_insert((digest, root));
                assert_eq!(agreed, (digest, root), "two batches at {seq:?}");
            }
        }
    }

    fn heal(&mut self) {
        let asked = fresh();
        let digest = asked.request.digest();
        let mut done_at = None;
        for ms in (0..HEALED_MS).step_by(STEP_MS as usize) {
            if ms % 2_000 == 0 {
                for host in &mut self.hosts {
                    let asked = Verified::from_link(asked.clone());
                    let _ = host.input(Input::Request(asked));
                }
            }
            self.pass(STEP_MS);
            self.collect();
            self.round();
            let doers = self.hosts.iter().filter(|h| h.requests.contains(&digest));
            done_at = done_at.or(doers.map(|h| h.state.0).max());
            let all = |at: Seq| {
                self.hosts
                    .iter()
                    .all(|h| h.fetch.is_none() && h.state.0 >= at)
            };
            if done_at.is_some_and(all) {
                return;
            }
        }
        let standing: Vec<_> = self.hosts.iter().map(|h| h.core.standing()).collect();
        panic!("the group stands still: {standing:?}");
    }
}

/// A request that was never made before, signed as clients sign what they repeat.
fn fresh() -> AuthRequest {
    let number = RequestNumber(1_000);
    let request = Request::new(client(), SessionId(1), number, Bytes::from_static(b"last"));
    AuthRequest {
        auth: Authenticator::Signed(key(4).sign_in(&GROUP, &request.digest()).into()),
        replier: EVERYONE,
        request,
    }
}
