//! The group of a scenario, and all that its faulty replica can say.

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::selection::select;
use quorate_agreement::{Agreement, Config, Input, Millis, Now, Tuning};
use quorate_wire::digest::Content;
use quorate_wire::message::{
    AuthRequest, Batch, BatchBody, Checkpoint, Commit, Committed, NewView, PeerMessage, PrePrepare,
    Prepare, Request, SignedNewView, SignedViewChange, ViewChange, Vote,
};
use quorate_wire::{
    Authentication, Authenticator, Digest, KeyPair, LogIndex, Quorum, ReplicaId, ReplicaKeys,
    RequestNumber, Seq, SessionId, Signature, Signer, Time, Verified, View,
};

use crate::scenario::{Claims, Scenario, quorum};
use crate::words::{Book, SetId, Word, WordId};

/// The root of the initial state.
pub const GENESIS: Digest = Digest([9; 32]);
/// The group's id.
const GROUP: Digest = Digest([7; 32]);
/// Patience of the replicas: shorter than the time between two STATUS, so that one time-out is one step.
const TIMEOUT_MS: Millis = 50;
/// The wall clock, which stands still while states are explored: a batch's digest has its time in it.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// The clocks of a replica. Those of two replicas differ, so that they never propose the same batch.
pub fn at(me: ReplicaId, mono: Millis, wall_ms: u64) -> Now {
    let wall = Time((EPOCH_MS + wall_ms + u64::from(me.0)) * 1_000_000);
    Now { mono, wall }
}

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number + 1; 32])
}

/// What a replica signs with.
fn signer(replica: ReplicaId) -> Signer {
    Signer::standing(GROUP, key(replica.0))
}

/// Who asks for what goes to a place: each another, since replicas wait for one request of a client at a time.
fn client(place: u64) -> KeyPair {
    key(49 + place as u8)
}

/// The group, its clients' requests, and the batches that anyone may propose.
#[derive(Debug)]
pub struct Cast {
    pub scenario: Scenario,
    pub quorum: Quorum,
    pub requests: Vec<AuthRequest>,
    /// By the view whose primary may make them.
    pub batches: Vec<(View, Batch)>,
    /// A request in the client's name that it never made, and its batch.
    forged: (AuthRequest, Batch),
}

impl Cast {
    pub fn new(scenario: &Scenario, book: &mut Book) -> Cast {
        let sign = |number: u64, client: &KeyPair, signer: &KeyPair| {
            let op = Bytes::from(vec![number as u8]);
            let number = RequestNumber(number);
            let request = Request::new(client.public(), SessionId(1), number, op);
            let signature: Signature = signer.sign_in(&GROUP, &request.digest());
            AuthRequest {
                auth: Authenticator::Signed(signature.into()),
                replier: ReplicaId(0),
                request,
            }
        };
        let requests = (1..=scenario.places).map(|n| sign(n, &client(n), &client(n)));
        let requests: Vec<AuthRequest> = requests.collect();
        let batch = |view: u64, request: &AuthRequest, later_ns: u64| {
            let primary = quorum().primary(View(view));
            Batch {
                time: Time(at(primary, 0, 0).wall.0 + later_ns),
                requests: vec![request.request.digest()],
            }
        };
        let mut batches = Vec::new();
        for view in 0..=scenario.last_view.0 {
            for (i, request) in requests.iter().enumerate() {
                let batch = batch(view, request, 0);
                book.name(batch.digest(), format!("{}{view}", ["a", "b"][i]));
                batches.push((View(view), batch));
            }
            let leads = quorum().primary(View(view)) == scenario.faulty;
            if leads && scenario.places == 1 {
                // The same request at another time: another batch.
                let batch = batch(view, &requests[0], 1);
                book.name(batch.digest(), format!("a{view}'"));
                batches.push((View(view), batch));
            }
        }
        book.name(Batch::null().digest(), "null");
        book.name(GENESIS, "genesis");
        let forged = sign(9, &client(1), &key(60));
        let forged_batch = batch(0, &forged, 0);
        book.name(forged_batch.digest(), "forged");
        Cast {
            scenario: scenario.clone(),
            quorum: quorum(),
            requests,
            batches,
            forged: (forged, forged_batch),
        }
    }

    /// The replicas that follow the protocol.
    pub fn correct(&self) -> Vec<ReplicaId> {
        self.quorum.others(self.scenario.faulty).collect()
    }

    /// A correct replica that has just started and knows of all requests.
    pub fn replica(&self, me: ReplicaId) -> Agreement {
        let keys = self.quorum.replicas().map(|r| key(r.0).public());
        let config = Config {
            quorum: self.quorum,
            me,
            key: signer(me),
            keys: ReplicaKeys::Standing {
                group: GROUP,
                keys: keys.collect(),
            },
            clients: (1..=self.scenario.places)
                .map(|n| client(n).public())
                .collect(),
            timeout_ms: TIMEOUT_MS,
            guests: false,
            clock_bound_ms: 100_000,
            client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
            authentication: Authentication::Mac,
            durable: false,
            checkpoint_bytes: usize::MAX,
            kept_bytes: quorate_wire::message::session::KEPT_BYTES,
            tuning: Tuning {
                tentative: self.scenario.tentative,
                batch_requests: 1,
                ..Tuning::default()
            },
        };
        let start = at(me, 0, 0);
        let mut core = Agreement::new(config, (Seq(0), GENESIS), true, vec![], LogIndex(0), start);
        for request in &self.requests {
            let request = Verified::from_link(request.clone());
            core.handle(start, Input::Watch(request))
                .expect("a client's request");
        }
        core
    }

    /// The root of the state after a batch at the first place.
    pub fn root_after(&self, batch: &Digest) -> Digest {
        Digest::of(Content::TreeNode, &batch.0)
    }

    /// Whether a digest is that of a batch of clients' requests, or of the null batch.
    pub fn is_valid(&self, digest: &Digest) -> bool {
        let known = self.batches.iter().any(|(_, b)| b.digest() == *digest);
        known || *digest == Batch::null().digest()
    }

    /// What can be voted for in a view: what its primary and those before it can propose, and after a change nothing.
    fn digests(&self, view: View) -> Vec<Digest> {
        let own = self.batches.iter().filter(|(v, _)| *v <= view);
        let null = (view > View(0)).then(|| Batch::null().digest());
        own.map(|(_, b)| b.digest()).chain(null).collect()
    }

    fn views(&self) -> impl Iterator<Item = View> + use<> {
        (0..=self.scenario.last_view.0).map(View)
    }

    fn places(&self) -> impl Iterator<Item = Seq> + use<> {
        (1..=self.scenario.places).map(Seq)
    }

    /// All that the faulty replica can say whatever the others have said: it may be heard by anyone at any time, as often as
    /// one likes, or never.
    pub fn vocabulary(&self, book: &mut Book) -> Vec<WordId> {
        let mut messages = Vec::new();
        for view in self.views() {
            for seq in self.places() {
                for digest in self.digests(view) {
                    messages.push(PeerMessage::Prepare(Prepare { view, seq, digest }));
                    messages.push(PeerMessage::Commit(Commit { view, seq, digest }));
                }
            }
            if self.quorum.primary(view) == self.scenario.faulty {
                messages.extend(self.proposals(view));
            }
        }
        for (_, batch) in &self.batches {
            let batch = batch.clone();
            messages.push(PeerMessage::Batch(BatchBody { batch }));
        }
        for seq in self.places().filter(|_| self.scenario.hints) {
            for digest in self.digests(self.scenario.last_view) {
                messages.push(PeerMessage::Committed(Committed { seq, digest }));
            }
        }
        if self.scenario.checkpoints {
            let right = self.digests(self.scenario.last_view);
            let mut roots: Vec<Digest> = right.iter().map(|d| self.root_after(d)).collect();
            roots.push(Digest([7; 32]));
            let seq = Seq(1);
            let all = roots.into_iter().map(|root| Checkpoint { seq, root });
            messages.extend(all.map(PeerMessage::Checkpoint));
        }
        for view in self.views().filter(|v| *v > View(0)) {
            messages.extend(self.lies(view).into_iter().map(PeerMessage::ViewChange));
        }
        let mut say = |m| book.word(self.scenario.faulty, Word::Message(m));
        messages.into_iter().map(&mut say).collect()
    }

    fn proposals(&self, view: View) -> Vec<PeerMessage> {
        let mut out = Vec::new();
        let mut propose = |seq: Seq, batch: &Batch, body: &AuthRequest| {
            out.push(PeerMessage::PrePrepare(PrePrepare {
                view,
                seq,
                batch: batch.clone(),
                bodies: vec![Arc::new(body.clone())],
            }));
        };
        let own: Vec<&Batch> = self
            .batches
            .iter()
            .filter(|(v, _)| *v == view)
            .map(|(_, b)| b)
            .collect();
        for seq in self.places() {
            for (i, batch) in own.iter().enumerate() {
                // Both batches at the first place; at the second, unless more is wanted, the second alone.
                let natural = self.scenario.places == 1 || seq == Seq(1) || i as u64 + 1 == seq.0;
                if self.scenario.free_proposals || natural {
                    let named = |r: &&AuthRequest| r.request.digest() == batch.requests[0];
                    let body = self.requests.iter().find(named).expect("a known request");
                    propose(seq, batch, body);
                }
            }
        }
        if self.scenario.free_proposals && view == View(0) {
            let (body, batch) = &self.forged;
            propose(Seq(1), batch, body);
        }
        out
    }

    /// VIEW-CHANGEs of the faulty replica.
    fn lies(&self, view: View) -> Vec<SignedViewChange> {
        let all: Vec<Digest> = self.digests(View(view.0 - 1));
        let mut choices: Vec<(Option<(View, Digest)>, bool)> = Vec::new();
        match self.scenario.claims {
            Claims::None => return Vec::new(),
            Claims::Some => choices.push((None, false)),
            Claims::All => choices.extend([(None, false), (None, true)]),
        }
        for earlier in (0..view.0).map(View) {
            for digest in self.digests(earlier) {
                choices.push((Some((earlier, digest)), true));
                if self.scenario.claims == Claims::All {
                    choices.push((Some((earlier, digest)), false));
                }
            }
        }
        // Each combination over the places.
        let mut bodies = vec![ViewChange {
            view,
            replica: self.scenario.faulty,
            stable: Seq(0),
            checkpoints: vec![(Seq(0), GENESIS)],
            prepared: vec![],
            preprepared: vec![],
        }];
        for seq in self.places() {
            let longer = bodies.iter().flat_map(|body| {
                choices.iter().map(|(prepared, knows_all)| {
                    let mut body = body.clone();
                    let vote = |view, digest| Vote { seq, view, digest };
                    body.prepared.extend(prepared.map(|(v, d)| vote(v, d)));
                    if *knows_all {
                        let before = View(view.0 - 1);
                        let mut votes: Vec<Vote> = all.iter().map(|d| vote(before, *d)).collect();
                        votes.sort_by_key(|v| v.digest);
                        body.preprepared.extend(votes);
                    }
                    body
                })
            });
            bodies = longer.collect();
        }
        let own = signer(self.scenario.faulty);
        let sign = |body| SignedViewChange::sign(body, &own).into_inner();
        bodies.into_iter().map(sign).collect()
    }

    /// NEW-VIEWs with which the faulty replica may start a view that it leads: for each set of VIEW-CHANGEs that suffices the right
    /// one, one with nothing selected, and one with another batch at the first place.
    pub fn new_views(&self, view: View, said: &[SetId], book: &mut Book) -> Vec<WordId> {
        let faulty = self.scenario.faulty;
        if self.quorum.primary(view) != faulty || view == View(0) {
            return Vec::new();
        }
        let honest: Vec<SignedViewChange> = said
            .iter()
            .filter_map(|set| {
                book.spoken(*set)
                    .find_map(|(_, spoken)| match &spoken.word {
                        Word::Message(PeerMessage::ViewChange(m)) if m.body.view == view => {
                            Some(m.clone())
                        }
                        _ => None,
                    })
            })
            .collect();
        let mut sets: Vec<Vec<SignedViewChange>> = Vec::new();
        for chosen in 0u32..1 << honest.len() {
            let some: Vec<SignedViewChange> = (0..honest.len())
                .filter(|i| chosen & 1 << i != 0)
                .map(|i| honest[i].clone())
                .collect();
            let with_lie = self.lies(view).into_iter().map(|lie| {
                let mut set = some.clone();
                set.push(lie);
                set.sort_by_key(|m| m.body.replica);
                set
            });
            let with_lie: Vec<_> = with_lie.collect();
            sets.extend(with_lie);
            sets.push(some);
        }
        sets.retain(|set| set.len() >= self.quorum.commit());
        let own = signer(faulty);
        let mut out = Vec::new();
        for set in sets {
            let bodies: Vec<&ViewChange> = set.iter().map(|m| &m.body).collect();
            let right = select(self.quorum, &bodies);
            let start = right.as_ref().map_or((Seq(0), GENESIS), |s| s.start);
            let other = self.digests(View(0)).into_iter().next_back();
            let selections = [
                right.map(|s| s.batches),
                Some(vec![]),
                other.map(|d| vec![d]),
            ];
            for selection in selections.into_iter().flatten() {
                let proofs = set.iter().map(|m| (m.body.replica, m.digest()));
                let body = NewView {
                    view,
                    proofs: proofs.collect(),
                    start,
                    selection,
                };
                let signed = SignedNewView::sign(body, &own).into_inner();
                out.push(book.message(faulty, PeerMessage::NewView(signed)));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }
}
