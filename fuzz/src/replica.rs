//! One replica; the other three are the input. Two of them keep to what a correct replica could name, one names anything.

use quorate_agreement::Input;
use quorate_wire::message::{AuthRequest, Commit};
use quorate_wire::message::{Fetch, PeerMessage, Prepare};
use quorate_wire::{ReplicaId, Verified};

use crate::choices::Choices;
use crate::host::Host;
use crate::peers::{Aim, Known, request};

const STEPS: usize = 256;

struct Scene<'a> {
    choices: Choices<'a>,
    host: Host,
    known: Known,
    /// What it has asked for.
    asked: Vec<(ReplicaId, Fetch)>,
}

/// Whatever comes in whatever order: nothing panics, the invariants hold, the replica never says two things where it may say
/// one, not even after a crash, and each input costs a bounded amount of memory and messages.
pub fn replica(data: &[u8]) {
    let mut choices = Choices::new(data);
    let host = Host::new(ReplicaId(choices.below(4) as u8));
    let mut scene = Scene {
        choices,
        host,
        known: Known::new(),
        asked: Vec::new(),
    };
    for _ in 0..STEPS {
        if scene.choices.is_empty() || scene.host.failed.is_some() {
            return;
        }
        scene.step();
        scene.listen();
    }
}

impl Scene<'_> {
    fn peer(&mut self) -> ReplicaId {
        let other = 1 + self.choices.below(3) as u8;
        ReplicaId((self.host.me.0 + other) % 4)
    }

    fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        let me = self.host.me.0;
        (1..4).map(move |i| ReplicaId((me + i) % 4))
    }

    fn step(&mut self) {
        let choices = &mut self.choices;
        match choices.below(16) {
            0 => {
                let asked: AuthRequest = request(choices.byte() % 16);
                let _ = self.host.input(Input::Request(Verified::from_link(asked)));
            }
            1 => self.host.persist(usize::MAX),
            2 => {
                let count = 1 + choices.below(4);
                self.host.persist(count);
            }
            3 => self.host.checkpoint(),
            4 => {
                let ms = choices.of(&[1, 50, 100, 500, 900, 1_000, 3_000, 20_000]);
                self.host.now += ms;
                let _ = self.host.input(Input::Tick);
            }
            5 => match choices.below(4) {
                0 => {
                    let _ = self.host.input(Input::StateUnavailable);
                }
                _ => self.host.fetched(),
            },
            6 => {
                let cut = choices.flag();
                self.host.restart(cut);
                self.asked.clear();
            }
            7 => self.agree(),
            8 => self.change_view(),
            9 => {
                let asked = std::mem::take(&mut self.asked);
                for (to, fetch) in asked {
                    if let Some(answer) = self.known.answer(&fetch) {
                        let _ = self.host.input(Input::Peer(to, answer));
                    }
                }
            }
            _ => {
                let from = self.peer();
                let wild = from.0 == (self.host.me.0 + 1) % 4;
                let aim = Aim::at(&self.host);
                let message = self.known.message(from, &aim, wild, &mut self.choices);
                let _ = self.host.input(Input::Peer(from, message));
            }
        }
    }

    /// The others vote for what was proposed last at the next places.
    fn agree(&mut self) {
        let (rounds, commit) = (1 + self.choices.below(4), self.choices.below(4) > 0);
        for _ in 0..rounds {
            let aim = Aim::at(&self.host);
            let seq = aim.committed.next();
            let Some(digest) = self.known.proposed(seq) else {
                return;
            };
            let view = aim.view;
            for from in self.others() {
                let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
                let _ = self.host.input(Input::Peer(from, vote));
            }
            self.host.persist(usize::MAX);
            for from in self.others().filter(|_| commit) {
                let vote = PeerMessage::Commit(Commit { view, seq, digest });
                let _ = self.host.input(Input::Peer(from, vote));
            }
            self.host.persist(usize::MAX);
        }
    }

    /// The others leave the view, and its primary starts the next one.
    fn change_view(&mut self) {
        let aim = Aim::at(&self.host);
        let enough = 2 + self.choices.below(2);
        for from in self.others().take(enough) {
            let message = self.known.change(from, &aim, false, &mut self.choices);
            let _ = self
                .host
                .input(Input::Peer(from, PeerMessage::ViewChange(message)));
        }
        self.host.persist(usize::MAX);
        self.listen();
        let view = self.host.core.standing().view;
        let primary = crate::host::quorum().primary(view);
        if primary != self.host.me {
            let wild = self.choices.below(4) == 0;
            let message = self.known.start(view, wild, &mut self.choices);
            let _ = self
                .host
                .input(Input::Peer(primary, PeerMessage::NewView(message)));
        }
    }

    fn listen(&mut self) {
        for (to, message) in std::mem::take(&mut self.host.sent) {
            self.known.hear(&message);
            if let (Some(to), PeerMessage::Fetch(fetch)) = (to, message) {
                self.asked.push((to, fetch));
            }
        }
        let old = self.asked.len().saturating_sub(64);
        self.asked.drain(..old);
    }
}
