//! The replica: routes inputs to its parts, and the parts' outputs to each other and to the driver.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_agreement::durable::Content;
use quorate_agreement::{
    Agreement, Config, Input as AgreementInput, Millis, Now, Ordered, Output as AgreementOutput,
    Record, Rejected, Seen, Signed, Standing,
};
use quorate_execution::{Executor, Service, Workers, recoveries};
use quorate_state::{
    Fault, Layer, MemorySnapshot, Snapshot, State, View, transfer as state_transfer,
};
use quorate_wire::message::{ClientMessage, PeerMessage, StateMessage};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{
    Authentication, Body, ClientId, Digest, LogIndex, Quorum, ReplicaId, ReplicaKeys, Seq,
};

use crate::asks::Asks;
use crate::checkpoints::Checkpoints;
use crate::clients::{Clients, ConnectionId};
use crate::doubt::Doubts;
use crate::former::Former;
use crate::io::{Input, Output};
use crate::parallel::Parallel;
use crate::reads::Reads;
use crate::transfer::{Piece, Transfer, target};
use crate::vouchers::Bundles;

/// Layers that may wait for the store before execution pauses. With the request bodies in the log's window this bounds
/// what a slow disk can pile up in memory.
pub(crate) const MAX_LAYERS: usize = 3;

/// What a replica finds when it starts: the store's content and the log's records.
#[derive(Debug)]
pub struct Restored {
    /// The place after which the store's content is the state.
    pub seq: Seq,
    /// Whether it is a state, and not on its way to one.
    pub complete: bool,
    /// Its root.
    pub root: Digest,
    /// The content.
    pub snapshot: Arc<dyn Snapshot>,
    /// The log's records, in order.
    pub records: Vec<Record>,
    /// The index for the next record.
    pub next_index: LogIndex,
    /// Whether there is a state that was set aside since it is not believed, and the content is that of a new replica. It is looked
    /// into until this replica neither recovers nor fetches.
    pub former: bool,
}

/// The layer that makes the initial state out of nothing; a driver writes it to a new store at place 0.
///
/// # Errors
/// [`Fault`] where the service fails to write it.
pub fn genesis<S: Service>(service: S) -> Result<Arc<Layer>, Fault> {
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    Executor::new(service).genesis(&mut state)?;
    Ok(state.freeze(Seq(0)))
}

/// One replica of a group.
#[derive(Debug)]
pub struct Replica<S> {
    pub(crate) quorum: Quorum,
    pub(crate) me: ReplicaId,
    pub(crate) agreement: Agreement,
    pub(crate) executor: Executor<S>,
    pub(crate) state: State,
    /// The store's newest content.
    pub(crate) newest: Arc<dyn Snapshot>,
    /// Own checkpoints from the stable one up, for those who fetch state.
    snapshots: BTreeMap<Seq, Arc<dyn Snapshot>>,
    /// Layers that the store has not confirmed.
    pub(crate) in_store: usize,
    /// Of those, the ones of checkpoints that it has not got yet: it keeps the one that it has, or was given last, until enough others have that one as well.
    held: VecDeque<Piece>,
    /// The last checkpoint that it was given.
    handed: Seq,
    /// Batches that wait until the store has caught up.
    pub(crate) backlog: VecDeque<Arc<Ordered>>,
    pub(crate) applied: Seq,
    /// The batch after `applied`, if it was executed in the state's overlay.
    pub(crate) tentative: Option<Arc<Ordered>>,
    /// Where there are workers.
    pub(crate) parallel: Option<Parallel>,
    pub(crate) reads: Reads,
    pub(crate) checkpoints: Checkpoints,
    /// Whether there is a log, or none (durability `memory`).
    has_log: bool,
    /// Long operations whose writes are not on their way to the store yet, with their places.
    bodies: VecDeque<(Seq, Body)>,
    pub(crate) transfer: Transfer,
    /// Of donors, in transfers that have ended.
    pub(crate) silences: state_transfer::Silences,
    pub(crate) former: Option<Former>,
    pub(crate) doubts: Doubts,
    /// Of peers that fetch from this replica.
    pub(crate) asks: Asks,
    pub(crate) clients: Clients,
    pub(crate) bundles: Bundles,
    /// From how many sessions in a batch on its replies go together.
    pub(crate) vouched_from: usize,
    pub(crate) rejections: BTreeMap<Rejected, u64>,
    /// See [`Replica::refusals`].
    pub(crate) refusals: u64,
    pub(crate) out: VecDeque<Output>,
    /// Whether the replicas have key holders: then states tell which of them have recovered.
    has_holders: bool,
    pub(crate) failed: bool,
}

impl<S: Service> Replica<S> {
    /// A replica that goes on from what its disk holds.
    pub fn new(
        config: Config,
        service: S,
        workers: Workers,
        restored: Restored,
        now: Now,
    ) -> Replica<S> {
        let Restored {
            seq,
            complete,
            root,
            snapshot,
            records,
            next_index,
            former,
        } = restored;
        let (quorum, me) = (config.quorum, config.me);
        // A signature for each message between replicas costs more than the replies that it would save.
        let may_vouch = quorum.f() > 0 && config.authentication == Authentication::Mac;
        let vouched_from = match may_vouch {
            true => config.tuning.vouched_from,
            false => usize::MAX,
        };
        let checkpoints = Checkpoints::new(config.checkpoint_bytes);
        let has_log = config.durable;
        let executor = Executor::new(service).keeping(config.kept_bytes);
        let executor = executor.of_group(&config.keys);
        let has_holders = matches!(config.keys, ReplicaKeys::Certified { .. });
        let mut agreement = Agreement::new(config, (seq, root), complete, records, next_index, now);
        agreement.charge_work(S::work);
        let mut snapshots = BTreeMap::new();
        if complete {
            snapshots.insert(seq, snapshot.clone());
        }
        let mut replica = Replica {
            quorum,
            me,
            agreement,
            executor,
            state: State::new(snapshot.clone()),
            newest: snapshot,
            snapshots,
            in_store: 0,
            held: VecDeque::new(),
            handed: seq,
            backlog: VecDeque::new(),
            applied: seq,
            tentative: None,
            parallel: (workers.count > 0).then(|| Parallel::new(workers)),
            reads: Reads::default(),
            checkpoints,
            has_log,
            bodies: VecDeque::new(),
            transfer: Transfer::Idle,
            silences: state_transfer::Silences::default(),
            former: former.then(Former::default),
            doubts: Doubts::default(),
            asks: Asks::default(),
            clients: Clients::default(),
            bundles: Bundles::new(quorum, me),
            vouched_from,
            rejections: BTreeMap::new(),
            refusals: 0,
            out: VecDeque::new(),
            has_holders,
            failed: false,
        };
        if complete {
            let told = replica.tell_recoveries(now, seq);
            replica.absorb(now, told);
        }
        replica.settle(now);
        replica
    }

    /// Takes one input in. What follows from messages waits for the end of the turn, so that what came together is ordered,
    /// executed and answered together; the driver ends the turn before it waits for more.
    pub fn take(&mut self, now: Now, input: Input) {
        let is_message = match &input {
            Input::Peer(_, message) => !matches!(message, PeerMessage::State(_)),
            Input::Client(..) | Input::Persisted(_) | Input::Checked(_) => true,
            _ => false,
        };
        if !is_message {
            // It changes what the outcome of earlier inputs applies to.
            self.end_turn(now);
        }
        if self.failed {
            return;
        }
        self.bundles.now = now.mono;
        let result = self.dispatch(now, input);
        self.absorb(now, result);
        if !is_message {
            self.end_turn(now);
        }
    }

    /// Does what the inputs taken since the last time call for.
    pub fn end_turn(&mut self, now: Now) {
        if self.failed {
            return;
        }
        self.bundles.now = now.mono;
        self.agreement.end_turn();
        self.settle(now);
        self.send_bundles();
    }

    fn dispatch(&mut self, now: Now, input: Input) -> Result<(), Fault> {
        match input {
            Input::Peer(from, PeerMessage::State(message)) => {
                return self.on_state(now, from, message);
            }
            Input::Peer(from, PeerMessage::Vouchers(message)) => self.on_vouchers(from, message),
            Input::Peer(from, PeerMessage::Request(message)) => {
                return self.on_forwarded(now, from, message);
            }
            Input::Peer(from, message) => self.agree(now, AgreementInput::Peer(from, message)),
            Input::Checked(verdicts) => self.agree(now, AgreementInput::Checked(verdicts)),
            Input::PeerLink(peer, is_up) => self.agree(now, AgreementInput::PeerLink(peer, is_up)),
            Input::ClientUp(connection, client, key) => {
                self.clients.up(connection, client, key.clone());
                self.agree(now, AgreementInput::ClientKey(client, key));
            }
            Input::Guest(client, is_owners) => {
                self.agree(now, AgreementInput::Guest(client, is_owners));
            }
            Input::ClientDown(connection) => {
                if let Some((client, key)) = self.clients.down(connection) {
                    self.agree(now, AgreementInput::ClientKeyGone(client, key));
                }
            }
            Input::GuestGone(client) => {
                self.clients.forget(&client);
                self.agree(now, AgreementInput::GuestGone(client));
            }
            Input::Client(connection, message) => return self.on_client(now, connection, message),
            Input::Renewed(signer) => self.agree(now, AgreementInput::Renewed(signer)),
            Input::Recover(statement) => self.agree(now, AgreementInput::Recover(statement)),
            Input::Persisted(index) => self.agree(now, AgreementInput::Persisted(index)),
            Input::Stored {
                seq,
                complete,
                root,
                snapshot,
            } => {
                return self.on_stored(now, seq, complete, root, snapshot);
            }
            Input::Ran(completions) => return self.on_ran(completions),
            Input::Found(found) => return self.transfer.found(now.mono, found),
            Input::HandOver => self.agree(now, AgreementInput::HandOver),
            Input::Tick => self.agree(now, AgreementInput::Tick),
        }
        Ok(())
    }

    /// The signatures of clients in a peer's message that would have to be checked if it came now. A driver may have that done elsewhere,
    /// and hand the message over after [`Input::Checked`].
    pub fn unchecked_in(&mut self, from: ReplicaId, message: &PeerMessage) -> Vec<Signed> {
        self.agreement.unchecked_in(from, message)
    }

    /// The same of a client's message.
    pub fn unchecked_of(&mut self, from: ConnectionId, message: &ClientMessage) -> Option<Signed> {
        let (ClientMessage::Request(m) | ClientMessage::Repeat(m) | ClientMessage::Watch(m)) =
            message
        else {
            return None;
        };
        let is_own = self.clients.client(from) == Some(m.request.client());
        is_own.then(|| self.agreement.unchecked_of(m)).flatten()
    }

    /// Whether this replica leads the view that has started.
    pub fn is_leading(&self) -> bool {
        self.agreement.is_leading()
    }

    pub(crate) fn agree(&mut self, now: Now, input: AgreementInput) {
        if let Err(reason) = self.agreement.take(now, input) {
            self.refuse(reason);
        }
    }

    pub(crate) fn refuse(&mut self, reason: Rejected) {
        *self.rejections.entry(reason).or_default() += 1;
        self.refusals += 1;
    }

    fn absorb(&mut self, now: Now, result: Result<(), Fault>) {
        match result {
            Ok(()) => {}
            Err(Fault::Value { .. }) if is_on(Mutant::UnreadableForGood) => {
                self.fail("a value".into())
            }
            Err(Fault::Value { key, what }) => self.doubt(now, key, &what),
            Err(Fault::Tree(what)) => {
                self.failed = true;
                self.out.push_back(Output::Damaged(what));
            }
            Err(fault @ Fault::Store(_)) => self.fail(fault.to_string()),
        }
    }

    pub(crate) fn fail(&mut self, reason: alloc::string::String) {
        self.failed = true;
        self.out.push_back(Output::Fatal(reason));
    }

    /// Carries out what agreement wants, executes what can be executed, and moves a transfer on.
    fn settle(&mut self, now: Now) {
        while !self.failed {
            self.settle_outputs(now);
            let more = self.transfer.is_doubted() || self.tell_done(now) || self.leave_former();
            if self.failed || !more {
                break;
            }
        }
    }

    fn settle_outputs(&mut self, now: Now) {
        self.carry_out_all(now);
        if self.failed {
            return;
        }
        self.hand_over();
        let result = self
            .execute_backlog()
            .and_then(|()| self.move_transfer(now))
            .and_then(|()| self.answer_asks(now))
            .and_then(|()| self.answer_reads());
        self.absorb(now, result);
    }

    /// Carries out what agreement wants so far, and executes what can be executed. Nobody's reads are answered: what they come to in a turn is bounded.
    pub(crate) fn carry_out_all(&mut self, now: Now) {
        loop {
            let outputs: Vec<AgreementOutput> = self.agreement.drain().collect();
            if outputs.is_empty() {
                break;
            }
            for output in outputs {
                let result = self.carry_out(output);
                self.absorb(now, result);
                if self.failed {
                    return;
                }
            }
            let result = self
                .execute_backlog()
                .and_then(|()| self.move_transfer(now));
            self.absorb(now, result);
            if self.failed {
                // A batch that was executed in part must not be followed by the next.
                return;
            }
        }
    }

    fn carry_out(&mut self, output: AgreementOutput) -> Result<(), Fault> {
        match output {
            AgreementOutput::Send(to, message) => self.out.push_back(Output::Send(to, message)),
            AgreementOutput::Broadcast(message) => self.out.push_back(Output::Broadcast(message)),
            AgreementOutput::Persist(index, record) => {
                self.out.push_back(Output::Persist(index, record));
            }
            AgreementOutput::Execute(ordered) => {
                self.backlog.push_back(ordered);
                return self.execute_backlog();
            }
            AgreementOutput::Tentative(ordered) => return self.execute_tentatively(ordered),
            AgreementOutput::Rollback => self.roll_back(),
            AgreementOutput::Stable { seq, head, .. } => {
                self.snapshots = self.snapshots.split_off(&seq);
                self.out.push_back(Output::Truncate { stable: seq, head });
            }
            AgreementOutput::FetchState(seq, root) => {
                // What is on its way to execution belongs to the state that is given up.
                self.backlog.clear();
                self.drop_flight();
                self.in_store -= self.held.len();
                self.held.clear();
                // Checkpoints may come faster than a piece is complete.
                let gathered = self.transfer.leave();
                self.set_transfer(Transfer::Draining(target(seq, root)));
                gathered.into_iter().for_each(|piece| self.store(piece));
            }
            AgreementOutput::Void(replica, number) => {
                self.out.push_back(Output::Void(replica, number));
            }
            AgreementOutput::Missed(why) => self.out.push_back(Output::Missed(why)),
            AgreementOutput::Evidence(evidence) => {
                self.out.push_back(Output::Evidence(evidence));
            }
            AgreementOutput::Fatal(reason) => self.fail(reason),
        }
        Ok(())
    }

    /// How many layers the store has to write, now or when workers are so far.
    pub(crate) fn layers_ahead(&self) -> usize {
        let waiting = self.parallel.as_ref().map(Parallel::waiting_layers);
        self.in_store + waiting.unwrap_or_default()
    }

    fn execute_backlog(&mut self) -> Result<(), Fault> {
        if self.parallel.is_some() {
            return self.advance();
        }
        while self.transfer.is_idle() && self.in_store < MAX_LAYERS {
            let Some(ordered) = self.backlog.pop_front() else {
                return Ok(());
            };
            self.execute(ordered)?;
        }
        Ok(())
    }

    /// Executes the next batch in an overlay. Not while the store keeps execution back: then it will be executed when it has
    /// committed. Nor with a read in it: where only f+1 replicas answer, final replies are needed, and no repeat would bring them, since the
    /// result of a read is not kept. Each would be executed tentatively once more.
    fn execute_tentatively(&mut self, ordered: Arc<Ordered>) -> Result<(), Fault> {
        let mut requests = ordered.requests.iter();
        let keeps_all = requests.all(|known| self.executor.keeps_result(&known.request));
        let may = self.transfer.is_idle() && self.layers_ahead() < MAX_LAYERS;
        let is_next = self.backlog.is_empty() && ordered.seq == self.entered().next();
        if !keeps_all || !may || !is_next {
            self.out.push_back(Output::Hurry);
            return Ok(());
        }
        if self.parallel.is_some() {
            return self.enter_tentatively(ordered);
        }
        self.executor.begin_tentative(&mut self.state)?;
        self.run(&ordered, true)?;
        self.tentative = Some(ordered);
        Ok(())
    }

    pub(crate) fn roll_back(&mut self) {
        if self.parallel.is_some() {
            return self.undo_tentative();
        }
        self.tentative = None;
        if is_on(Mutant::OverlayKept) {
            return self.executor.keep_tentative(&mut self.state);
        }
        self.executor.drop_tentative(&mut self.state);
    }

    fn run(&mut self, ordered: &Ordered, tentative: bool) -> Result<(), Fault> {
        let requests = ordered.requests.iter().map(|known| &known.request);
        let done = self
            .executor
            .execute(&mut self.state, ordered.time, requests)?;
        for (executed, known) in done.into_iter().zip(&ordered.requests) {
            let tentative = tentative.then_some(ordered.view);
            self.reply(executed, ordered, known.replier, tentative);
        }
        Ok(())
    }

    fn execute(&mut self, ordered: Arc<Ordered>) -> Result<(), Fault> {
        assert_eq!(
            ordered.seq,
            self.applied.next(),
            "batches are executed without gaps"
        );
        match self.tentative.take() {
            // Its replies have gone out.
            Some(done) => {
                assert_eq!(done.digest, ordered.digest, "what else committed is undone");
                self.executor.keep_tentative(&mut self.state);
            }
            None => self.run(&ordered, false)?,
        }
        self.applied = ordered.seq;
        self.note_bodies(&ordered);
        let requests = ordered.requests.iter().map(|known| &known.request);
        if self
            .checkpoints
            .is_due_after(ordered.seq, requests, &self.executor)
        {
            self.executor.flush(&mut self.state);
            let layer = self.state.freeze(ordered.seq);
            self.store(Piece {
                seq: ordered.seq,
                complete: true,
                layer,
            });
        }
        Ok(())
    }

    pub(crate) fn store(&mut self, piece: Piece) {
        self.in_store += 1;
        match self.transfer.is_idle() {
            true => {
                self.held.push_back(piece);
                self.hand_over();
            }
            false => self.hand(piece),
        }
    }

    /// Gives the store the layers that it may have by now.
    fn hand_over(&mut self) {
        while let Some(piece) = self.held.front()
            && self.agreement.may_pass(self.handed, piece.seq)
            && let Some(piece) = self.held.pop_front()
        {
            self.handed = piece.seq;
            self.hand(piece);
        }
    }

    fn hand(&mut self, piece: Piece) {
        let Piece {
            seq,
            complete,
            layer,
        } = piece;
        let of_layer = self.bodies.partition_point(|(at, _)| *at <= seq);
        let bodies = self.bodies.drain(..of_layer).map(|(_, body)| body);
        self.out.push_back(Output::Store {
            seq,
            complete,
            layer,
            bodies: bodies.collect(),
        });
    }

    /// A batch is executed for good: what is known of its long operations goes to the store with what they write. The log keeps as much in memory of
    /// what comes after the last checkpoint.
    pub(crate) fn note_bodies(&mut self, ordered: &Ordered) {
        if self.has_log {
            return;
        }
        let bodies = ordered.requests.iter().map(|known| known.request.body());
        let long = bodies.filter(|body| body.is_long());
        let noted = long.map(|body| (ordered.seq, body.clone()));
        self.bodies.extend(noted);
    }

    fn on_stored(
        &mut self,
        now: Now,
        seq: Seq,
        complete: bool,
        root: Digest,
        snapshot: Arc<dyn Snapshot>,
    ) -> Result<(), Fault> {
        self.in_store -= 1;
        self.newest = snapshot.clone();
        if self.transfer.is_storing() {
            let Some(target) = self.transfer.stored() else {
                return Ok(());
            };
            if root != target.root {
                // The fetcher checked each piece, so the store has changed under it: look again.
                self.set_transfer(Transfer::Draining(target));
                return Ok(());
            }
            self.set_transfer(Transfer::Idle);
            self.state = State::new(snapshot.clone());
            self.executor.reset();
            self.snapshots = [(seq, snapshot)].into();
            (self.applied, self.handed) = (seq, seq);
            self.checkpoints.restart();
            self.bodies.clear();
            self.tell_recoveries(now, seq)?;
            self.agree(now, AgreementInput::StateFetched(seq, root));
            return self.note_vouched();
        }
        if !self.transfer.is_idle() || !complete {
            return Ok(());
        }
        self.state.stored(seq, snapshot.clone());
        self.snapshots.insert(seq, snapshot);
        self.tell_recoveries(now, seq)?;
        self.agree(now, AgreementInput::CheckpointMade(seq, root));
        Ok(())
    }

    /// Tells agreement which recoveries the newest state, that after `seq`, tells of.
    fn tell_recoveries(&mut self, now: Now, seq: Seq) -> Result<(), Fault> {
        if self.has_holders
            && let Some(numbers) = recoveries(&*self.newest, self.quorum.n())?
        {
            self.agree(now, AgreementInput::Recoveries(seq, numbers));
        }
        Ok(())
    }

    fn on_state(&mut self, now: Now, from: ReplicaId, message: StateMessage) -> Result<(), Fault> {
        match message {
            StateMessage::GetNodes(_) | StateMessage::GetValues(_) => {
                if !self.asks.push(now.mono, from, message) {
                    *self.rejections.entry(Rejected::TooOften).or_default() += 1;
                }
                self.answer_asks(now)
            }
            StateMessage::Nodes(_) | StateMessage::Values(_) | StateMessage::NotHere(_) => {
                let handled = self.transfer.handle(now.mono, from, message);
                let lies = self.transfer.take_lies().into_iter();
                self.out.extend(lies.map(|lie| Output::Lie(Box::new(lie))));
                handled
            }
        }
    }

    /// Gives peers what they fetch, so far as they may have it now.
    fn answer_asks(&mut self, now: Now) -> Result<(), Fault> {
        while let Some((to, ask)) = self.asks.pop(now.mono) {
            let checkpoint = match &ask {
                StateMessage::GetNodes(ask) => ask.checkpoint,
                StateMessage::GetValues(ask) => ask.checkpoint,
                StateMessage::Nodes(_) | StateMessage::Values(_) | StateMessage::NotHere(_) => {
                    continue;
                }
            };
            let answer = match self.snapshots.get(&checkpoint) {
                Some(snapshot) => state_transfer::serve(&**snapshot, checkpoint, &ask)?,
                None => Some(StateMessage::NotHere(checkpoint)),
            };
            self.asks.answered(to, &ask, answer.as_ref());
            if let Some(answer) = answer {
                self.out
                    .push_back(Output::Send(to, PeerMessage::State(answer)));
            }
        }
        Ok(())
    }

    fn move_transfer(&mut self, now: Now) -> Result<(), Fault> {
        if let Transfer::Draining(target) = self.transfer
            && self.in_store == 0
            // After a crash it is to be known what the store was to become.
            && self.agreement.may_replace_state()
            && !self.forget_doubted(target)?
        {
            let most = match is_on(Mutant::OneDonor) {
                true => 1,
                false => self.quorum.n(),
            };
            let donors = self.quorum.others(self.me).take(most);
            let lookups = self.former.as_mut().map(Former::next_round);
            let base = self.newest.clone();
            self.set_transfer(Transfer::begin(
                target,
                base,
                donors,
                &self.silences,
                lookups,
            )?);
        }
        if self.transfer.is_unavailable() {
            self.agree(now, AgreementInput::StateUnavailable);
            self.agreement.end_turn();
        }
        let (messages, piece) = self.transfer.poll(now.mono)?;
        for (to, message) in messages {
            self.out
                .push_back(Output::Send(to, PeerMessage::State(message)));
        }
        while let Some(lookup) = self.transfer.look_up() {
            self.out.push_back(Output::LookUp(lookup));
        }
        if let Some(piece) = piece {
            self.store(piece);
        }
        Ok(())
    }

    /// Takes the outputs out, in order.
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        core::mem::take(&mut self.out)
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn next_timeout(&self) -> Millis {
        if self.reads.has_more {
            return 0;
        }
        let transfer = self.transfer.next_timeout().unwrap_or(Millis::MAX);
        let asks = self.asks.next_timeout().unwrap_or(Millis::MAX);
        let bundles = self.bundles.next_timeout().unwrap_or(Millis::MAX);
        let beside = transfer.min(asks).min(bundles);
        self.agreement.next_timeout().min(beside)
    }

    /// Where this replica stands in agreement.
    pub fn standing(&self) -> Standing {
        self.agreement.standing()
    }

    /// Of each replica the number of its last recovery that the newest checkpoint tells of; empty in a group without key holders.
    pub fn recoveries(&self) -> &[u64] {
        self.agreement.recoveries()
    }

    /// The last place whose effects are in the state.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// What was agreed on at a place, see [`Agreement::executed_at`].
    pub fn executed_at(&self, seq: Seq) -> Option<(Digest, Option<Content>)> {
        self.agreement.executed_at(seq)
    }

    /// Brings the state's rows about sessions up to date, which otherwise happens before a layer is frozen; for comparisons.
    pub fn flush_sessions(&mut self) {
        self.executor.flush(&mut self.state);
    }

    /// Whether the state has effects that may be undone.
    pub fn is_tentative(&self) -> bool {
        self.tentative.is_some()
    }

    /// The state as execution sees it.
    pub fn view(&mut self) -> View {
        self.state.view()
    }

    /// How often each kind of input was refused.
    pub fn rejections(&self) -> &BTreeMap<Rejected, u64> {
        &self.rejections
    }

    /// How many inputs were of no use: those that were refused, and questions of clients that had been answered before. A driver that
    /// looks at it before and after an input knows whom it owes that to.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Whose a connection is, if that client has so much open here that nothing more is to be read from it for now.
    pub fn has_enough_from(&self, connection: ConnectionId) -> Option<ClientId> {
        let client = self.clients.client(connection)?;
        self.has_enough_of(&client, false).then_some(client)
    }

    /// Whether a client has so much open here that nothing more is to be read from it; `before`: whether that was so.
    pub fn has_enough_of(&self, client: &ClientId, before: bool) -> bool {
        self.agreement.has_enough_of(client, before)
    }

    /// A client does not take what it is sent on a connection: what it wants to read there is not worth the work. What it misses it
    /// has ordered.
    pub fn does_not_take(&mut self, connection: ConnectionId) {
        if let Some(client) = self.clients.client(connection) {
            self.reads.forget(&client, connection);
        }
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients.count()
    }

    /// What holds after every input.
    ///
    /// # Panics
    /// Where something does not hold: a defect of this code.
    pub fn invariants(&self) {
        self.invariants_since(&mut Seen::default());
    }

    /// The same, for who has looked before; see [`Agreement::invariants_since`].
    ///
    /// # Panics
    /// As [`Replica::invariants`].
    pub fn invariants_since(&self, seen: &mut Seen) {
        if self.failed {
            return;
        }
        self.agreement.invariants_since(seen);
        let standing = self.agreement.standing();
        assert_eq!(standing.fetching, !self.transfer.is_idle());
        if let Some(tentative) = &self.tentative {
            assert!(tentative.seq == self.entered().next() && self.transfer.is_idle());
        }
        if let Some(parallel) = &self.parallel {
            parallel.invariants();
        }
        if self.transfer.is_idle() {
            let waiting = self.backlog.len() as u64;
            assert_eq!(
                self.entered().0 + waiting,
                standing.executed.0,
                "batches lost or doubled"
            );
        }
    }
}
