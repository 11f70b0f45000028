//! The messages of replicas that are made from the input: each has the form of a genuine one, and fields that are chosen among
//! what would fit, what nearly fits and what is absurd.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_agreement::selection::select;
use quorate_wire::message::{
    AuthRequest, Batch, BatchBody, Checkpoint, Commit, Committed, EVERYONE, Fetch, NewView,
    PeerMessage, PrePrepare, Prepare, Request, SignedNewView, SignedViewChange, Status, ViewChange,
    Vote,
};
use quorate_wire::{Authenticator, Digest, ReplicaId, RequestNumber, Seq, SessionId, Time, View};

use crate::choices::Choices;
use crate::host::{GENESIS, Host, at, client, link_key, quorum, signer};

/// How many requests the client has; the MACs of the last ones are wrong for some replicas.
const REQUESTS: u8 = 16;

/// A request of the client. From 12 on one replica's MAC is wrong.
pub fn request(number: u8) -> AuthRequest {
    let op = Bytes::from(vec![number; 20]);
    let number_on = RequestNumber(u64::from(number) + 1);
    let request = Request::new(client(), SessionId(1), number_on, op);
    let digest = request.digest();
    let right = |r: u8| number < 12 || number - 12 != r;
    let mac = |r: u8| link_key(if right(r) { r } else { 77 }).mac(&digest);
    AuthRequest {
        auth: Authenticator::Macs((0..4).map(mac).collect()),
        replier: EVERYONE,
        request,
    }
}

/// What all messages so far have named, so that later ones can name it again.
#[derive(Debug)]
pub struct Known {
    batches: Vec<Batch>,
    digests: Vec<Digest>,
    changes: Vec<SignedViewChange>,
    new_views: Vec<SignedNewView>,
    proposals: BTreeMap<Seq, Vote>,
}

/// Where the replica stands that the messages are for.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub view: View,
    pub committed: Seq,
    pub stable: Seq,
    pub state: (Seq, Digest),
    pub now: u64,
}

impl Aim {
    pub fn at(host: &Host) -> Aim {
        let standing = host.core.standing();
        Aim {
            view: standing.view,
            committed: standing.committed,
            stable: standing.stable.0,
            state: host.state,
            now: host.now,
        }
    }
}

impl Known {
    pub fn new() -> Known {
        Known {
            batches: Vec::new(),
            digests: vec![Batch::null().digest(), Digest([7; 32])],
            changes: Vec::new(),
            new_views: Vec::new(),
            proposals: BTreeMap::new(),
        }
    }

    /// A correct replica has said this.
    pub fn hear(&mut self, message: &PeerMessage) {
        match message {
            PeerMessage::PrePrepare(m) => self.propose(m),
            PeerMessage::ViewChange(m) => keep(&mut self.changes, m.clone()),
            PeerMessage::NewView(m) => keep(&mut self.new_views, m.clone()),
            _ => {}
        }
    }

    fn propose(&mut self, m: &PrePrepare) {
        let (seq, view, digest) = (m.seq, m.view, m.batch.digest());
        keep(&mut self.batches, m.batch.clone());
        keep(&mut self.digests, digest);
        self.proposals.insert(seq, Vote { seq, view, digest });
        if self.proposals.len() > 64 {
            self.proposals.pop_first();
        }
    }

    /// What was last proposed at a place.
    pub fn proposed(&self, seq: Seq) -> Option<Digest> {
        Some(self.proposals.get(&seq)?.digest)
    }

    fn view(&self, aim: &Aim, wild: bool, choices: &mut Choices) -> View {
        let own = aim.view.0;
        View(match choices.below(8) {
            4 => own + 1,
            5 => own.saturating_sub(1),
            6 => own + 2,
            7 if wild => choices.of(&[0, own + 1000, u64::MAX - 1, u64::MAX]),
            _ => own,
        })
    }

    fn seq(&self, aim: &Aim, wild: bool, choices: &mut Choices) -> Seq {
        let next = aim.committed.0 + 1;
        Seq(match choices.below(8) {
            4 => next + 1,
            5 => next + 2,
            6 => aim.committed.0,
            7 if wild => {
                let low = aim.stable.0;
                choices.of(&[0, low, low + 1, low + 128, low + 256, low + 257, u64::MAX])
            }
            _ => next,
        })
    }

    fn digest(&self, seq: Seq, choices: &mut Choices) -> Digest {
        match (choices.below(4), self.proposals.get(&seq)) {
            (0..=2, Some(vote)) => vote.digest,
            _ => choices.of(&self.digests[self.digests.len().saturating_sub(8)..]),
        }
    }

    fn batch(&self, aim: &Aim, wild: bool, choices: &mut Choices) -> Batch {
        if !self.batches.is_empty() && choices.below(4) == 0 {
            return choices.of(&self.batches[self.batches.len().saturating_sub(8)..]);
        }
        let mask = u16::from(choices.byte()) | u16::from(choices.byte()) << 8;
        let asked = (0..REQUESTS).filter(|i| mask >> i & 1 == 1);
        let mut requests: Vec<Digest> = asked.map(|i| request(i).request.digest()).collect();
        let mut time = at(aim.now).wall;
        if wild {
            match choices.below(8) {
                0 => time = choices.of(&[Time(0), Time(u64::MAX), Time(time.0 + 20_000_000_000)]),
                1 => requests.extend_from_within(..),
                2 => requests.push(Digest([7; 32])),
                _ => {}
            }
        }
        Batch { time, requests }
    }

    fn pre_prepare(&mut self, aim: &Aim, wild: bool, choices: &mut Choices) -> PeerMessage {
        let (view, seq) = (self.view(aim, wild, choices), self.seq(aim, wild, choices));
        let batch = self.batch(aim, wild, choices);
        let with_bodies = choices.below(4) > 0;
        let bodies = (0..REQUESTS).map(request).filter(|body| {
            let digest = body.request.digest();
            with_bodies && batch.requests.contains(&digest)
        });
        let m = PrePrepare {
            view,
            seq,
            bodies: bodies.map(Into::into).collect(),
            batch,
        };
        self.propose(&m);
        PeerMessage::PrePrepare(m)
    }

    fn votes(&self, view: View, stable: Seq, wild: bool, choices: &mut Choices) -> Vec<Vote> {
        let mask = choices.byte();
        let above = self.proposals.values().filter(|v| v.seq > stable);
        let listed = above.enumerate().filter(|(i, _)| mask >> (i % 8) & 1 == 1);
        let mut votes: Vec<Vote> = listed.map(|(_, v)| v.clone()).collect();
        for vote in &mut votes {
            if vote.view >= view {
                vote.view = View(view.0.saturating_sub(1));
            }
        }
        if wild && choices.below(2) == 0 {
            let digest = choices.of(&self.digests);
            let seq = Seq(stable.0.saturating_add(1 + choices.below(4) as u64));
            votes.retain(|v| v.seq != seq);
            let earlier = View(view.0.saturating_sub(1 + choices.below(2) as u64));
            votes.push(Vote {
                seq,
                view: earlier,
                digest,
            });
            votes.sort_by_key(|v| v.seq);
        }
        votes
    }

    /// The VIEW-CHANGE of a replica, whatever it says.
    pub fn change(
        &mut self,
        by: ReplicaId,
        aim: &Aim,
        wild: bool,
        choices: &mut Choices,
    ) -> SignedViewChange {
        let mut view = self.view(aim, wild, choices);
        if view <= aim.view && choices.below(4) > 0 {
            view = aim.view.next();
        }
        let stable = match choices.below(8) {
            0 => aim.state.0,
            1 if wild => self.seq(aim, wild, choices),
            _ => aim.stable,
        };
        let root = |seq: Seq| {
            if seq == aim.state.0 {
                aim.state.1
            } else {
                GENESIS
            }
        };
        let mut checkpoints = vec![(stable, root(stable))];
        if aim.state.0 > stable && choices.flag() {
            checkpoints.push(aim.state);
        }
        if wild && choices.below(8) == 0 {
            checkpoints.push((Seq(stable.0.saturating_add(2)), Digest([7; 32])));
        }
        let prepared = self.votes(view, stable, wild, choices);
        let mut preprepared = match choices.below(4) {
            0 => self.votes(view, stable, wild, choices),
            _ => prepared.clone(),
        };
        preprepared.sort_by_key(|v| (v.seq, v.digest));
        let body = ViewChange {
            view,
            replica: by,
            stable,
            checkpoints,
            prepared,
            preprepared,
        };
        let signed = SignedViewChange::sign(body, &signer(by)).into_inner();
        keep(&mut self.changes, signed.clone());
        signed
    }

    /// The NEW-VIEW of a view's primary: the right one from what is known, or nearly.
    pub fn start(&mut self, view: View, wild: bool, choices: &mut Choices) -> SignedNewView {
        let mut newest = BTreeMap::new();
        for change in self.changes.iter().filter(|m| m.body.view == view) {
            if choices.below(8) > 0 || !newest.contains_key(&change.body.replica) {
                newest.insert(change.body.replica, change);
            }
        }
        if newest.len() > 3 && choices.flag() {
            newest.pop_first();
        }
        let bodies: Vec<&ViewChange> = newest.values().map(|m| &m.body).collect();
        let selected = select(quorum(), &bodies);
        let mut body = NewView {
            view,
            proofs: newest
                .values()
                .map(|m| (m.body.replica, m.digest()))
                .collect(),
            start: selected.as_ref().map_or((Seq(0), GENESIS), |s| s.start),
            selection: selected.map_or_else(Vec::new, |s| s.batches),
        };
        if wild {
            match choices.below(12) {
                0 => body.selection.push(Batch::null().digest()),
                1 => drop(body.selection.pop()),
                2 => body.start.0 = choices.of(&[Seq(1), Seq(4), Seq(u64::MAX)]),
                3 => body.start.1 = Digest([7; 32]),
                4 => drop(body.proofs.pop()),
                5 => body.proofs.extend_from_within(..),
                6 => body.selection = vec![Digest([7; 32]); 256],
                _ => {}
            }
        }
        let by = quorum().primary(view);
        let signed = SignedNewView::sign(body, &signer(by)).into_inner();
        keep(&mut self.new_views, signed.clone());
        signed
    }

    fn fetch(&self, choices: &mut Choices) -> Fetch {
        match choices.below(4) {
            0 => Fetch::Batch(choices.of(&self.digests)),
            1 => Fetch::Request(request(choices.byte() % REQUESTS).request.digest()),
            2 => Fetch::Small(request(choices.byte() % REQUESTS).request.digest()),
            _ => {
                let known = choices.below(self.changes.len().max(1));
                let digest = self.changes.get(known).map(SignedViewChange::digest);
                Fetch::ViewChange(digest.unwrap_or(GENESIS))
            }
        }
    }

    /// The answer to a replica that asks for content, where it is known.
    pub fn answer(&self, fetch: &Fetch) -> Option<PeerMessage> {
        match fetch {
            Fetch::Batch(digest) => {
                let batch = self.batches.iter().find(|b| b.digest() == *digest)?.clone();
                Some(PeerMessage::Batch(BatchBody { batch }))
            }
            Fetch::Request(digest) | Fetch::Small(digest) => {
                let mut requests = (0..REQUESTS).map(request);
                requests
                    .find(|r| r.request.digest() == *digest)
                    .map(PeerMessage::Body)
            }
            Fetch::ViewChange(digest) => {
                let mut known = self.changes.iter();
                let change = known.find(|m| m.digest() == *digest)?;
                Some(PeerMessage::ViewChange(change.clone()))
            }
        }
    }

    /// Any message of a replica. `wild`: it may name what no correct replica could.
    pub fn message(
        &mut self,
        by: ReplicaId,
        aim: &Aim,
        wild: bool,
        choices: &mut Choices,
    ) -> PeerMessage {
        let kind = choices.below(16);
        let (view, seq) = match kind {
            1..=3 | 5 | 9 => (self.view(aim, wild, choices), self.seq(aim, wild, choices)),
            _ => (aim.view, aim.committed.next()),
        };
        match kind {
            0 => PeerMessage::Request(request(choices.byte() % REQUESTS)),
            1 | 2 => {
                let digest = self.digest(seq, choices);
                PeerMessage::Prepare(Prepare { view, seq, digest })
            }
            3 | 5 => {
                let digest = self.digest(seq, choices);
                PeerMessage::Commit(Commit { view, seq, digest })
            }
            4 => {
                let (mut seq, mut root) = aim.state;
                match choices.below(4) {
                    0 => root = Digest([7; 32]),
                    1 => seq = self.seq(aim, wild, choices),
                    _ => {}
                }
                PeerMessage::Checkpoint(Checkpoint { seq, root })
            }
            6 => PeerMessage::ViewChange(self.change(by, aim, wild, choices)),
            7 => {
                let view = match choices.below(4) {
                    0 => self.view(aim, wild, choices),
                    1 => aim.view.next(),
                    _ => aim.view,
                };
                // A faulty replica signs for itself alone, and passes on what others have signed.
                match self.new_views.iter().rev().find(|m| m.body.view == view) {
                    Some(old) if choices.flag() => PeerMessage::NewView(old.clone()),
                    _ if quorum().primary(view) == by => {
                        PeerMessage::NewView(self.start(view, wild, choices))
                    }
                    _ => PeerMessage::Fetch(self.fetch(choices)),
                }
            }
            8 => {
                let place = |known: &Known, choices: &mut Choices| match choices.below(4) {
                    0 => known.seq(aim, wild, choices),
                    1 => aim.stable,
                    _ => aim.committed,
                };
                PeerMessage::Status(Status {
                    view: self.view(aim, wild, choices),
                    active: choices.flag(),
                    stable: place(self, choices),
                    committed: place(self, choices),
                    executed: place(self, choices),
                    primary_lost: choices.flag(),
                    recovering: None,
                })
            }
            9 => {
                let digest = self.digest(seq, choices);
                PeerMessage::Committed(Committed { seq, digest })
            }
            10 => PeerMessage::Fetch(self.fetch(choices)),
            11 => {
                let batch = self.batch(aim, wild, choices);
                PeerMessage::Batch(BatchBody { batch })
            }
            12 => PeerMessage::Body(request(choices.byte() % REQUESTS)),
            13 => {
                // What somebody else has said, once more.
                let known = choices.below(self.changes.len().max(1));
                let old = self.changes.get(known).cloned();
                old.map_or(
                    PeerMessage::Fetch(self.fetch(choices)),
                    PeerMessage::ViewChange,
                )
            }
            _ => self.pre_prepare(aim, wild, choices),
        }
    }
}

/// Keeps the newest: a machine that is told much names what is new.
fn keep<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
    if list.len() > 256 {
        list.remove(2);
    }
}
