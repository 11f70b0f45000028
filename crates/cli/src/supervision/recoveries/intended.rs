//! A recovery that is intended, and said so before it begins: another supervisor may intend one at the same time. Why two do not begin then stands
//! in `intentions.rs`.

use std::time::Duration;

use quorate_wire::ReplicaId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::intentions::WAIT;
use super::{Answer, Children, Going, Recoveries, Reports, now_ms};

/// One that is intended.
#[derive(Debug)]
pub(super) struct Intended {
    pub replica: u8,
    force: bool,
    pub since: Instant,
    /// Who has asked for it; where nobody has, it is the replica's turn.
    answers: Option<mpsc::Sender<Answer>>,
}

impl Recoveries {
    /// Begins a recovery, or says first that it is intended, where other supervisors run replicas as well. Gives what is to be told, and nothing as long
    /// as it is intended.
    pub(super) fn intend(
        &mut self,
        replica: u8,
        force: bool,
        answers: Option<mpsc::Sender<Answer>>,
        reports: &Reports,
        children: &mut Children,
    ) -> Result<Option<String>, String> {
        if let Some(intended) = &self.intended {
            return Err(format!(
                "replica {} is about to recover: one at a time",
                intended.replica
            ));
        }
        // One that goes on already is begun anew, and has no other one to wait for.
        let at_once = self.going.is_some() || children.are_all(self.group.quorum().n());
        if at_once {
            let but = self.begin(replica, force, reports, children)?;
            return Ok(Some(self.begun(replica, &but, answers)));
        }
        self.check(replica, force, reports, children)?;
        let is_elsewhere = |id: ReplicaId| !children.has(id.0);
        if let Some(other) = self.intentions.of(reports, is_elsewhere) {
            return Err(format!(
                "replica {other} is about to recover: one at a time"
            ));
        }
        if let Some(asked) = &answers {
            let text = "waits whether another one is about to recover as well";
            // Who has asked may be gone.
            let _ = asked.try_send(Answer::Note(text.into()));
        }
        children.intends_recovery(replica, true);
        self.intended = Some(Intended {
            replica,
            force,
            since: Instant::now(),
            answers,
        });
        Ok(None)
    }

    /// Begins the one that is intended when it has been said for long enough, unless that of another replica comes first. Gives what is to be told.
    pub(super) fn look_at_intended(
        &mut self,
        intended: Intended,
        reports: &Reports,
        children: &mut Children,
    ) -> Option<String> {
        let Intended { replica, force, .. } = intended;
        if intended.since.elapsed() < WAIT {
            // It may have been started anew, and does not know of it then.
            children.intends_recovery(replica, true);
            self.intended = Some(intended);
            return None;
        }
        let comes_first = |id: ReplicaId| id.0 < replica && !children.has(id.0);
        let begun = match self.intentions.of(reports, comes_first) {
            Some(other) => Err(format!(
                "replica {other} is about to recover at the same time, and the one with the lower number comes first"
            )),
            None => self.begin(replica, force, reports, children),
        };
        let why = match begun {
            Ok(but) => return Some(self.begun(replica, &but, intended.answers)),
            Err(why) => why,
        };
        children.intends_recovery(replica, false);
        match intended.answers {
            Some(asked) => {
                let _ = asked.try_send(Answer::Failed(why));
                None
            }
            None => {
                let why = self.turns.refused(replica, why, now_ms())?;
                Some(self.misses_turn(replica, why))
            }
        }
    }

    /// One that nobody has asked for: a replica has another directory than it had, and is started as one that recovers, whatever the others do, since it could
    /// do nothing else. Gives what is to be told.
    pub(super) fn take_up(&mut self, children: &mut Children) -> Option<String> {
        let replica = children.astray()?;
        if self.going.is_some() {
            return None;
        }
        let noted = self.records.begins(replica, now_ms());
        let longest = Duration::from_millis(self.records.of(replica).longest_ms);
        let mut going = Going::new(replica, Instant::now(), longest);
        if let Some(intended) = self.intended.take_if(|it| it.replica == replica) {
            // Who has asked for it has it, and so has the clock.
            match intended.answers {
                Some(asked) => going.answers = Some(asked),
                None => self.turns.had(replica),
            }
        }
        self.going = Some(going);
        noted
            .err()
            .map(|e| format!("that replica {replica} recovers is not noted: {e:#}"))
    }

    /// The turn that is about to begin does not, since the schedule is set anew, and tells whose it is: begun by one schedule it would be had by that alone. What an
    /// operator has asked for stays.
    pub(super) fn drop_intended_turn(&mut self, children: &mut Children) -> Option<u8> {
        let dropped = self.intended.take_if(|it| it.answers.is_none())?.replica;
        children.intends_recovery(dropped, false);
        Some(dropped)
    }

    /// What is to be told of one that has begun just now.
    fn begun(&mut self, replica: u8, but: &str, answers: Option<mpsc::Sender<Answer>>) -> String {
        if answers.is_none() {
            self.turns.had(replica);
            return format!("replica {replica} recovers: it is its turn{but}");
        }
        if let Some(going) = &mut self.going {
            going.answers = answers;
        }
        format!("replica {replica} recovers, as an operator wants{but}")
    }
}
