//! When which replica recovers: staggered by the clock alone, so that the supervisors of different machines need not talk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_net::disk;
use quorate_net::group::Group;
use quorate_net::holder;
use serde::{Deserialize, Serialize};

/// The shortest period: each of four replicas needs some seconds.
pub const SHORTEST: Duration = Duration::from_secs(20);

/// After how long the key holders of a group sign for one more recovery in the long run; `None` where there are none, and nothing has to be signed.
pub fn signing_pace(group: &Group) -> Option<Duration> {
    group.identities().map(|_| holder::pace(group))
}

/// Tw: each replica recovers once in this time, and each at a time of its own within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    every: Option<Duration>,
    key_refresh: Option<Duration>,
    file: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// Tw in seconds; 0 for never.
    recover_every_s: u64,
    /// Tk in milliseconds, where it was set; 0 for never.
    #[serde(default)]
    key_refresh_ms: Option<u64>,
}

impl Schedule {
    /// The schedule that was set last, as it is kept in a directory; none where none was.
    ///
    /// # Errors
    /// If the file is there and can't be read.
    pub fn load(directory: &Path) -> Result<Schedule> {
        let file = directory.join("schedule.json");
        let content: Content = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} can't be understood", file.display()))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Content::default(),
            Err(e) => return Err(e).with_context(|| format!("can't read {}", file.display())),
        };
        let every = content.recover_every_s;
        Ok(Schedule {
            every: (every > 0).then(|| Duration::from_secs(every)),
            key_refresh: content.key_refresh_ms.map(Duration::from_millis),
            file,
        })
    }

    /// How often each replica recovers.
    pub fn every(&self) -> Option<Duration> {
        self.every
    }

    /// How often replicas are to take other keys for their links, if that was set; zero for never.
    pub fn key_refresh(&self) -> Option<Duration> {
        self.key_refresh
    }

    /// Sets and keeps that.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn set_key_refresh(&mut self, every: Duration) -> Result<()> {
        self.keep(self.every, Some(every))
    }

    /// Sets and keeps how often each replica recovers, in a group whose key holders sign at that pace ([`signing_pace`]).
    ///
    /// # Errors
    /// If it is too short, or can't be written.
    pub fn set(&mut self, every: Option<Duration>, pace: Option<Duration>) -> Result<()> {
        if every.is_some_and(|every| every < SHORTEST) {
            bail!(
                "that is too often: each replica is away for some seconds, and the others have to do without it. {} s is the least",
                SHORTEST.as_secs()
            );
        }
        // At the pace itself nothing would be left for a restart, or for who asks for a recovery between two turns.
        if let (Some(every), Some(pace)) = (every, pace)
            && every <= pace
        {
            bail!(
                "that is too often: the key holders of this group sign for one recovery every {} s in the long run, by what the group file says \
                 (key_refresh_ms), and turns beyond that would be missed. Say more than that",
                pace.as_secs_f64()
            );
        }
        self.keep(every, self.key_refresh)
    }

    fn keep(&mut self, every: Option<Duration>, key_refresh: Option<Duration>) -> Result<()> {
        let content = Content {
            recover_every_s: every.map_or(0, |every| every.as_secs()),
            key_refresh_ms: key_refresh.map(|every| every.as_millis() as u64),
        };
        let text = serde_json::to_vec(&content).context("the schedule")?;
        disk::replace(&self.file, &text, 0o644)
            .with_context(|| format!("can't write {}", self.file.display()))?;
        (self.every, self.key_refresh) = (every, key_refresh);
        Ok(())
    }

    /// When the turn of replica `id` of `n` began that is on at `now`, in milliseconds since 1970.
    pub fn turn(&self, id: u8, n: usize, now_ms: u64) -> Option<u64> {
        let every = self.every?.as_millis() as u64;
        let offset = every * u64::from(id) / n as u64;
        let turns = now_ms.checked_sub(offset)? / every;
        Some(turns * every + offset)
    }

    /// Whether a turn of one of `n` that began at `turn` is in its part of the period: after that it is another one's.
    pub fn is_in_turn(&self, n: usize, turn: u64, now_ms: u64) -> bool {
        let every = self.every.map(|every| every.as_millis() as u64);
        every.is_some_and(|every| now_ms.saturating_sub(turn) < every / n as u64)
    }

    /// When the next turn of replica `id` of `n` begins.
    pub fn next(&self, id: u8, n: usize, now_ms: u64) -> Option<u64> {
        let every = self.every?.as_millis() as u64;
        self.turn(id, n, now_ms).map(|turn| turn + every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seconds: u64) -> Schedule {
        Schedule {
            every: Some(Duration::from_secs(seconds)),
            key_refresh: None,
            file: PathBuf::new(),
        }
    }

    /// Each replica has one turn in a period, all at different times, as far apart as can be.
    #[test]
    fn turns_are_staggered() {
        for n in [4, 7] {
            let every = 600_000;
            let schedule = schedule(600);
            let now = 1_800_000_000_123;
            let mut begins: Vec<u64> = Vec::new();
            for id in 0..n as u8 {
                let turn = schedule.turn(id, n, now).unwrap();
                assert!(turn <= now && now - turn < every);
                assert_eq!(schedule.next(id, n, now), Some(turn + every));
                assert_eq!(schedule.turn(id, n, turn), Some(turn));
                assert_eq!(schedule.turn(id, n, turn + every - 1), Some(turn));
                assert_eq!(schedule.turn(id, n, turn + every), Some(turn + every));
                begins.push(turn % every);
            }
            begins.sort_unstable();
            let apart = begins.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(apart.into_iter().all(|ms| ms >= every / n as u64 - 1));
        }
    }

    #[test]
    fn a_schedule_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = Schedule::load(directory.path()).unwrap();
        assert_eq!((kept.every(), kept.turn(0, 4, 5)), (None, None));
        kept.set(Some(Duration::from_secs(600)), None).unwrap();
        assert_eq!(Schedule::load(directory.path()).unwrap(), kept);
        assert!(kept.set(Some(Duration::from_secs(19)), None).is_err());
        kept.set_key_refresh(Duration::from_secs(5)).unwrap();
        kept.set(None, None).unwrap();
        let loaded = Schedule::load(directory.path()).unwrap();
        assert_eq!(loaded.every(), None);
        assert_eq!(loaded.key_refresh(), Some(Duration::from_secs(5)));
    }

    /// No schedule is taken that key holders would not sign for, turn after turn.
    #[test]
    fn a_schedule_is_one_that_key_holders_keep_up_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = Schedule::load(directory.path()).unwrap();
        let seconds = Duration::from_secs;
        let pace = Some(seconds(30));
        for often in [20, 30] {
            let refused = kept.set(Some(seconds(often)), pace).unwrap_err();
            assert!(refused.to_string().contains("every 30 s"), "{refused}");
            assert_eq!(kept.every(), None);
        }
        kept.set(Some(seconds(31)), pace).unwrap();
        kept.set(None, pace).unwrap();
        kept.set(Some(SHORTEST), Some(seconds(15))).unwrap();
        assert_eq!(kept.every(), Some(SHORTEST));
    }
}
