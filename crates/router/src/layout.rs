//! Where new directories go (mkdir switching): a policy that places a directory in a bucket when it is made. Files live with
//! their directory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::handle::Handle;
use crate::map::Map;

/// The number of a volume, never used again in one set. It is written down on the volume itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume(pub u16);

/// Directories that were placed together, with all below them: what moves between volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u32);

/// The bucket with the root directory.
pub const HOME: Bucket = Bucket(0);

/// Which bucket a new directory goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By parent and name: evenly, and alike at each router.
    #[default]
    Hash,
    /// To each bucket in turn.
    RoundRobin,
    /// To one of the volume with the most free bytes.
    LeastFull,
    /// To its parent's: nothing is spread but what is pinned.
    Stay,
}

/// The rules.
#[derive(Debug)]
pub struct Layout {
    policy: Policy,
    /// How many of a hundred directories are switched; the others stay with their parent.
    switch_percent: u8,
    /// Directories of the root by name, and where they go whatever the policy.
    pins: BTreeMap<Vec<u8>, Volume>,
    turn: AtomicU64,
    free: RwLock<BTreeMap<Volume, u64>>,
}

impl Layout {
    /// Rules.
    pub fn new(policy: Policy, switch_percent: u8, pins: BTreeMap<Vec<u8>, Volume>) -> Layout {
        Layout {
            policy,
            switch_percent,
            pins,
            turn: AtomicU64::new(0),
            free: RwLock::default(),
        }
    }

    /// Tells how many bytes are free on a volume, as its server said last.
    pub fn set_free(&self, volume: Volume, bytes: u64) {
        let mut free = self.free.write().unwrap_or_else(PoisonError::into_inner);
        free.insert(volume, bytes);
    }

    /// How many bytes are free on a volume, as its server said last.
    pub fn free(&self, volume: Volume) -> u64 {
        let free = self.free.read().unwrap_or_else(PoisonError::into_inner);
        free.get(&volume).copied().unwrap_or(0)
    }

    /// Where a new directory goes; pins hold in the root alone.
    pub fn place(&self, parent: &Handle, in_root: bool, name: &[u8], map: &Map) -> Bucket {
        let mut hasher = blake3::Hasher::new_derive_key("quorate v1 router placement");
        hasher.update(&parent.bucket.0.to_be_bytes());
        hasher.update(&(parent.key.len() as u32).to_be_bytes());
        hasher.update(&parent.key).update(name);
        let mut word = [0; 8];
        word.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        let hash = u64::from_be_bytes(word);
        if in_root
            && let Some(&volume) = self.pins.get(name)
            && let Some(bucket) = one_of(map, volume, hash)
        {
            return bucket;
        }
        if hash % 100 >= u64::from(self.switch_percent) {
            return parent.bucket;
        }
        let buckets = map.buckets.len() as u64;
        match self.policy {
            Policy::Hash => Bucket((hash / 100 % buckets) as u32),
            Policy::RoundRobin => {
                Bucket((self.turn.fetch_add(1, Ordering::Relaxed) % buckets) as u32)
            }
            Policy::LeastFull => self.least_full(map, hash).unwrap_or(parent.bucket),
            Policy::Stay => parent.bucket,
        }
    }

    /// Of the first of several that have the same.
    fn least_full(&self, map: &Map, hash: u64) -> Option<Bucket> {
        let volumes = map.serving().filter(|&volume| map.held(volume) > 0);
        let fullest = |&volume: &Volume| (self.free(volume), std::cmp::Reverse(volume));
        one_of(map, volumes.max_by_key(fullest)?, hash / 100)
    }
}

/// One of the buckets of a volume.
fn one_of(map: &Map, volume: Volume, hash: u64) -> Option<Bucket> {
    let held: Vec<Bucket> = map.held_by(volume).collect();
    let index = hash.checked_rem(held.len() as u64)?;
    held.get(index as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        Map::first((0..4).map(|n| n.to_string()).collect(), 16)
    }

    fn layout(policy: Policy, percent: u8) -> Layout {
        let pins = BTreeMap::from([(b"pinned".to_vec(), Volume(2))]);
        Layout::new(policy, percent, pins)
    }

    fn parent() -> Handle {
        Handle {
            bucket: Bucket(1),
            key: b"\0\x01parent"[..].into(),
        }
    }

    fn spread(layout: &Layout) -> [u32; 4] {
        let (mut counts, map) = ([0; 4], map());
        for n in 0..1600u32 {
            let place = layout.place(&parent(), false, &n.to_be_bytes(), &map);
            counts[usize::from(map.volume(place).unwrap().0)] += 1;
        }
        counts
    }

    #[test]
    fn policies_place_as_they_say() {
        assert!(spread(&layout(Policy::Hash, 100)).iter().all(|&n| n > 300));
        assert_eq!(spread(&layout(Policy::RoundRobin, 100)), [400; 4]);
        assert_eq!(spread(&layout(Policy::Stay, 100)), [0, 1600, 0, 0]);
        assert_eq!(spread(&layout(Policy::Hash, 0)), [0, 1600, 0, 0]);
        let half = spread(&layout(Policy::RoundRobin, 50));
        assert!(half[1] > 800 && half[0] > 120, "{half:?}");
        let full = layout(Policy::LeastFull, 100);
        assert_eq!(spread(&full), [1600, 0, 0, 0]);
        full.set_free(Volume(3), 7);
        assert_eq!(spread(&full), [0, 0, 0, 1600]);
    }

    #[test]
    fn pins_hold_in_the_root_alone() {
        let (layout, map) = (layout(Policy::Stay, 100), map());
        let place = |in_root| layout.place(&parent(), in_root, b"pinned", &map);
        assert_eq!(map.volume(place(true)), Some(Volume(2)));
        assert_eq!(place(false), Bucket(1));
    }
}
