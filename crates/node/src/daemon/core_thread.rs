//! The thread on which the replica runs, with its links.

mod arrivals;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use quorate_agreement::{Config, Millis, Now, Record};
use quorate_execution::graph::Conflicts;
use quorate_execution::{Service, Workers};
use quorate_net::threads::Panicked;
use quorate_net::{Group, Identity};
use quorate_replica::{ConnectionId, Input, Output, Replica, Restored};
use quorate_state::transfer::{Counts, Found};
use quorate_store::{Damage, Hold};
use quorate_wire::message::{KeyRenewal, Report, StateCheck};
use quorate_wire::{ClientId, LogIndex, RecoveryStatement, ReplicaId, Seq, Time};

use super::DaemonError;
use super::aside;
use super::directory;
use super::evidence::EvidenceKeeper;
use super::former::FormerThreads;
use super::outgoing::Outgoing;
use super::packed;
use super::pool::Pool;
use super::progress::{Progress, Start};
use super::restore;
use super::store_thread::{StoreEvent, StoreThread};
use super::verifier::Verifiers;
use crate::wal::{self, WalEvent, WalThread};
use arrivals::Verifying;

/// What the thread is called.
pub(super) const NAME: &str = "replica";
/// How many messages are taken in one turn.
const INPUTS_AT_ONCE: usize = 128;
/// Records that nothing waits for are written by themselves when they have grown to this.
const MAX_LAZY_BYTES: usize = 1 << 20;
/// A new segment of the log is begun at a stable checkpoint after so many bytes.
const SEGMENT_BYTES: usize = 24 << 20;

/// How long a primary that is to end waits for the view of another.
const HAND_OVER_MS: Millis = 500;

/// What other threads have for this one.
#[derive(Debug)]
pub(crate) enum Wake {
    /// The log says something.
    Log(WalEvent),
    /// The store says something.
    Store(StoreEvent),
    /// Workers have run operations.
    Ran,
    /// Verifiers have checked signatures.
    Checked,
    /// Links are to be made with another key.
    Keys(Box<Identity>),
    /// Pieces of the former state were looked for.
    Found(Found),
    /// Somebody in this process wants to know how the replica is.
    Ask(SyncSender<Report>),
    /// A thread has panicked that this one may wait for.
    Died(Panicked),
    /// Whether the replica is about to be had recover.
    RecoveryIntended(bool),
    /// The process is to end.
    Stop,
}

/// The replica with what it needs to act.
#[derive(Debug)]
pub(crate) struct Core<S> {
    me: ReplicaId,
    replica: Replica<S>,
    log: WalThread,
    store: StoreThread,
    /// Where there are workers.
    pool: Option<Pool>,
    /// Where there are verifiers.
    verifying: Option<Verifying>,
    outgoing: Outgoing,
    started: Instant,
    /// The time of this turn.
    now: Now,
    /// Records that wait to be written.
    records: Vec<wal::Record>,
    /// Whether something waits for one of them.
    votes_waiting: bool,
    /// Bytes of those that nothing waits for.
    lazy_bytes: usize,
    last_index: LogIndex,
    bytes_in_segment: usize,
    evidence: EvidenceKeeper,
    data: PathBuf,
    first_run: Option<Arc<Group>>,
    /// Whether there is a log that was set aside when it began to recover.
    former_log: bool,
    damage: Damage,
    /// There are no others who could help.
    alone: bool,
    former: Option<FormerThreads>,
    /// Keeps the segments of what was set aside; here, after the store, so that the store's thread has ended when they may go.
    hold: Option<Hold>,
    /// How the check of the former state went.
    check: Option<StateCheck>,
    progress: Progress,
    keys: Option<Keys>,
    /// See [`Report::recovery_intended`].
    recovery_intended: bool,
    /// Set when the replica is to end: when it does so though no other primary leads.
    end_at: Option<Millis>,
    /// Clients that have so much open here that nothing is read from them.
    held: BTreeSet<ClientId>,
}

/// The keys of links, where they are renewed or could be.
#[derive(Clone, Copy, Debug)]
struct Keys {
    every_ms: Millis,
    /// When the present one was taken.
    since: Millis,
}

/// What a replica writes to.
#[derive(Debug)]
pub(crate) struct Files {
    pub log: WalThread,
    pub store: StoreThread,
    pub evidence: EvidenceKeeper,
    /// The replica's directory.
    pub data: PathBuf,
    /// For a replica that has never run: its group, to note with the first record that it has.
    pub first_run: Option<Arc<Group>>,
    /// Whether there is a log that was set aside when it began to recover.
    pub former_log: bool,
    /// Whether the store has found damage.
    pub damage: Damage,
    /// Whether there are no others who could help.
    pub alone: bool,
    /// Where there is a state that was set aside.
    pub former: Option<FormerThreads>,
    /// Keeps the segments of what was set aside.
    pub hold: Option<Hold>,
    /// How often the keys of links are renewed, where there is a key holder; 0: never.
    pub key_refresh: Option<Duration>,
}

impl<S: Service> Core<S> {
    /// A replica that has done what its log says was agreed on.
    ///
    /// # Errors
    /// Where it panics over that.
    pub fn new(
        config: Config,
        service: S,
        restored: Restored,
        files: Files,
        (pool, verifiers): (Option<Pool>, Option<Verifiers>),
        outgoing: Outgoing,
        start: Start,
    ) -> Result<Core<S>, DaemonError> {
        let Files {
            log,
            store,
            evidence,
            data,
            first_run,
            former_log,
            damage,
            alone,
            former,
            hold,
            key_refresh,
        } = files;
        let started = clock_start();
        let me = config.me;
        let last_index = LogIndex(restored.next_index.0.saturating_sub(1));
        let workers = Workers {
            count: pool.as_ref().map_or(0, Pool::threads),
            conflicts: pool.as_ref().map_or(Conflicts::Declared, Pool::conflicts),
        };
        // What was found is not measured: the next stable checkpoint begins a segment. Else a log that is found short each time would never be cut.
        let bytes_in_segment = match restored.records.is_empty() {
            true => 0,
            false => SEGMENT_BYTES,
        };
        let now = now(started);
        let replica = caught(|| Ok(Replica::new(config, service, workers, restored, now)));
        let replica = replica.map_err(|e| judge(e, &damage, &data, alone))?;
        Ok(Core {
            me,
            replica,
            log,
            store,
            pool,
            verifying: verifiers.map(Verifying::new),
            outgoing,
            started,
            now,
            records: Vec::new(),
            votes_waiting: false,
            lazy_bytes: 0,
            last_index,
            bytes_in_segment,
            evidence,
            data,
            first_run,
            former_log,
            damage,
            alone,
            former,
            hold,
            check: None,
            progress: Progress::new(start),
            keys: key_refresh.map(|every| Keys {
                every_ms: every.as_millis() as u64,
                since: now.mono,
            }),
            recovery_intended: false,
            end_at: None,
            held: BTreeSet::new(),
        })
    }

    /// Whether it comes back without its log.
    pub fn is_recovering(&self) -> bool {
        self.replica.standing().recovering.is_some()
    }

    /// Its identity says that it recovers.
    pub fn recover(&mut self, statement: RecoveryStatement) {
        let statement = Box::new(statement);
        self.replica.take(self.now, Input::Recover(statement));
    }

    /// Runs until told to stop, or until the replica can't go on.
    pub fn run(mut self, woken: &Receiver<Wake>) -> Result<(), DaemonError> {
        let ended = caught(|| self.work(woken));
        ended.map_err(|e| judge(e, &self.damage, &self.data, self.alone))
    }

    fn work(&mut self, woken: &Receiver<Wake>) -> Result<(), DaemonError> {
        self.end_turn()?;
        loop {
            let due = self.replica.next_timeout().min(self.outgoing.next_due());
            let due = due.min(self.end_at.unwrap_or(due));
            let wait = due.saturating_sub(now(self.started).mono);
            let wait = Duration::from_millis(wait);
            self.outgoing
                .links()
                .poll(Some(wait))
                .map_err(|e| DaemonError::Fatal(format!("links can't be waited for: {e}")))?;
            self.now = now(self.started);
            while let Ok(wake) = woken.try_recv() {
                self.on_wake(wake)?;
            }
            if self.may_end() {
                self.end_turn()?;
                self.write_log();
                return Ok(());
            }
            self.take_from_links()?;
            if self.replica.next_timeout() <= self.now.mono {
                self.replica.take(self.now, Input::Tick);
            }
            self.outgoing.send_due(self.now.mono);
            self.end_turn()?;
        }
    }

    /// Holds the client at the other end of a connection if it has enough open here.
    fn hold(&mut self, from: Option<ConnectionId>) {
        if let Some(client) = from.and_then(|from| self.replica.has_enough_from(from))
            && self.held.insert(client)
        {
            self.outgoing.links().hold(&client, true);
        }
    }

    /// Hears those again that were held and have less open now.
    fn let_go(&mut self) {
        let (replica, links) = (&self.replica, self.outgoing.links());
        self.held.retain(|client| {
            let is_held = replica.has_enough_of(client, true);
            if !is_held {
                links.hold(client, false);
            }
            is_held
        });
    }

    /// Has the replica act on what it was given, and does what it wants: more than once where the log needs no waiting for, since what waited for
    /// it can leave then.
    fn end_turn(&mut self) -> Result<(), DaemonError> {
        loop {
            self.replica.end_turn(self.now);
            self.let_go();
            self.progress.look(&self.replica.standing(), self.now.mono);
            self.carry_out()?;
            // What does not wait for the log leaves before it is written to.
            self.outgoing.flush(self.now.mono);
            let Some(index) = self.write_votes()? else {
                return Ok(());
            };
            let persisted = self.persisted(index)?;
            self.replica.take(self.now, persisted);
        }
    }

    /// Takes what another thread has.
    fn on_wake(&mut self, wake: Wake) -> Result<(), DaemonError> {
        let input = match wake {
            // Who asks twice is in a hurry.
            Wake::Stop if self.end_at.is_some() => {
                self.end_at = Some(self.now.mono);
                return Ok(());
            }
            Wake::Stop => {
                let leads = self.replica.is_leading();
                let patience = if leads { HAND_OVER_MS } else { 0 };
                self.end_at = Some(self.now.mono + patience);
                Input::HandOver
            }
            Wake::Ask(answer) => {
                // Who has asked may be gone.
                let _ = answer.try_send(self.report(0));
                return Ok(());
            }
            Wake::Died(panicked) => return Err(panicked.into()),
            Wake::RecoveryIntended(is_intended) => {
                self.recovery_intended = is_intended;
                return Ok(());
            }
            Wake::Log(WalEvent::Persisted(index)) => self.persisted(index)?,
            Wake::Log(WalEvent::Failed(e)) => return Err(e.into()),
            Wake::Store(StoreEvent::Stored {
                seq,
                complete,
                root,
                snapshot,
            }) => Input::Stored {
                seq,
                complete,
                root,
                snapshot,
            },
            Wake::Store(StoreEvent::Failed(e)) => return Err(e.into()),
            Wake::Keys(identity) => {
                self.outgoing.renew(&identity);
                if let Some(keys) = &mut self.keys {
                    keys.since = self.now.mono;
                }
                Input::Renewed(Box::new(identity.signer(self.outgoing.signing().group())))
            }
            Wake::Found(found) => Input::Found(found),
            Wake::Checked => {
                self.take_checked();
                return Ok(());
            }
            Wake::Ran => match &self.pool {
                Some(pool) => Input::Ran(pool.take_done()),
                None => return Ok(()),
            },
        };
        self.replica.take(self.now, input);
        Ok(())
    }

    fn persisted(&mut self, index: LogIndex) -> Result<Input, DaemonError> {
        if let Some(group) = self.first_run.take() {
            // All that counts waits for a record: from here on a log without one is a log that was lost.
            directory::note_run(&self.data, &group)?;
        }
        Ok(Input::Persisted(index))
    }

    /// Whether the replica is to end and nobody waits for it: another primary leads, or has been waited for long enough.
    fn may_end(&self) -> bool {
        let Some(end_at) = self.end_at else {
            return false;
        };
        let others_lead = self.replica.standing().active && !self.replica.is_leading();
        others_lead || self.now.mono >= end_at
    }

    fn report(&mut self, nonce: u64) -> Report {
        let going_on = self.replica.former_counts();
        let going_on = going_on.map(|counts| state_check(counts, self.now.mono, false));
        let standing = self.replica.standing();
        self.progress.look(&standing, self.now.mono);
        Report {
            nonce,
            replica: self.me,
            view: standing.view,
            active: standing.active,
            committed: standing.committed,
            executed: self.replica.applied(),
            stable: standing.stable.0,
            root: standing.stable.1,
            fetching: standing.fetching,
            links: self.outgoing.links().reports(),
            clients: self.replica.clients() as u32,
            clients_put_aside: self.outgoing.links().clients_put_aside(),
            view_changes: standing.view_changes,
            uptime_ms: self.now.mono,
            fault: Bytes::from(self.outgoing.fault_name()),
            recovering: standing
                .recovering
                .map(|r| r.bound.map_or(Seq(0), |bound| bound.seq)),
            check: going_on.or(self.check),
            steps: self.progress.steps().to_vec(),
            ordered: self.progress.ordered(),
            went_back: self.progress.went_back(),
            keys: self.keys.map(|keys| KeyRenewal {
                every_ms: keys.every_ms,
                age_ms: self.now.mono - keys.since,
            }),
            recoveries: self.replica.recoveries().to_vec(),
            recovery_intended: self.recovery_intended,
        }
    }

    /// Carries out what the replica wants.
    fn carry_out(&mut self) -> Result<(), DaemonError> {
        let mono = self.now.mono;
        for output in self.replica.take_outputs() {
            match output {
                Output::Send(to, message) => self.outgoing.send(to, message, mono),
                Output::Broadcast(message) => self.outgoing.broadcast(message, mono),
                Output::Reply(to, message) => self.outgoing.reply(to, message, mono),
                Output::Hurry => self.outgoing.hurry(),
                Output::Persist(index, record) => self.record(index, &record)?,
                Output::Truncate { stable, head } => self.truncate(stable, &head)?,
                Output::Store {
                    seq,
                    complete,
                    layer,
                    bodies,
                } => self.store.write(seq, complete, layer, bodies),
                Output::Run(jobs) => {
                    if let Some(pool) = &self.pool {
                        pool.run(jobs);
                    }
                }
                Output::LookUp(lookup) => {
                    if let Some(former) = &self.former {
                        former.look(lookup);
                    }
                }
                Output::Recovered(counts) => self.recovered(counts),
                Output::Void(replica, number) => self.outgoing.links().void(replica, number),
                Output::Missed(why) if self.former_log => return Err(DaemonError::Missed(why)),
                Output::Missed(why) => self.progress.missed(why, mono),
                Output::Evidence(evidence) => self.evidence.keep(*evidence),
                Output::Lie(lie) => {
                    tracing::warn!(
                        peer = lie.donor.0,
                        checkpoint = lie.checkpoint.0,
                        "a replica sent a piece of the state that is not in the certified one: it is asked for elsewhere"
                    );
                    let signing = self.outgoing.signing();
                    signing.convict(&lie);
                    for evidence in signing.take_evidence() {
                        self.evidence.keep(evidence);
                    }
                }
                Output::Doubt(reason) => tracing::error!(
                    "{reason}. Somebody or something has changed the state on this disk: it is compared with the others', \
                     and what differs is fetched"
                ),
                Output::Fatal(reason) => return Err(DaemonError::Fatal(reason)),
                Output::Damaged(reason) => return Err(damaged(reason, &self.data, self.alone)),
            }
        }
        for connection in self.outgoing.not_taking() {
            self.replica.does_not_take(connection);
        }
        Ok(())
    }

    /// The replica is back, and its former state has served.
    fn recovered(&mut self, counts: Counts) {
        let check = state_check(counts, self.now.mono, true);
        tracing::info!(
            took_ms = check.took_ms,
            right = check.right,
            right_bytes = check.right_bytes,
            differing = check.differing,
            damaged = check.damaged,
            "the state was compared with the others'"
        );
        self.check = Some(check);
        if let Some(former) = self.former.take() {
            former.finish();
        }
        // Not only when the threads that read it have ended, which they may never do.
        self.hold = None;
    }

    fn record(&mut self, index: LogIndex, record: &Record) -> Result<(), DaemonError> {
        self.comes_back(record)?;
        let packed = packed::pack(index, record);
        // Bodies too, which a restart reads: they go when the log's segments do.
        self.bytes_in_segment += packed.weight();
        match record {
            Record::Committed(_) => self.lazy_bytes += packed.weight(),
            _ => self.votes_waiting = true,
        }
        self.last_index = index;
        self.records.push(packed);
        Ok(())
    }

    /// Writes what waits, unless it is nothing that anyone waits for: that goes along with the next vote.
    ///
    /// A record of what committed only saves asking the others after a restart; a sync of its own would be a third one for
    /// each batch. Says up to where the log is durable, if it is so already.
    fn write_votes(&mut self) -> Result<Option<LogIndex>, DaemonError> {
        if self.votes_waiting && !self.records.is_empty() {
            (self.votes_waiting, self.lazy_bytes) = (false, 0);
            return Ok(self.log.append_now(std::mem::take(&mut self.records))?);
        }
        if self.lazy_bytes >= MAX_LAZY_BYTES {
            self.write_log();
        }
        Ok(None)
    }

    fn write_log(&mut self) {
        (self.votes_waiting, self.lazy_bytes) = (false, 0);
        if !self.records.is_empty() {
            self.log.append(std::mem::take(&mut self.records));
        }
    }

    fn truncate(&mut self, stable: Seq, head: &[Record]) -> Result<(), DaemonError> {
        head.iter().try_for_each(|record| self.comes_back(record))?;
        self.write_log();
        if self.bytes_in_segment >= SEGMENT_BYTES {
            self.bytes_in_segment = 0;
            let index = self.last_index;
            self.log.rotate(
                head.iter()
                    .map(|record| packed::pack(index, record))
                    .collect(),
            );
        }
        self.log.discard(stable);
        Ok(())
    }

    /// A record that goes to the log: with this one a replica that recovers is back. What it says from here on is in the present log alone, and
    /// the one before would make it say something else.
    fn comes_back(&mut self, record: &Record) -> Result<(), DaemonError> {
        if matches!(record, Record::Entered(_)) {
            if self.former_log {
                aside::drop_former_log(&self.data)?;
                self.former_log = false;
            }
            if self.former.is_none() {
                self.hold = None;
            }
        }
        Ok(())
    }
}

/// What work of this thread comes to, if it does not panic. What is half done then goes nowhere: nothing of it is sent or written any more.
fn caught<T>(work: impl FnOnce() -> Result<T, DaemonError>) -> Result<T, DaemonError> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|panic| Err(Panicked::new(NAME, &*panic).into()))
}

/// Why the replica has to stop: damage of the state is mended at the next start.
fn judge(error: DaemonError, damage: &Damage, data: &Path, alone: bool) -> DaemonError {
    match &error {
        DaemonError::Store(e) if e.is_damage() => damaged(error.to_string(), data, alone),
        // What reads a file that is damaged or can't be read may panic over it.
        DaemonError::Fatal(_) | DaemonError::Panicked(_) if damage.is_found() => {
            damaged(error.to_string(), data, alone)
        }
        DaemonError::Fatal(_) | DaemonError::Panicked(_) if damage.has_failed() => {
            DaemonError::Disk(error.to_string())
        }
        _ => error,
    }
}

/// What is stored is no state, and the next start has it fetched, if there is somebody who has it.
fn damaged(reason: String, data: &Path, alone: bool) -> DaemonError {
    if alone {
        return DaemonError::Alone(reason);
    }
    restore::note_damaged_state(data, &reason);
    DaemonError::StateDamaged(reason)
}

fn state_check(counts: Counts, took_ms: u64, done: bool) -> StateCheck {
    StateCheck {
        done,
        took_ms,
        right: counts.right,
        right_bytes: counts.right_bytes,
        differing: counts.differing,
        damaged: counts.damaged,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the driver that brings time to the core"
)]
pub(super) fn clock_start() -> Instant {
    Instant::now()
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the driver that brings time to the core"
)]
fn now(started: Instant) -> Now {
    Now {
        mono: started.elapsed().as_millis() as u64,
        wall: wall(),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the driver that brings time to the core"
)]
pub(super) fn wall() -> Time {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time(wall.as_nanos() as u64)
}
