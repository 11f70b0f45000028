//! A recovery that goes on: since when, how long it may take, and who waits for it.

use std::time::Duration;

use quorate_wire::message::{RECOVERY_STEPS, Report};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Answer, Fault, works};

/// A recovery may take this long, before it is begun anew, or [`TIMES`] the longest that came to its end.
pub(super) const LONG: Duration = Duration::from_secs(300);
const TIMES: u32 = 4;
/// So long one that is back, by its own word, may take until it can be reached as well, and one that has gone back until it takes part.
const SETTLES: Duration = Duration::from_secs(10);

/// It is looked at several times a second; what is more than this between two looks was no work.
const GAP: Duration = Duration::from_secs(5);

/// A recovery that goes on.
#[derive(Debug)]
pub(super) struct Going {
    pub replica: u8,
    pub since: Instant,
    /// Since when it is tried as it is now.
    tried_since: Instant,
    /// How long it may be tried so.
    pub patience: Duration,
    /// How often that was too long.
    outlasted: u32,
    /// Since when it says that it is back.
    pub back_since: Option<Instant>,
    /// Since when it says that it has gone back to what it had.
    pub gone_since: Option<Instant>,
    pub answers: Option<mpsc::Sender<Answer>>,
    pub told: String,
    pub is_long: bool,
    /// How long it has gone on, without the time in which this process did nothing; and when was looked last.
    worked: Duration,
    looked: Instant,
}

/// How long one may take where the longest so far took so long.
pub(super) fn patience(longest: Duration) -> Duration {
    LONG.max(longest.saturating_mul(TIMES))
}

impl Going {
    /// One that has gone on since then; the longest so far took `longest`.
    pub fn new(replica: u8, since: Instant, longest: Duration) -> Going {
        Going {
            replica,
            since,
            tried_since: Instant::now(),
            patience: patience(longest),
            outlasted: 0,
            back_since: None,
            gone_since: None,
            answers: None,
            told: String::new(),
            is_long: false,
            worked: worked_since(since),
            looked: Instant::now(),
        }
    }

    /// Hears what the replica says of it.
    pub fn hears(&mut self, report: Option<&Report>) {
        let now = Instant::now();
        self.works(now.saturating_duration_since(self.looked));
        self.looked = now;
        let since = |before: Option<Instant>, is_so: bool| {
            is_so.then(|| before.unwrap_or_else(Instant::now))
        };
        self.back_since = since(self.back_since, report.is_some_and(has_recovered));
        self.gone_since = since(self.gone_since, report.is_some_and(has_gone_back));
    }

    /// Whether it is at its end. A replica that can't be reached from here may be reached by all others.
    pub fn is_back(&self, is_reached: bool) -> bool {
        let since = self.back_since;
        since.is_some_and(|since| is_reached || since.elapsed() > SETTLES)
    }

    /// Whether it came to nothing. A replica need not take part with what it went back to: that may be what an intruder has left, and name a view that
    /// never begins. Its next recovery mends that, and must not wait for it.
    pub fn is_missed(&self, is_active: bool) -> bool {
        let since = self.gone_since;
        since.is_some_and(|since| is_active || since.elapsed() > SETTLES)
    }

    /// So much time has passed since it was looked at last: if that is much, nothing ran, the machine slept or this process was stopped.
    fn works(&mut self, passed: Duration) {
        if self.back_since.is_none() {
            self.worked += passed.min(GAP);
        }
    }

    /// How long it has taken but for that: what the next ones may take is judged by this.
    pub fn worked(&self) -> Duration {
        self.worked
    }

    /// How long it has taken.
    pub fn took(&self) -> Duration {
        let until = self.back_since.unwrap_or_else(Instant::now);
        until.saturating_duration_since(self.since)
    }

    /// Whether it has been tried for too long.
    pub fn is_outlasted(&self) -> bool {
        self.tried_since.elapsed() > self.patience
    }

    /// What may be at fault where it was tried for too long. Once nothing need be: it may have been too short.
    pub fn fault(&self, report: Option<&Report>) -> Fault {
        match (self.outlasted, report) {
            (0, _) => Fault::Elsewhere,
            (_, Some(_)) => Fault::State,
            (_, None) => Fault::Anything,
        }
    }

    /// It is tried anew, and may take twice as long: with much state on a slow disk no fixed time is enough.
    pub fn try_anew(&mut self) {
        self.outlasted += 1;
        self.tried_since = Instant::now();
        self.patience = self.patience.saturating_mul(2);
    }

    /// Tells who has asked for it.
    pub fn answer(&self, answer: Answer) {
        // Who has asked may be gone.
        let _ = self.answers.as_ref().map(|asked| asked.try_send(answer));
    }
}

/// How long one that was begun then can have gone on: not before the machine was started.
fn worked_since(since: Instant) -> Duration {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let up = Duration::from_secs(up.tv_sec.max(0) as u64);
    since.elapsed().min(up)
}

fn has_recovered(report: &Report) -> bool {
    report.steps.len() == RECOVERY_STEPS.len() && works(report)
}

/// Also where it has started once more since, for another reason, and tells nothing of it.
fn has_gone_back(report: &Report) -> bool {
    report.went_back || report.steps.is_empty() && report.recovering.is_none()
}

/// What a recovery is about.
pub(super) fn step(report: Option<&Report>) -> String {
    let Some(report) = report else {
        return "it ends, and starts again".into();
    };
    let Some(bound) = report.recovering else {
        return match report.fetching {
            true => "catches up".into(),
            false => "waits for a view to begin".into(),
        };
    };
    if bound.0 == 0 {
        return "asks the others how far they are".into();
    }
    if report.fetching {
        return "compares its state with the others'".into();
    }
    match report.stable < bound {
        true => format!("waits until batch {} is stable", bound.0),
        false => "waits for a view in which it may vote".into(),
    }
}
