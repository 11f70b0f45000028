//! What is done for those who knock, and for whom of them first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Work that is done for those who knock at once: a thousand clients that come back together, with a fifth of a millisecond each,
/// are let in without a pause.
const WORK_AT_ONCE: Duration = Duration::from_millis(250);
/// Beyond that, for so much time that passes one part of work.
const WORK_SHARE: u32 = 40;
/// Work that is waited for when there is none left.
const LEAST_WORK: Duration = Duration::from_micros(500);

/// How long this thread has had a processor. A busy machine's clock says more: there, a few clients that come back together would use up what there is.
pub(super) fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// How long the thread may still work for those who knock.
#[derive(Debug)]
pub(super) struct Work {
    left: Duration,
    owed: Duration,
    at: Instant,
}

impl Work {
    pub fn new(now: Instant) -> Work {
        Work {
            left: WORK_AT_ONCE,
            owed: Duration::ZERO,
            at: now,
        }
    }

    pub fn refill(&mut self, now: Instant) {
        let came = now.saturating_duration_since(self.at) / WORK_SHARE;
        self.at = self.at.max(now);
        let paid = came.min(self.owed);
        self.owed -= paid;
        self.left = (self.left + came - paid).min(WORK_AT_ONCE);
    }

    pub fn spend(&mut self, took: Duration) {
        let taken = took.min(self.left);
        self.left -= taken;
        self.owed += took - taken;
    }

    pub fn is_there(&self) -> bool {
        self.owed.is_zero() && !self.left.is_zero()
    }

    /// When there is some again.
    pub fn due(&self) -> Instant {
        match self.is_there() {
            true => self.at,
            false => self.at + (self.owed + LEAST_WORK) * WORK_SHARE,
        }
    }
}

/// The network of which whoever comes from an address has at least all: an address of IPv4, and 2^64 addresses of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Network {
        Network(match address.to_canonical() {
            IpAddr::V4(it) => it.into(),
            IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() >> 64 << 64).into(),
        })
    }
}

/// Of those that are here in this order, by where they come from, the one that has to go: the first from where most come. Where as many come from several, it
/// is the one that has been here longest.
pub(super) fn first_to_go(here: impl Iterator<Item = (usize, Network)>) -> Option<usize> {
    let mut networks: BTreeMap<Network, (usize, usize)> = BTreeMap::new();
    for (token, from) in here {
        networks.entry(from).or_insert((0, token)).0 += 1;
    }
    let most = networks
        .into_values()
        .max_by_key(|&(count, oldest)| (count, Reverse(oldest)));
    most.map(|(_, oldest)| oldest)
}

/// Guests that have something to say, by where they come from; networks in turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    order: VecDeque<Network>,
    guests: BTreeMap<Network, VecDeque<usize>>,
}

impl Turns {
    pub fn push(&mut self, from: Network, token: usize) {
        let guests = self.guests.entry(from).or_default();
        if guests.is_empty() {
            self.order.push_back(from);
        }
        guests.push_back(token);
    }

    pub fn pop(&mut self) -> Option<usize> {
        let from = self.order.pop_front()?;
        let guests = self.guests.get_mut(&from)?;
        let token = guests.pop_front();
        match guests.is_empty() {
            true => drop(self.guests.remove(&from)),
            false => self.order.push_back(from),
        }
        token
    }

    pub fn remove(&mut self, from: Network, token: usize) {
        let Some(guests) = self.guests.get_mut(&from) else {
            return;
        };
        guests.retain(|t| *t != token);
        if guests.is_empty() {
            self.guests.remove(&from);
            self.order.retain(|network| *network != from);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time in which this thread does nothing, since others have the processor or since it waits, is no work.
    #[test]
    fn waiting_is_no_work() {
        let before = worked();
        std::thread::sleep(Duration::from_millis(100));
        assert!(worked() - before < Duration::from_millis(50));
    }

    fn network(address: &str) -> Network {
        Network::of(address.parse().unwrap())
    }

    /// Addresses that one machine can take as it likes are one network, and an address of IPv4 is the same however it is written.
    #[test]
    fn networks_are_what_one_machine_has() {
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }

    /// The first goes of the network from which most come; and of all, where no network has more than another.
    #[test]
    fn room_is_made_by_the_oldest() {
        let goes = |from: &[&str]| first_to_go((10..).zip(from.iter().map(|it| network(it))));
        assert_eq!(goes(&[]), None);
        let (low, high) = ("192.0.2.1", "192.0.2.200");
        assert_eq!(goes(&[low, high]), Some(10));
        assert_eq!(goes(&[high, low]), Some(10));
        assert_eq!(goes(&[high, low, low, high, low]), Some(11));
        let many = ["2001:db8::1", "2001:db8::2", "2001:db8::3"];
        assert_eq!(
            goes(&[low, high, many[0], many[1], high, many[2]]),
            Some(12)
        );
    }

    /// Networks have their turns in the order in which they came, however many come from one of them.
    #[test]
    fn networks_have_turns() {
        let mut turns = Turns::default();
        for (token, from) in ["2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1"]
            .into_iter()
            .enumerate()
        {
            turns.push(network(from), token);
        }
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, [0, 3, 1, 2]);
    }
}
