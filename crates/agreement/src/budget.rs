//! How much a peer may ask for.

use crate::Millis;

/// A token bucket: so much at once, so much in the long run. Tokens are bytes of what is given.
///
/// Who asks at the pace at which it can use the answers never comes to its bottom. What was given may go beyond what is left; then
/// nothing is given until that has been made up for.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The most there is, and how much comes in a millisecond; in bytes.
    most: u64,
    rate: u64,
    left: u64,
    owed: u64,
    at: Millis,
}

impl Budget {
    /// A full one: `most` bytes, and `rate` bytes in each millisecond.
    pub fn new(most: u64, rate: u64, now: Millis) -> Budget {
        Budget {
            most,
            rate,
            left: most,
            owed: 0,
            at: now,
        }
    }

    fn refill(&mut self, now: Millis) {
        let came = now.saturating_sub(self.at).saturating_mul(self.rate);
        self.at = self.at.max(now);
        let paid = came.min(self.owed);
        self.owed -= paid;
        self.left = self.left.saturating_add(came - paid).min(self.most);
    }

    /// Whether something may be given now.
    pub fn is_open(&mut self, now: Millis) -> bool {
        self.refill(now);
        self.owed == 0 && self.left > 0
    }

    /// So many bytes are given.
    pub fn spend(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        let taken = bytes.min(self.left);
        self.left -= taken;
        self.owed += bytes - taken;
    }

    /// When something may be given again.
    pub fn opens_at(&self) -> Millis {
        match self.owed == 0 && self.left > 0 {
            true => self.at,
            false => self.at + self.owed / self.rate + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At once what the bucket holds and one answer more, then the rate and no more.
    #[test]
    fn in_the_long_run_it_is_the_rate() {
        let mut budget = Budget::new(1_000, 10, 0);
        let mut given = 0;
        for now in 0..10_000 {
            while budget.is_open(now) {
                budget.spend(300);
                given += 300;
            }
        }
        let most = 1_000 + 300 + 10 * 10_000;
        assert!((100_000..=most).contains(&given), "{given}");
    }

    #[test]
    fn it_says_when_it_opens() {
        let mut budget = Budget::new(100, 10, 0);
        assert_eq!(budget.opens_at(), 0);
        budget.spend(350);
        let at = budget.opens_at();
        assert!(!budget.is_open(at - 1) && budget.is_open(at), "{at}");
    }
}
