//! Whether the others can do without a replica that recovers.
//!
//! It is silent, and so one of the f that the group does without. Where another one is faulty as well, and says nothing any more, the others are
//! too few, and nothing would ever change that: the recovery itself waits for them. Then the recovery is missed
//! ([`Output::Missed`](crate::Output::Missed)). A driver that has set the replica's log and state aside starts it with them
//! again: it has said nothing in the meantime, so that this is a restart like any other. If it was sound, so are they; if it was not, more
//! than f were faulty at a time. In PBFT it goes on with its log from the beginning (TOCS 2002, 4.3.2); here only where it has to.
//!
//! When that is the case others decide, and time; whether it is safe depends on neither.

use alloc::collections::BTreeMap;

use quorate_wire::message::Status;
use quorate_wire::{Quorum, ReplicaId, Seq, View};

use crate::Millis;
use crate::estimation::highest_but;
use crate::io::Missed;

/// For how long one counts as taking part that has said so: four times as often as it says so.
const HEARD_MS: Millis = 2_000;
/// How long too few take part, or views begin and nothing is ordered, before the recovery is missed. A primary that has died is replaced long
/// before.
const TOO_FEW_MS: Millis = 3_000;

/// How long the others have to do something of what is waited for: it takes milliseconds, or on a slow network seconds.
const WAIT_MS: Millis = 20_000;
/// How many places they must have come on in that time at the least to have it anew.
const STEP: u64 = 16;
/// How long they have for all of it, however steadily they come on. Not for each thing, since a faulty one can have it begin anew by the keys that
/// it takes.
const WAIT_IN_ALL_MS: Millis = 120_000;

/// The most that counts of the time between two looks, which are a tenth of a second apart.
const MOMENT_MS: Millis = 500;

/// Time in which others could be heard. A replica that waited for its key holder before it began, or whose machine stood still, has heard nobody
/// meanwhile, and that is not the others' doing.
#[derive(Clone, Copy, Debug)]
struct Watch {
    looked: Millis,
    passed: Millis,
}

impl Watch {
    fn new(now: Millis) -> Watch {
        Watch {
            looked: now,
            passed: 0,
        }
    }

    /// How much has passed.
    fn look(&mut self, now: Millis) -> Millis {
        self.passed += now.saturating_sub(self.looked).min(MOMENT_MS);
        self.looked = now;
        self.passed
    }
}

/// What a replica that recovers has heard of the others. Times are those of its watch.
#[derive(Clone, Debug)]
pub(crate) struct Spared {
    watch: Watch,
    /// Of each that takes part in a view: when it last said so, and in which.
    heard: BTreeMap<ReplicaId, (Millis, View)>,
    /// When there were enough of them last.
    enough: Millis,
    /// The view of one correct replica at least.
    view: View,
    /// Up to where they had come when a later view than the one before had begun, until they have come on: views may begin all the time in
    /// which nothing is ordered.
    began_at: Option<Seq>,
}

impl Spared {
    pub fn new(now: Millis) -> Spared {
        Spared {
            watch: Watch::new(now),
            heard: BTreeMap::new(),
            enough: 0,
            view: View(0),
            began_at: None,
        }
    }

    /// Another replica says where it stands.
    pub fn hear(&mut self, from: ReplicaId, status: &Status) {
        if status.active && status.recovering.is_none() {
            self.heard.insert(from, (self.watch.passed, status.view));
        } else {
            self.heard.remove(&from);
        }
    }

    /// Whether too few take part, or to no effect, and have for a while; told once in that time. `others`: the place to which one of them that is
    /// correct has come.
    pub fn look(&mut self, quorum: Quorum, others: Seq, now: Millis) -> Option<Missed> {
        let now = self.watch.look(now);
        let takes_part = |(at, _): &&(Millis, View)| now.saturating_sub(*at) < HEARD_MS;
        let taking_part = self.heard.values().filter(takes_part);
        let views = taking_part.map(|(_, view)| *view);
        let taking_part = views.clone().count();
        let view = highest_but(quorum.f(), views).unwrap_or_default();
        if view > self.view {
            let is_first = core::mem::replace(&mut self.view, view) == View(0);
            // What they had come to before the first of these that led to nothing.
            self.began_at = self.began_at.or((!is_first).then_some(others));
        }
        self.began_at = self.began_at.filter(|at| others <= *at);
        let is_enough = taking_part >= quorum.commit() && self.began_at.is_none();
        let is_missed = !is_enough && now.saturating_sub(self.enough) >= TOO_FEW_MS;
        if is_enough || is_missed {
            self.enough = now;
        }
        is_missed.then_some(Missed::Quorum)
    }
}

/// How long a replica that recovers has waited for others. Times are those of its watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    watch: Watch,
    begin: Millis,
    /// When they came on last, and how far they had come then.
    moved: (Millis, Seq),
}

impl Wait {
    pub fn new(now: Millis) -> Wait {
        Wait {
            watch: Watch::new(now),
            begin: 0,
            moved: (0, Seq(0)),
        }
    }

    /// Whether it `waits` for too long; told once in that time. `others`: as for [`Spared::look`].
    pub fn look(&mut self, waits: bool, others: Seq, now: Millis) -> bool {
        let now = self.watch.look(now);
        if !waits {
            self.begin = now;
        }
        if !waits || others.0 >= self.moved.1.0.saturating_add(STEP) {
            self.moved = (now, others);
        }
        let is_long = now.saturating_sub(self.moved.0) >= WAIT_MS
            || now.saturating_sub(self.begin) >= WAIT_IN_ALL_MS;
        if is_long {
            (self.begin, self.moved) = (now, (now, others));
        }
        is_long
    }
}
