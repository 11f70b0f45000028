//! How often a replica that dies is started again, and how often that is told.

use std::time::Duration;

/// How long a dead replica stays dead at first; doubles with each life that was short.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A replica that has lived so long is over what it died of before.
const GOOD_LIFE: Duration = Duration::from_secs(60);

/// What is remembered of a replica's deaths. One that can't live, such as with a full disk, neither takes much of the
/// machine nor fills the screen.
#[derive(Debug)]
pub struct Patience {
    pause: Duration,
    /// What it died of since it last lived well.
    causes: Vec<String>,
    /// Whether what happened last was told.
    told: bool,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            pause: FIRST_PAUSE,
            causes: Vec::new(),
            told: false,
        }
    }
}

impl Patience {
    /// The causes that are remembered.
    const MOST_CAUSES: usize = 16;

    /// It has died. Whether that is worth telling: what it failed of is told once in a row of short lives, what somebody did to
    /// it each time.
    pub fn is_news(&mut self, cause: &str, lived: Duration, from_outside: bool) -> bool {
        if lived >= GOOD_LIFE {
            *self = Patience::default();
        } else if !self.causes.is_empty() {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        let known = self.causes.iter().any(|known| known == cause);
        self.told = from_outside || !known;
        if !known {
            self.causes.truncate(Patience::MOST_CAUSES - 1);
            self.causes.insert(0, cause.into());
        }
        self.told
    }

    /// How long it stays dead.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Whether it is told that it is started again; not if what it died of was passed over.
    pub fn tells_start(&self) -> bool {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(2);

    /// Pauses double up to a minute, and are short again after a good life.
    #[test]
    fn pauses_grow_with_short_lives() {
        let mut patience = Patience::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            patience.is_news("full", SHORT, false);
            pauses.push(patience.pause().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        patience.is_news("full", GOOD_LIFE, false);
        assert_eq!(patience.pause(), FIRST_PAUSE);
    }

    /// Each cause is told once, and again after a good life; starts are told where the death before was.
    #[test]
    fn a_cause_is_told_once() {
        let mut patience = Patience::default();
        assert!(patience.is_news("full", SHORT, false));
        assert!(patience.tells_start());
        for _ in 0..100 {
            assert!(!patience.is_news("full", SHORT, false));
            assert!(!patience.tells_start());
        }
        assert!(patience.is_news("killed", SHORT, true));
        assert!(patience.is_news("killed", SHORT, true));
        assert!(patience.tells_start());
        assert!(!patience.is_news("full", SHORT, false));
        assert!(patience.is_news("full", GOOD_LIFE, false));
        for n in 0..100 {
            assert!(patience.is_news(&n.to_string(), SHORT, false));
            assert!(patience.causes.len() <= Patience::MOST_CAUSES);
        }
    }
}
