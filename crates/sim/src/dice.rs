//! Seeded choices. One stream for each purpose, so that a knob that is turned in one place leaves the others alone.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of choices.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream of a seed for one purpose.
    pub fn new(seed: u64, purpose: u64) -> Dice {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Dice(rng)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound.max(1)
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, (low, high): (u64, u64)) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Whether something that happens so many times in a thousand happens now.
    pub fn per_mille(&mut self, chance: u64) -> bool {
        chance > 0 && self.below(1000) < chance
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A time that on average is `mean`, for things that happen by chance.
    pub fn around(&mut self, mean: u64) -> u64 {
        mean / 4 + self.below(mean * 3 / 2 + 1)
    }
}
