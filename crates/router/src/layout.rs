//! Where new directories go (mkdir switching): a policy that places a directory on a volume when it is made. Files live with
//! their directory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a volume: its place in the configuration, from 0. It is written down on the volume itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume(pub u16);

/// The volume with the root directory.
pub const HOME: Volume = Volume(0);

/// Which volume a new directory goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By parent and name: evenly, and alike at each router.
    #[default]
    Hash,
    /// To each volume in turn.
    RoundRobin,
    /// To the one with the most free bytes.
    LeastFull,
    /// To its parent's: nothing is spread but what is pinned.
    Stay,
}

/// The rules.
#[derive(Debug)]
pub struct Layout {
    volumes: u16,
    policy: Policy,
    /// How many of a hundred directories are switched; the others stay with their parent.
    switch_percent: u8,
    /// Directories of the root by name, and where they go whatever the policy.
    pins: BTreeMap<Vec<u8>, Volume>,
    turn: AtomicU64,
    free: Vec<AtomicU64>,
}

impl Layout {
    /// Rules for so many volumes.
    pub fn new(
        volumes: u16,
        policy: Policy,
        switch_percent: u8,
        pins: BTreeMap<Vec<u8>, Volume>,
    ) -> Layout {
        Layout {
            volumes,
            policy,
            switch_percent,
            pins,
            turn: AtomicU64::new(0),
            free: (0..volumes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// How many volumes there are.
    pub fn volumes(&self) -> impl Iterator<Item = Volume> + use<> {
        (0..self.volumes).map(Volume)
    }

    /// Whether there is such a volume.
    pub fn has(&self, volume: Volume) -> bool {
        volume.0 < self.volumes
    }

    /// Tells how many bytes are free on a volume, as its server said last.
    pub fn set_free(&self, volume: Volume, bytes: u64) {
        if let Some(free) = self.free.get(usize::from(volume.0)) {
            free.store(bytes, Ordering::Relaxed);
        }
    }

    /// Where a new directory goes. `parent` is its parent's volume and what its server calls it; pins hold in the root alone.
    pub fn place(&self, parent: (Volume, &[u8]), in_root: bool, name: &[u8]) -> Volume {
        if in_root && let Some(&volume) = self.pins.get(name) {
            return volume;
        }
        let mut hasher = blake3::Hasher::new_derive_key("quorate v1 router placement");
        hasher.update(&parent.0.0.to_be_bytes());
        hasher.update(&(parent.1.len() as u32).to_be_bytes());
        hasher.update(parent.1).update(name);
        let mut word = [0; 8];
        word.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        let hash = u64::from_be_bytes(word);
        if hash % 100 >= u64::from(self.switch_percent) {
            return parent.0;
        }
        let volumes = u64::from(self.volumes);
        match self.policy {
            Policy::Hash => Volume((hash / 100 % volumes) as u16),
            Policy::RoundRobin => {
                Volume((self.turn.fetch_add(1, Ordering::Relaxed) % volumes) as u16)
            }
            Policy::LeastFull => self.least_full().unwrap_or(parent.0),
            Policy::Stay => parent.0,
        }
    }

    /// The first of several that have the same.
    fn least_full(&self) -> Option<Volume> {
        let free = |volume: Volume| self.free[usize::from(volume.0)].load(Ordering::Relaxed);
        self.volumes()
            .max_by_key(|&volume| (free(volume), std::cmp::Reverse(volume)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(policy: Policy, percent: u8) -> Layout {
        let pins = BTreeMap::from([(b"pinned".to_vec(), Volume(2))]);
        Layout::new(4, policy, percent, pins)
    }

    fn spread(layout: &Layout) -> [u32; 4] {
        let mut counts = [0; 4];
        for n in 0..1000u32 {
            let place = layout.place((Volume(1), b"parent"), false, &n.to_be_bytes());
            counts[usize::from(place.0)] += 1;
        }
        counts
    }

    #[test]
    fn policies_place_as_they_say() {
        assert!(spread(&layout(Policy::Hash, 100)).iter().all(|&n| n > 200));
        assert_eq!(spread(&layout(Policy::RoundRobin, 100)), [250; 4]);
        assert_eq!(spread(&layout(Policy::Stay, 100)), [0, 1000, 0, 0]);
        assert_eq!(spread(&layout(Policy::Hash, 0)), [0, 1000, 0, 0]);
        let half = spread(&layout(Policy::RoundRobin, 50));
        assert!(half[1] > 500 && half[0] > 80, "{half:?}");
        let full = layout(Policy::LeastFull, 100);
        assert_eq!(spread(&full), [1000, 0, 0, 0]);
        full.set_free(Volume(3), 7);
        assert_eq!(spread(&full), [0, 0, 0, 1000]);
    }

    #[test]
    fn pins_hold_in_the_root_alone() {
        let layout = layout(Policy::Stay, 100);
        let place = |in_root| layout.place((Volume(1), b"p"), in_root, b"pinned");
        assert_eq!((place(true), place(false)), (Volume(2), Volume(1)));
    }
}
