//! Who costs a replica too much: a peer that sends far more than the others do, and a client whose messages are of no use, are
//! put aside for a while. Their links stay, and nothing is read from them: what they send waits on their own side. (A client's own side gives its link up where
//! what waits has not moved for 15 s; it is put aside for 16 s at most.)
//!
//! Aardvark (Clement et al., NSDI 2009, sect. 4) and RBFT (Aublin et al., ICDCS 2013) close the network interface towards a replica
//! that floods. Here it is a delay and no loss, so that a replica that was put aside wrongly (its backlog came all at once, say)
//! is late and nothing worse.
//!
//! Costs are counted in *units*: about what a short message takes, a microsecond.
//!
//! - A **peer** pays for each message. It may send twice as much as the (f+1)-th busiest other replica, since one of the f+1 busiest is
//!   correct, and at least [`PEERS`]' allowance. So it does not matter how much the group has to do.
//! - A **client** pays for what brings nobody anything: messages that are refused or were answered before, connections,
//!   replies that it does not take, TLS records of few bytes. How much else it may send is a matter of turns (`hub.rs`).

use std::time::{Duration, Instant};

use quorate_wire::Authenticator;
use quorate_wire::message::{PeerMessage, StateMessage};

/// How often accounts are looked at.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// And where somebody's is overdrawn before that.
const SHORTEST_PERIOD: Duration = Duration::from_millis(5);
/// Over what time it is averaged what peers send.
const AVERAGED: Duration = Duration::from_secs(2);
/// How long somebody is put aside the first time; doubles each time.
const FIRST_ASIDE: Duration = Duration::from_millis(250);
/// How long somebody has to be good until the next time is a first time again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// What a correct peer sends at most for what the others send: a primary sends three messages where a backup sends two.
const TIMES_OTHERS: u64 = 2;

/// Bytes that cost as much as a short message: to open and copy them.
pub(crate) const BYTES_PER_UNIT: usize = 4 << 10;
/// A check of a signature.
const SIGNATURE: u64 = 50;
/// An answer with pieces of the state.
const PIECES: u64 = 8;
/// A message of a client that was refused, or answered before, beside its bytes.
const REFUSED: u64 = 8;
/// A connection, for its handshake.
pub(crate) const CONNECTION: u64 = 128;
/// Bytes that are no message.
pub(crate) const MALFORMED: u64 = 1024;

/// What a message of so many bytes takes of a turn.
pub(crate) fn units(bytes: usize) -> u64 {
    1 + (bytes / BYTES_PER_UNIT) as u64
}

/// What a peer's message takes. Its bytes are counted if it is refused: who proposes or hands over much does not flood.
pub(crate) fn of_peer(message: &PeerMessage) -> u64 {
    match message {
        PeerMessage::ViewChange(_) | PeerMessage::NewView(_) | PeerMessage::Signed(_) => SIGNATURE,
        PeerMessage::Request(request) => match request.auth {
            Authenticator::Signed(_) => SIGNATURE,
            Authenticator::Macs(_) => 1,
        },
        PeerMessage::State(StateMessage::GetNodes(_) | StateMessage::GetValues(_)) => PIECES,
        _ => 1,
    }
}

/// What is owed for a message of so many bytes that was refused.
pub(crate) fn of_refused(bytes: usize, is_peer: bool) -> u64 {
    let bytes = (bytes / BYTES_PER_UNIT) as u64;
    if is_peer { bytes } else { REFUSED + bytes }
}

/// What is allowed to everyone of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Units in a second.
    per_second: u64,
    /// Units beyond that, once.
    credit: u64,
    /// How long somebody is put aside at most.
    longest: Duration,
    /// Units that one who is put aside, and behaves, may have sent in each second of that: when it is taken back they come all at once.
    backlog_per_second: u64,
}

/// Other replicas. The credit is a long backlog of votes; a peer that floods for ever costs it every four seconds, which is a hundredth of a
/// processor.
pub(crate) const PEERS: Terms = Terms {
    per_second: 2_000,
    credit: 32_000,
    longest: Duration::from_secs(4),
    backlog_per_second: 0,
};

/// Clients. What is allowed is a window of requests that is repeated eight times a second, as a correct client does at most where a busy machine answers
/// late: it must not be put aside for that, which would make answers later still. The credit is ten such windows. Who is not heard repeats what others then bring here
/// in its place; so its backlog has been answered when it is read, and is not held against it: else it would be put aside for that, and again for what it has sent
/// then. As soon as it may be, a window is 128 messages in a tenth of a second.
pub(crate) const CLIENTS: Terms = Terms {
    per_second: 4_000,
    credit: 8_000,
    longest: Duration::from_secs(16),
    backlog_per_second: 1_280 * REFUSED,
};

/// The account of a peer or client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// Units in this period.
    spent: u64,
    /// Units that were not allowed.
    debt: u64,
    /// Units that cost nothing: what came while nothing was read.
    pardoned: u64,
    /// Units in [`AVERAGED`], faded.
    lately: f64,
    aside_until: Option<Instant>,
    /// How often it was put aside in a row, and until when.
    times: u32,
    last: Option<Instant>,
}

impl Account {
    /// Notes what somebody has cost.
    pub fn charge(&mut self, units: u64) {
        self.spent += units;
    }

    /// Whether nothing is to be read from it now.
    pub fn is_aside(&self) -> bool {
        self.aside_until.is_some()
    }

    fn is_overdrawn(&self, terms: &Terms) -> bool {
        let spent = self.spent.saturating_sub(self.pardoned);
        self.aside_until.is_none() && self.debt + spent > terms.credit
    }

    fn settle(&mut self, terms: &Terms, now: Instant, income: u64) -> Option<Duration> {
        let spent = std::mem::take(&mut self.spent);
        let pardoned = spent.min(self.pardoned);
        self.pardoned -= pardoned;
        self.debt = (self.debt + spent - pardoned).saturating_sub(income);
        if self.debt <= terms.credit || self.is_aside() {
            return None;
        }
        if self.last.is_some_and(|last| now >= last + FORGIVEN_AFTER) {
            self.times = 0;
        }
        let long = FIRST_ASIDE * (1 << self.times.min(16));
        let long = long.min(terms.longest);
        self.times += 1;
        (self.aside_until, self.last) = (Some(now + long), Some(now + long));
        self.pardoned = terms.backlog_per_second * long.as_millis() as u64 / 1_000;
        Some(long)
    }

    /// Whether its time is over.
    fn release(&mut self, now: Instant) -> bool {
        let is_over = self.aside_until.is_some_and(|until| until <= now);
        if is_over {
            (self.aside_until, self.debt, self.spent) = (None, 0, 0);
        }
        is_over
    }
}

/// What has to be done with somebody: the place of the account, and for how long to put it aside, or nothing to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub at: usize,
    pub aside: Option<Duration>,
}

/// The accounts of one kind: all peers, or all clients.
#[derive(Debug)]
pub(crate) struct Ledger {
    terms: Terms,
    accounts: Vec<Account>,
    /// How many busiest others are not believed to be correct; for peers alone.
    faulty: Option<usize>,
    settled: Instant,
    /// Whether somebody may be overdrawn.
    hurry: bool,
    /// When the first of those that are aside comes back.
    release: Option<Instant>,
}

impl Ledger {
    /// One in which everyone has the same allowance.
    pub fn of_clients(now: Instant) -> Ledger {
        Ledger {
            terms: CLIENTS,
            accounts: Vec::new(),
            faulty: None,
            settled: now,
            hurry: false,
            release: None,
        }
    }

    /// One for `peers` other replicas of which `f` may be faulty.
    pub fn of_peers(peers: usize, f: usize, now: Instant) -> Ledger {
        Ledger {
            terms: PEERS,
            accounts: vec![Account::default(); peers],
            faulty: Some(f),
            ..Ledger::of_clients(now)
        }
    }

    /// How many accounts there are, which is the place of the next.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Opens one more account, and gives its place.
    pub fn open(&mut self) -> usize {
        self.accounts.push(Account::default());
        self.accounts.len() - 1
    }

    /// Notes what somebody has cost.
    pub fn charge(&mut self, at: usize, units: u64) {
        if let Some(account) = self.accounts.get_mut(at) {
            account.charge(units);
            self.hurry |= account.is_overdrawn(&self.terms);
        }
    }

    /// Whether somebody is put aside.
    pub fn is_aside(&self, at: usize) -> bool {
        self.accounts.get(at).is_some_and(Account::is_aside)
    }

    /// When [`Ledger::settle`] has somebody to take back.
    pub fn next_release(&self) -> Option<Instant> {
        self.release
    }

    /// Looks at the accounts, if it is time.
    pub fn settle(&mut self, now: Instant) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        if self.release.is_some_and(|at| at <= now) {
            for (at, account) in self.accounts.iter_mut().enumerate() {
                if account.release(now) {
                    verdicts.push(Verdict { at, aside: None });
                }
            }
        }
        let passed = now.saturating_duration_since(self.settled);
        if passed >= PERIOD || self.hurry && passed >= SHORTEST_PERIOD {
            (self.settled, self.hurry) = (now, false);
            // What came while this process stood still has had all that time to come.
            let seconds = passed.as_secs_f64();
            let reference = self.reference(seconds);
            let income = (self.terms.per_second as f64 * seconds) as u64 + reference;
            for (at, account) in self.accounts.iter_mut().enumerate() {
                if let Some(long) = account.settle(&self.terms, now, income) {
                    let aside = Some(long);
                    verdicts.push(Verdict { at, aside });
                }
            }
        }
        if !verdicts.is_empty() {
            let asides = self.accounts.iter().filter_map(|a| a.aside_until);
            self.release = asides.min();
        }
        verdicts
    }

    /// What peers may have cost since the accounts were settled, going by those of them of which one is correct.
    fn reference(&mut self, seconds: f64) -> u64 {
        let Some(faulty) = self.faulty else { return 0 };
        let share = (seconds / AVERAGED.as_secs_f64()).min(1.0);
        let (mut now, mut lately) = (Vec::new(), Vec::new());
        for account in &mut self.accounts {
            account.lately = account.lately * (1.0 - share) + account.spent as f64;
            now.push(account.spent as f64);
            lately.push(account.lately * share);
        }
        let of = |mut costs: Vec<f64>| {
            costs.sort_unstable_by(|a, b| b.total_cmp(a));
            costs.get(faulty).copied().unwrap_or(0.0)
        };
        TIMES_OTHERS * of(now).max(of(lately)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Instant {
        crate::clock::now()
    }

    /// Three peers send so much in each period, for so long; how often each was put aside.
    fn run(costs: impl Fn(u32) -> [u64; 3], periods: u32) -> [u32; 3] {
        let began = start();
        let mut ledger = Ledger::of_peers(3, 1, began);
        let mut asides = [0; 3];
        for period in 1..=periods {
            for (at, cost) in costs(period).into_iter().enumerate() {
                if !ledger.is_aside(at) {
                    ledger.charge(at, cost);
                }
            }
            for verdict in ledger.settle(began + PERIOD * period) {
                asides[verdict.at] += u32::from(verdict.aside.is_some());
            }
        }
        asides
    }

    /// However busy the group is, a primary and two backups may be; also where one of them is down.
    #[test]
    fn busy_peers_are_left_alone() {
        for per_period in [10, 1_000, 100_000] {
            assert_eq!(
                run(|_| [3 * per_period, 2 * per_period, 2 * per_period], 600),
                [0; 3]
            );
            assert_eq!(run(|_| [3 * per_period, 2 * per_period, 0], 600), [0; 3]);
        }
    }

    /// Who does the same work in turns with the others, because processors are short, does not flood.
    #[test]
    fn turns_are_no_flood() {
        let in_turn = |period: u32| {
            let mut costs = [0; 3];
            costs[period as usize % 3] = 9_000;
            costs
        };
        assert_eq!(run(in_turn, 600), [0; 3]);
    }

    /// One that sends ten times as much is put aside, for longer and longer, and the others are not. In a quiet group as well.
    #[test]
    fn a_flood_is_put_aside() {
        let [aside, others @ ..] = run(|_| [100_000, 3_000, 2_000], 600);
        assert!((15..=25).contains(&aside), "{aside} times in a minute");
        assert_eq!(others, [0, 0]);
        let [aside, others @ ..] = run(|_| [5_000, 1, 1], 600);
        assert!(aside > 5 && others == [0, 0], "{aside} times in a minute");
    }

    /// The time doubles up to a bound, and begins anew after a minute.
    #[test]
    fn times_double() {
        let mut now = start();
        let mut ledger = Ledger::of_clients(now);
        let at = ledger.open();
        let mut longs = Vec::new();
        for _ in 0..8 {
            // Beyond whatever is pardoned.
            ledger.charge(at, 1_000_000);
            now += PERIOD;
            let verdicts = ledger.settle(now);
            let [
                Verdict {
                    aside: Some(long), ..
                },
            ] = verdicts[..]
            else {
                panic!("{verdicts:?}");
            };
            assert!(ledger.is_aside(at));
            longs.push(long.as_millis());
            now += long;
            assert_eq!(ledger.next_release(), Some(now));
            assert_eq!(ledger.settle(now), [Verdict { at, aside: None }]);
        }
        assert_eq!(
            longs,
            [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000]
        );
        ledger.charge(at, 60_000);
        let verdicts = ledger.settle(now + FORGIVEN_AFTER);
        assert!(verdicts.is_empty(), "a minute pays for much: {verdicts:?}");
        ledger.charge(at, 1_000_000);
        let verdicts = ledger.settle(now + FORGIVEN_AFTER + PERIOD);
        assert_eq!(verdicts[0].aside, Some(FIRST_ASIDE));
    }

    /// A client that was put aside, for whatever reason, and has a window of requests in flight that it repeats as long as nobody hears it, is
    /// taken back for good: that it was not heard is not its fault.
    #[test]
    fn a_backlog_does_not_put_aside_again() {
        let mut now = start();
        let mut ledger = Ledger::of_clients(now);
        let at = ledger.open();
        let mut long = Duration::ZERO;
        for _ in 0..4 {
            ledger.charge(at, 1_000_000);
            now += PERIOD;
            long = ledger.settle(now)[0].aside.expect("put aside");
            now += long;
            assert_eq!(ledger.settle(now), [Verdict { at, aside: None }]);
        }
        // In each tenth of a second a window, and the same again when that is repeated; others have brought all of it here meanwhile.
        for _ in 0..long.as_millis() / 100 {
            (0..128).for_each(|_| ledger.charge(at, of_refused(200, false)));
        }
        for _ in 0..100 {
            now += SHORTEST_PERIOD;
            assert!(ledger.settle(now).is_empty(), "put aside for its backlog");
        }
        // Not for ever: who goes on like that is put aside again.
        ledger.charge(at, 100_000);
        now += PERIOD;
        assert_eq!(ledger.settle(now)[0].aside, Some(2 * long));
    }

    /// Nor is one whose machine, or ours, is so busy that a whole window is repeated all the time.
    #[test]
    fn a_busy_machine_is_no_flood() {
        let began = start();
        let mut ledger = Ledger::of_clients(began);
        let at = ledger.open();
        for period in 1..600 {
            if period % 2 == 0 {
                (0..64).for_each(|_| ledger.charge(at, of_refused(200, false)));
            }
            assert!(ledger.settle(began + PERIOD * period).is_empty());
        }
    }

    /// A client that repeats a window of requests every second, and comes anew now and then, is no nuisance.
    #[test]
    fn a_client_in_trouble_is_left_alone() {
        let began = start();
        let mut ledger = Ledger::of_clients(began);
        let at = ledger.open();
        for period in 1..600 {
            if period % 10 == 0 {
                ledger.charge(at, 64 * of_refused(200, false));
            }
            if period % 100 == 0 {
                ledger.charge(at, CONNECTION);
            }
            assert!(ledger.settle(began + PERIOD * period).is_empty());
        }
    }
}
