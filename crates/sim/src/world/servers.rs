//! What happens to servers.

use std::collections::BTreeSet;

use quorate_agreement::{Record, Signed, Standing};
use quorate_execution::Job;
use quorate_state::transfer::{self, Lookup};
use quorate_wire::evidence::Evidence;
use quorate_wire::message::Checkpoint;
use quorate_wire::{Signer, Time};

use super::*;
use crate::disk::Write;
use crate::keys::signer_of;
use crate::knobs::Aim;
use crate::rounds;

impl World {
    /// What a server's clock shows.
    pub fn wall(&self, server: usize) -> Time {
        self.servers[server].now(self.now).wall
    }

    /// The key of a replica in its epoch of now, where there are key holders.
    pub fn signer_of_now(&self, id: ReplicaId) -> Signer {
        signer_of(id, self.holders.get(&id).copied().unwrap_or_default())
    }

    /// The root of the initial state.
    pub fn genesis_root(&self) -> Digest {
        self.servers[0].disk.genesis_root()
    }

    /// Brings one input to a server and carries out what it wants.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn handle(&mut self, server: usize, input: Input) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        let now = it.now(self.now);
        let Some(replica) = &mut it.replica else {
            return Ok(());
        };
        // Some have signatures checked before, as drivers with processors to spare do, some check all themselves: nobody can tell.
        if server.is_multiple_of(2) {
            let verdicts: Vec<(Signed, bool)> = match &input {
                Input::Peer(from, message) => replica.unchecked_in(*from, message),
                Input::Client(from, message) => {
                    replica.unchecked_of(*from, message).into_iter().collect()
                }
                _ => Vec::new(),
            }
            .into_iter()
            .map(|signed| (signed, signed.0.verify(&signed.1, &signed.2).is_ok()))
            .collect();
            if !verdicts.is_empty() {
                replica.take(now, Input::Checked(verdicts));
            }
        }
        replica.take(now, input);
        if self.knobs.turn == 0 {
            return self.end_turn(server);
        }
        if !std::mem::replace(&mut it.in_turn, true) {
            let incarnation = it.incarnation;
            let delay = self.dice.range((0, self.knobs.turn));
            self.after(delay, Event::TurnEnd(server, incarnation));
        }
        Ok(())
    }

    /// Brings a server all of this in one turn.
    pub(super) fn handle_at_once(
        &mut self,
        server: usize,
        inputs: Vec<Input>,
    ) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        let now = it.now(self.now);
        let Some(replica) = &mut it.replica else {
            return Ok(());
        };
        inputs
            .into_iter()
            .for_each(|input| replica.take(now, input));
        self.check_memory(server)?;
        self.end_turn(server)
    }

    pub(super) fn on_turn_end(&mut self, server: usize, incarnation: u64) -> Result<(), Failure> {
        if self.servers[server].incarnation != incarnation {
            return Ok(());
        }
        self.note(&[10, server as u64], || {
            format!("server {server} ends its turn")
        });
        self.end_turn(server)
    }

    fn end_turn(&mut self, server: usize) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        it.in_turn = false;
        let now = it.now(self.now);
        let Some(replica) = &mut it.replica else {
            return Ok(());
        };
        replica.end_turn(now);
        let standing = replica.standing();
        let before = it.last.replace(standing);
        if it.adversary.is_none() {
            replica.invariants_since(&mut it.seen);
            let was_fetching = before.is_some_and(|s| s.fetching);
            self.stats.transfers += u64::from(standing.fetching && !was_fetching);
            if standing.recovering.is_none() && self.forgetful.remove(&server) {
                self.stats.recoveries += 1;
                self.check_recovery(server, standing.stable.0)?;
            }
        }
        if self.knobs.memory && self.servers[server].is_correct() {
            self.look_at_executed(server)?;
        }
        if self.knobs.floods > 0 {
            self.check_memory(server)?;
        }
        self.carry_out(server)?;
        match before {
            Some(before) if self.servers[server].is_correct() => {
                self.check_stability(server, &before, &standing)
            }
            _ => Ok(()),
        }
    }

    /// A server is back: that is on its disk, and the state from which it goes on tells of it, where it has a key holder.
    fn check_recovery(&self, server: usize, stable: Seq) -> Result<(), Failure> {
        let it = &self.servers[server];
        if it.entered.is_none_or(|index| index > it.durable) {
            let what = format!("server {server} is back, and a crash would have it begin again");
            return Err(Failure::new("recoveries end on disk", what));
        }
        let Some(&number) = self.stated.get(&server) else {
            return Ok(());
        };
        match self
            .reference
            .tells_of(self.servers[server].id, number, stable)
        {
            true => Ok(()),
            false => Err(Failure::new(
                "recoveries are ordered",
                format!(
                    "server {server} is back at {stable:?}, and its recovery {number} was not ordered"
                ),
            )),
        }
    }

    /// A correct server says that this is the state at a checkpoint.
    pub(super) fn announce(&mut self, server: usize, seq: Seq, root: Digest) {
        self.announced.push((server, seq, root));
        let all = self.announcers.entry((seq, root)).or_default();
        all.insert(server);
    }

    /// A checkpoint is stable when 2f+1 replicas have it. Where a view starts from it, or the state was fetched, fewer may.
    fn check_stability(
        &self,
        server: usize,
        before: &Standing,
        now: &Standing,
    ) -> Result<(), Failure> {
        let fetched = now.fetching || before.fetching;
        let by_votes = before.active && now.view == before.view && !fetched;
        if now.stable.0 <= before.stable.0 || !by_votes {
            return Ok(());
        }
        let announcers = self.announcers.get(&now.stable);
        // While it recovers it has the checkpoint itself, and says so to nobody.
        let silent = self.forgetful.contains(&server)
            && !announcers.is_some_and(|all| all.contains(&server));
        let correct = announcers.map_or(0, BTreeSet::len) + usize::from(silent);
        let faulty = self.servers.iter().filter(|s| !s.is_correct());
        let mut faulty: BTreeSet<_> = faulty.map(|s| s.id).collect();
        // What one has said while somebody had it is in no list.
        let ids = self.quorum.replicas();
        faulty.extend(ids.filter(|id| self.was_seized(*id)));
        match correct + faulty.len() >= self.quorum.commit() {
            true => Ok(()),
            false => Err(Failure::new(
                "stability",
                format!(
                    "{:?} is stable at server {server}, and {correct} correct ones have it",
                    now.stable
                ),
            )),
        }
    }

    pub(super) fn carry_out(&mut self, server: usize) -> Result<(), Failure> {
        let Some(replica) = &mut self.servers[server].replica else {
            return Ok(());
        };
        let mut hit = false;
        for output in replica.take_outputs() {
            hit |= self.is_aimed_at(&output);
            self.carry_out_one(server, output)?;
        }
        self.start_sync(server);
        self.schedule_tick(server);
        if hit {
            self.crash(server);
            let down = self.dice.range(self.knobs.down);
            self.after(down, Event::Start(server));
        }
        Ok(())
    }

    /// Whether the power goes right after this.
    fn is_aimed_at(&mut self, output: &Output) -> bool {
        let Some((aim, chance)) = self.knobs.aimed.filter(|_| !self.healed) else {
            return false;
        };
        let fits = match output {
            Output::Broadcast(message) => match message {
                PeerMessage::PrePrepare(_) | PeerMessage::Prepare(_) | PeerMessage::Commit(_) => {
                    aim == Aim::Vote
                }
                PeerMessage::ViewChange(_) | PeerMessage::NewView(_) => aim == Aim::ViewChange,
                _ => false,
            },
            Output::Persist(_, Record::Committed(_)) => aim == Aim::Execute,
            _ => false,
        };
        fits && self.dice.per_mille(chance)
    }

    /// What a correct server says to others.
    fn look_at_word(&mut self, server: usize, message: &PeerMessage) -> Result<(), Failure> {
        if let PeerMessage::Checkpoint(Checkpoint { seq, root }) = message {
            self.announce(server, *seq, *root);
            self.check_roots()?;
        }
        match self.quorum.n() {
            // Nobody has heard it.
            1 => Ok(()),
            _ => self.agreement.on_said(server, message),
        }
    }

    fn carry_out_one(&mut self, server: usize, output: Output) -> Result<(), Failure> {
        let correct = self.servers[server].is_correct();
        match output {
            // Nothing is held back here.
            Output::Hurry => {}
            Output::Send(to, message) => {
                if correct {
                    self.look_at_word(server, &message)?;
                }
                self.send(server, to, message);
            }
            Output::Broadcast(message) => {
                if correct {
                    self.look_at_word(server, &message)?;
                }
                let me = self.servers[server].id;
                for to in self.quorum.others(me) {
                    self.send(server, to, message.clone());
                }
            }
            Output::Reply(connection, message) => self.reply(server, connection, message),
            // Other links here are those of whoever sends.
            Output::Void(replica, number) => self.saw_certificate(server, replica, number),
            Output::Missed(why) => {
                let it = &self.servers[server];
                let incarnation = it.incarnation;
                if it.disk.aside.is_some() {
                    self.note(&[51, server as u64], || {
                        format!("server {server} can't recover: {why}")
                    });
                    self.after(0, Event::TakeBack(server, incarnation));
                }
            }
            // There is nothing to be cut.
            Output::Truncate { .. } if self.knobs.memory => {}
            Output::Persist(..) if self.knobs.memory && correct => {
                let what = format!("server {server} writes to a log, and has none");
                return Err(Failure::new("memory alone", what));
            }
            Output::Persist(index, record) => {
                if matches!(record, Record::Entered(_)) {
                    self.servers[server].entered.get_or_insert(index);
                    // It is back, and its log of before would make it say something else.
                    self.servers[server].disk.aside = None;
                }
                self.servers[server].disk.wal.append(index, &record);
                if correct {
                    self.look_at_record(server, &record)?;
                }
            }
            Output::Truncate { stable, head } => {
                self.servers[server].disk.wal.truncate(stable, &head);
            }
            Output::Store {
                seq,
                complete,
                layer,
                ..
            } => {
                let disk = &mut self.servers[server].disk;
                disk.writes.push_back(Write {
                    seq,
                    complete,
                    layer,
                });
                if disk.writes.len() == 1 {
                    self.start_store(server);
                }
            }
            Output::Run(jobs) => {
                let incarnation = self.servers[server].incarnation;
                for job in jobs {
                    let delay = self.dice.range(self.knobs.run);
                    self.after(delay, Event::Ran(server, incarnation, job));
                }
            }
            Output::LookUp(lookup) => {
                if self.servers[server].disk.former.is_none() {
                    let said = format!("server {server} looks in a state that it has left");
                    return Err(Failure::new("former state", said));
                }
                let incarnation = self.servers[server].incarnation;
                // Several are read at once, so that they come back in any order.
                let delay = self.dice.range((self.knobs.look / 2, 2 * self.knobs.look));
                self.after(delay, Event::LookUp(server, incarnation, lookup));
            }
            Output::Recovered(counts) => {
                self.servers[server].disk.former = None;
                self.stats.checked += counts.right;
                self.stats.differing += counts.differing;
            }
            Output::Evidence(evidence) => self.on_evidence(server, &evidence)?,
            Output::Lie(lie) => {
                let signing = &mut self.servers[server].signing;
                signing.convict(&lie);
                for evidence in signing.take_evidence() {
                    self.on_evidence(server, &evidence)?;
                }
            }
            Output::Doubt(reason) => {
                self.note(&[14, server as u64], || {
                    format!("server {server} doubts its state: {reason}")
                });
            }
            Output::Fatal(reason) | Output::Damaged(reason) if correct => {
                let what = format!("server {server} gives up: {reason}");
                return Err(Failure::new("correct replicas go on", what));
            }
            Output::Fatal(reason) | Output::Damaged(reason) => {
                self.note(&[4, server as u64], || {
                    format!("server {server} (faulty) gives up: {reason}")
                });
            }
        }
        Ok(())
    }

    /// A server holds evidence: it verifies, and convicts nobody who is correct.
    pub(super) fn on_evidence(
        &mut self,
        server: usize,
        evidence: &Evidence,
    ) -> Result<(), Failure> {
        if !self.servers[server].is_correct() {
            return Ok(());
        }
        let failed = |what| Failure::new("evidence convicts the faulty alone", what);
        let keys = replica_keys(self.quorum, self.knobs.epochs > 0);
        let subject = evidence.verify(self.quorum, &keys);
        let subject =
            subject.map_err(|e| failed(format!("server {server} keeps what is none: {e}")))?;
        let mut accused = self.servers.iter().filter(|s| s.id == subject.replica);
        if accused.any(Server::is_correct) && !self.was_seized(subject.replica) {
            return Err(failed(format!(
                "server {server} accuses a correct one of {subject:?}"
            )));
        }
        self.stats.evidence += 1;
        self.note(&[11, server as u64, u64::from(subject.replica.0)], || {
            format!("server {server} has evidence of {subject:?}")
        });
        Ok(())
    }

    fn send(&mut self, from: usize, to: ReplicaId, message: PeerMessage) {
        let Some(target) = self.instance(to, from).filter(|_| self.is_seen(from, to)) else {
            return;
        };
        let it = &mut self.servers[from];
        if it.says_as_is() {
            let sealed = it.signing.seal(message);
            return self.leave(from, target, sealed, 0);
        }
        for (message, delay_ms) in it.for_peer(to, message) {
            self.leave(from, target, message, delay_ms);
        }
    }

    /// A message leaves for another server.
    fn leave(&mut self, from: usize, to: usize, message: PeerMessage, delay_ms: u64) {
        let knobs = &self.knobs;
        let cut = !self.healed && rounds::is_cut(self.seed, knobs.rounds, from, to, &message);
        if cut || self.filter.is_some_and(|drops| drops(from, to, &message)) {
            return;
        }
        let id = self.servers[from].id;
        let [first, again] = self.net.arrivals(knobs, self.now, from, to);
        let Some(first) = first else {
            return;
        };
        let message = match knobs.encode {
            true => PeerMessage::from_bytes(message.to_bytes().into())
                .expect("what was encoded decodes"),
            false => message,
        };
        let copy = again.map(|at| (at, message.clone()));
        for (at, message) in [(first, message)].into_iter().chain(copy) {
            let event = Event::Peer(to, id, message);
            self.queue.push(at + delay_ms * 1000, event);
        }
    }

    /// The server that a node takes for a replica: of twins, one.
    pub(super) fn instance(&self, id: ReplicaId, seen_from: usize) -> Option<usize> {
        let second = self.second_twin.get(&id);
        if second.is_some_and(|nodes| nodes.contains(&seen_from)) {
            let mut all = self.servers.iter().enumerate().rev();
            return all.find(|(_, s)| s.id == id).map(|(i, _)| i);
        }
        Some(usize::from(id.0))
    }

    /// Whether a server, if it is a twin, is the one that a replica sees.
    fn is_seen(&self, from: usize, to: ReplicaId) -> bool {
        let id = self.servers[from].id;
        !self.second_twin.contains_key(&id) || self.instance(id, usize::from(to.0)) == Some(from)
    }

    fn start_sync(&mut self, server: usize) {
        let it = &mut self.servers[server];
        if it.disk.wal.wants_sync() {
            let (index, extent) = it.disk.wal.extent();
            let incarnation = it.incarnation;
            let delay = self.dice.range(self.knobs.sync);
            self.after(delay, Event::Synced(server, incarnation, index, extent));
        }
    }

    pub(super) fn on_synced(
        &mut self,
        server: usize,
        incarnation: u64,
        index: quorate_wire::LogIndex,
        extent: &[usize],
    ) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        if it.incarnation != incarnation || it.replica.is_none() {
            return Ok(());
        }
        it.disk.wal.synced(extent);
        it.durable = index;
        self.note(&[6, server as u64, index.0], || {
            format!("server {server} has its log on disk up to {index:?}")
        });
        self.handle(server, Input::Persisted(index))
    }

    fn start_store(&mut self, server: usize) {
        let incarnation = self.servers[server].incarnation;
        let delay = self.dice.range(self.knobs.store);
        self.after(delay, Event::Stored(server, incarnation));
    }

    pub(super) fn on_stored(&mut self, server: usize, incarnation: u64) -> Result<(), Failure> {
        let it = &mut self.servers[server];
        if it.incarnation != incarnation || it.replica.is_none() {
            return Ok(());
        }
        let damage = it.adversary == Some(Adversary::DamagedStore) && !self.healed;
        let content = it.disk.stored(damage);
        if !it.disk.writes.is_empty() {
            self.start_store(server);
        }
        self.note(&[7, server as u64, content.seq.0], || {
            format!("server {server} has stored {:?}", content.seq)
        });
        let (seq, root) = (content.seq, content.root);
        let standing = self.servers[server].replica.as_ref().map(|r| r.standing());
        let recovers = standing.is_some_and(|s| s.recovering.is_some());
        if recovers && content.complete && self.servers[server].is_correct() {
            // It says nothing, and counts its own checkpoint all the same once it is back.
            self.announce(server, seq, root);
        }
        let input = Input::Stored {
            seq: content.seq,
            complete: content.complete,
            root: content.root,
            snapshot: content.snapshot,
        };
        self.handle(server, input)
    }

    pub(super) fn on_look_up(
        &mut self,
        server: usize,
        incarnation: u64,
        lookup: &Lookup,
    ) -> Result<(), Failure> {
        let it = &self.servers[server];
        let former = it.disk.former.as_ref();
        let Some(former) = former.filter(|_| it.incarnation == incarnation) else {
            return Ok(());
        };
        if it.replica.is_none() {
            return Ok(());
        }
        let found = transfer::look(&**former, lookup);
        self.handle(server, Input::Found(found))
    }

    pub(super) fn on_ran(
        &mut self,
        server: usize,
        incarnation: u64,
        job: &Job,
    ) -> Result<(), Failure> {
        let it = &self.servers[server];
        if it.incarnation != incarnation || it.replica.is_none() {
            return Ok(());
        }
        self.stats.jobs += 1;
        self.note(&[9, server as u64], || {
            format!("server {server} has run an operation")
        });
        let completion = job.run(&self.service);
        self.handle(server, Input::Ran(vec![completion]))
    }

    fn schedule_tick(&mut self, server: usize) {
        let it = &mut self.servers[server];
        let Some(replica) = &it.replica else {
            return;
        };
        // Not at once: a deadline that has passed must not stop the time.
        let at = (replica.next_timeout().saturating_mul(1000)).max(self.now + 1000);
        if it.tick_at.is_none_or(|scheduled| at < scheduled) {
            it.tick_at = Some(at);
            self.at(at, Event::Tick(server, at));
        }
    }

    pub(super) fn on_tick(&mut self, server: usize, at: u64) -> Result<(), Failure> {
        if self.servers[server].tick_at != Some(at) {
            return Ok(());
        }
        self.servers[server].tick_at = None;
        self.note(&[8, server as u64], || {
            format!("server {server} looks at its clock")
        });
        self.handle(server, Input::Tick)
    }
}
