//! When a router that has run out by the group's time is taken over.
//!
//! That time is what the group's primary says, and is believed within ten seconds of the others' clocks, which is more than a lease: a faulty
//! primary, or a clock that is set, makes it leap past the leases of all routers at once, while all of them go on. Who renews is alive
//! again. So nobody is taken over that was not silent, by this machine's clock, for as long as a router believes that it has its place after
//! it has renewed it for the last time: by then it has stopped by itself, whatever the group's time is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_ledger::op::Epoch;
use quorate_wire::Time;

/// The epochs that have run out, as one router has heard of them.
#[derive(Debug, Default)]
pub struct Silence(BTreeMap<Epoch, Heard>);

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// When it has run out, in agreed time. Another one than before says that it was renewed in between.
    expires: Time,
    /// Since when that is known here.
    since: Instant,
}

impl Silence {
    /// Takes down which epochs have run out at `now`, and when they did in agreed time. Gives those to be taken over: the ones that nobody has renewed for
    /// `patience`, and at once those whose router says itself that it has begun anew.
    pub fn told(
        &mut self,
        run_out: &BTreeMap<Epoch, Time>,
        patience: Duration,
        now: Instant,
    ) -> Vec<Epoch> {
        let heard = |(&epoch, &expires): (&Epoch, &Time)| {
            let before = self.0.get(&epoch).filter(|it| it.expires == expires);
            let since = before.map_or(now, |it| it.since);
            (epoch, Heard { expires, since })
        };
        self.0 = run_out.iter().map(heard).collect();
        let is_over =
            |it: &Heard| it.expires == Time(0) || now.duration_since(it.since) >= patience;
        let over = self.0.iter().filter(|(_, it)| is_over(it));
        over.map(|(epoch, _)| *epoch).collect()
    }
}
