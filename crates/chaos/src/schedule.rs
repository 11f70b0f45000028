//! What goes wrong, and when: drawn from a seed, or read from a file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// Somebody with links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Node {
    /// A replica.
    Replica(u8),
    /// A client of the library, or a mount.
    Client(u8),
}

/// What happens to bytes on their way, on one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// They stay where they are until the trouble is over, as if they were sent again and again.
    Hold,
    /// Connections break, and none can be made.
    Cut,
    /// They come later.
    Delay { ms: u64, jitter_ms: u64 },
    /// Of so many pieces in a thousand, one bit is turned.
    Corrupt { per_mille: u64 },
    /// They come slowly.
    Limit { kib_per_s: u64 },
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Replicas are killed, and started again at the end.
    Kill { replicas: Vec<u8> },
    /// Replicas stand still.
    Pause { replicas: Vec<u8> },
    /// What `from` sends to `to` has trouble; what `to` sends to `from` as well, if `both`.
    Network {
        from: Vec<Node>,
        to: Vec<Node>,
        both: bool,
        trouble: Trouble,
    },
    /// A replica's disk is full but for this. The replica is started again at the end if it stopped.
    FullDisk { replica: u8, left_kib: u64 },
    /// No file of a replica may become longer than this: the system kills it within a write. It is started again at
    /// the end.
    CutWrite { replica: u8, longest_kib: u64 },
    /// A replica is killed, and some of what it has written is not as it was when it is started again at the end.
    Rot {
        replica: u8,
        what: Rotten,
        /// Where it begins, in thousandths of what there is.
        at_per_mille: u64,
        /// From there on one byte in so many is another. 0: one byte.
        every: u64,
    },
}

/// What of a replica's files is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rotten {
    /// The log, at one byte which was safe on the disk.
    Log,
    /// The state.
    State,
    /// Large contents.
    Blobs,
    /// The end of the log, which is gone, as with a disk that has told lies about what it has written: the replica may not notice, and
    /// speak against what it has said.
    LogEnd,
}

/// A fault and its time, in milliseconds from the start of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// From when.
    pub start_ms: u64,
    /// Until when.
    pub end_ms: u64,
    /// What.
    pub fault: Fault,
}

/// Faults in the order of their starts.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Schedule {
    /// How long it is, in milliseconds. All faults are over then.
    pub duration_ms: u64,
    /// The faults.
    pub acts: Vec<Act>,
}

/// Who can be hit.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// How many replicas there are.
    pub replicas: u8,
    /// How many clients have links.
    pub clients: u8,
    /// Whether replicas have disks that can be filled.
    pub disks: bool,
    /// How often a replica may lose what it has written: it may count as one that misbehaves until it has recovered.
    pub rots: u8,
    /// The one whose log may lose its end unnoticed, and so counts as one that misbehaves all the time.
    pub forgetful: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    KillMany,
    Pause,
    Partition,
    Isolate,
    OneWay,
    Delay,
    Corrupt,
    Limit,
    FullDisk,
    CutWrite,
    Outage,
    Rot,
    Forget,
}

/// How long a client must be away for its session to be lost, and so for the outcome of what it asked for not to be known.
const OUTAGE_MS: u64 = 55_000;

/// How long a replica's process is left alone after a fault of it, in milliseconds.
const REST_MS: u64 = 300;

const KINDS: [Kind; 14] = [
    Kind::Kill,
    Kind::KillMany,
    Kind::Pause,
    Kind::Partition,
    Kind::Isolate,
    Kind::OneWay,
    Kind::Delay,
    Kind::Corrupt,
    Kind::Limit,
    Kind::FullDisk,
    Kind::CutWrite,
    Kind::Outage,
    Kind::Rot,
    Kind::Forget,
];

impl Schedule {
    /// The schedule of a seed. Which kinds of faults there are, and how many, is drawn as well: schedules that have
    /// everything are all alike (Groce et al. 2012, swarm testing).
    pub fn draw(seed: u64, duration_ms: u64, cast: &Cast) -> Schedule {
        let mut dice = Dice::new(seed, 1);
        let count = dice.range(3, KINDS.len() as u64) as usize;
        let kinds = dice.some(&KINDS, count);
        let longest_gap_ms = dice.pick(&[1_500, 4_000, 8_000]);
        let mut draw = Draw {
            dice,
            cast,
            busy_until: vec![0; usize::from(cast.replicas)],
            rots_left: cast.rots,
        };
        let mut acts = Vec::new();
        let mut at = draw.dice.range(200, 1_500);
        while at + 500 < duration_ms {
            let kind = draw.dice.pick(&kinds);
            let gap = draw.dice.range(200, longest_gap_ms);
            let length = match kind {
                Kind::Kill | Kind::KillMany | Kind::CutWrite | Kind::Rot => {
                    draw.dice.range(100, 5_000)
                }
                Kind::FullDisk => draw.dice.range(2_000, 8_000),
                // Only where it fits in.
                Kind::Outage if at + OUTAGE_MS > duration_ms => {
                    at += gap;
                    continue;
                }
                Kind::Outage => OUTAGE_MS,
                _ => draw.dice.range(200, 6_000),
            };
            let end = (at + length).min(duration_ms);
            if let Some(fault) = draw.fault(kind, at, end) {
                acts.push(Act {
                    start_ms: at,
                    end_ms: end,
                    fault,
                });
            }
            at += gap;
        }
        Schedule { duration_ms, acts }
    }
}

struct Draw<'a> {
    dice: Dice,
    cast: &'a Cast,
    /// Until when each replica's process is somebody's already.
    busy_until: Vec<u64>,
    rots_left: u8,
}

impl Draw<'_> {
    fn fault(&mut self, kind: Kind, at: u64, end: u64) -> Option<Fault> {
        Some(match kind {
            Kind::Kill => Fault::Kill {
                replicas: self.take(1, at, end)?,
            },
            Kind::KillMany => {
                let count = self.dice.range(2, u64::from(self.cast.replicas).max(2));
                Fault::Kill {
                    replicas: self.take(count as usize, at, end)?,
                }
            }
            Kind::Pause => {
                let f = u64::from(self.cast.replicas - 1) / 3;
                let count = self.dice.range(1, 1 + f);
                Fault::Pause {
                    replicas: self.take(count as usize, at, end)?,
                }
            }
            Kind::FullDisk if !self.cast.disks => return None,
            Kind::FullDisk => Fault::FullDisk {
                replica: self.take(1, at, end)?[0],
                left_kib: self.dice.pick(&[0, 64, 1024]),
            },
            Kind::CutWrite => Fault::CutWrite {
                replica: self.take(1, at, end)?[0],
                longest_kib: self.dice.range(64, 8 << 10),
            },
            Kind::Rot => {
                self.rots_left = self.rots_left.checked_sub(1)?;
                let replica = self.take(1, at, end)?[0];
                let what = self.dice.pick(&[Rotten::Log, Rotten::State, Rotten::Blobs]);
                Fault::Rot {
                    replica,
                    what,
                    at_per_mille: self.dice.below(1000),
                    every: match what {
                        Rotten::State | Rotten::Blobs => self.dice.pick(&[0, 4096]),
                        Rotten::Log | Rotten::LogEnd => 0,
                    },
                }
            }
            Kind::Forget => Fault::Rot {
                replica: self.take_this(self.cast.forgetful?, at, end)?,
                what: Rotten::LogEnd,
                at_per_mille: self.dice.below(1000),
                every: 0,
            },
            Kind::Partition => {
                let all = self.everyone();
                let side: Vec<bool> = all.iter().map(|_| self.dice.percent(50)).collect();
                let pick = |wanted: bool| {
                    let sides = all.iter().zip(&side).filter(|(_, side)| **side == wanted);
                    sides.map(|(node, _)| *node).collect::<Vec<_>>()
                };
                self.network(pick(true), pick(false), true)?
            }
            Kind::Isolate => {
                let alone = vec![self.replica()];
                let others = self.everyone().into_iter().filter(|n| !alone.contains(n));
                let others = others.collect();
                self.network(alone, others, true)?
            }
            Kind::Outage => {
                let client = self.dice.below(u64::from(self.cast.clients)) as u8;
                let replicas = (0..self.cast.replicas).map(Node::Replica).collect();
                Fault::Network {
                    from: vec![Node::Client(client)],
                    to: replicas,
                    both: true,
                    trouble: Trouble::Hold,
                }
            }
            Kind::OneWay => {
                let (from, to) = (self.several(), self.several());
                self.network(from, to, false)?
            }
            Kind::Delay => {
                let trouble = Trouble::Delay {
                    ms: self.dice.pick(&[2, 10, 50, 200, 800]),
                    jitter_ms: self.dice.pick(&[0, 5, 50, 300]),
                };
                self.troubled(trouble)
            }
            Kind::Corrupt => {
                let trouble = Trouble::Corrupt {
                    per_mille: self.dice.pick(&[1, 10, 100]),
                };
                self.troubled(trouble)
            }
            Kind::Limit => {
                let trouble = Trouble::Limit {
                    kib_per_s: self.dice.pick(&[20, 100, 1000]),
                };
                self.troubled(trouble)
            }
        })
    }

    /// This replica, if its process is free in this time.
    fn take_this(&mut self, replica: u8, at: u64, end: u64) -> Option<u8> {
        let until = &mut self.busy_until[usize::from(replica)];
        let is_free = *until <= at;
        if is_free {
            *until = end + REST_MS;
        }
        is_free.then_some(replica)
    }

    /// So many replicas whose processes are free in this time, or fewer; none if there are none.
    fn take(&mut self, count: usize, at: u64, end: u64) -> Option<Vec<u8>> {
        let free = (0..self.cast.replicas).filter(|r| self.busy_until[usize::from(*r)] <= at);
        let free: Vec<u8> = free.collect();
        let taken = self.dice.some(&free, count);
        for replica in &taken {
            self.busy_until[usize::from(*replica)] = end + REST_MS;
        }
        (!taken.is_empty()).then_some(taken)
    }

    fn everyone(&self) -> Vec<Node> {
        let replicas = (0..self.cast.replicas).map(Node::Replica);
        let clients = (0..self.cast.clients).map(Node::Client);
        replicas.chain(clients).collect()
    }

    fn replica(&mut self) -> Node {
        Node::Replica(self.dice.below(u64::from(self.cast.replicas)) as u8)
    }

    fn several(&mut self) -> Vec<Node> {
        let all = self.everyone();
        let count = self.dice.range(1, all.len() as u64);
        self.dice.some(&all, count as usize)
    }

    fn troubled(&mut self, trouble: Trouble) -> Fault {
        Fault::Network {
            from: self.several(),
            to: self.several(),
            both: self.dice.percent(50),
            trouble,
        }
    }

    fn network(&mut self, from: Vec<Node>, to: Vec<Node>, both: bool) -> Option<Fault> {
        if from.is_empty() || to.is_empty() {
            return None;
        }
        let trouble = match self.dice.percent(60) {
            true => Trouble::Hold,
            false => Trouble::Cut,
        };
        Some(Fault::Network {
            from,
            to,
            both,
            trouble,
        })
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Replica(id) => write!(f, "r{id}"),
            Node::Client(id) => write!(f, "c{id}"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Hold => write!(f, "hold"),
            Trouble::Cut => write!(f, "cut"),
            Trouble::Delay { ms, jitter_ms } => write!(f, "delay by {ms} to {} ms", ms + jitter_ms),
            Trouble::Corrupt { per_mille } => write!(f, "corrupt {per_mille} of 1000 pieces"),
            Trouble::Limit { kib_per_s } => write!(f, "limit to {kib_per_s} KiB/s"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = |nodes: &[Node]| {
            let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
            names.join(" ")
        };
        match self {
            Fault::Kill { replicas } => write!(f, "kill {replicas:?}"),
            Fault::Pause { replicas } => write!(f, "pause {replicas:?}"),
            Fault::Network {
                from,
                to,
                both,
                trouble,
            } => {
                let arrow = if *both { "<->" } else { "->" };
                write!(f, "{trouble}: {} {arrow} {}", nodes(from), nodes(to))
            }
            Fault::FullDisk { replica, left_kib } => {
                write!(f, "fill the disk of {replica} up to {left_kib} KiB")
            }
            Fault::CutWrite {
                replica,
                longest_kib,
            } => write!(f, "cut writes of {replica} at {longest_kib} KiB"),
            Fault::Rot {
                replica,
                what,
                at_per_mille,
                every,
            } => {
                let many = if *every == 0 {
                    "one byte"
                } else {
                    "many bytes"
                };
                let what = match what {
                    Rotten::Log => "log",
                    Rotten::State => "state",
                    Rotten::Blobs => "blobs",
                    Rotten::LogEnd => return write!(f, "cut the end of the log of {replica}"),
                };
                write!(
                    f,
                    "rot {many} of the {what} of {replica} from {at_per_mille} of 1000"
                )
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for act in &self.acts {
            let (start, end) = (act.start_ms as f64 / 1e3, act.end_ms as f64 / 1e3);
            writeln!(f, "  {start:7.3} .. {end:7.3} s  {}", act.fault)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAST: Cast = Cast {
        replicas: 4,
        clients: 5,
        disks: true,
        rots: 1,
        forgetful: Some(2),
    };

    /// Equal seeds give equal schedules, others give others; all is over at the end, and no process is hit twice at a time.
    #[test]
    fn schedules_are_drawn_from_seeds() {
        let mut seen = String::new();
        let is_outage = |act: &Act| act.end_ms - act.start_ms == OUTAGE_MS;
        let outages = |seed| {
            Schedule::draw(seed, 80_000, &CAST)
                .acts
                .iter()
                .any(is_outage)
        };
        assert!((0..20).any(outages));
        for seed in 0..200 {
            let schedule = Schedule::draw(seed, 40_000, &CAST);
            assert_eq!(schedule, Schedule::draw(seed, 40_000, &CAST));
            assert_ne!(schedule, Schedule::draw(seed + 1, 40_000, &CAST));
            let mut busy = [0; 4];
            let mut rots = 0;
            for act in &schedule.acts {
                assert!(act.start_ms < act.end_ms && act.end_ms <= 40_000);
                let hit = match &act.fault {
                    Fault::Kill { replicas } | Fault::Pause { replicas } => replicas.clone(),
                    Fault::Rot { replica, what, .. } => {
                        match what {
                            Rotten::LogEnd => assert_eq!(*replica, 2),
                            Rotten::Log | Rotten::State | Rotten::Blobs => rots += 1,
                        }
                        vec![*replica]
                    }
                    Fault::FullDisk { replica, .. } | Fault::CutWrite { replica, .. } => {
                        vec![*replica]
                    }
                    Fault::Network { from, to, .. } => {
                        assert!(!from.is_empty() && !to.is_empty());
                        Vec::new()
                    }
                };
                for replica in hit {
                    let until = &mut busy[usize::from(replica)];
                    assert!(*until < act.start_ms, "seed {seed}: {schedule}");
                    *until = act.end_ms;
                }
            }
            assert!(rots <= 1, "seed {seed}: {schedule}");
            seen += &schedule.to_string();
        }
        for words in [
            "kill [2]",
            "kill [0, 1, 2, 3]",
            "pause [1]",
            "hold: ",
            "cut: ",
            " -> ",
            "delay",
            "corrupt",
            "limit",
            "fill the disk",
            "cut writes",
            "rot one byte of the log",
            "rot many bytes of the state",
            "of the blobs",
            "cut the end of the log of 2",
        ] {
            assert!(seen.contains(words), "no {words:?} in 200 schedules");
        }
    }

    /// A schedule comes back from its file.
    #[test]
    fn schedules_can_be_kept() {
        let schedule = Schedule::draw(7, 60_000, &CAST);
        let text = serde_json::to_string(&schedule).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Schedule>(&text).expect("JSON"),
            schedule
        );
    }
}
