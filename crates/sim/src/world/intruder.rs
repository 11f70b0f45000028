//! An intruder who has one replica after another, and keeps for ever what it finds there.
//!
//! It is where it is for a while, knows the replica's keys, and speaks in its name. Then the replica recovers: its log is lost and its store
//! set aside, tampered with; or both are set aside, and where the recovery is missed the intruder has the replica again. The intruder goes on to the next, as soon as the window of vulnerability lets it: not before the replica is back
//! and its stolen keys have passed. All the time it forges what any of its keys can sign, old ones as well.

use std::collections::{BTreeMap, BTreeSet};

use quorate_agreement::selection::select;
use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW};
use quorate_fault::Fault;
use quorate_wire::message::{
    Batch, Checkpoint, Commit, Committed, Estimate, NewView, Prepare, SignedNewView,
    SignedViewChange, Status, ViewChange, Vote,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Certifies, EpochStatus, RecoveryStatement, Signer, View};

use super::storm::Blow;
use super::*;
use crate::keys::{identity_of, standing_signer, statement_of};

/// How often it strikes, in microseconds.
const STRIKE_EVERY: u64 = 200_000;
/// The dice by which it changes what it leaves.
const LEFT_DICE: u64 = 1 << 33;
/// The dice that decide whether faulty replicas withhold statements.
const WITHHOLDS_DICE: u64 = 1 << 35;
/// How far ahead the views are for which it says VIEW-CHANGE in advance.
const FAR: u64 = 12;
/// A place or a view that nobody comes to.
const NOWHERE: u64 = 1 << 40;
/// How it has its replicas misbehave, beside what it forges.
const KINDS: [Fault; 6] = [
    Fault::Silent,
    Fault::Lie,
    Fault::Equivocate,
    Fault::CorruptState,
    Fault::Mislead,
    Fault::Shirk,
];

/// What it has.
#[derive(Debug, Default)]
pub(super) struct Intruder {
    /// How many it has at a time.
    at_once: usize,
    /// Whether it takes them one by one, so that it has some when others recover.
    one_by_one: bool,
    /// How long it has them, in microseconds.
    stay: (u64, u64),
    /// Those that it has now, until when.
    seized: BTreeMap<usize, u64>,
    /// Those that it had, until they are back and their keys have passed.
    healing: BTreeSet<usize>,
    /// All that it ever had.
    ever: BTreeSet<ReplicaId>,
    /// The newest key of each.
    keys: BTreeMap<ReplicaId, (u64, Signer)>,
    /// Certificates that have passed through its hands.
    old: Vec<EpochStatus>,
    /// Statements that its replicas recover, which it had their key holders make.
    statements: Vec<RecoveryStatement>,
    /// VIEW-CHANGEs that its replicas have heard.
    heard: BTreeMap<(View, ReplicaId), SignedViewChange>,
    /// The view that it wants to begin, by which of its replicas.
    far: Option<(View, usize)>,
    /// The number of the newest certificate of each replica, as supervisors have seen it: they ask all replicas all the time.
    shown: Vec<u64>,
    /// How many replicas it has had.
    pub seizures: u64,
}

impl World {
    /// An intruder comes, who has so many replicas at a time, for so many microseconds.
    pub fn begin_intrusion(&mut self, at_once: usize, stay: (u64, u64)) {
        (self.intruder.at_once, self.intruder.stay) = (at_once, stay);
        // More than f break nothing unless it has them together.
        self.intruder.one_by_one = at_once <= self.quorum.f() && self.dice.per_mille(500);
        self.after(STRIKE_EVERY, Event::Storm(Blow::Strike));
    }

    /// How many replicas the intruder has had so far.
    pub fn seizures(&self) -> u64 {
        self.intruder.seizures
    }

    /// Whether it ever had a replica.
    pub(super) fn was_seized(&self, id: ReplicaId) -> bool {
        self.intruder.ever.contains(&id)
    }

    /// One of its replicas hears something, or it does itself: over a link that the sender has with it in some replica's place, since it has
    /// shown an old key.
    pub(super) fn overhear(&mut self, server: usize, from: ReplicaId, message: &PeerMessage) {
        let has = self.intruder.seized.contains_key(&server);
        match message {
            PeerMessage::ViewChange(m) if has => {
                let heard = &mut self.intruder.heard;
                heard.insert((m.body.view, m.body.replica), m.clone());
            }
            PeerMessage::EstimatePlease(nonce) => {
                let id = self.servers[server].id;
                if has || self.open_to(usize::from(from.0)).contains(&id) {
                    self.mislead(from, *nonce);
                }
            }
            _ => {}
        }
    }

    /// A replica that recovers is answered in the names of all whose old keys still open links with it.
    fn mislead(&mut self, asks: ReplicaId, nonce: u64) {
        let to = usize::from(asks.0);
        for from in self.open_to(to) {
            let lie = |dice: &mut Dice| dice.pick(&[0, 300, NOWHERE]);
            let estimate = Estimate {
                nonce,
                checkpoint: Seq(lie(&mut self.dice)),
                prepared: Seq(lie(&mut self.dice)),
                view: View(lie(&mut self.dice)),
            };
            self.say(to, from, PeerMessage::Estimate(estimate));
        }
    }

    /// A replica has taken another key; the intruder sees it if it is there.
    pub(super) fn show_key(&mut self, server: usize, counter: u64, signer: &Signer) {
        if self.intruder.seized.contains_key(&server) {
            let id = self.servers[server].id;
            self.intruder.keys.insert(id, (counter, signer.clone()));
        }
    }

    /// A server's links know of a certificate with this number. What the replica certified before the one before is void to it, and links under
    /// such keys end.
    pub(super) fn saw_certificate(&mut self, server: usize, replica: ReplicaId, number: u64) {
        let known = &mut self.servers[server].disk.certificates;
        known.resize(self.quorum.n(), 0);
        let seen = &mut known[usize::from(replica.0)];
        *seen = number.max(*seen);
    }

    /// Whether a server's links refuse what rests on a certificate with this number.
    fn is_refused(&self, server: usize, replica: ReplicaId, number: u64) -> bool {
        let known = &self.servers[server].disk.certificates;
        let seen = known.get(usize::from(replica.0)).copied();
        number.saturating_add(1) < seen.unwrap_or_default()
    }

    /// Supervisors look which certificates the replicas have.
    fn show_certificates(&mut self) {
        let shown = &mut self.intruder.shown;
        shown.resize(self.quorum.n(), 0);
        for server in self.servers.iter().filter(|s| s.replica.is_some()) {
            let certificate = server.signer().certificate();
            shown[usize::from(server.id.0)] = certificate.map_or(0, |c| c.counter);
        }
    }

    /// A replica that recovers is told what its supervisor has seen, and knows nothing else of certificates.
    fn be_told(&mut self, server: usize) {
        let shown = match is_on(Mutant::SeenUntold) {
            true => Vec::new(),
            false => self.intruder.shown.clone(),
        };
        self.servers[server].disk.certificates = shown;
    }

    /// The same, of the certificates that the replicas have now.
    pub fn tell_certificates(&mut self, server: usize) {
        self.show_certificates();
        self.be_told(server);
    }

    /// A server hears something over a link that somebody has made with a replica's certificate of this number, if it has taken that.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn hear_under(
        &mut self,
        server: usize,
        from: ReplicaId,
        number: u64,
        message: PeerMessage,
    ) -> Result<(), Failure> {
        match self.is_refused(server, from, number) {
            true => Ok(()),
            false => self.handle(server, Input::Peer(from, message)),
        }
    }

    /// Whether a server keeps from itself what a replica's identity has said: a faulty one, in half of the runs. As primary it never orders a
    /// recovery, and else it tells no primary of one.
    pub(super) fn withholds(&self, server: usize, message: &PeerMessage) -> bool {
        let PeerMessage::Request(m) = message else {
            return false;
        };
        let is_faulty =
            !self.servers[server].is_correct() || self.intruder.seized.contains_key(&server);
        if self.knobs.epochs == 0 || !is_faulty {
            return false;
        }
        let client = m.request.client();
        let mut replicas = self.quorum.replicas();
        replicas.any(|id| identity_of(id).identity().name() == client)
            && Dice::new(self.seed, WITHHOLDS_DICE).per_mille(500)
    }

    pub(super) fn strike(&mut self) -> Result<(), Failure> {
        self.leave_some()?;
        self.show_certificates();
        self.watch_healing();
        self.seize_some();
        self.forge()?;
        self.after(STRIKE_EVERY, Event::Storm(Blow::Strike));
        Ok(())
    }

    /// The intruder is thrown out of all that it has.
    pub(super) fn end_intrusion(&mut self) -> Result<(), Failure> {
        self.intruder
            .seized
            .values_mut()
            .for_each(|until| *until = 0);
        self.leave_some()
    }

    fn leave_some(&mut self) -> Result<(), Failure> {
        let now = self.now;
        let over = self.intruder.seized.iter().filter(|(_, at)| **at <= now);
        // One that has more than f keeps those who could not come back together: more than f that have lost their logs wait for each other.
        let most = self.quorum.f().saturating_sub(self.intruder.healing.len());
        let over: Vec<usize> = over.map(|(server, _)| *server).take(most).collect();
        for server in over {
            self.intruder.seized.remove(&server);
            self.intruder.healing.insert(server);
            self.note(&[45, server as u64], || {
                format!("the intruder is thrown out of server {server}")
            });
            self.crash(server);
            self.servers[server].be_sound();
            match self.dice.per_mille(500) {
                true => self.distrust(server, LEFT_DICE),
                false => {
                    self.lose_log(server);
                    self.set_aside(server, LEFT_DICE);
                }
            }
            // What it knew of the others' certificates is not believed either.
            self.be_told(server);
            self.start(server)?;
        }
        Ok(())
    }

    /// Who is back, and whose stolen keys open no link with any other.
    fn watch_healing(&mut self) {
        let it = &self.intruder;
        let is_sound = |server: &usize| {
            let id = self.servers[*server].id;
            let stolen = it.keys.get(&id).map_or(0, |(counter, _)| *counter);
            let mut others =
                (0..self.servers.len()).filter(|s| s != server && !it.seized.contains_key(s));
            !self.forgetful.contains(server) && others.all(|s| self.is_refused(s, id, stolen))
        };
        let sound: Vec<usize> = it.healing.iter().copied().filter(is_sound).collect();
        for server in sound {
            self.intruder.healing.remove(&server);
        }
    }

    fn seize_some(&mut self) {
        let it = &self.intruder;
        let has = |server: &usize| it.seized.contains_key(server) || it.healing.contains(server);
        let taken: BTreeSet<usize> = (0..self.servers.len()).filter(has).collect();
        let may = match it.one_by_one {
            true => taken.len() < it.at_once,
            false => taken.is_empty(),
        };
        if !may {
            return;
        }
        let more = if it.one_by_one { 1 } else { it.at_once };
        let mut victims = BTreeSet::new();
        while victims.len() < more {
            let victim = self.dice.below(self.servers.len() as u64) as usize;
            if !taken.contains(&victim) {
                victims.insert(victim);
            }
        }
        for server in victims {
            self.seize(server);
        }
    }

    /// A replica that is down goes back to what it had. Where that was the intruder's, so is the replica, until it recovers once more.
    pub(super) fn has_gone_back(&mut self, server: usize) {
        if !self.intruder.healing.contains(&server) {
            return;
        }
        if self.healed {
            self.lose_log(server);
            return self.set_aside(server, LEFT_DICE);
        }
        self.intruder.healing.remove(&server);
        self.seize(server);
    }

    fn seize(&mut self, server: usize) {
        let until = self.now + self.dice.range(self.intruder.stay);
        let kind = self.dice.pick(&KINDS);
        let it = &mut self.servers[server];
        let id = it.id;
        it.fall_into_hands(kind, self.quorum);
        let signer = it.signer().clone();
        let counter = signer.certificate().map_or(0, |c| c.counter);
        // A key holder makes one for whoever has the replica, as often as it is asked.
        if let Some(last) = self.holders.get_mut(&id) {
            *last += 1;
            let statement = statement_of(id, *last);
            let request = statement.request(&identity_of(id).identity()).request;
            self.validity.on_sent(&request);
            self.intruder.statements.push(statement);
        }
        self.note(&[46, server as u64], || {
            format!("the intruder has server {server}: {kind:?}")
        });
        self.intruder.seizures += 1;
        self.intruder.ever.insert(id);
        self.intruder.seized.insert(server, until);
        if let Some(certificate) = signer.certificate().cloned() {
            let began = None;
            self.intruder.old.push(EpochStatus { certificate, began });
        }
        self.intruder.keys.insert(id, (counter, signer));
    }

    /// Says in the names of all whose keys it has or had what would have a view begin as if nothing had been agreed on.
    fn forge(&mut self) -> Result<(), Failure> {
        let Some((&server, _)) = self.intruder.seized.first_key_value() else {
            self.speak_from_outside();
            return Ok(());
        };
        let Some(standing) = self.servers[server].replica.as_ref().map(|r| r.standing()) else {
            return Ok(());
        };
        let correct: Vec<usize> = (0..self.servers.len())
            .filter(|s| !self.intruder.seized.contains_key(s))
            .collect();
        let views = correct
            .iter()
            .filter_map(|s| self.servers[*s].replica.as_ref());
        let highest = views.map(|r| r.standing().view).max().unwrap_or_default();
        let (far, leader) = match self.intruder.far {
            Some((far, leader)) if far > highest.next() => (far, leader),
            _ => self.choose_view(highest),
        };
        let n = self.quorum.n() as u64;
        let own = self.servers[server].id;
        // A near view that the one it has now leads, and the far one for which it has spoken before.
        let near = (2..).map(|step| View(highest.0 + step));
        let near = near.into_iter().find(|v| v.0 % n == u64::from(own.0));
        let near = near.expect("one of the next n");
        for (view, leads) in [(near, server), (far, leader)] {
            let forged: Vec<SignedViewChange> = self
                .intruder
                .keys
                .iter()
                .map(|(id, (_, signer))| {
                    let body = amnesia(*id, view, standing.stable);
                    SignedViewChange::sign(body, signer).into_inner()
                })
                .collect();
            for to in &correct {
                for m in &forged {
                    self.say(*to, own, PeerMessage::ViewChange(m.clone()));
                }
            }
            if leads == server {
                self.start_falsely(view, own, &forged, &correct);
            }
        }
        self.say_old(own, highest, standing.committed, &correct);
        Ok(())
    }

    /// While it has no replica, those that it had recover: it speaks over the links that their old keys still open, and signs with these.
    fn speak_from_outside(&mut self) {
        let replicas = self.servers.iter().filter_map(|s| s.replica.as_ref());
        let standings = replicas.map(|r| r.standing());
        let Some(front) = standings.max_by_key(|s| (s.stable.0, s.committed, s.view)) else {
            return;
        };
        let keys: Vec<(ReplicaId, Signer)> = self
            .intruder
            .keys
            .iter()
            .map(|(id, (_, signer))| (*id, signer.clone()))
            .collect();
        let forged: Vec<PeerMessage> = keys
            .iter()
            .map(|(id, signer)| {
                let body = amnesia(*id, View(front.view.0 + 2), front.stable);
                PeerMessage::ViewChange(SignedViewChange::sign(body, signer).into_inner())
            })
            .collect();
        for to in 0..self.servers.len() {
            let Some(&own) = self.open_to(to).first() else {
                continue;
            };
            for m in &forged {
                self.say(to, own, m.clone());
            }
            self.say_old(own, front.view, front.committed, &[to]);
        }
    }

    /// A view for which it says VIEW-CHANGE with one key after another, until it has the replica that leads it.
    fn choose_view(&mut self, highest: View) -> (View, usize) {
        let n = self.quorum.n() as u64;
        let far = View(highest.0 + FAR + self.dice.below(n));
        let leader = usize::from(self.quorum.primary(far).0);
        self.intruder.far = Some((far, leader));
        (far, leader)
    }

    /// NEW-VIEW with what is forged and, where that is not enough, the words of others.
    fn start_falsely(
        &mut self,
        view: View,
        own: ReplicaId,
        forged: &[SignedViewChange],
        correct: &[usize],
    ) {
        let mut proofs: BTreeMap<ReplicaId, SignedViewChange> = BTreeMap::new();
        for m in forged {
            proofs.insert(m.body.replica, m.clone());
        }
        let heard = self.intruder.heard.iter();
        let heard = heard.filter(|((its, id), _)| *its == view && !proofs.contains_key(id));
        let missing = self.quorum.commit().saturating_sub(proofs.len());
        let heard: Vec<SignedViewChange> = heard.map(|(_, m)| m.clone()).take(missing).collect();
        proofs.extend(heard.into_iter().map(|m| (m.body.replica, m)));
        let bodies: Vec<&ViewChange> = proofs.values().map(|m| &m.body).collect();
        let Some(selection) = select(self.quorum, &bodies) else {
            return;
        };
        let body = NewView {
            view,
            proofs: proofs
                .values()
                .map(|m| (m.body.replica, m.digest()))
                .collect(),
            start: selection.start,
            selection: selection.batches,
        };
        let (_, signer) = &self.intruder.keys[&own];
        let new_view = SignedNewView::sign(body, signer).into_inner();
        for to in correct {
            self.say(*to, own, PeerMessage::NewView(new_view.clone()));
            for m in proofs.values() {
                self.say(*to, own, PeerMessage::ViewChange(m.clone()));
            }
        }
    }

    /// Old certificates; what is signed with keys that last; votes over links that old keys still open.
    fn say_old(&mut self, own: ReplicaId, view: View, committed: Seq, correct: &[usize]) {
        for &to in correct {
            let me = self.servers[to].id;
            for from in self.open_to(to) {
                for m in self.false_words(view, committed) {
                    self.say(to, from, m);
                }
            }
            let old = self.intruder.old.clone();
            for status in old {
                self.say(to, own, PeerMessage::Epoch(status));
            }
            for statement in self.intruder.statements.clone() {
                let from = statement.replica;
                let request = statement.request(&identity_of(from).identity());
                if from != me {
                    self.say(to, from, PeerMessage::Request(request));
                }
            }
            for id in self.intruder.ever.clone() {
                let body = amnesia(id, view.next(), (Seq(0), Digest::ZERO));
                let m = SignedViewChange::sign(body, &standing_signer(id)).into_inner();
                self.say(to, own, PeerMessage::ViewChange(m));
            }
        }
    }

    /// In whose names it can speak to a server: those whose keys it has or had, as long as the server takes them.
    fn open_to(&self, to: usize) -> Vec<ReplicaId> {
        let keys = self.intruder.keys.iter();
        let open = keys.filter(|(id, (counter, _))| !self.is_refused(to, **id, *counter));
        let me = self.servers[to].id;
        open.map(|(id, _)| *id).filter(|id| *id != me).collect()
    }

    /// What it says over a link that an old key still opens: votes, hints, a checkpoint, a place far ahead.
    fn false_words(&mut self, view: View, committed: Seq) -> Vec<PeerMessage> {
        let null = Batch::null();
        let other = Batch {
            requests: vec![Digest::ZERO],
            ..null.clone()
        };
        let digest = self.dice.pick(&[null.digest(), other.digest()]);
        let mut words = Vec::new();
        for seq in (1..=3).map(|at| Seq(committed.0 + at)) {
            words.push(PeerMessage::Prepare(Prepare { view, seq, digest }));
            words.push(PeerMessage::Commit(Commit { view, seq, digest }));
            words.push(PeerMessage::Committed(Committed { seq, digest }));
        }
        let next = (committed.0 / CHECKPOINT_INTERVAL + 1) * CHECKPOINT_INTERVAL;
        let seq = Seq(next + self.dice.pick(&[0, LOG_WINDOW]));
        words.push(PeerMessage::Checkpoint(Checkpoint { seq, root: digest }));
        words.push(PeerMessage::Status(Status {
            view: View(view.0 + self.dice.pick(&[0, 1, FAR])),
            active: self.dice.per_mille(500),
            stable: seq,
            committed: seq,
            executed: seq,
            primary_lost: false,
            recovering: self.dice.pick(&[None, Some(Seq(0)), Some(seq)]),
        }));
        words
    }

    fn say(&mut self, to: usize, from: ReplicaId, message: PeerMessage) {
        let delay = self.dice.range(self.knobs.delay);
        self.after(delay, Event::Peer(to, from, message));
    }
}

/// The VIEW-CHANGE of one that has agreed on nothing above its stable checkpoint, in the last view before.
fn amnesia(replica: ReplicaId, view: View, stable: (Seq, Digest)) -> ViewChange {
    let digest = Batch::null().digest();
    let null = |place| Vote {
        seq: Seq(stable.0.0 + place),
        view: View(view.0 - 1),
        digest,
    };
    ViewChange {
        view,
        replica,
        stable: stable.0,
        checkpoints: vec![stable],
        prepared: (1..=LOG_WINDOW).map(null).collect(),
        preprepared: (1..=LOG_WINDOW).map(null).collect(),
    }
}
