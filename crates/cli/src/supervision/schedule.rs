//! When which replica recovers: staggered by the clock alone, so that the supervisors of different machines need not talk.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use quorate_net::group::Group;
use quorate_net::holder;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::scribe::Scribe;

/// The shortest period: each of four replicas needs some seconds.
pub const SHORTEST: Duration = Duration::from_secs(20);
/// The longest that can be said.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// After how long a schedule is written once more that could not be.
const AGAIN: Duration = Duration::from_secs(60);

/// After how long the key holders of a group sign for one more recovery in the long run; `None` where there are none, and nothing has to be signed.
pub fn signing_pace(group: &Group) -> Option<Duration> {
    group.identities().map(|_| holder::pace(group))
}

/// Tw: each replica recovers once in this time, and each at a time of its own within it. It holds as long as this process lives, also where it can't be kept.
#[derive(Debug)]
pub struct Schedule {
    content: Content,
    scribe: Scribe,
    /// Why what was kept is not known, until another one is set.
    lost: Option<String>,
    /// Why what holds is not on the disk, and when that was found last.
    unkept: Option<(String, Instant)>,
    /// What is to be told once.
    words: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    /// Tw in seconds; 0 for never.
    recover_every_s: u64,
    /// Tk in milliseconds, where it was set; 0 for never.
    #[serde(default)]
    key_refresh_ms: Option<u64>,
    /// Tw as the command line said it when a supervisor was started last, if it did: said again it is no news, and does not overrule what was set since.
    #[serde(default)]
    command_line_s: Option<u64>,
}

impl Schedule {
    /// The schedule that was set last, as it is kept in a directory; none where none was. One that can't be used is told of, and keeps no replica from
    /// running.
    pub fn load(directory: &Path) -> Schedule {
        let file = directory.join("schedule.json");
        let read = match std::fs::read(&file) {
            Ok(text) => read(&text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Content::default()),
            Err(e) => Err(e.to_string()),
        };
        let lost = read.as_ref().err().map(|e| {
            format!(
                "the schedule of recoveries, {}, can't be used, so that how often replicas recover is not known any more: set it again (`quorate schedule --every`): {e}",
                file.display()
            )
        });
        Schedule {
            content: read.unwrap_or_default(),
            words: lost.iter().map(|lost| format!("ALARM: {lost}")).collect(),
            lost,
            unkept: None,
            scribe: Scribe::new(file),
        }
    }

    /// How often each replica recovers.
    pub fn every(&self) -> Option<Duration> {
        let every = self.content.recover_every_s;
        (every > 0).then(|| Duration::from_secs(every))
    }

    /// How often replicas are to take other keys for their links, if that was set; zero for never.
    pub fn key_refresh(&self) -> Option<Duration> {
        self.content.key_refresh_ms.map(Duration::from_millis)
    }

    /// What is wrong with how it is kept, as long as that is so.
    pub fn alarms(&self) -> impl Iterator<Item = &str> {
        let unkept = self.unkept.as_ref().map(|(why, _)| why.as_str());
        self.lost.as_deref().into_iter().chain(unkept)
    }

    /// Tries to keep what could not be kept, now and then. Gives what is to be told.
    pub fn look(&mut self) -> Vec<String> {
        let is_due = |(_, since): &(String, Instant)| since.elapsed() >= AGAIN;
        if self.unkept.as_ref().is_some_and(is_due) {
            self.keep();
        }
        std::mem::take(&mut self.words)
    }

    /// Sets and keeps that.
    pub fn set_key_refresh(&mut self, every: Duration) {
        self.change_to(Content {
            key_refresh_ms: Some(every.as_millis() as u64),
            ..self.content.clone()
        });
    }

    /// Sets and keeps how often each replica recovers, in a group whose key holders sign at that pace ([`signing_pace`]).
    ///
    /// # Errors
    /// If it is too short.
    pub fn set(&mut self, every: Option<Duration>, pace: Option<Duration>) -> Result<()> {
        check(every, pace)?;
        self.lost = None;
        self.change_to(Content {
            recover_every_s: seconds(every),
            ..self.content.clone()
        });
        Ok(())
    }

    /// Hears how often the command line of this process says that each replica recovers, if it does. It is as good as [`Schedule::set`] where it says anything else than
    /// it did the last time. Else what was set since holds: service managers start a process with the same words again and again.
    ///
    /// # Errors
    /// If it is too short.
    pub fn hear_command_line(
        &mut self,
        said: Option<Option<Duration>>,
        pace: Option<Duration>,
    ) -> Result<()> {
        said.map_or(Ok(()), |every| check(every, pace))?;
        let command_line_s = said.map(seconds);
        let mut content = self.content.clone();
        if content.command_line_s != command_line_s {
            content.command_line_s = command_line_s;
            content.recover_every_s = command_line_s.unwrap_or(content.recover_every_s);
        }
        if said.is_some() {
            self.lost = None;
        }
        self.change_to(content);
        if let Some(said) = command_line_s.filter(|said| *said != self.content.recover_every_s) {
            self.words.push(format!(
                "{}, as was set after --recover-every had said {}: that does not count until it says something else",
                word(self.content.recover_every_s),
                match said {
                    0 => "off".into(),
                    said => format!("{said} s"),
                }
            ));
        }
        Ok(())
    }

    /// Is this from now on. Nothing is written where nothing changes, nor over a schedule that is lost before another one is set: it would look at the next
    /// start as if there had been none.
    fn change_to(&mut self, content: Content) {
        if self.content == content && self.unkept.is_none() {
            return;
        }
        self.content = content;
        if self.lost.is_none() {
            self.keep();
        }
    }

    fn keep(&mut self) {
        let written = serde_json::to_vec(&self.content)
            .map_err(std::io::Error::from)
            .and_then(|text| self.scribe.write(text));
        let Err(e) = written else {
            if self.unkept.take().is_some() {
                self.words
                    .push("the schedule of recoveries is kept on the disk again".into());
            }
            return;
        };
        let why = format!(
            "the schedule of recoveries holds only until this process ends, since {} can't be written: {e}",
            self.scribe.file().display()
        );
        if self.unkept.is_none() {
            self.words.push(format!("ALARM: {why}"));
        }
        self.unkept = Some((why, Instant::now()));
    }

    /// When the turn of replica `id` of `n` began that is on at `now`, in milliseconds since 1970.
    pub fn turn(&self, id: u8, n: usize, now_ms: u64) -> Option<u64> {
        let every = self.every()?.as_millis() as u64;
        let offset = every * u64::from(id) / n as u64;
        let turns = now_ms.checked_sub(offset)? / every;
        Some(turns * every + offset)
    }

    /// Whether a turn of one of `n` that began at `turn` is in its part of the period: after that it is another one's.
    pub fn is_in_turn(&self, n: usize, turn: u64, now_ms: u64) -> bool {
        let every = self.every().map(|every| every.as_millis() as u64);
        every.is_some_and(|every| now_ms.saturating_sub(turn) < every / n as u64)
    }

    /// When the next turn of replica `id` of `n` begins.
    pub fn next(&self, id: u8, n: usize, now_ms: u64) -> Option<u64> {
        let every = self.every()?.as_millis() as u64;
        self.turn(id, n, now_ms).map(|turn| turn + every)
    }
}

/// A schedule as it is in a file.
fn read(text: &[u8]) -> Result<Content, String> {
    let content: Content = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let possible = SHORTEST.as_secs()..=LONGEST.as_secs();
    match content.recover_every_s {
        0 => Ok(content),
        every if possible.contains(&every) => Ok(content),
        every => Err(format!("it says each {every} s")),
    }
}

fn seconds(every: Option<Duration>) -> u64 {
    every.map_or(0, |every| every.as_secs())
}

/// A period in seconds, for people.
pub fn word(every_s: u64) -> String {
    match every_s {
        0 => "replicas do not recover by themselves".into(),
        s => format!("each replica recovers every {s} s"),
    }
}

/// Refuses a period that is too short.
fn check(every: Option<Duration>, pace: Option<Duration>) -> Result<()> {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seconds: u64) -> Schedule {
        let content = Content {
            recover_every_s: seconds,
            ..Content::default()
        };
        Schedule {
            content,
            scribe: Scribe::new("none".into()),
            lost: None,
            unkept: None,
            words: Vec::new(),
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

    const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));
    const TWO_HOURS: Option<Duration> = Some(Duration::from_secs(7_200));

    #[test]
    fn a_schedule_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = Schedule::load(directory.path());
        assert_eq!((kept.every(), kept.turn(0, 4, 5)), (None, None));
        kept.set(HOUR, None).unwrap();
        assert_eq!(Schedule::load(directory.path()).content, kept.content);
        assert!(kept.set(Some(Duration::from_secs(19)), None).is_err());
        kept.set_key_refresh(Duration::from_secs(5));
        kept.set(None, None).unwrap();
        let loaded = Schedule::load(directory.path());
        assert_eq!(loaded.every(), None);
        assert_eq!(loaded.key_refresh(), Some(Duration::from_secs(5)));
        assert_eq!(kept.look(), [""; 0]);
    }

    /// What is written by a program before this one is read, and nothing is written where nothing changes.
    #[test]
    fn what_is_so_already_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("schedule.json");
        std::fs::write(&file, r#"{ "recover_every_s": 3600 }"#).unwrap();
        let before = std::fs::read(&file).unwrap();
        let mut kept = Schedule::load(directory.path());
        kept.set(HOUR, None).unwrap();
        kept.hear_command_line(None, None).unwrap();
        assert_eq!((kept.every(), kept.look()), (HOUR, Vec::new()));
        assert_eq!(std::fs::read(&file).unwrap(), before);
        kept.hear_command_line(Some(HOUR), None).unwrap();
        let before = std::fs::read(&file).unwrap();
        // Where it can't be written at all that is not even noticed.
        std::fs::remove_file(&file).unwrap();
        kept.hear_command_line(Some(HOUR), None).unwrap();
        assert!(!file.exists() && kept.look().is_empty());
        std::fs::write(&file, before).unwrap();
        assert_eq!(Schedule::load(directory.path()).content, kept.content);
    }

    /// A schedule that can't be kept holds all the same, with an alarm until it can.
    #[test]
    fn what_can_not_be_kept_holds() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("none");
        let mut kept = Schedule::load(&place);
        kept.hear_command_line(Some(HOUR), None).unwrap();
        assert_eq!(kept.every(), HOUR);
        let told = kept.look();
        assert!(
            told.len() == 1
                && told[0].starts_with("ALARM: ")
                && told[0].contains("can't be written"),
            "{told:?}"
        );
        kept.set_key_refresh(Duration::from_secs(5));
        assert_eq!((kept.look(), kept.alarms().count()), (Vec::new(), 1));
        std::fs::create_dir(&place).unwrap();
        assert!(kept.look().is_empty(), "not at once");
        let before = &mut kept.unkept.as_mut().unwrap().1;
        *before = before.checked_sub(AGAIN).unwrap();
        let told = kept.look();
        assert!(told.len() == 1 && told[0].contains("again"), "{told:?}");
        assert_eq!(kept.alarms().count(), 0);
        assert_eq!(Schedule::load(&place).content, kept.content);
    }

    /// A file that is damaged is told of until a schedule is set, and is no reason not to start; what the command line says holds.
    #[test]
    fn damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("schedule.json");
        for damaged in [r#"{ "recover_every"#, r#"{ "recover_every_s": 7 }"#, ""] {
            std::fs::write(&file, damaged).unwrap();
            let mut kept = Schedule::load(directory.path());
            kept.hear_command_line(None, None).unwrap();
            assert_eq!((kept.every(), kept.alarms().count()), (None, 1));
            let told = kept.look();
            assert!(
                told.len() == 1
                    && told[0].starts_with("ALARM: ")
                    && told[0].contains("schedule.json"),
                "{told:?}"
            );
            kept.set(HOUR, None).unwrap();
            assert_eq!((kept.look(), kept.alarms().count()), (Vec::new(), 0));

            std::fs::write(&file, damaged).unwrap();
            let mut kept = Schedule::load(directory.path());
            kept.hear_command_line(Some(HOUR), None).unwrap();
            assert_eq!((kept.every(), kept.alarms().count()), (HOUR, 0));
            assert_eq!(kept.look().len(), 1);
            assert_eq!(Schedule::load(directory.path()).every(), HOUR);
        }
    }

    /// What was set after the command line had said something holds over restarts with the same command line, which is told; another command line is
    /// the newer word.
    #[test]
    fn the_newer_word_counts() {
        let directory = tempfile::tempdir().unwrap();
        let start = |said| {
            let mut kept = Schedule::load(directory.path());
            kept.hear_command_line(said, None).unwrap();
            kept
        };
        start(Some(HOUR)).set(TWO_HOURS, None).unwrap();
        for _ in 0..2 {
            let mut kept = start(Some(HOUR));
            assert_eq!(kept.every(), TWO_HOURS);
            let told = kept.look();
            assert!(
                told.len() == 1 && told[0].contains("7200 s") && told[0].contains("3600 s"),
                "{told:?}"
            );
        }
        let mut kept = start(Some(None));
        assert_eq!((kept.every(), kept.look()), (None, Vec::new()));
        kept.set(HOUR, None).unwrap();
        assert_eq!(start(Some(None)).every(), HOUR);
        assert_eq!(start(None).every(), HOUR);
        assert_eq!(start(Some(None)).every(), None);
        let mut kept = start(Some(TWO_HOURS));
        assert_eq!((kept.every(), kept.look()), (TWO_HOURS, Vec::new()));
        let too_often = Some(Some(Duration::from_secs(19)));
        assert!(kept.hear_command_line(too_often, None).is_err());
        assert_eq!(kept.every(), TWO_HOURS);
    }

    /// No schedule is taken that key holders would not sign for, turn after turn.
    #[test]
    fn a_schedule_is_one_that_key_holders_keep_up_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut kept = Schedule::load(directory.path());
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
