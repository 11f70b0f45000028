//! What a seed decides about a run before it begins: swarm testing, in which each run has few kinds of trouble, but each
//! kind has runs in which it is alone and strong.

use quorate_agreement::client::ClientOptions;
use quorate_agreement::{CHECKPOINT_BYTES, INLINE_BYTES, Tuning};
use quorate_fault::Fault;
use quorate_wire::message::MAX_BATCH_REQUESTS;
use quorate_wire::message::session::KEPT_BYTES;
use quorate_wire::{Authentication, Quorum, ReplicaId};

use crate::dice::Dice;
use crate::sharing;

/// The service that the group replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Lists of numbers under keys.
    KeyValue,
    /// The file service.
    Files,
    /// The file service of an owner, who shares it by credentials and takes them back: see [`crate::sharing`].
    Shared,
}

/// How a faulty replica is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adversary {
    /// A correct replica behind a behaviour of `quorate_fault`.
    Fault(Fault),
    /// Two correct replicas with one identity; each of the others sees one of them, and sometimes it changes which.
    Twin,
    /// A correct replica of whose messages those of some rounds, so many in a thousand, are changed on the way to some of the others;
    /// see [`crate::rounds::process`].
    ByRound(u64),
    /// A correct replica whose store changes some values as it writes them, while the storm lasts.
    DamagedStore,
}

/// After what a replica's power goes, where that is aimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// A PRE-PREPARE, PREPARE or COMMIT has left.
    Vote,
    /// A batch was executed.
    Execute,
    /// A VIEW-CHANGE or NEW-VIEW has left.
    ViewChange,
}

/// All that a run is like. Times are in microseconds of virtual time unless the name says otherwise.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// Size of the group.
    pub replicas: usize,
    /// How many clients.
    pub clients: usize,
    /// Operations of each client.
    pub operations: usize,
    /// Operations that a client has open at once.
    pub window: usize,
    /// Between the operations of a client.
    pub think: (u64, u64),
    /// The service.
    pub workload: Workload,
    /// Operations that only read, in a thousand.
    pub reads: u64,
    /// Operations too long to travel inside a pre-prepare, in a thousand.
    pub large: u64,
    /// How many keys or names.
    pub keys: u64,
    /// How long messages travel.
    pub delay: (u64, u64),
    /// Messages that travel much longer, in a thousand.
    pub late: u64,
    /// Messages lost, in a thousand.
    pub loss: u64,
    /// Messages that come twice, in a thousand.
    pub duplicates: u64,
    /// Whether messages between two nodes keep their order.
    pub fifo: bool,
    /// Whether messages travel as bytes.
    pub encode: bool,
    /// How long the log takes to be durable.
    pub sync: (u64, u64),
    /// How long the store takes to be durable.
    pub store: (u64, u64),
    /// The faulty replicas.
    pub adversaries: Vec<(ReplicaId, Adversary)>,
    /// Whether the faulty ones fall silent when the storm is over.
    pub silent_after: bool,
    /// Whether f replicas, the faulty ones among them, are dead for ever when the storm is over: any 2f+1 correct ones must do.
    pub core_alone: bool,
    /// Mean time between crashes of replicas; 0 for none.
    pub crash_every: u64,
    /// How long a crashed replica is down.
    pub down: (u64, u64),
    /// Crashes that take all replicas at once, in a thousand.
    pub crash_all: u64,
    /// Starts of a replica that find its log damaged, in a thousand, as far as no more than f replicas are faulty or have not come
    /// back from that.
    pub forgets: u64,
    /// Starts of a replica that recovers on purpose, in a thousand, whoever else is faulty or recovers.
    pub recovers: u64,
    /// Moments of this kind at which the power of a replica goes, in a thousand.
    pub aimed: Option<(Aim, u64)>,
    /// Rounds in which the network is cut, in a thousand; see [`crate::rounds`].
    pub rounds: u64,
    /// Mean time between partitions; 0 for none.
    pub partition_every: u64,
    /// Mean time between crashes of clients; 0 for none.
    pub client_crash_every: u64,
    /// A replica that is down for most of the storm, so that it comes back to a group that has forgotten its past.
    pub exile: Option<ReplicaId>,
    /// Clients that flood, beside the others. It is looked then what replicas have in memory.
    pub floods: usize,
    /// Clients whose authenticators are wrong for some replicas.
    pub bad_mac_clients: usize,
    /// How far replicas' clocks are off, in milliseconds.
    pub skew_ms: u64,
    /// Whether votes are in memory alone: then replicas have no logs, and one that crashes is dead for ever. No more crash than may be faulty.
    pub memory: bool,
    /// Operations on lists that are said to be much work, in a thousand.
    pub heavy: u64,
    /// Whether everything is signed.
    pub authentication: Authentication,
    /// After how long replicas take another key, certified by their key holders; 0: they have none.
    pub epochs: u64,
    /// Which optimisations replicas use, and how far.
    pub tuning: Tuning,
    /// Which ones clients use.
    pub options: ClientOptions,
    /// Whether replicas execute operations beside each other, on workers.
    pub workers: bool,
    /// Whether all operations conflict all the same.
    pub all_conflict: bool,
    /// How long an operation takes that a worker runs.
    pub run: (u64, u64),
    /// How long it takes to look into a state that was set aside.
    pub look: u64,
    /// How many bytes of results are kept of a session.
    pub kept_bytes: usize,
    /// The weight after which a checkpoint is due.
    pub checkpoint_bytes: usize,
    /// How long a replica gathers inputs at most before it acts on them; 0: it acts on each.
    pub turn: u64,
    /// The replicas' patience, in milliseconds.
    pub timeout_ms: u64,
    /// When the storm ends.
    pub storm: u64,
    /// How long after it everything must be done.
    pub heal_within: u64,
}

/// Where few bytes are to make a checkpoint due: each change of files counts for tens of thousands, and one for each of them is more than a slow
/// store can take.
fn for_files(checkpoint_bytes: usize) -> usize {
    (20 * checkpoint_bytes).min(CHECKPOINT_BYTES)
}

impl Knobs {
    /// How many clients the group file names; the others are guests.
    pub fn named(&self) -> usize {
        match self.workload {
            Workload::KeyValue | Workload::Files => self.clients,
            Workload::Shared => 1 + sharing::OWNER,
        }
    }

    /// The same with an owner and guests.
    pub fn with_guests(self) -> Knobs {
        let checkpoint_bytes = match self.workload {
            Workload::KeyValue => for_files(self.checkpoint_bytes),
            Workload::Files | Workload::Shared => self.checkpoint_bytes,
        };
        let clients = self.clients.max(3);
        Knobs {
            workload: Workload::Shared,
            clients,
            // Each has as much to do as the one or two in their place would have had: with a slow store and a checkpoint for each operation that takes long.
            heal_within: self.heal_within * clients as u64 / self.clients.max(1) as u64,
            checkpoint_bytes,
            ..self
        }
    }

    /// The same with clients that flood, and in many runs a replica that does.
    pub fn with_floods(self, seed: u64) -> Knobs {
        let mut d = Dice::new(seed, 29);
        let mut adversaries = self.adversaries;
        for (_, adversary) in &mut adversaries {
            if d.per_mille(400) {
                *adversary = Adversary::Fault(Fault::Flood);
            }
        }
        Knobs {
            floods: 1 + (seed % 4) as usize,
            adversaries,
            ..self
        }
    }

    /// A calm group of `replicas` that nothing happens to; scripted scenarios start from it.
    pub fn calm(replicas: usize) -> Knobs {
        Knobs {
            replicas,
            clients: 0,
            operations: 0,
            window: 1,
            think: (0, 1000),
            workload: Workload::KeyValue,
            reads: 0,
            large: 0,
            keys: 3,
            delay: (100, 500),
            late: 0,
            loss: 0,
            duplicates: 0,
            fifo: true,
            encode: true,
            sync: (100, 300),
            store: (500, 2000),
            adversaries: Vec::new(),
            silent_after: false,
            core_alone: false,
            crash_every: 0,
            down: (0, 0),
            crash_all: 0,
            forgets: 0,
            recovers: 0,
            aimed: None,
            rounds: 0,
            partition_every: 0,
            client_crash_every: 0,
            exile: None,
            floods: 0,
            bad_mac_clients: 0,
            skew_ms: 0,
            memory: false,
            heavy: 0,
            authentication: Authentication::Mac,
            epochs: 0,
            tuning: Tuning {
                vouched_from: usize::MAX,
                ..Tuning::default()
            },
            options: ClientOptions::default(),
            workers: false,
            all_conflict: false,
            run: (10, 200),
            look: 200,
            turn: 0,
            checkpoint_bytes: CHECKPOINT_BYTES,
            kept_bytes: KEPT_BYTES,
            timeout_ms: 500,
            storm: 0,
            heal_within: 60_000_000,
        }
    }

    /// A calm group in which one replica is faulty by round, and clients that ask for something.
    pub fn by_round(seed: u64) -> Knobs {
        let mut d = Dice::new(seed, 28);
        let mut k = Knobs::calm(4);
        (k.clients, k.operations, k.window) =
            (1 + d.below(3) as usize, 30, 1 + d.below(4) as usize);
        k.think = (0, d.pick(&[1_000, 20_000]));
        k.reads = d.pick(&[0, 300]);
        k.storm = 3_000_000;
        let id = match d.per_mille(500) {
            true => 0,
            false => d.below(4) as u8,
        };
        let faulty = Adversary::ByRound(d.pick(&[50, 200, 600]));
        k.adversaries = vec![(ReplicaId(id), faulty)];
        k
    }

    /// What a seed draws.
    pub fn draw(seed: u64) -> Knobs {
        let mut d = Dice::new(seed, 0);
        let mut k = Knobs::calm([4, 4, 4, 4, 4, 4, 4, 4, 7, 1][d.below(10) as usize]);
        let long = d.per_mille(110) && k.replicas <= 4;
        k.clients = 1 + d.below(4) as usize;
        k.window = [1, 1, 2, 8][d.below(4) as usize];
        k.operations = match long {
            true => (300 + d.below(400) as usize) / k.clients,
            false => 3 + d.below(20) as usize,
        };
        if long {
            k.window = 1 + d.below(2) as usize;
        }
        k.think = (
            0,
            [0, 2_000, 50_000][d.below(if long { 2 } else { 3 }) as usize],
        );
        if d.per_mille(250) {
            k.workload = Workload::Files;
        }
        k.reads = [0, 200, 600][d.below(3) as usize];
        k.large = [0, 0, 100, 400][d.below(if long { 2 } else { 4 }) as usize];
        k.keys = 1 + d.below(4);
        // Long runs are fast ones, so that they come to their end.
        let slowest = [300, 2_000, 20_000, 60_000][d.below(if long { 2 } else { 4 }) as usize];
        k.delay = (50 + d.below(slowest / 2), slowest);
        k.late = [0, 0, 20, 100][d.below(4) as usize];
        k.loss = [0, 0, 10, 50, 200][d.below(if long { 4 } else { 5 }) as usize];
        k.duplicates = [0, 0, 20, 100][d.below(4) as usize];
        k.fifo = d.per_mille(500);
        k.encode = d.per_mille(250);
        let sync = [(50, 200), (500, 5_000), (2_000, 40_000)];
        k.sync = sync[d.below(if long { 2 } else { 3 }) as usize];
        k.store = [(200, 1_000), (5_000, 50_000), (50_000, 800_000)][d.below(3) as usize];
        k.skew_ms = [0, 0, 50, 1_500][d.below(4) as usize];
        k.timeout_ms = [250, 500, 1_000][d.below(3) as usize];
        k.storm = match long {
            true => 4_000_000 + d.below(8_000_000),
            false => 1_000_000 + d.below(5_000_000),
        };
        draw_adversaries(&mut k, &mut d);
        if d.per_mille(450) {
            k.crash_every = 100_000 + d.below(if long { 4_000_000 } else { 1_500_000 });
            k.down = [(1_000, 50_000), (100_000, 1_500_000)][d.below(2) as usize];
            k.crash_all = [0, 0, 200, 1000][d.below(4) as usize];
        }
        if d.per_mille(350) {
            k.partition_every = 200_000 + d.below(2_000_000);
        }
        if d.per_mille(150) {
            k.client_crash_every = 300_000 + d.below(2_000_000);
        }
        // Each operation of such a client costs a repeat, so not in long runs.
        if d.per_mille(60) && !long {
            k.bad_mac_clients = 1;
        }
        k.silent_after = d.per_mille(400);
        // A store gets a checkpoint when 2f+1 have the one before: the slowest of them each time.
        k.heal_within = match k.store.1 >= 500_000 {
            true => 400_000_000,
            false => 200_000_000,
        };
        let mut d = Dice::new(seed, 4);
        k.tuning.tentative = d.per_mille(850);
        k.options.unordered_reads = d.per_mille(750);
        if d.per_mille(40) && !long {
            k.authentication = Authentication::Signature;
        }
        let mut d = Dice::new(seed, 5);
        k.workers = d.per_mille(400);
        k.all_conflict = d.per_mille(50);
        // What is slower than the network changes places with more.
        let slowest = [100, 2_000, 20_000][d.below(if long { 2 } else { 3 }) as usize];
        k.run = (d.below(slowest / 2), slowest);
        let mut d = Dice::new(seed, 6);
        k.turn = [0, 0, 200, 2_000][d.below(4) as usize];
        let few = [CHECKPOINT_BYTES, CHECKPOINT_BYTES, 1_000, 5_000];
        k.checkpoint_bytes = few[d.below(4) as usize];
        if k.workload == Workload::Files {
            k.checkpoint_bytes = for_files(k.checkpoint_bytes);
        }
        let mut d = Dice::new(seed, 7);
        if d.per_mille(200) {
            let aim = d.pick(&[Aim::Vote, Aim::Execute, Aim::ViewChange]);
            k.aimed = Some((aim, d.pick(&[5, 20, 100])));
            if k.down == (0, 0) {
                k.down = (1_000, 400_000);
            }
        }
        k.rounds = d.pick(&[0, 0, 0, 0, 20, 100, 300]);
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(100) {
                *adversary = Adversary::Fault(Fault::Restless);
            }
        }
        let mut d = Dice::new(seed, 8);
        k.tuning.vouched_from = d.pick(&[usize::MAX, usize::MAX, 1, 2]);
        let mut d = Dice::new(seed, 9);
        let f = Quorum::new(k.replicas).expect("a size of a group").f();
        if k.adversaries.len() < f && d.per_mille(350) {
            k.forgets = d.pick(&[200, 1_000]);
            if k.crash_every == 0 {
                k.crash_every = 500_000 + d.below(2_000_000);
                k.down = (1_000, 200_000);
            }
        }
        let mut d = Dice::new(seed, 10);
        // A replica that comes back without its log needs all the others.
        k.core_alone = d.per_mille(250) && k.forgets == 0;
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(200) {
                *adversary = Adversary::ByRound(d.pick(&[50, 200, 600]));
            }
        }
        let mut d = Dice::new(seed, 12);
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(60) {
                *adversary = Adversary::Fault(Fault::Leap);
            }
        }
        let mut d = Dice::new(seed, 13);
        if d.per_mille(250) && k.authentication == Authentication::Mac {
            // Real ones are longer still; a replica that is behind takes 0.4 s to see that it must fetch the state.
            k.epochs = d.pick(&[1_000_000, 2_000_000, 5_000_000]);
        }
        let mut d = Dice::new(seed, 16);
        k.look = d.pick(&[200, 200, 20_000]);
        let mut d = Dice::new(seed, 17);
        if d.per_mille(200) && k.replicas > 1 {
            k.recovers = d.pick(&[200, 1_000]);
            if k.crash_every == 0 {
                k.crash_every = 500_000 + d.below(2_000_000);
                k.down = (1_000, 200_000);
            }
        }
        let mut d = Dice::new(seed, 21);
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(100) {
                *adversary = Adversary::Fault(d.pick(&[Fault::Mislead, Fault::Shirk]));
            }
        }
        let mut d = Dice::new(seed, 23);
        // Where results are long beside that, some are gone when they are asked for again.
        k.kept_bytes = d.pick(&[KEPT_BYTES, KEPT_BYTES, KEPT_BYTES, 60, 200, 1_000]);
        let mut d = Dice::new(seed, 24);
        if d.per_mille(200) {
            k.heavy = d.pick(&[50, 300, 1_000]);
        }
        let mut d = Dice::new(seed, 25);
        if d.per_mille(150) {
            k.memory = true;
            // Nobody comes back, with or without a log.
            (k.forgets, k.recovers, k.crash_all) = (0, 0, 0);
        }
        let mut d = Dice::new(seed, 26);
        // What is switched off seldom, or far from what is usual.
        k.tuning.batches = d.pick(&[16, 16, 16, 1, 2, 4]);
        k.tuning.batch_requests = d.pick(&[MAX_BATCH_REQUESTS, MAX_BATCH_REQUESTS, 1, 3]);
        k.tuning.inline_bytes = d.pick(&[INLINE_BYTES, INLINE_BYTES, INLINE_BYTES, 0, 40]);
        k.options.inline_bytes = d.pick(&[INLINE_BYTES, INLINE_BYTES, INLINE_BYTES, 0, 40]);
        k.options.digest_replies = d.per_mille(800);
        k.options.early_reads = d.per_mille(800);
        let mut d = Dice::new(seed, 27);
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(100) {
                *adversary =
                    Adversary::Fault(d.pick(&[Fault::Starve, Fault::Withhold, Fault::Dawdle]));
            }
        }
        let mut d = Dice::new(seed, 28);
        for (_, adversary) in &mut k.adversaries {
            if d.per_mille(80) {
                *adversary = Adversary::Fault(d.pick(&[Fault::Linger, Fault::Bare]));
            }
        }
        let mut d = Dice::new(seed, 3);
        if long && k.replicas > 1 && d.per_mille(600) {
            k.exile = Some(ReplicaId(d.below(k.replicas as u64) as u8));
            // It is one of those that may be away; the rest must come far meanwhile.
            k.think = (0, 0);
            k.loss = k.loss.min(10);
            k.rounds = 0;
            if k.memory {
                // It is only cut off, and all others are needed meanwhile.
                (k.crash_every, k.aimed) = (0, None);
            }
        }
        k
    }
}

/// The behaviours that are drawn alike. Others are drawn apart, so that the runs of old seeds stay as they were.
const FAULTS: [Fault; 6] = [
    Fault::Lie,
    Fault::Equivocate,
    Fault::Silent,
    Fault::Slow,
    Fault::CorruptState,
    Fault::Mutate,
];

fn draw_adversaries(k: &mut Knobs, d: &mut Dice) {
    let f = Quorum::new(k.replicas).expect("a size of a group").f();
    if f == 0 || d.per_mille(350) {
        return;
    }
    let count = 1 + d.below(f as u64) as usize;
    while k.adversaries.len() < count {
        // Replica 0 is the first primary, and worth a fault more often than the others.
        let id = match d.per_mille(300) {
            true => 0,
            false => d.below(k.replicas as u64) as u8,
        };
        if k.adversaries.iter().any(|(r, _)| r.0 == id) {
            continue;
        }
        let kind = match d.below(10) {
            0 | 1 => Adversary::Twin,
            2 => Adversary::DamagedStore,
            _ => Adversary::Fault(d.pick(&FAULTS)),
        };
        k.adversaries.push((ReplicaId(id), kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds reach all behaviours; floods are for seeds that look at memory, and drawn there.
    #[test]
    fn all_behaviours_are_drawn() {
        let drawn: Vec<Knobs> = (0..4_000).map(Knobs::draw).collect();
        for fault in Fault::ALL {
            let has = |k: &Knobs| {
                let mut kinds = k.adversaries.iter().map(|(_, kind)| kind);
                kinds.any(|kind| matches!(kind, Adversary::Fault(its) if *its == fault))
            };
            let count = drawn.iter().filter(|k| has(k)).count();
            assert!(count >= 20 || fault == Fault::Flood, "{fault}: {count}");
        }
    }
}
