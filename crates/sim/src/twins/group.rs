//! The instances of a schedule, the network between them, and what is looked at after each step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_agreement::{Agreement, Config, Input, Now, Ordered, Output, Tuning};
use quorate_wire::message::{AuthRequest, PeerMessage, Request};
use quorate_wire::{
    Authentication, Authenticator, Digest, LogIndex, MacKey, Quorum, ReplicaId, RequestNumber, Seq,
    SessionId, Time, Verified, View,
};

use super::{Ran, Schedule};
use crate::checks::Failure;
use crate::client::client_key;
use crate::keys::{GROUP, replica_keys, standing_signer};

/// Patience of the replicas.
const TIMEOUT_MS: u64 = 250;
/// A new request comes in this time; each view has some.
const REQUEST_EVERY_MS: u64 = 180;
/// A client asks again, with a signature, for what is not done.
const REPEAT_EVERY_MS: u64 = 100;
/// How long the cuts of one view stand, more or less: patience, and time for the change.
const VIEW_MS: u64 = 700;
/// After the network is whole, all is done within this time.
const HEALED_MS: u64 = 120_000;
/// The wall clock at the beginning.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// One running replica.
struct Instance {
    id: ReplicaId,
    core: Agreement,
    /// The second of a pair of twins has another clock, so that the two never propose the same batch.
    skew_ms: u64,
    correct: bool,
    executed: BTreeSet<Digest>,
}

pub(super) struct Group<'s> {
    schedule: &'s Schedule,
    quorum: Quorum,
    now: u64,
    healed: bool,
    instances: Vec<Instance>,
    /// Messages on their way: when they arrive, at whom, from whom.
    queue: VecDeque<(u64, usize, ReplicaId, PeerMessage)>,
    requests: Vec<AuthRequest>,
    /// The highest view in which a correct replica has been while the cuts stood.
    last_view: View,
    /// What correct replicas have executed, or a client has been told, at each place.
    agreed: BTreeMap<Seq, Digest>,
    /// Who has answered tentatively, by place, batch and view.
    tentative: BTreeMap<(Seq, Digest, View), BTreeSet<ReplicaId>>,
}

fn link_key(replica: ReplicaId) -> MacKey {
    MacKey([replica.0 + 1; 32])
}

impl Group<'_> {
    pub fn new(schedule: &Schedule) -> Group<'_> {
        let quorum = Quorum::new(schedule.replicas).expect("a size of a group");
        let keys = replica_keys(quorum, false);
        let twins = schedule.twins.iter().copied();
        let instance = |id: ReplicaId, skew_ms: u64| {
            let config = Config {
                quorum,
                me: id,
                key: standing_signer(id),
                keys: keys.clone(),
                clients: [client_key(0).public()].into(),
                timeout_ms: TIMEOUT_MS,
                guests: false,
                clock_bound_ms: 5_000,
                client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
                authentication: Authentication::Mac,
                durable: false,
                checkpoint_bytes: usize::MAX,
                kept_bytes: quorate_wire::message::session::KEPT_BYTES,
                tuning: Tuning::default(),
            };
            let root = Digest([9; 32]);
            let core = Agreement::new(config, (Seq(0), root), true, vec![], LogIndex(0), at(0, 0));
            Instance {
                id,
                core,
                skew_ms,
                correct: !schedule.twins.contains(&id),
                executed: BTreeSet::new(),
            }
        };
        let first = quorum.replicas().map(|id| instance(id, 0));
        let instances = first.chain(twins.map(|id| instance(id, 1))).collect();
        Group {
            schedule,
            quorum,
            now: 0,
            healed: false,
            instances,
            queue: VecDeque::new(),
            requests: Vec::new(),
            last_view: View(0),
            agreed: BTreeMap::new(),
            tentative: BTreeMap::new(),
        }
    }

    pub fn run(mut self) -> Result<Ran, Failure> {
        for i in 0..self.instances.len() {
            let id = self.instances[i].id;
            let key = Input::ClientKey(client_key(0).public(), link_key(id));
            self.handle(i, key)?;
        }
        let rounds = self.schedule.cuts.len() as u64 * VIEW_MS;
        let (mut next_request, mut next_repeat) = (0, REPEAT_EVERY_MS);
        while self.now < rounds {
            if self.now >= next_request {
                next_request = self.now + REQUEST_EVERY_MS;
                self.ask()?;
            }
            if self.now >= next_repeat {
                next_repeat = self.now + REPEAT_EVERY_MS;
                self.ask_again()?;
            }
            self.step(next_request.min(next_repeat).min(rounds))?;
            let correct = self.instances.iter().filter(|i| i.correct);
            let views = correct.map(|i| i.core.standing().view);
            self.last_view = views.fold(self.last_view, View::max);
        }
        self.healed = true;
        self.ask()?;
        let end = self.now + HEALED_MS;
        while !self.is_done() {
            if self.now >= end {
                return Err(Failure::new("liveness", self.describe()));
            }
            if self.now >= next_repeat {
                next_repeat = self.now + REPEAT_EVERY_MS;
                self.ask_again()?;
            }
            self.step(next_repeat.min(end))?;
        }
        Ok(Ran {
            last_view: self.last_view,
        })
    }

    /// A client asks all for something new.
    fn ask(&mut self) -> Result<(), Failure> {
        let number = self.requests.len() as u64 + 1;
        let op = Bytes::from(vec![number as u8]);
        let client = client_key(0).public();
        let request = Request::new(client, SessionId(1), RequestNumber(number), op);
        let digest = request.digest();
        let macs = self.quorum.replicas().map(|r| link_key(r).mac(&digest));
        let request = AuthRequest {
            auth: Authenticator::Macs(macs.collect()),
            replier: ReplicaId(0),
            request,
        };
        self.requests.push(request.clone());
        self.give(&request)
    }

    /// The client shows all what not every correct replica has done yet, signed: only that is a claim, for which a primary that does not order it is left.
    fn ask_again(&mut self) -> Result<(), Failure> {
        for at in 0..self.requests.len() {
            let digest = self.requests[at].request.digest();
            let mut correct = self.instances.iter().filter(|i| i.correct);
            if correct.any(|i| !i.executed.contains(&digest)) {
                let mut request = self.requests[at].clone();
                request.auth = Authenticator::Signed(client_key(0).sign_in(&GROUP, &digest).into());
                self.give(&request)?;
            }
        }
        Ok(())
    }

    fn give(&mut self, request: &AuthRequest) -> Result<(), Failure> {
        for i in 0..self.instances.len() {
            self.handle(i, Input::Request(Verified::from_link(request.clone())))?;
        }
        Ok(())
    }

    /// The next thing that happens, at `until` the latest.
    fn step(&mut self, until: u64) -> Result<(), Failure> {
        let timeouts = self.instances.iter().map(|i| i.core.next_timeout());
        let timeout = timeouts.min().unwrap_or(until).max(self.now + 1);
        let arrival = self.queue.front().map_or(until, |(at, ..)| *at);
        if arrival <= timeout.min(until)
            && let Some((at, to, from, message)) = self.queue.pop_front()
        {
            self.now = at;
            return self.handle(to, Input::Peer(from, message));
        }
        self.now = timeout.min(until);
        for i in 0..self.instances.len() {
            if self.instances[i].core.next_timeout() <= self.now {
                self.handle(i, Input::Tick)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, i: usize, input: Input) -> Result<(), Failure> {
        let it = &mut self.instances[i];
        // A refusal is the receiver's right.
        let _ = it.core.handle(at(self.now, it.skew_ms), input);
        if it.correct {
            it.core.invariants();
        }
        let outputs: Vec<Output> = it.core.drain().collect();
        outputs.into_iter().try_for_each(|o| self.carry_out(i, o))
    }

    fn carry_out(&mut self, i: usize, output: Output) -> Result<(), Failure> {
        let (id, correct) = (self.instances[i].id, self.instances[i].correct);
        match output {
            Output::Send(to, message) => self.send(i, to, &message),
            Output::Broadcast(message) => {
                for to in self.quorum.others(id) {
                    self.send(i, to, &message);
                }
            }
            Output::Tentative(ordered) => self.on_tentative(id, &ordered)?,
            Output::Execute(ordered) => {
                let requests = ordered.requests.iter().map(|r| r.request.digest());
                self.instances[i].executed.extend(requests);
                if correct {
                    self.agree(ordered.seq, ordered.digest, "executes", id)?;
                }
            }
            Output::Fatal(reason) if correct => {
                let what = format!("{id:?} gives up: {reason}");
                return Err(Failure::new("correct replicas go on", what));
            }
            // Places are too few for checkpoints, and nothing is written.
            _ => {}
        }
        Ok(())
    }

    /// A client takes a result that 2f+1 replicas give tentatively in one view.
    fn on_tentative(&mut self, id: ReplicaId, ordered: &Ordered) -> Result<(), Failure> {
        let key = (ordered.seq, ordered.digest, ordered.view);
        let voters = self.tentative.entry(key).or_default();
        voters.insert(id);
        if voters.len() >= self.quorum.commit() {
            return self.agree(ordered.seq, ordered.digest, "makes a client believe", id);
        }
        Ok(())
    }

    fn agree(&mut self, seq: Seq, digest: Digest, how: &str, id: ReplicaId) -> Result<(), Failure> {
        let first = *self.agreed.entry(seq).or_insert(digest);
        if first == digest {
            return Ok(());
        }
        let what = format!("{id:?} {how} {digest:?} at {seq:?}, where {first:?} stood");
        Err(Failure::new("agreement", what))
    }

    fn send(&mut self, from: usize, to: ReplicaId, message: &PeerMessage) {
        let id = self.instances[from].id;
        let cut = self.cut_for(from, message);
        let side = |i: usize| cut >> i & 1;
        for target in 0..self.instances.len() {
            if self.instances[target].id == to && side(target) == side(from) {
                let entry = (self.now + 1, target, id, message.clone());
                self.queue.push_back(entry);
            }
        }
    }

    fn cut_for(&self, from: usize, message: &PeerMessage) -> u32 {
        let view = self.instances[from].core.standing().view.0 as usize;
        let cuts = self.schedule.cuts.get(view).filter(|_| !self.healed);
        let phase = match message {
            PeerMessage::PrePrepare(_) | PeerMessage::Prepare(_) => 0,
            PeerMessage::Commit(_) | PeerMessage::Committed(_) => 1,
            _ => 2,
        };
        cuts.map_or(0, |cuts| cuts[phase])
    }

    /// Whether all correct replicas have executed all that was asked for, and the same.
    fn is_done(&self) -> bool {
        let last = self.agreed.keys().next_back().copied().unwrap_or_default();
        let mut correct = self.instances.iter().filter(|i| i.correct);
        correct.all(|i| {
            let all = self
                .requests
                .iter()
                .all(|r| i.executed.contains(&r.request.digest()));
            all && i.core.standing().executed == last
        })
    }

    fn describe(&self) -> String {
        let mut out = format!(
            "the network is whole, but not all is done: {}",
            self.schedule
        );
        for it in &self.instances {
            let (id, correct, standing) = (it.id, it.correct, it.core.standing());
            out += &format!("\n  {id:?} (correct: {correct}): {standing:?}");
        }
        out
    }
}

fn at(now_ms: u64, skew_ms: u64) -> Now {
    let wall = Time((EPOCH_MS + now_ms + skew_ms) * 1_000_000);
    Now { mono: now_ms, wall }
}
