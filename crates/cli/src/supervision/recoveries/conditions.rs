//! What a recovery waits for: others that go on without the replica, and have what it needs to come back.

use std::time::Duration;

use quorate_wire::ReplicaId;
use tokio::time::Instant;

use super::going::patience;
use super::{Children, Recoveries, Reports, check_may_recover, works};

/// So long after this process has started a recovery waits for certificates to be seen. They are seen before anybody's word is heard that it works, so
/// who waits longer has a disk that does not take them, and would wait for ever.
pub(super) const UNSEEN: Duration = Duration::from_secs(30);

impl Recoveries {
    /// Whether one may begin. Gives what is to be told of it if it does.
    pub(super) fn check(
        &self,
        replica: u8,
        force: bool,
        reports: &Reports,
        children: &mut Children,
    ) -> Result<Option<String>, String> {
        if let Some(going) = &self.going {
            if going.replica != replica {
                return Err(format!(
                    "replica {0} is recovering: one at a time (`quorate recover {0} --force` begins its recovery anew)",
                    going.replica
                ));
            }
            if !force {
                return Err(format!(
                    "replica {replica} is recovering: {}; --force begins that anew",
                    going.told
                ));
            }
        }
        if !children.has(replica) {
            return Err(format!("replica {replica} is not run from here"));
        }
        check_may_recover(&self.group)?;
        self.check_forgetful(replica, force, reports)?;
        let unseen = self.unseen(replica, children);
        if !force {
            self.check_others(replica, reports)?;
            if let Some(why) = unseen.clone().filter(|_| self.started.elapsed() < UNSEEN) {
                return Err(why);
            }
        }
        children.admits().map_err(|e| format!("{e:#}"))?;
        Ok(unseen)
    }

    /// More than f that have forgotten what they said wait for each other for ever: nothing is worth that. But a faulty one may say for ever that it
    /// recovers, and an operator may know better than to believe one that has said so for much longer than it takes.
    fn check_forgetful(&self, replica: u8, force: bool, reports: &Reports) -> Result<(), String> {
        let quorum = self.group.quorum();
        let others = quorum.others(ReplicaId(replica));
        let longest = Duration::from_millis(self.records.of(replica).longest_ms);
        let is_doubted = |id: &ReplicaId| {
            let since = self.forgetful.get(id);
            force && since.is_some_and(|since| since.elapsed() > patience(longest))
        };
        let recovers = |id: &ReplicaId| reports.get(id).is_some_and(|r| r.recovering.is_some());
        let recovering: Vec<_> = others
            .filter(|id| recovers(id) && !is_doubted(id))
            .collect();
        if recovering.len() < quorum.f() {
            return Ok(());
        }
        let names: Vec<String> = recovering.iter().map(ToString::to_string).collect();
        Err(format!(
            "{} recovers already: of more than {} at a time none could come back, since each needs the others' word (where that is not true, --force \
             has its way when it has been said for {} s)",
            names.join(", "),
            quorum.f(),
            patience(longest).as_secs()
        ))
    }

    /// Who says that it recovers, and since when.
    pub(super) fn note_forgetful(&mut self, reports: &Reports) {
        let recovers = |id: &ReplicaId| reports.get(id).is_some_and(|r| r.recovering.is_some());
        self.forgetful.retain(|id, _| recovers(id));
        for id in self.group.quorum().replicas().filter(recovers) {
            self.forgetful.entry(id).or_insert_with(Instant::now);
        }
    }

    /// Why the replica can't be told which certificates of the others are old, if so. It would believe old keys of those of which nothing is known, and of f
    /// it may: that is how many are faulty at a time.
    fn unseen(&self, replica: u8, children: &Children) -> Option<String> {
        let (highest, quorum) = (children.certificates()?, self.group.quorum());
        let is_unseen = |id: &ReplicaId| highest.get(usize::from(id.0)).is_none_or(|n| *n == 0);
        let unseen: Vec<_> = quorum
            .others(ReplicaId(replica))
            .filter(is_unseen)
            .collect();
        if unseen.len() <= quorum.f() {
            return None;
        }
        let names: Vec<String> = unseen.iter().map(ToString::to_string).collect();
        Some(format!(
            "that a certificate of {} was seen is not noted here, so that the replica would take stolen keys of theirs of any age",
            names.join(", ")
        ))
    }

    /// Whether the group goes on without this replica.
    fn check_others(&self, replica: u8, reports: &Reports) -> Result<(), String> {
        let quorum = self.group.quorum();
        let works = |id: &ReplicaId| reports.get(id).is_some_and(works);
        let others = quorum.others(ReplicaId(replica));
        let (working, away): (Vec<_>, Vec<_>) = others.partition(works);
        if working.len() >= quorum.commit() {
            return Ok(());
        }
        let away: Vec<String> = away.iter().map(ToString::to_string).collect();
        Err(format!(
            "without it the group would stop: {} of the other replicas work, {} are needed; look after {} first",
            working.len(),
            quorum.commit(),
            away.join(", ")
        ))
    }
}
