//! What a replica thinks of its primary: whether it is there, and whether it does what is asked, soon and in a fair order.
//!
//! A time-out alone lets a primary be as slow as the time-out (Amir, Coan, Kirsch, Lane: Prime, DSN 2008; Clement et al.:
//! Aardvark, NSDI 2009). So a backup also looks at what it knows to be asked for, its *claims*: requests that their clients have signed
//! and sent to it as well. A right primary proposes at once what waits while its pipeline has room. Only signed requests are held
//! against it: any replica can check those, while a client can make MACs that are right for some and wrong for others.
//!
//! - **Patience** with the oldest claim, from when it became the oldest: a few times what a batch took here of late, so
//!   that load and slow disks stretch it, and never more than the configured time-out.
//! - **Blame**: the time for which a claim waited although the pipeline had room, beyond what messages take. It fades slowly; a
//!   primary with too much of it is left.
//!   So is one that proposes small requests without their content ([`withheld`]).
//! - **Unfairness**: a claim that waits while some session gets more requests ordered than it can have had in flight before, or
//!   while two pipelines full of batches are proposed after the primary was shown it.
//! - **Lateness**: most claims of late waited for longer than messages take, and than with other primaries ([`promptness`]), and f others say that the primary is no good.
//! - **Loss**: the link with the primary's process is gone, and f others say the same.
//! - **Silence**: it says nothing at all although a claim waits and was shown to it, and 2f others say the same: a process that
//!   stands still keeps its links. That all who are correct must see it keeps a busy machine from changing views.
//!
//! A claim that waits for long is relayed to the primary: a client may have shown it to the backups alone, or it may wait at the primary for
//! its client's turn (`turns.rs`), and goes first then. What comes of a client whose last claim had to be relayed is blamed on nobody
//! before that, unless that is so with most clients; nor what comes of one for whose claims a primary was left. A long request, which nobody can have out of turn, is held against the primary
//! only from when its client was last served.

mod pipeline;
mod promptness;
mod shown;
mod withheld;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quorate_wire::message::PeerMessage;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, ReplicaId, Seq, SessionId};

use crate::Millis;
use crate::core::Agreement;
use crate::io::Output;
use crate::pool::WaitingClaim;
use crate::primary::EAGER_BATCHES;

use pipeline::Pipeline;
use promptness::{Excused, Promptness};
use shown::Shown;
pub(crate) use withheld::NamedClaim;
use withheld::{Lacking, Withheld};

/// The shortest patience, where the configured time-out is not shorter still.
const LEAST_PATIENCE_MS: Millis = 250;
/// Batches to have seen before their time is believed.
const ENOUGH_BATCHES: u32 = 8;
/// The slowest batch counts for so long, then half as much; the quickest until another comes.
const REMEMBERED_MS: Millis = 10_000;
/// A claim may wait so long in any case: messages are on their way, processes wait for their turn.
const ALLOWANCE_MS: Millis = 20;
/// Blame that is too much. Doubles with each primary that was left for it, up to 32 times, and halves in
/// [`FORGIVEN_MS`] without one.
const TOO_MUCH_BLAME_MS: Millis = 500;
const FORGIVEN_MS: Millis = 30_000;
/// With so much of it, whoever leaves a primary looks whose claims it was for: all do, also those that follow others.
const MUCH_BLAME_MS: Millis = TOO_MUCH_BLAME_MS / 2;
/// Blame fades by one part in so many of the time that passes.
const FADING: Millis = 10;
/// A replica that is called so much later than it asked for stood still itself.
const LATE_MS: Millis = 100;
/// A claim that waits so long is shown to the primary.
pub(crate) const RELAY_MS: Millis = 60;
/// How many are shown at once.
const RELAYED_AT_ONCE: usize = 64;
/// How long a primary may be silent while a claim waits, beyond twice what its silences and batches took of late.
const SILENCE_MS: Millis = 120;
/// After more views than this that began nothing, one has its time before another replica's word ends it. To follow one that recovers takes
/// two or three.
const FEW_FAILED: u32 = 3;
/// How often in a row patience that is over may begin anew because others are ahead, while nothing is executed here.
const EXCUSED: u32 = 4;
/// How long a lost link may take to come back.
const LOST_MS: Millis = 50;
/// Requests of one session that may overtake a claim: a window that was in flight before it, one that followed while the claim
/// was on its way, and one for links that are not alike.
const MAY_OVERTAKE: u32 = 3 * SESSION_WINDOW as u32;
/// Batches, in pipelines that are full, that may follow after a claim was shown to the primary, which should have it in the next.
const MAY_FOLLOW: u64 = 2;
/// Sessions that are counted for this.
const COUNTED_SESSIONS: usize = 4096;
/// Proposed claims that wait to be looked at, a few a second.
const MOST_BEYOND: usize = 256;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// How far proposals have come.
    pub(crate) pipeline: Pipeline,
    /// When each replica was last heard.
    heard: BTreeMap<ReplicaId, Millis>,
    /// The longest that a primary of late was silent while a claim waited, and then spoke; and when that was.
    silence: (Millis, Millis),
    /// The number of the last claim that this view's primary was shown.
    relayed: u64,
    /// The oldest claim, and since when it has been that.
    oldest: Option<(u64, Millis)>,
    /// When the pipeline last had no room.
    full_at: Millis,
    looked_at: Millis,
    /// In tenths of milliseconds.
    blame: u64,
    promptness: Promptness,
    /// Proposals that came without all that they name.
    pub(crate) withheld: Withheld,
    /// Claims that were proposed and not looked at yet.
    beyond: Vec<(Seq, NamedClaim)>,
    is_late: bool,
    /// The oldest claim that waits to be ordered, and how many requests of each session were ordered since.
    overtaken: Option<(u64, HashMap<SessionId, u32, FixedState>)>,
    is_unfair: bool,
    /// Primaries left for their slowness, and when the last was, or was forgiven.
    left: (u32, Millis),
    stood_still_at: Option<Millis>,
    /// What this replica had executed when it last was the slow one itself, and how often in a row that was so in this view.
    excused: (Seq, u32),
    shown: Shown,
    /// Since when links with other replicas that stood before are gone.
    lost: BTreeMap<ReplicaId, Millis>,
    hash: FixedState,
}

impl Judge {
    pub fn new(seed: u64, now: Millis) -> Judge {
        Judge {
            pipeline: Pipeline::new(now),
            heard: BTreeMap::new(),
            silence: (0, now),
            relayed: 0,
            oldest: None,
            full_at: now,
            looked_at: now,
            blame: 0,
            promptness: Promptness::new(now),
            withheld: Withheld::default(),
            beyond: Vec::new(),
            is_late: false,
            overtaken: None,
            is_unfair: false,
            left: (0, now),
            stood_still_at: None,
            excused: (Seq(0), 0),
            shown: Shown::default(),
            lost: BTreeMap::new(),
            hash: FixedState::with_seed(seed),
        }
    }

    /// Another view has begun, or this one was left: nothing is held against its primary.
    pub fn begin_view(&mut self, start: Seq, now: Millis) {
        if self.blame >= MUCH_BLAME_MS * 10 {
            self.shown.on_left(MUCH_BLAME_MS, now);
        }
        self.pipeline.begin_view(start, now);
        self.shown.begin_view();
        self.promptness.begin_view();
        self.withheld.begin_view();
        self.beyond.clear();
        self.is_late = false;
        self.relayed = 0;
        self.oldest = None;
        (self.full_at, self.blame) = (now, 0);
        (self.overtaken, self.is_unfair) = (None, false);
        self.excused.1 = 0;
    }

    /// Whether a replica that is behind others, and has executed so much, may wait for longer. One of the f+1 that say that they are ahead
    /// may be the primary, and the only one beside it that is: then nobody brings what is missing, and the others have to leave.
    pub fn may_wait_anew(&mut self, executed: Seq) -> bool {
        let (before, times) = self.excused;
        self.excused = match before == executed {
            true => (before, times.saturating_add(1)),
            false => (executed, 1),
        };
        self.excused.1 <= EXCUSED
    }

    /// The primary has proposed something at this place; it holds these sessions' requests, and `has_room` for more.
    pub fn on_proposed(
        &mut self,
        seq: Seq,
        sessions: impl Iterator<Item = SessionId>,
        has_room: bool,
        now: Millis,
    ) {
        self.pipeline.on_proposed(seq, now);
        if has_room {
            self.promptness.on_roomy(now);
        }
        self.shown.on_batch();
        let Some((_, counts)) = &mut self.overtaken else {
            return;
        };
        for session in sessions {
            if counts.len() < COUNTED_SESSIONS || counts.contains_key(&session) {
                let count = counts.entry(session).or_default();
                *count += 1;
                self.is_unfair |= *count > MAY_OVERTAKE;
            }
        }
    }

    /// A proposal has come that lacks something.
    pub fn on_lacking(
        &mut self,
        seq: Seq,
        missing: Vec<Digest>,
        mut claims: Vec<NamedClaim>,
        now: Millis,
    ) {
        let full_at = Some(self.full_at);
        claims.iter_mut().for_each(|named| named.full_at = full_at);
        let lacking = Lacking {
            since: now,
            missing,
            claims,
        };
        self.withheld.on_lacking(seq, lacking);
    }

    /// The link with a replica stands, or is gone.
    pub fn on_link(&mut self, replica: ReplicaId, is_up: bool, now: Millis) {
        match is_up {
            true => drop(self.lost.remove(&replica)),
            false => drop(self.lost.entry(replica).or_insert(now)),
        }
    }

    /// A replica has said something. It counts for its silence whether it is this view's primary, and a claim waits.
    pub fn on_heard(&mut self, from: ReplicaId, primary: ReplicaId, now: Millis) {
        let before = self.heard.insert(from, now);
        if let Some((_, since)) = self.oldest.filter(|_| from == primary) {
            let since = before.map_or(since, |before| before.max(since));
            remember(&mut self.silence, now.saturating_sub(since), now);
        }
    }

    /// The primary has proposed a claim at a place. If it was not shown to it, it knew by itself.
    pub fn on_claim_proposed(&mut self, seq: Seq, named: NamedClaim, now: Millis) {
        if named.claim.number > self.relayed {
            self.shown.on_known(named.claim.client, now);
            if named.is_sample && self.beyond.len() < MOST_BEYOND {
                self.beyond.push((seq, named));
            }
        }
    }

    /// Looks at the claims to whose places proposals lead without a gap by now: what is named beyond one is not proposed before it is closed.
    fn look_at_claims(&mut self, primary: ReplicaId, now: Millis) {
        let (run, full_at) = (self.pipeline.run(), self.full_at);
        for (_, named) in self.beyond.extract_if(.., |(seq, _)| *seq <= run) {
            let excused = Excused {
                full_at: named.full_at.unwrap_or(full_at),
                held: named.held,
            };
            self.promptness
                .on_proposed(primary, &named.claim, excused, now);
        }
    }

    /// Whether most claims of late waited for longer than they should.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// How many entries its tables have.
    pub fn counted(&self) -> usize {
        let sessions = self
            .overtaken
            .as_ref()
            .map_or(0, |(_, counts)| counts.len());
        let judged = self.pipeline.len() + self.promptness.len() + self.shown.len();
        judged
            + self.withheld.len()
            + self.beyond.len()
            + self.heard.len()
            + self.lost.len()
            + sessions
    }

    /// How long a claim may wait in any case, where the configured time-out is such.
    fn allowance(&self, timeout_ms: Millis) -> Millis {
        let most = timeout_ms / 8;
        let quickest = self.pipeline.quickest().map_or(most, |took| 2 * took);
        ALLOWANCE_MS + quickest.min(most)
    }

    /// How long a primary may be silent.
    fn silence(&self, most: Millis) -> Millis {
        let (longest, slowest) = (self.silence.0, self.pipeline.slowest().0);
        (SILENCE_MS + 2 * longest.max(slowest)).min(most)
    }

    /// How long a batch may take, going by the slowest of late.
    fn patience(&self, most: Millis) -> Millis {
        match self.knows_enough() {
            true => (LEAST_PATIENCE_MS + 8 * self.pipeline.slowest().0).min(most),
            false => most,
        }
    }

    fn knows_enough(&self) -> bool {
        self.pipeline.slowest().1 >= ENOUGH_BATCHES
    }
}

/// Keeps the longest of late: it counts for [`REMEMBERED_MS`], then half as much.
fn remember((longest, at): &mut (Millis, Millis), took: Millis, now: Millis) {
    if took >= *longest || now.saturating_sub(*at) >= REMEMBERED_MS {
        (*longest, *at) = (took.max(*longest / 2), now);
    }
}

impl Agreement {
    /// Whether this replica, called last at `before`, was called so late now that what it waited for may be waiting to be read. Not time and again: a machine that
    /// is always late must get away from a dead primary as well.
    pub(crate) fn has_stood_still(&mut self, before: Millis) -> bool {
        let now = self.now.mono;
        if now <= before + LATE_MS {
            return false;
        }
        let again = self.judge.stood_still_at;
        let pause = 2 * self.patience();
        let still = now > self.next_timeout() + LATE_MS
            && again.is_none_or(|at| now.saturating_sub(at) > pause);
        if still {
            self.judge.stood_still_at = Some(now);
        }
        still
    }

    /// How long to wait for a primary: doubles with each view that failed, up to 64 times, and falls back with progress. Where it only grew,
    /// a faulty primary could be slow for ever (Prime, DSN 2008; BFT-SMaRt issue 51).
    pub(crate) fn patience(&self) -> Millis {
        self.judge.patience(self.config.timeout_ms) << self.slow_views.min(6)
    }

    /// Whether what another replica says is a reason to leave this view already: not many have failed of late, or it had the time to bring
    /// something.
    pub(crate) fn has_view_had_its_time(&self) -> bool {
        let has_had = self.now.mono.saturating_sub(self.judge.pipeline.began());
        let time = self.judge.patience(self.config.timeout_ms) << self.failed_views.min(6);
        self.failed_views <= FEW_FAILED || has_had >= time
    }

    /// When the oldest claim has waited too long. The timer is that claim's: one of the whole queue never stopped under steady load (BFT-SMaRt
    /// issue 57). A primary leaves its own view as well: where one backup has gone on alone and
    /// another has all that is asked, nobody else would, and the rest is too few to commit anything.
    pub(crate) fn request_deadline(&self) -> Option<Millis> {
        if !self.active || self.fetching.is_some() || !self.has_window() {
            return None;
        }
        if is_on(Mutant::TimerNeverStops) {
            return Some(self.judge.oldest?.1 + self.patience());
        }
        let (number, since) = self.pool.oldest_claim()?;
        let became = self.judge.oldest.filter(|(n, _)| *n == number);
        let since = became.map_or(self.now.mono, |(_, at)| at.max(since));
        Some(since + self.patience())
    }

    /// When the link with the primary will have been gone for too long, if it is.
    pub(crate) fn loss_deadline(&self) -> Option<Millis> {
        let since = self.judge.lost.get(&self.primary())?;
        let at = since + LOST_MS;
        // Once that is over there is nothing to wait for but the others' word.
        (self.active && at > self.now.mono).then_some(at)
    }

    /// Whether the link with the primary has been gone for too long.
    pub(crate) fn is_primary_lost(&self) -> bool {
        let lost = self.judge.lost.get(&self.primary());
        lost.is_some_and(|since| self.now.mono >= since + LOST_MS)
    }

    /// When the primary will have been silent for too long, if it says nothing until then.
    fn silent_from(&self) -> Option<Millis> {
        let may = self.active && !self.is_primary() && self.fetching.is_none();
        if !may || !self.judge.knows_enough() || !self.has_window() {
            return None;
        }
        let (number, since) = self.pool.oldest_claim()?;
        let became = self.judge.oldest.filter(|(n, _)| *n == number);
        let since = since.max(became.map_or(self.now.mono, |(_, at)| at));
        let heard = self.judge.heard.get(&self.primary());
        let since = heard.map_or(since, |heard| since.max(*heard));
        Some(since + self.judge.silence(self.patience()))
    }

    /// When to look whether the primary is silent.
    pub(crate) fn silence_deadline(&self) -> Option<Millis> {
        self.silent_from().filter(|at| *at > self.now.mono)
    }

    /// Whether the primary has been silent for too long.
    pub(crate) fn is_primary_silent(&self) -> bool {
        self.silent_from().is_some_and(|at| at <= self.now.mono)
    }

    /// When the next claim is to be shown to the primary.
    pub(crate) fn relay_deadline(&self) -> Option<Millis> {
        let may = self.active && !self.is_primary();
        let (_, since) = self.pool.claims_after(self.judge.relayed).next()?;
        may.then_some(since + RELAY_MS)
    }

    /// Shows the primary the claims that wait for long: it may never have heard of them, and will say so by ordering them.
    pub(crate) fn relay_claims(&mut self) {
        if self.relay_deadline().is_none_or(|at| at > self.now.mono) {
            return;
        }
        let (now, primary) = (self.now.mono, self.primary());
        let due = self.pool.claims_after(self.judge.relayed);
        let due = due.take_while(|(_, since)| since + RELAY_MS <= now);
        let due: Vec<Digest> = due.take(RELAYED_AT_ONCE).map(|(d, _)| d).collect();
        for digest in due {
            let Some(entry) = self.pool.get(&digest) else {
                continue;
            };
            let number = entry.claim_number().unwrap_or(self.judge.relayed);
            self.judge.relayed = number;
            let request = entry.relay().filter(|_| entry.is_waiting()).cloned();
            if let Some(shown) = request {
                let request = &shown.request;
                let client = request.client();
                let small = request.op().len() <= self.config.tuning.inline_bytes;
                // A long one becomes the newest claim with each turn of its client's (`served`): shown each time, it would come to the primary many times over, from each backup.
                if self.pool.mark_shown(&digest) && !small {
                    continue;
                }
                let message = PeerMessage::Request((*shown).clone());
                self.out.push_back(Output::Send(primary, message));
                let is_there = !self.judge.lost.contains_key(&primary);
                // A session is opened when its client may.
                let goes_first = small && is_there && request.session() != SessionId(0);
                self.judge.shown.on_shown(number, client, goes_first, now);
            }
        }
    }

    /// A proposal that lacked something is complete. What it names was proposed now, if the primary should have sent what was missing.
    pub(crate) fn judge_content(&mut self, seq: Seq) {
        let Some(lacking) = self.judge.withheld.take(seq) else {
            return;
        };
        let now = self.now.mono;
        let long = self.config.tuning.inline_bytes;
        let mut came = lacking.missing.iter().filter_map(|d| self.pool.get(d));
        let is_withheld =
            came.any(|e| e.request().op().len() <= long) && !is_on(Mutant::ContentUnjudged);
        let allowance = self.judge.allowance(self.config.timeout_ms);
        let judge = &mut self.judge;
        for mut named in lacking.claims {
            named.is_sample &= is_withheld;
            judge.on_claim_proposed(seq, named, now);
        }
        if is_withheld && judge.knows_enough() {
            judge.blame += judge.withheld.count(lacking.since + allowance, now) * 10;
        }
    }

    /// The link with another replica stands, or is gone.
    pub(crate) fn on_peer_link(&mut self, replica: ReplicaId, is_up: bool) {
        self.judge.on_link(replica, is_up, self.now.mono);
        if replica == self.primary() {
            self.judge.shown.forget_shown();
        }
    }

    /// Looks at the primary's conduct; whether it is to be left.
    pub(crate) fn is_primary_bad(&mut self) -> bool {
        let now = self.now.mono;
        let (primary, f) = (self.primary(), self.config.quorum.f());
        let has_window = self.has_window();
        let has_proposal = |seq: Seq| {
            let slot = self.slots.get(&seq);
            slot.is_some_and(|s| s.proposal.is_some() || s.committed.is_some())
        };
        let pipeline = &mut self.judge.pipeline;
        pipeline.follow(self.committed, has_proposal, now);
        let in_flight = pipeline.in_flight(self.committed);
        let (proposed_at, is_on_its_way) = pipeline.last();
        let claim = self.pool.oldest_claim().map(|(number, _)| number);
        let waiting = self.pool.waiting_claims().next().map(|claim| claim.number);
        let blamed_from = self
            .judge
            .shown
            .blamed_from(self.pool.waiting_claims(), RELAY_MS, now);
        // Then it is this replica that is slow.
        let is_behind = claim.is_some() && self.others_are_ahead();
        let judge = &mut self.judge;
        judge.look_at_claims(primary, now);
        // What passed while this replica did not look says little.
        let passed = now.saturating_sub(judge.looked_at).min(LATE_MS);
        judge.looked_at = now;
        if !has_window {
            judge.oldest = None;
        } else if is_on(Mutant::TimerNeverStops) {
            judge.oldest = judge.oldest.or(claim.map(|number| (number, now)));
        } else if judge.oldest.map(|(n, _)| n) != claim {
            judge.oldest = claim.map(|number| (number, now));
        }
        let allowance = judge.allowance(self.config.timeout_ms);
        let is_full = in_flight >= EAGER_BATCHES.min(self.config.tuning.batches);
        // What came after a batch waits until that has prepared. What was there before should be in it.
        let came_after = blamed_from.is_none_or(|since| since + allowance >= proposed_at);
        let is_next = in_flight > 0 && came_after && is_on_its_way;
        if is_full || is_next || !has_window || is_behind {
            judge.full_at = now;
        }
        if !has_window || is_behind {
            judge.pipeline.excuse_gap(now);
        }
        match (waiting, &judge.overtaken) {
            (None, _) => judge.overtaken = None,
            (Some(number), Some((watched, _))) if *watched == number => {}
            (Some(number), _) => {
                let counts = HashMap::with_hasher(judge.hash.clone());
                judge.overtaken = Some((number, counts));
            }
        }
        if now.saturating_sub(judge.left.1) >= FORGIVEN_MS {
            judge.left = (judge.left.0.saturating_sub(1), now);
        }
        judge.blame = judge.blame.saturating_sub(passed * 10 / FADING);
        // What has a place beyond a gap waits as well.
        let gap_since = judge.pipeline.gap_since().filter(|_| claim.is_some());
        let waits = |since: Millis| now.saturating_sub(since) > allowance;
        let is_slow = blamed_from.is_some_and(|since| waits(since.max(judge.full_at)));
        if judge.knows_enough() && (is_slow || gap_since.is_some_and(waits)) {
            judge.blame += passed * 10;
            let claims = self.pool.waiting_claims();
            let from = now.saturating_sub(allowance);
            judge.shown.on_blamed(claims, (RELAY_MS, from), passed, now);
        }
        if !self.active || self.is_primary() || self.fetching.is_some() {
            return false;
        }
        let most = MAY_FOLLOW * self.config.tuning.batches;
        // What was on its way to a replica that was not called for a while comes at once.
        let least = allowance + LATE_MS;
        let claims = self.pool.waiting_claims();
        let judge = &mut self.judge;
        judge.is_unfair |= judge.shown.is_starving(claims, most, least, now);
        let too_much = TOO_MUCH_BLAME_MS << judge.left.0.min(5);
        let is_unfair = judge.is_unfair && !is_behind && !is_on(Mutant::UnfairForgiven);
        let is_blamed = judge.blame >= too_much * 10 && !is_on(Mutant::BlameForgiven);
        if is_blamed || is_unfair {
            judge.left = (judge.left.0 + 1, now);
            return true;
        }
        let quickest = judge.pipeline.quickest();
        let is_late = quickest.is_some_and(|quickest| {
            let promptness = &mut judge.promptness;
            promptness.is_late(primary, f, quickest, now)
        });
        judge.is_late =
            is_late && judge.knows_enough() && !is_behind && !is_on(Mutant::LatenessForgiven);
        let said = self.statuses.iter().filter(|(from, (status, _))| {
            **from != primary && status.view == self.view && status.primary_lost
        });
        let said = said.count();
        if self.judge.is_late && said >= f {
            self.judge.promptness.on_left(primary);
            return true;
        }
        (self.is_primary_lost() && said >= f) || (self.is_primary_silent() && said >= 2 * f)
    }
}
