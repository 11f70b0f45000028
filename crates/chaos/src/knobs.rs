//! What a group is like: drawn from its seed.

use std::fmt;

use quorate_fault::Fault;
use quorate_wire::Authentication;

use crate::dice::Dice;

/// A group and those who use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// How many replicas.
    pub replicas: u8,
    /// The one that misbehaves, and how.
    pub byzantine: Option<(u8, Fault)>,
    /// The one whose log may lose its end, where none misbehaves otherwise.
    pub forgetful: Option<u8>,
    /// Whether all messages are signed.
    pub signed: bool,
    /// Threads that execute operations.
    pub workers: u16,
    /// Threads that check signatures, to which all are handed.
    pub verifiers: u16,
    /// Threads that seal, to which all is handed that is sent.
    pub sealers: u16,
    /// Clients of the library.
    pub clients: u8,
    /// Mounts.
    pub mounts: u8,
    /// How long a client rests between two operations, at most, in milliseconds.
    pub rest_ms: u64,
    /// Whether the replicas' disks can be filled.
    pub disks: bool,
}

/// What this machine allows.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// Whether there is FUSE.
    pub mounts: bool,
    /// Whether small file systems can be mounted.
    pub disks: bool,
}

/// What somebody wants of every group, in place of what its seed would give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// How many replicas.
    pub replicas: Option<u8>,
    /// How many mounts, where there is FUSE.
    pub mounts: Option<u8>,
}

impl Knobs {
    /// These, but for what is wanted.
    pub fn but(mut self, wanted: Wanted, means: Means) -> Knobs {
        if let Some(replicas) = wanted.replicas {
            self.replicas = replicas;
            self.byzantine = self.byzantine.map(|(id, kind)| (id % replicas, kind));
            self.forgetful = self.forgetful.map(|id| id % replicas);
        }
        if let Some(mounts) = wanted.mounts
            && means.mounts
        {
            self.mounts = mounts;
        }
        self
    }

    /// The knobs of a seed.
    pub fn draw(seed: u64, means: Means) -> Knobs {
        let mut dice = Dice::new(seed, 3);
        let replicas = if dice.percent(15) { 7 } else { 4 };
        let faulty = dice.below(u64::from(replicas)) as u8;
        let kind = dice.pick(&Fault::ALL);
        let byzantine = dice.percent(50).then_some((faulty, kind));
        let forgets = byzantine.is_none() && Dice::new(seed, 4).percent(50);
        Knobs {
            replicas,
            byzantine,
            forgetful: forgets.then_some(faulty),
            signed: dice.percent(25),
            workers: dice.pick(&[0, 0, 3]),
            clients: dice.range(2, 6) as u8,
            mounts: match means.mounts {
                true => dice.range(0, 2) as u8,
                false => 0,
            },
            rest_ms: dice.pick(&[5, 20, 60]),
            disks: means.disks,
            verifiers: dice.pick(&[0, 1, 3]),
            sealers: dice.pick(&[0, 1, 2]),
        }
    }

    /// What requests and votes are believed by.
    pub fn authentication(&self) -> Authentication {
        match self.signed {
            true => Authentication::Signature,
            false => Authentication::Mac,
        }
    }

    /// The one that counts as misbehaving all the time.
    pub fn misbehaving(&self) -> Option<u8> {
        self.byzantine.map(|(id, _)| id).or(self.forgetful)
    }

    /// How many others may lose what they have written, at a time.
    pub fn rots(&self) -> u8 {
        (self.replicas - 1) / 3 - u8::from(self.misbehaving().is_some())
    }

    /// Everyone who has links through proxies, beside the replicas.
    pub fn members(&self) -> u8 {
        self.clients + self.mounts
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replicas", self.replicas)?;
        if let Some((id, fault)) = self.byzantine {
            write!(f, " (replica {id}: {fault})")?;
        }
        if let Some(id) = self.forgetful {
            write!(f, " (replica {id} forgets)")?;
        }
        let signed = if self.signed { "signed" } else { "MACs" };
        write!(
            f,
            ", {signed}, {} workers, {} verifiers, {} sealers, {} clients, {} mounts, rests up to {} ms",
            self.workers, self.verifiers, self.sealers, self.clients, self.mounts, self.rest_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds reach all that there is, and what the machine does not have is not asked for.
    #[test]
    fn knobs_are_drawn_from_seeds() {
        let means = Means {
            mounts: true,
            disks: true,
        };
        let all: Vec<Knobs> = (0..400).map(|seed| Knobs::draw(seed, means)).collect();
        for fault in Fault::ALL {
            let has = |knobs: &Knobs| knobs.byzantine.is_some_and(|(_, f)| f == fault);
            assert!(all.iter().any(has), "no {fault} in 400 groups");
        }
        assert!(
            all.iter()
                .any(|k| k.byzantine.is_none() && k.replicas == 7 && k.signed)
        );
        assert!(all.iter().any(|k| k.forgetful.is_some() && k.rots() == 0));
        assert!(
            all.iter()
                .any(|k| k.misbehaving().is_none() && k.rots() > 0)
        );
        assert!(all.iter().any(|k| k.mounts == 2 && k.workers > 0));
        assert!(all.iter().any(|k| k.signed && k.verifiers > 1));
        assert!([0, 1, 2].map(|n| all.iter().any(|k| k.sealers == n)) == [true; 3]);
        let none = Means {
            mounts: false,
            disks: false,
        };
        let wanted = Wanted {
            replicas: Some(4),
            mounts: Some(2),
        };
        for seed in 0..50 {
            let knobs = Knobs::draw(seed, none);
            assert!(knobs.mounts == 0 && !knobs.disks);
            assert_eq!(knobs.but(wanted, none).mounts, 0);
            let knobs = Knobs::draw(seed, means).but(wanted, means);
            assert_eq!((knobs.replicas, knobs.mounts), (4, 2));
            assert!(knobs.byzantine.is_none_or(|(id, _)| id < 4));
        }
    }
}
