//! A replica's process: its links, its log, its store, and the thread on which the replica itself runs.
//!
//! ```text
//! door thread: handshakes --> |                 | --> log thread    (group commit)
//! log thread   -------------> | ordering thread | --> store thread  (one layer after the other)
//! store thread -------------> |  and all links  | --> workers       (operations beside each other; none, if not asked for)
//! workers      -------------> |                 | --> verifiers     (signatures, where processors are to spare)
//! verifiers    -------------> |                 | --> sealers       (what is long, to be sent; likewise)
//! sealers      -------------> |                 |
//! ```
//!
//! The ordering thread owns the [`Replica`](quorate_replica::Replica) and all links of the replica. In each turn it
//! waits for all of them at once, hands over what came, carries out what comes back, and has written what was queued for
//! each link meanwhile. It waits for no peer. It waits for the disk in two places: a few votes, where nothing else is to do, are synced by it, since to wake the
//! log's thread would take longer; and what execution reads and no cache has is read from the store, where there are no workers to read it. What bounds its
//! work: a link is read only when all that it gave before was handled, and the protocol's window bounds the disks' completions.

mod aside;
mod core_thread;
pub mod directory;
mod epoch;
pub mod evidence;
pub mod exit;
mod former;
pub mod ground;
mod outgoing;
pub(crate) mod packed;
mod pool;
mod progress;
mod restore;
mod staging;
mod store_thread;
#[cfg(test)]
mod tests;
mod verifier;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use quorate_agreement::{CHECKPOINT_BYTES, CLIENT_KEYS_LAST_MS, Config, Missed, Record, Tuning};
use quorate_execution::Service;
use quorate_execution::graph::Conflicts;
use quorate_fault::Fault;
use quorate_net::group::Durability;
use quorate_net::holder::AskError;
use quorate_net::threads::Panicked;
use quorate_net::{
    Epochs, Group, Identity, KeyError, Limits, ListenError, ReplicaLinks, Sealing, Waker, bind,
};
use quorate_replica::Signing;
pub use quorate_store::Options as StoreOptions;
use quorate_store::StoreError;
use quorate_wire::message::Report;
use quorate_wire::{KeyPair, ReplicaId, Signer};

use crate::wal::{WalError, WalThread};
use core_thread::{Core, Files, Wake};
pub use epoch::KeyHolder;
use evidence::EvidenceKeeper;
use former::FormerThreads;
use outgoing::Outgoing;
use pool::Pool;
use progress::Start;
use store_thread::StoreThread;
pub use verifier::Verification;
use verifier::Verifiers;

/// How long a request may wait before a replica asks for another primary, at the most, where nothing else is said.
pub const PATIENCE: Duration = Duration::from_millis(2_500);
/// How far a primary's time may be from a backup's clock.
const CLOCK_BOUND_MS: u64 = 10_000;

/// What a replica's process is told.
#[derive(Debug)]
pub struct Options {
    /// The group.
    pub group: Arc<Group>,
    /// Which of its replicas this is.
    pub me: ReplicaId,
    /// The replica's key. In a group whose replicas have key holders it signs nothing, and may be any.
    pub key: KeyPair,
    /// Its key holder, where the group has them; else it is not asked.
    pub key_holder: Option<KeyHolder>,
    /// The directory that is this replica's alone.
    pub data: PathBuf,
    /// Whether this replica has never run: then its directory is made. Else it must be there, with all that was in it.
    pub first_start: bool,
    /// Whether this replica has run and its directory is lost: then it is made again, and the replica comes back by the others'
    /// help. Never for a replica whose directory may turn up again: what it has said since would be forgotten with that.
    pub lost_disk: bool,
    /// What this replica believes of what it has written.
    pub trust: Trust,
    /// The highest number of a certificate of each replica that its supervisor has seen: where nothing is believed that is written here, what is
    /// older than that is refused all the same. Empty where nobody has looked.
    pub seen: Vec<u64>,
    /// Where to listen, if not at the address in the group file.
    pub listen: Option<String>,
    /// Which optimisations the replica uses.
    pub tuning: Tuning,
    /// On how many threads operations are executed that don't conflict, see [`Service::uses`]; 0: all on the ordering thread,
    /// one after the other, which is best where they only compute for a few microseconds. Hundreds are right for services
    /// that wait. Replicas of a group need not have the same number.
    pub workers: usize,
    /// Whether workers run beside each other what the service says does not conflict, or one operation after the other, as in BASE; the latter is for
    /// measurements.
    pub conflicts: Conflicts,
    /// Where signatures are checked. Replicas of a group need not be alike in this.
    pub verification: Verification,
    /// Where frames are sealed. Nor in this.
    pub sealing: Sealing,
    /// How much memory its store may take. Nor in this.
    pub store: StoreOptions,
    /// How long a request may wait before this replica asks for another primary, at the most: where batches are quick it is less, down to a quarter of a second. Nor in this.
    pub patience: Duration,
    /// How the replica is to misbehave. Only in a group that was made for demonstrations.
    pub fault: Option<Fault>,
}

impl Options {
    /// A replica as `quorate init --no-key-holders` has made it: its directory is there, and it has no key holder. All else is as it mostly is;
    /// fields say what can be otherwise.
    pub fn new(
        group: Arc<Group>,
        me: ReplicaId,
        key: KeyPair,
        data: impl Into<PathBuf>,
    ) -> Options {
        Options {
            group,
            me,
            key,
            key_holder: None,
            data: data.into(),
            first_start: false,
            lost_disk: false,
            trust: Trust::All,
            seen: Vec::new(),
            listen: None,
            tuning: Tuning::default(),
            workers: 0,
            conflicts: Conflicts::Declared,
            verification: Verification::default(),
            sealing: Sealing::default(),
            store: StoreOptions::default(),
            patience: PATIENCE,
            fault: None,
        }
    }
}

/// What a replica believes of what it has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// All.
    #[default]
    All,
    /// Nothing: it recovers (PBFT 2002, 4). Its log is set aside, and each piece of its state is compared with what the others have.
    Nothing,
    /// The log and the state that a recovery has set aside, since that came to nothing ([`DaemonError::Missed`]). Where there are none as
    /// [`Trust::All`].
    SetAside,
}

/// Why a replica can't run, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The operator's mistake.
    #[error("the group has no replica {0}: its replicas are numbered from 0 to {1}; see --id")]
    NoSuchReplica(ReplicaId, usize),
    /// The operator's mistake.
    #[error(
        "this is not the key of replica {0}: the group file lists another one. Give the key that \
         was made for it (--key), or the id that belongs to this key (--id)"
    )]
    WrongKey(ReplicaId),
    /// The operator's mistake, caught before it does harm.
    #[error(
        "{0} belongs to another group: start this replica with the group file that it was made \
         for, or give it another directory (--data)"
    )]
    OtherGroup(PathBuf),
    /// The disk, or whoever cleared it, has lost what the replica must not forget.
    #[error(
        "{data} has no {what}. If this replica has run before, that is lost or elsewhere: is a disk not \
         mounted, or is it another directory (--data)? Bring it back. If it is lost for good, start the replica once with \
         --lost-disk, or have it recover where a supervisor looks after it (`quorate recover N`): it comes back by the help of the others, \
         as long as no more than {tolerated} are out or faulty, this one among them. If it has never run: start it once with --first-start"
    )]
    Lost {
        /// The replica's directory.
        data: PathBuf,
        /// What is not there.
        what: &'static str,
        /// How many replicas of the group may be out.
        tolerated: usize,
    },
    /// The price of a durability that the group's maker chose.
    #[error(
        "a replica has run in {0} without a log, since the group's durability is \"memory\": it has forgotten what it \
         promised to the others and must not come back. Make a new group; one with durability \"disk\" bears restarts"
    )]
    Forgotten(PathBuf),
    /// Another replica's fault. What was set aside is there: [`Trust::SetAside`] has the replica go on with it.
    #[error("the recovery comes to nothing: {0}")]
    Missed(Missed),
    /// The disk's fault, where nobody else has what is lost.
    #[error(
        "{0}. A group of one replica has nobody who could help: leave the directory as it is, and look for a backup of the files"
    )]
    Alone(String),
    /// The disk's fault. Starting the replica again sets the state aside, and has it fetched.
    #[error("{0}. When the replica is started again it fetches the state from the others")]
    StateDamaged(String),
    /// The operator's mistake.
    #[error(
        "a group of one replica can't recover: there are no others with whom it could compare what it has. Leave --recover away"
    )]
    NobodyToAsk,
    /// The operator's mistake, caught before it could do harm.
    #[error(
        "a replica has run in {0}, and its directory is there: leave --lost-disk away. Damage is found and mended without it"
    )]
    NotLost(PathBuf),
    /// The operator's mistake, caught before it could hide a loss.
    #[error(
        "a replica has run in {0}: leave --first-start away. It is for the first start alone; in a service's \
         definition it would let a replica come back that has lost its disk"
    )]
    HasRun(PathBuf),
    /// The operator's mistake.
    #[error(
        "the replicas of this group have key holders: start this one's (`quorate keyholder`), and say where its socket is (--key-holder)"
    )]
    NoKeyHolder,
    /// See [`AskError`].
    #[error(transparent)]
    KeyHolder(#[from] AskError),
    /// See [`KeyError`].
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Faults are for demonstrations.
    #[error(
        "faults may only be injected into a group that `quorate up` made for demonstrations; \
         this group keeps people's files"
    )]
    NotADemonstration,
    /// See [`ListenError`].
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// See [`StoreError`].
    #[error(transparent)]
    Store(#[from] StoreError),
    /// See [`WalError`].
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The log holds a record that this program never wrote.
    #[error(
        "the write-ahead log in {0} holds a record that can't be read: was it written by a newer version?"
    )]
    UnknownRecord(PathBuf),
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The disk's fault: it has refused a read.
    #[error("{0}")]
    Disk(String),
    /// The replica itself can't go on.
    #[error("{0}")]
    Fatal(String),
    /// A defect. The replica does not go on with the threads that are left.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// A replica that runs, until it is told to stop or can't go on.
#[derive(Debug)]
pub struct Daemon {
    stopper: Stopper,
    core: JoinHandle<Result<(), DaemonError>>,
}

/// Tells a [`Daemon`] to stop, or asks it how it is, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Mailbox);

/// Where other threads leave what they have for the ordering thread.
#[derive(Clone, Debug)]
struct Mailbox(Sender<Wake>, Waker);

/// For how long clients' keys count that had links which are gone, where links are made anew so often: none counts for more than twice as long as that, and a
/// second of it is left for the client to make its link anew.
fn client_keys_last_ms(refresh: Option<Duration>) -> u64 {
    let Some(refresh) = refresh else {
        return CLIENT_KEYS_LAST_MS;
    };
    let ms = refresh.as_millis() as u64;
    (ms - (ms / 2).min(1_000)).min(CLIENT_KEYS_LAST_MS)
}

impl Mailbox {
    fn put(&self, wake: Wake) {
        // Fails only when the ordering thread has stopped, and then nobody misses it.
        let _ = self.0.send(wake);
        self.1.wake();
    }

    /// Tells that a thread has panicked: without it the replica would be half of one, and wait for what never comes.
    fn died(&self) -> impl FnOnce(Panicked) + Clone + Send + use<> {
        let mailbox = self.clone();
        move |panicked| mailbox.put(Wake::Died(panicked))
    }
}

impl Stopper {
    /// Tells the replica to stop; [`Daemon::wait`] returns when it has.
    pub fn stop(&self) {
        self.0.put(Wake::Stop);
    }

    /// Tells the replica whether it is about to be had recover, which it passes on to those who ask how it is.
    pub fn intends_recovery(&self, is_intended: bool) {
        self.0.put(Wake::RecoveryIntended(is_intended));
    }

    /// How the replica is; `None` where it has stopped, or does not say so in time.
    pub fn report(&self, timeout: Duration) -> Option<Report> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.0.put(Wake::Ask(answer));
        answered.recv_timeout(timeout).ok()
    }
}

impl Daemon {
    /// Starts a replica of a service. All replicas of a group must be given the same service.
    ///
    /// Returns when what the disk holds has been read and the replica listens.
    ///
    /// # Errors
    /// Any [`DaemonError`]. The other replicas carry the group meanwhile, if no more than f are out.
    pub fn start<S: Service + Clone>(options: Options, service: S) -> Result<Daemon, DaemonError> {
        let Options {
            group,
            me,
            key,
            key_holder,
            data,
            first_start,
            lost_disk,
            trust,
            seen,
            listen,
            tuning,
            workers,
            conflicts,
            verification,
            sealing,
            store,
            patience,
            fault,
        } = options;
        let begin = core_thread::clock_start();
        let since_begin = || begin.elapsed().as_millis() as u64;
        let entry = group
            .replica(me)
            .ok_or(DaemonError::NoSuchReplica(me, group.quorum().n() - 1))?;
        if group.identities().is_none() && entry.key != key.public() {
            return Err(DaemonError::WrongKey(me));
        }
        if fault.is_some() && !group.is_demonstration() {
            return Err(DaemonError::NotADemonstration);
        }
        let io = |source| DaemonError::Io {
            path: data.clone(),
            source,
        };
        let listener = bind(listen.as_deref().unwrap_or(&entry.address))?;
        if first_start {
            directory::make(&data, &group)?;
        }
        let alone = group.quorum().f() == 0;
        if lost_disk && !first_start {
            directory::make_again(&data, &group)?;
        }
        let past = match trust {
            Trust::Nothing if alone => return Err(DaemonError::NobodyToAsk),
            Trust::Nothing => directory::distrust(&data, &group)?,
            Trust::SetAside => directory::take_back(&data, &group)?,
            Trust::All => directory::check(&data, &group)?,
        };
        let found = restore::restore(&data, past, alone, store, service.clone())?;
        let restored_ms = since_begin();
        let (store, wal, mut restored) = (found.store, found.wal, found.restored);
        let is_new = past == restore::Past::None;
        let durable = group.protocol().durability == Durability::Disk;
        if is_new && !durable {
            directory::note_run(&data, &group)?;
        }
        let known = data.join(epoch::SEEN);
        let epochs = match past {
            // Somebody may have written numbers there that no certificate will ever have.
            restore::Past::Distrusted if seen.is_empty() => {
                epoch::forget_seen(&data).map_err(io)?;
                Epochs::kept(&group, &known)
            }
            restore::Past::Distrusted => Epochs::anew(&group, &known, &seen),
            _ => Epochs::kept(&group, &known),
        };
        let mut epochs = epochs.map_err(io)?;
        // What was refused once stays so: the file may be older than the log, after a recovery that was given up, say, or lost.
        if let (Some(epochs), false) = (&mut epochs, past == restore::Past::Distrusted) {
            let mut logged = restored.records.iter().filter_map(|record| match record {
                Record::Epochs(highest) => Some(highest),
                _ => None,
            });
            logged
                .try_for_each(|highest| epochs.raise(highest))
                .map_err(io)?;
        }
        // What the links refuse is to be refused where others pass it on as well.
        let highest = epochs.iter().map(|e| Record::Epochs(e.highest().to_vec()));
        restored.records.extend(highest);
        let (identity, holder) = match epochs {
            None => (Identity::new(&key), None),
            Some(_) => {
                let (identity, holder) = epoch::first(key_holder.as_ref(), &group, me)?;
                (identity, Some(holder))
            }
        };
        let keyed_ms = since_begin();
        let limits = Limits::default();
        let mut links =
            ReplicaLinks::start_with(group.clone(), me, &identity, epochs, listener, limits)
                .map_err(io)?;
        // Bounded by what this thread has asked for: a completion for each record that the protocol's window lets be open, a layer for
        // each that the store was given (`MAX_LAYERS`), a word for each job of the workers and each batch of the verifiers; the last word of each
        // thread; who asks how it is, which does so again when it has been answered; and the one that stops it.
        let (sender, woken) = mpsc::channel();
        let mailbox = Mailbox(sender, links.waker());
        let died = mailbox.died();
        links.spawn_sealers(sealing, died.clone()).map_err(io)?;
        let wal = {
            let mailbox = mailbox.clone();
            let tell = move |event| mailbox.put(Wake::Log(event));
            WalThread::spawn(wal, tell, died.clone()).map_err(io)?
        };
        let damage = store.damage();
        let store = {
            let mailbox = mailbox.clone();
            let tell = move |event| mailbox.put(Wake::Store(event));
            StoreThread::spawn(store, tell, died.clone()).map_err(io)?
        };
        let refresh = holder.as_ref().and(key_holder.as_ref()).map(|k| k.refresh);
        let config = Config {
            quorum: group.quorum(),
            me,
            key: identity.signer(group.id()),
            keys: group.signing_keys(),
            clients: group.client_keys().collect(),
            guests: group.owner().is_some(),
            timeout_ms: patience.as_millis() as u64,
            clock_bound_ms: CLOCK_BOUND_MS,
            client_keys_last_ms: client_keys_last_ms(refresh),
            checkpoint_bytes: CHECKPOINT_BYTES,
            kept_bytes: quorate_wire::message::session::KEPT_BYTES,
            authentication: group.protocol().authentication,
            durable,
            tuning,
        };
        let former = found.former.map(|former| {
            let mailbox = mailbox.clone();
            let tell = move |found| mailbox.put(Wake::Found(found));
            FormerThreads::spawn(data.clone(), former, tell, died.clone())
        });
        let former = former.transpose().map_err(io)?;
        let pool = {
            let mailbox = mailbox.clone();
            let tell = move || mailbox.put(Wake::Ran);
            let spawn = || Pool::spawn(workers, &service, conflicts, tell, died.clone());
            let pool = (workers > 0).then(spawn);
            pool.transpose().map_err(io)?
        };
        let verifiers = {
            let mailbox = mailbox.clone();
            let tell = move || mailbox.put(Wake::Checked);
            let threads = verification.threads;
            let spawn = || Verifiers::spawn(verification, tell, died.clone());
            let verifiers = (threads > 0).then(spawn);
            verifiers.transpose().map_err(io)?
        };
        let mode = group.protocol().authentication;
        let signing = Signing::new(
            mode,
            group.quorum(),
            me,
            Signer::standing(group.id(), key.clone()),
            group.replica_keys(),
        );
        let outgoing = Outgoing::new(
            group.quorum(),
            me,
            links,
            signing,
            fault,
            identity.signer(group.id()),
            tuning.tentative,
        );
        let files = Files {
            log: wal,
            store,
            evidence: EvidenceKeeper::new(&data, &group),
            first_run: (is_new && durable).then(|| group.clone()),
            former_log: found.former_log,
            data: data.clone(),
            damage,
            alone,
            former,
            hold: found.hold,
            key_refresh: refresh,
        };
        let start = Start {
            went_back: past == restore::Past::TakenBack,
            restored: restored_ms,
            keyed: keyed_ms,
            began: since_begin(),
        };
        let threads = (pool, verifiers);
        let mut core = Core::new(config, service, restored, files, threads, outgoing, start)?;
        if let Some(holder) = holder.as_ref().filter(|_| core.is_recovering()) {
            core.recover(epoch::recovers(holder)?);
        }
        let every = refresh.unwrap_or_default();
        let renewals = holder.map(|holder| epoch::renew(holder, every, mailbox.clone()));
        let renewals = renewals.transpose().map_err(io)?;
        let core = std::thread::Builder::new()
            .name(core_thread::NAME.into())
            .spawn(move || {
                let ended = core.run(&woken);
                drop(renewals);
                ended
            })
            .map_err(io)?;
        let stopper = Stopper(mailbox);
        Ok(Daemon { stopper, core })
    }

    /// What stops it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the replica has stopped and what it wrote is on disk.
    ///
    /// # Errors
    /// Why it stopped, if nobody told it to.
    pub fn wait(self) -> Result<(), DaemonError> {
        let result = self.core.join();
        result.unwrap_or_else(|panic| Err(Panicked::new(core_thread::NAME, &*panic).into()))
    }
}
