//! Recoveries: begun by the schedule or by an operator, one at a time, and only where the others go on without the one that recovers.
//! PBFT 2002, 4.2; that staggering by time alone may take out too many at once is noted in Sousa et al. (DSN 2005), so the others are
//! asked how they are first.

mod conditions;
mod going;
mod intended;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Error, Result, bail};
use quorate_net::Group;
use quorate_net::group::Durability;
use quorate_wire::ReplicaId;
use quorate_wire::message::Report;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::children::{Children, Fault};
use super::control::{Answer, Request};
use super::intentions::Intentions;
use super::others::{Others, alarm};
use super::records::{Ended, Missed, Records};
use super::schedule::{self, Schedule, signing_pace};
use super::turns::{Due, Turns};
use super::window::{self, Known, Reason, Window};
use crate::commands::{self, status::Reports};
use going::{Going, LONG, step};
use intended::Intended;

/// A replica that was started and says nothing for so long is started anew.
const SILENT: Duration = Duration::from_secs(120);

/// What is said of a recovery that came to nothing.
const MISSED: &str = "its recovery came to nothing: the others did not get on without it, since another replica is silent, lies, or is very slow. It \
    goes on with what it had, so the group works; look after the other one (the log of this one says what it waited for), then recover it again";

/// What is added where it does not work with that either.
const IDLE: &str = "; it does not take part yet: where that stays so, the others' turns are put off until it has recovered";

/// What is said where only the replica itself says that it works.
const UNREACHED: &str = "has recovered, and can't be asked from here how it is: where its address in the group file does not lead to it from this machine, say \
    one that does (--route)";

/// What is said of a turn that was over before it could be had.
const NO_TIME: &str = "its part of the period has gone by while another replica recovered, or this process did nothing";

/// Who recovers, has recovered, and will.
#[derive(Debug)]
pub struct Recoveries {
    group: Arc<Group>,
    schedule: Schedule,
    turns: Turns,
    records: Records,
    going: Option<Going>,
    /// The one that is to begin.
    intended: Option<Intended>,
    intentions: Intentions,
    /// Since when each replica says that it recovers.
    forgetful: BTreeMap<ReplicaId, Instant>,
    /// When this process began.
    started: Instant,
    /// Of which replicas it was told that their keys are old, or their last recovery is.
    alarmed: BTreeSet<(u8, Late)>,
    others: Others,
}

/// What is told once, when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Late {
    Recovery,
    Keys,
}

impl Recoveries {
    /// For replicas that were started just now; the one whose recovery was cut short as one that recovers.
    /// What is known of those that are run elsewhere is kept in the directory `state`.
    pub fn new(
        group: Arc<Group>,
        schedule: Schedule,
        records: Records,
        state: &Path,
    ) -> Recoveries {
        let (begun, n, now) = (records.begun(), group.quorum().n(), now_ms());
        let longest = |id| Duration::from_millis(records.of(id).longest_ms);
        // A turn that is on and was not had, since the supervisor did not run, is had now. Of one that has never recovered that is not known.
        let had = |id: u8, turn: u64| {
            let last = records.of(id).last;
            begun.is_some_and(|(begun, _)| begun == id)
                || last.is_none_or(|last| last.at_ms >= turn)
        };
        Recoveries {
            turns: Turns::new(&schedule, n, now, had),
            group,
            schedule,
            going: begun.map(|(id, at)| Going::new(id, before(now, at), longest(id))),
            intended: None,
            intentions: Intentions::new(Instant::now()),
            records,
            forgetful: BTreeMap::new(),
            started: Instant::now(),
            alarmed: BTreeSet::new(),
            others: Others::load(state),
        }
    }

    /// Whether one goes on or is about to begin, which is to be looked at often.
    pub fn is_busy(&self) -> bool {
        self.going.is_some() || self.intended.is_some()
    }

    /// What an operator asks for. Gives what is to be told to all.
    pub fn request(
        &mut self,
        request: &Request,
        answers: mpsc::Sender<Answer>,
        reports: &Reports,
        children: &mut Children,
    ) -> Option<String> {
        let (answer, event) = match *request {
            Request::Recover { replica, force } => {
                let asked = Some(answers.clone());
                match self.intend(replica, force, asked, reports, children) {
                    Ok(event) => return event,
                    Err(why) => (Answer::Failed(why), None),
                }
            }
            Request::Schedule {
                every_s,
                key_refresh_ms,
            } => match self.set(every_s, key_refresh_ms, children) {
                Ok(event) => (Answer::Done(self.to_json(reports, children)), event),
                Err(e) => (Answer::Failed(format!("{e:#}")), None),
            },
        };
        // Who has asked may be gone.
        let _ = answers.try_send(answer);
        event
    }

    /// Sets Tw and Tk, where they are given. Gives what is to be told to all.
    fn set(
        &mut self,
        every_s: Option<u64>,
        key_refresh_ms: Option<u64>,
        children: &mut Children,
    ) -> Result<Option<String>> {
        if key_refresh_ms.is_some() && self.group.identities().is_none() {
            bail!(
                "--key-refresh: the replicas of this group have no key holders, and so no keys that could be renewed"
            );
        }
        let every = key_refresh_ms.map(Duration::from_millis);
        let every = every.map(|every| commands::new_key_refresh(&self.group, every));
        let refresh = every.transpose()?;
        let mut events = Vec::new();
        if let Some(s) = every_s {
            if s > 0 {
                check_may_recover(&self.group).map_err(Error::msg)?;
            }
            let every = (s > 0).then(|| Duration::from_secs(s));
            self.schedule.set(every, signing_pace(&self.group))?;
            let dropped = self.drop_intended_turn(children);
            self.turns = self.turns_anew(dropped);
            events.push(schedule::word(s));
        }
        if let Some(every) = refresh {
            self.schedule.set_key_refresh(every);
            children.set_key_refresh(every);
            events.push(match every.as_millis() {
                0 => "replicas that are started do not renew their keys".into(),
                ms => format!("replicas that are started renew their keys every {ms} ms"),
            });
        }
        Ok((!events.is_empty()).then(|| events.join("; ")))
    }

    /// The turns of another schedule: of those that are on the ones are had in which the replica has recovered or recovers now, and of a replica that never has, all
    /// but one that is put off, or was about to begin (`dropped`).
    fn turns_anew(&self, dropped: Option<u8>) -> Turns {
        let mut put_off = self.turns.put_off();
        put_off.extend(dropped);
        let goes_on = self.going.as_ref().map(|going| going.replica);
        let had = |id: u8, turn: u64| match self.records.of(id).last {
            _ if goes_on == Some(id) => true,
            Some(last) => last.at_ms >= turn,
            None => !put_off.contains(&id),
        };
        Turns::new(&self.schedule, self.group.quorum().n(), now_ms(), had)
    }

    /// Looks how the one that goes on is, or whether one is due. Gives what is to be told.
    pub fn look(&mut self, reports: &Reports, children: &mut Children) -> Vec<String> {
        self.note_forgetful(reports);
        self.intentions.hear(reports, Instant::now());
        let unnoted = self.take_up(children);
        let mut events = match (self.going.take(), self.intended.take()) {
            (Some(going), _) => self.look_at(going, reports, children),
            (None, Some(intended)) => {
                let event = self.look_at_intended(intended, reports, children);
                event.into_iter().collect()
            }
            (None, None) => self.look_at_clock(reports, children).into_iter().collect(),
        };
        events.extend(unnoted);
        events.extend(self.schedule.look());
        events.extend(self.look_for_alarms(reports, children));
        let (quorum, every) = (self.group.quorum(), self.schedule.every());
        let is_ours = |id| children.has(id);
        events.extend(self.others.look(quorum, every, is_ours, reports, now_ms()));
        events
    }

    /// What has come to be late since this was asked last.
    fn look_for_alarms(&mut self, reports: &Reports, children: &Children) -> Vec<String> {
        let mut events = Vec::new();
        for (id, window) in self.windows(reports, children) {
            for kind in [Late::Recovery, Late::Keys] {
                let reason = window.reasons.iter().find(|reason| match reason {
                    Reason::Overdue(_) => kind == Late::Recovery,
                    Reason::OldKeys(_) => kind == Late::Keys,
                    _ => false,
                });
                match reason {
                    Some(reason) if self.alarmed.insert((id, kind)) => {
                        events.push(alarm(id, &reason.text()));
                    }
                    Some(_) => {}
                    None => drop(self.alarmed.remove(&(id, kind))),
                }
            }
        }
        events
    }

    /// Only what the process says counts that was started to recover: who speaks for it elsewhere, or spoke before it, may be an intruder.
    fn look_at(
        &mut self,
        mut going: Going,
        reports: &Reports,
        children: &mut Children,
    ) -> Vec<String> {
        let started = children.recovers_since(going.replica);
        let age = started.map_or(Duration::ZERO, |started| started.elapsed());
        let report = children.said(going.replica).cloned();
        let report = report.as_ref();
        // That it can be reached as well is what the next recovery goes by; it adds to what the process says, and is nothing without that.
        let is_reached = reports.get(&ReplicaId(going.replica)).is_some_and(works);
        going.hears(report);
        let took = going.took();
        let mut events = Vec::new();
        match report {
            // While it catches up with what was done meanwhile, the group has no other one to spare.
            Some(report) if going.is_back(is_reached) => {
                let started = started.unwrap_or(going.since);
                let ended = Ended {
                    at_ms: now_ms(),
                    took_ms: took.as_millis() as u64,
                    shutdown_ms: started.saturating_duration_since(going.since).as_millis() as u64,
                    check: report.check,
                    steps: report.steps.clone(),
                    ordered: report.ordered,
                };
                let text = ended.sentence(going.replica);
                children.recovered(going.replica);
                going.answer(Answer::Done(ended.to_json(going.replica)));
                let worked_ms = going.worked().as_millis() as u64;
                if let Err(e) = self.records.ended(going.replica, ended, worked_ms) {
                    events.push(format!("{e:#}"));
                }
                events.push(text);
                if !is_reached {
                    events.push(format!("ALARM: replica {} {UNREACHED}", going.replica));
                }
                return events;
            }
            Some(report) if going.is_missed(report.active) => {
                children.recovered(going.replica);
                let idle = if report.active { "" } else { IDLE };
                let (at_ms, why) = (now_ms(), format!("{MISSED}{idle}"));
                going.answer(Answer::Failed(why.clone()));
                events.push(alarm(going.replica, &why));
                let missed = Missed { at_ms, why };
                let worked_ms = going.worked().as_millis() as u64;
                let noted = self.records.missed(going.replica, missed, Some(worked_ms));
                events.extend(noted.err().map(|e| format!("{e:#}")));
                return events;
            }
            report => {
                if report.is_none()
                    && age > SILENT
                    && children.end_start(going.replica, Fault::Anything)
                {
                    events.push(format!(
                        "ALARM: replica {} was started to recover and says nothing: it is started once more",
                        going.replica
                    ));
                }
                let text = step(report);
                if text != going.told {
                    going.answer(Answer::Note(text.clone()));
                }
                going.told = text;
            }
        }
        if took > LONG && !going.is_long {
            going.is_long = true;
            events.push(format!(
                "ALARM: replica {} has been recovering for {} s ({}); `quorate status` tells more",
                going.replica,
                took.as_secs(),
                going.told
            ));
        }
        if going.is_outlasted() && children.end_start(going.replica, going.fault(report)) {
            going.try_anew();
            events.push(format!(
                "ALARM: replica {} is started once more, to recover: it has taken too long ({}); now it may take up to {} s",
                going.replica,
                going.told,
                going.patience.as_secs()
            ));
        }
        self.going = Some(going);
        events
    }

    fn look_at_clock(&mut self, reports: &Reports, children: &mut Children) -> Option<String> {
        let n = self.group.quorum().n();
        let ids: Vec<u8> = (0..n as u8).filter(|id| children.has(*id)).collect();
        let due = self.turns.due(&self.schedule, n, &ids, now_ms())?;
        let (id, why) = match due {
            Due::Now(id) => match self.intend(id, false, None, reports, children) {
                Ok(event) => return event,
                Err(why) => (id, self.turns.refused(id, why, now_ms())?),
            },
            Due::Over(id, why) => (id, why.unwrap_or_else(|| NO_TIME.into())),
        };
        Some(self.misses_turn(id, why))
    }

    /// A turn comes to nothing as things stand. Gives what is to be told.
    fn misses_turn(&mut self, id: u8, why: String) -> String {
        let told = format!("ALARM: replica {id} does not recover, though it is its turn: {why}");
        let at_ms = now_ms();
        match self.records.missed(id, Missed { at_ms, why }, None) {
            Ok(()) => told,
            Err(e) => format!("{told}; {e:#}"),
        }
    }

    /// Begins one. Gives what is to be told beside that.
    fn begin(
        &mut self,
        replica: u8,
        force: bool,
        reports: &Reports,
        children: &mut Children,
    ) -> Result<String, String> {
        let unseen = self.check(replica, force, reports, children)?;
        // Before it ends: who starts it next, and it may be another supervisor, is not to take it for a sound one. Where that can't be kept it
        // recovers all the same: its own user may have filled the disk.
        let noted = self.records.begins(replica, now_ms());
        children.recover(replica);
        let mut since = Instant::now();
        if let Some(former) = self.going.take() {
            let why = "an operator has begun it anew".into();
            former.answer(Answer::Failed(why));
            since = former.since;
        }
        let longest = Duration::from_millis(self.records.of(replica).longest_ms);
        self.going = Some(Going::new(replica, since, longest));
        let noted = noted.map_or_else(
            |e| format!(" (that is not noted: {e:#})"),
            |()| String::new(),
        );
        let unseen = unseen.map(|why| format!(" (ALARM: {why})"));
        Ok(noted + &unseen.unwrap_or_default())
    }

    /// The window of vulnerability of each replica that is run from here.
    fn windows(&self, reports: &Reports, children: &Children) -> BTreeMap<u8, Window> {
        let (n, now) = (self.group.quorum().n(), now_ms());
        let window = |id: u8| {
            let going = self.going.as_ref().filter(|going| going.replica == id);
            let known = Known {
                every_ms: self.schedule.every().map(|every| every.as_millis() as u64),
                record: &self.records.of(id),
                going_ms: going.map(|going| going.since.elapsed().as_millis() as u64),
                report: reports.get(&ReplicaId(id)),
            };
            (id, Window::judge(known, n, now))
        };
        let ids = (0..n as u8).filter(|id| children.has(*id));
        ids.map(window).collect()
    }

    fn to_json(&self, reports: &Reports, children: &Children) -> Value {
        let (n, now) = (self.group.quorum().n(), now_ms());
        let windows = self.windows(reports, children);
        let windows: BTreeMap<u8, Value> = windows
            .into_iter()
            .map(|(id, w)| (id, w.to_json()))
            .collect();
        let longest = windows
            .keys()
            .map(|id| self.records.of(*id).longest_ms)
            .max();
        let replica = |(id, window): (&u8, &Value)| {
            let (next, record) = (self.schedule.next(*id, n, now), self.records.of(*id));
            json!({
                "id": id,
                "next_in_s": next.map(|next| (next - now) / 1000),
                "last": record.last.map(|ended| ended.to_json(*id)),
                "longest_recovery_ms": (record.longest_ms > 0).then_some(record.longest_ms),
                "window": window,
            })
        };
        let alarms = self.schedule.alarms().chain(children.alarm());
        let elsewhere = |(id, text): (u8, String)| json!({ "id": id, "text": text });
        json!({
            "every_s": self.schedule.every().map(|every| every.as_secs()),
            "key_refresh_ms": self.schedule.key_refresh().map(|every| every.as_millis() as u64),
            "recovering": self.going.as_ref().map(|going| going.replica),
            "longest_recovery_ms": longest.filter(|ms| *ms > 0),
            "replicas": windows.iter().map(replica).collect::<Vec<_>>(),
            "alarms": alarms.collect::<Vec<_>>(),
            "elsewhere": self.others.late(now).map(elsewhere).collect::<Vec<_>>(),
            "window": window::lines(&windows, n),
        })
    }
}

/// Refuses to have a replica recover in a group where that would be its end: nobody is there, or nothing, from which it could come back.
pub fn check_may_recover(group: &Group) -> Result<(), String> {
    if group.quorum().f() == 0 {
        return Err("a group of one replica has no others to recover by".into());
    }
    match group.protocol().durability {
        Durability::Disk => Ok(()),
        Durability::Memory => Err(
            "the replicas of this group keep no log (`durability = \"memory\"` in the group file): one that ends has forgotten what it promised to the \
             others and never comes back, so none of them can recover"
                .into(),
        ),
    }
}

/// Whether a replica takes part, by its own word.
fn works(report: &Report) -> bool {
    report.active && !report.fetching && report.recovering.is_none()
}

/// A time that the clock showed when it was `at`, in milliseconds since 1970, and now is `now`.
fn before(now: u64, at: u64) -> Instant {
    let ago = Duration::from_millis(now.saturating_sub(at));
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

/// Milliseconds since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "turns are on the clock that the supervisors of different machines share"
)]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests;
