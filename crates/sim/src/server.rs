//! One server of the group: a replica, its disk, its clocks, and its misbehaviour if it is faulty.

use quorate_agreement::{Config, Now, Seen, Standing};
use quorate_execution::Workers;
use quorate_execution::graph::Conflicts;
use quorate_fault::{Fault, Faulty};
use quorate_replica::{Replica, Signing};
use quorate_state::Layer;
use quorate_wire::message::{PeerMessage, ReplicaMessage};
use quorate_wire::{LogIndex, Quorum, ReplicaId, ReplicaKeys, Seq, Signer, Time};

use crate::client::{client_key, flooder_key};
use crate::dice::Dice;
use crate::disk::Disk;
pub use crate::keys::key_of;
use crate::keys::standing_signer;
use crate::knobs::{Adversary, Knobs};
use crate::rounds::process::ByRound;
use crate::service::AnyService;

/// The wall clock at the beginning of a run, in nanoseconds.
pub const EPOCH_NS: u64 = 1_800_000_000_000_000_000;
/// How far the primary's time may be from a backup's clock.
pub const CLOCK_BOUND_MS: u64 = 5_000;

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Which replica it is; a twin shares this with another server.
    pub id: ReplicaId,
    /// The replica, while it is up.
    pub replica: Option<Box<Replica<AnyService>>>,
    /// What survives a crash.
    pub disk: Disk,
    /// How often it has started: what was under way before a crash is not for the replica after it.
    pub incarnation: u64,
    /// How it is faulty, if it is.
    pub adversary: Option<Adversary>,
    /// When its next tick is due.
    pub tick_at: Option<u64>,
    /// Whether it gathers inputs, and when it acts on them is scheduled.
    pub in_turn: bool,
    /// Where it stood when its last turn ended.
    pub last: Option<Standing>,
    /// How far its invariants have been looked at.
    pub seen: Seen,
    /// Where its log says that it has entered a view, since it started.
    pub entered: Option<LogIndex>,
    /// Up to where its log is on disk.
    pub durable: LogIndex,
    /// Where it has no log: up to where it was looked at what it has executed.
    pub shown: Seq,
    faulty: Option<Faulty>,
    by_round: Option<ByRound>,
    /// Whether it never starts again.
    pub dead: bool,
    /// Signs what leaves and checks what comes, where the group wants that.
    pub signing: Signing,
    /// The last two messages, which share a signature, as those of a turn do.
    said: Vec<PeerMessage>,
    config: Config,
    workers: Workers,
    skew_ns: i64,
}

impl Server {
    /// A server with a new disk, not started yet.
    pub fn new(
        id: ReplicaId,
        knobs: &Knobs,
        adversary: Option<Adversary>,
        keys: &ReplicaKeys,
        genesis: &Layer,
        dice: &mut Dice,
    ) -> Server {
        let quorum = Quorum::new(knobs.replicas).expect("a size of a group");
        let key = standing_signer(id);
        let faulty = match adversary {
            Some(Adversary::Fault(fault)) => {
                Some(Faulty::new(fault, quorum, id, key.clone(), dice.any()))
            }
            _ => None,
        };
        let by_round = match adversary {
            Some(Adversary::ByRound(per_mille)) => {
                Some(ByRound::new(dice.any(), per_mille, id, key.clone()))
            }
            _ => None,
        };
        let skew_ms = dice.below(2 * knobs.skew_ms + 1) as i64 - knobs.skew_ms as i64;
        Server {
            id,
            replica: None,
            disk: Disk::new(genesis),
            incarnation: 0,
            adversary,
            tick_at: None,
            in_turn: false,
            last: None,
            seen: Seen::default(),
            entered: None,
            durable: LogIndex(0),
            shown: Seq(0),
            faulty,
            by_round,
            dead: false,
            signing: Signing::new(
                knobs.authentication,
                quorum,
                id,
                key.clone(),
                keys.standing().to_vec(),
            ),
            said: Vec::new(),
            config: Config {
                quorum,
                me: id,
                key,
                keys: keys.clone(),
                clients: (0..knobs.named())
                    .map(client_key)
                    .chain((0..knobs.floods).map(flooder_key))
                    .map(|key| key.public())
                    .collect(),
                timeout_ms: knobs.timeout_ms,
                guests: knobs.named() < knobs.clients,
                clock_bound_ms: CLOCK_BOUND_MS,
                client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
                authentication: knobs.authentication,
                durable: !knobs.memory,
                checkpoint_bytes: knobs.checkpoint_bytes,
                kept_bytes: knobs.kept_bytes,
                tuning: knobs.tuning,
            },
            workers: Workers {
                count: usize::from(knobs.workers),
                conflicts: match knobs.all_conflict {
                    true => Conflicts::All,
                    false => Conflicts::Declared,
                },
            },
            skew_ns: skew_ms * 1_000_000,
        }
    }

    /// Whether it is to be believed and looked at.
    pub fn is_correct(&self) -> bool {
        self.adversary.is_none()
    }

    /// Its clocks at a moment.
    pub fn now(&self, now_us: u64) -> Now {
        Now {
            mono: now_us / 1000,
            wall: Time((EPOCH_NS + now_us * 1000).saturating_add_signed(self.skew_ns)),
        }
    }

    /// Starts the replica from its disk.
    pub fn start(&mut self, service: AnyService, now_us: u64) {
        assert!(self.replica.is_none());
        self.incarnation += 1;
        (self.tick_at, self.in_turn, self.last) = (None, false, None);
        self.seen = Seen::default();
        (self.entered, self.durable) = (None, LogIndex(0));
        let restored = self.disk.restore();
        let now = self.now(now_us);
        let replica = Replica::new(self.config.clone(), service, self.workers, restored, now);
        self.replica = Some(Box::new(replica));
    }

    /// It signs with another key from now on.
    pub fn renew(&mut self, signer: &Signer) {
        self.config.key = signer.clone();
        if let Some(faulty) = &mut self.faulty {
            faulty.renew(signer.clone());
        }
        if let Some(faulty) = &mut self.by_round {
            faulty.renew(signer.clone());
        }
    }

    /// The power goes.
    pub fn crash(&mut self, dice: &mut Dice) {
        self.replica = None;
        self.disk.crash(dice);
    }

    /// Whether all that it wants said leaves, once and at once.
    pub fn says_as_is(&self) -> bool {
        self.faulty.is_none() && self.by_round.is_none()
    }

    /// What really leaves for a replica, with delays in milliseconds.
    pub fn for_peer(&mut self, to: ReplicaId, message: PeerMessage) -> Vec<(PeerMessage, u64)> {
        let sent = match (&mut self.faulty, &mut self.by_round) {
            (Some(faulty), _) => faulty.for_peer(to, message),
            (None, Some(faulty)) => {
                let sent = faulty.for_peer(to, message).into_iter();
                sent.map(|m| (m, 0)).collect()
            }
            (None, None) => vec![(message, 0)],
        };
        let sealed = sent.into_iter().map(|(m, at)| (self.seal(m), at));
        sealed.collect()
    }

    fn seal(&mut self, message: PeerMessage) -> PeerMessage {
        if !self.signing.signs() {
            return message;
        }
        // To several replicas, one after the other.
        if self.said.last() != Some(&message) {
            self.said.push(message);
            let before = self.said.len().saturating_sub(2);
            self.said.drain(..before);
        }
        let sealed = self.signing.seal_all(&self.said);
        sealed.into_iter().next_back().expect("the message")
    }

    /// What really leaves for a client.
    pub fn for_client(&mut self, message: ReplicaMessage) -> Vec<(ReplicaMessage, u64)> {
        match &mut self.faulty {
            Some(faulty) => faulty.for_client(message),
            None => vec![(message, 0)],
        }
    }

    /// The key with which it signs.
    pub fn signer(&self) -> &Signer {
        &self.config.key
    }

    /// Somebody has it, and has it misbehave.
    pub fn fall_into_hands(&mut self, kind: Fault, quorum: Quorum) {
        let key = self.config.key.clone();
        self.adversary = Some(Adversary::Fault(kind));
        self.faulty = Some(Faulty::new(kind, quorum, self.id, key, 0));
    }

    /// Nobody has it any more.
    pub fn be_sound(&mut self) {
        (self.adversary, self.faulty) = (None, None);
    }

    /// From now on a faulty server says nothing.
    pub fn fall_silent(&mut self) {
        let Config {
            quorum, me, key, ..
        } = &self.config;
        if self.faulty.is_some() || self.by_round.is_some() {
            let silent = Faulty::new(Fault::Silent, *quorum, *me, key.clone(), 0);
            self.faulty = Some(silent);
        }
    }
}
