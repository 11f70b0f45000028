//! What is told to the operators of a replica's way: the views it goes through, and how it comes back without its log.

use quorate_agreement::{Bound, Missed, Standing};
use quorate_wire::View;
use quorate_wire::message::RECOVERY_STEPS;

/// How often a recovery that can't come to its end is told.
const REPEAT_MS: u64 = 30_000;

/// How long a replica's start took, in milliseconds from its begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// Whether it began to recover, and then went back to what it had.
    pub went_back: bool,
    /// Until what the disk holds was read, or set aside.
    pub restored: u64,
    /// Until it had a key for its links.
    pub keyed: u64,
    /// Until it listened; the replica's own clock begins here.
    pub began: u64,
}

/// What was told last, and how far a recovery is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    start: Start,
    /// See [`Report::steps`](quorate_wire::message::Report::steps).
    steps: Vec<u64>,
    /// See [`Report::ordered`](quorate_wire::message::Report::ordered).
    ordered: Option<u64>,
    /// The view, and whether it had begun.
    view: Option<(View, bool)>,
    recovering: bool,
    bound: Option<Bound>,
    hopeless_at: Option<u64>,
    missed_at: Option<u64>,
}

impl Progress {
    /// Of a replica that has just started.
    pub fn new(start: Start) -> Progress {
        Progress {
            start,
            ..Progress::default()
        }
    }

    /// When each step of a recovery was done, if there was one since the start.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// When the group had ordered that the replica recovers.
    pub fn ordered(&self) -> Option<u64> {
        self.ordered
    }

    /// Whether it began to recover, and went back to what it had, since that came to nothing.
    pub fn went_back(&self) -> bool {
        self.start.went_back
    }

    /// The recovery comes to nothing as things stand, and there is nothing to go back to.
    pub fn missed(&mut self, why: Missed, now_ms: u64) {
        if is_due(&mut self.missed_at, now_ms) {
            tracing::warn!("{why}, and it has no log to go on with");
        }
    }

    /// Looks where the replica stands, and tells what has changed.
    pub fn look(&mut self, standing: &Standing, now_ms: u64) {
        self.look_at_view(standing);
        self.look_at_steps(standing, now_ms);
        let Some(recovering) = standing.recovering else {
            if std::mem::take(&mut self.recovering) {
                tracing::info!(view = standing.view.0, "recovered: the replica votes again");
                self.bound = None;
                (self.hopeless_at, self.missed_at) = (None, None);
            }
            return;
        };
        if !std::mem::replace(&mut self.recovering, true) {
            tracing::warn!(
                "recovering: the replica is silent, and asks the others how far they are"
            );
        }
        if self.bound != recovering.bound
            && let Some(bound) = recovering.bound
        {
            self.bound = recovering.bound;
            tracing::info!(
                stable = standing.stable.0.0,
                up_to = bound.seq.0,
                view = bound.view.0,
                "recovering: the replica is silent until it has a stable checkpoint at that place, and that view has begun"
            );
        }
        if recovering.ordered && self.ordered.is_none() {
            self.ordered = Some(self.start.began + now_ms);
            tracing::info!(
                stable = standing.stable.0.0,
                "recovering: the group has ordered that this replica recovers; what it certified before is void"
            );
        }
        if recovering.too_many && is_due(&mut self.hopeless_at, now_ms) {
            tracing::error!(
                "more replicas than the group bears have lost their logs: it can't go on by itself, and nothing that they do \
                 will change that. If one of their logs can be brought back, do so (`log.damaged`, or a disk that was not \
                 mounted); otherwise save the files from a replica's state"
            );
        }
    }

    fn look_at_steps(&mut self, standing: &Standing, now_ms: u64) {
        if self.steps.is_empty() && standing.recovering.is_some() {
            let Start {
                restored,
                keyed,
                began,
                ..
            } = self.start;
            self.steps = vec![restored, keyed, began];
        }
        if self.steps.is_empty() || self.steps.len() == RECOVERY_STEPS.len() {
            return;
        }
        let votes = standing.recovering.is_none();
        let bound = standing.recovering.and_then(|r| r.bound);
        let done = [
            votes || bound.is_some(),
            votes || bound.is_some_and(|bound| standing.stable.0 >= bound.seq),
            votes,
            votes && standing.active && !standing.fetching,
        ];
        let count = done.into_iter().take_while(|done| *done).count();
        let now = self.start.began + now_ms;
        // What was done stays done.
        self.steps.resize(self.steps.len().max(3 + count), now);
    }

    fn look_at_view(&mut self, standing: &Standing) {
        let now = (standing.view, standing.active);
        match self.view.replace(now) {
            Some(before) if before != now && standing.active => {
                tracing::info!(view = now.0.0, "a view has begun");
            }
            Some(before) if before != now => {
                tracing::info!(view = now.0.0, "waits for a view to begin");
            }
            _ => {}
        }
    }
}

/// Whether what is said again and again is to be said now; if so, it was.
fn is_due(said_at: &mut Option<u64>, now_ms: u64) -> bool {
    let due = said_at.is_none_or(|at| now_ms.saturating_sub(at) >= REPEAT_MS);
    if due {
        *said_at = Some(now_ms);
    }
    due
}
