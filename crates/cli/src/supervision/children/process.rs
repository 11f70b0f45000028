//! One child process: its life, its end, and its next start.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_node::daemon::ground::Keep;
use quorate_wire::message::Report;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::Instant;

use super::super::account::Account;
use super::super::ear::Ear;
use super::super::voice::Voice;
use super::Launch;
use super::fault::Fault;
use super::output::{last_words, shorten};
use super::patience::Patience;
use super::readying::{Ready, Readying};
use super::starter::Starter;

/// How long a replica has to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long is waited for what is done quickly in most cases, rather than looked at the next time.
const QUICK: Duration = Duration::from_millis(100);

/// What is told where some of its user's processes do not go.
const STUCK: &str = ", though other processes of its user are stuck in the kernel: they were killed and run nothing any more, but are not gone, \
    with what they have open. Where it does not come up for that the machine is to be started anew";

/// A process that is looked after, whether it lives or not.
#[derive(Debug)]
pub struct Process {
    pub launch: Launch,
    child: Option<Child>,
    since: Instant,
    /// How often it has ended by itself.
    pub ends: u32,
    patience: Patience,
    /// Set when it is to end and to start again at once: when it is killed if it has not ended by then.
    ends_by: Option<Instant>,
    /// Whether it starts as one that recovers, each time until it has.
    recovers: bool,
    /// How much of what it has written it may have then.
    keep: Keep,
    /// Where one that recovers is heard.
    ear: Option<Ear>,
    /// What speaks to the one that runs.
    voice: Option<Voice>,
    /// Where it comes out that its directory is ready.
    readying: Option<Receiver<io::Result<Ready>>>,
    /// Set when its directory is found to be another one than it had, until somebody knows that it recovers.
    is_astray: bool,
    /// What came to light meanwhile, and is to be told.
    alarms: Vec<String>,
    /// Whether it starts beside processes of its user that can't be ended, and run nothing any more.
    beside_stuck: bool,
    /// Why it can't be started, as it was told.
    refused: Option<String>,
}

impl Process {
    /// One that is to be started at once.
    pub fn new(launch: Launch, recovers: bool) -> Process {
        Process {
            launch,
            child: None,
            since: Instant::now(),
            ends: 0,
            patience: Patience::default(),
            ends_by: Some(Instant::now()),
            recovers,
            keep: Keep::All,
            ear: None,
            voice: None,
            readying: None,
            is_astray: false,
            alarms: Vec::new(),
            beside_stuck: false,
            refused: None,
        }
    }

    /// See [`super::Children::recovers_since`].
    pub fn recovers_since(&self) -> Option<Instant> {
        self.ear.as_ref().map(|_| self.since)
    }

    /// See [`super::Children::said`].
    pub fn said(&self) -> Option<&Report> {
        self.ear.as_ref().and_then(Ear::heard)
    }

    /// Tells it whether it is about to be had recover.
    pub fn intends_recovery(&mut self, is_intended: bool) {
        if let Some(voice) = &mut self.voice {
            voice.intends(is_intended);
        }
    }

    /// Has it end, and start again as one that recovers. What it says from now on is not heard.
    pub fn recover(&mut self) {
        self.ask_to_end();
        self.ends_by = Some(Instant::now() + STOP_TIMEOUT);
        (self.recovers, self.keep) = (true, Keep::All);
        (self.ear, self.is_astray) = (None, false);
    }

    /// Whether its directory is another one, which is not told twice; see [`super::Children::astray`].
    pub fn is_taken_up(&mut self) -> bool {
        std::mem::take(&mut self.is_astray)
    }

    /// It has recovered, or need not any more.
    pub fn recovered(&mut self) {
        self.recovers = false;
        self.ear = None;
    }

    /// See [`super::Children::end_start`].
    pub fn end_start(&mut self, fault: Fault) -> bool {
        if self.ends_by.is_some() {
            return false;
        }
        self.ends_by = Some(Instant::now());
        self.keep = fault.leaves(self.keep);
        self.ear = None;
        true
    }

    /// Whether it runs.
    pub fn lives(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Why it does not run.
    pub fn explain(&self) -> String {
        let words = self.refused.clone();
        let words = words.unwrap_or_else(|| last_words(&self.launch.log));
        format!("\n  {}: {words}", self.launch.role.name())
    }

    pub fn ask_to_end(&self) {
        let pid = self.child.as_ref().and_then(Child::id);
        if let Some(pid) = pid.and_then(|p| Pid::from_raw(p as i32)) {
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    #[cfg(test)]
    pub fn kill(&mut self) {
        self.child.as_mut().map(Child::start_kill);
    }

    /// Waits until it has ended, or kills it.
    pub async fn wait_for_end(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let ended = tokio::time::timeout(STOP_TIMEOUT, child.wait()).await;
        if ended.is_err() {
            let killed = child.kill().await;
            killed.with_context(|| format!("can't stop {}", self.launch.role.name()))?;
        }
        Ok(())
    }

    /// Sees whether it has died, and starts it after a while if it does not run and `may_start`. Tells what happened.
    pub fn look(&mut self, starter: &mut Starter, may_start: bool) -> Result<Vec<String>> {
        // A file that can't be shortened is no reason to leave the replica alone.
        let _ = shorten(&self.launch.log);
        self.ear.iter_mut().for_each(Ear::listen);
        let event = match &self.child {
            Some(_) => self.look_at_life()?,
            None if self.is_due(may_start) => self.start(starter),
            None => None,
        };
        Ok(self.alarms.drain(..).chain(event).collect())
    }

    fn look_at_life(&mut self) -> Result<Option<String>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let Some(status) = child.try_wait()? else {
            if self.ends_by.is_some_and(|until| until <= Instant::now()) {
                // It has had its time; nothing of what it was about to write is believed.
                child.start_kill()?;
                // Whoever traces it keeps it from being gone.
                match self.launch.account.map(Account::end_all) {
                    Some(Err(e)) => return Ok(self.refuse(format!("{e:#}"))),
                    // It runs nothing any more. If it holds what the next one needs, that one will say so.
                    Some(Ok(false)) => self.child = None,
                    Some(Ok(true)) | None => {}
                }
            }
            return Ok(None);
        };
        (self.child, self.ear, self.voice) = (None, None, None);
        if self.ends_by.is_some() {
            return Ok(None);
        }
        if self.recovers {
            self.keep = Fault::of(status, self.launch.data.as_deref()).leaves(self.keep);
        }
        self.ends = self.ends.saturating_add(1);
        let lived = self.since.elapsed();
        self.since = Instant::now();
        let log = &self.launch.log;
        let cause = end_of_life(&self.launch.role.name(), status, log);
        let is_news = self.patience.is_news(&cause, lived, !failed(status));
        Ok(is_news.then(|| format!("{cause}\n  see {}", log.display())))
    }

    /// Whether it is to be started now. One that is about to recover must not be left lying.
    fn is_due(&self, may_start: bool) -> bool {
        let at_once = self.ends_by.is_some() && self.refused.is_none() || self.readying.is_some();
        // Whoever starts it next, and that may be another supervisor, is to have it recover as well.
        if self.is_astray {
            return false;
        }
        let waits = !at_once && self.since.elapsed() < self.patience.pause();
        !waits && (self.recovers || may_start)
    }

    fn start(&mut self, starter: &mut Starter) -> Option<String> {
        let started = match self.make_ready() {
            Ok(false) => return None,
            Ok(true) => starter.spawn(&self.launch, self.recovers),
            Err(e) => Err(e),
        };
        self.since = Instant::now();
        let name = self.launch.role.name();
        match started {
            Ok((child, voice, ear)) => {
                (self.child, self.ear, self.voice) = (Some(child), ear, Some(voice));
                let was_asked = self.ends_by.take().is_some();
                let was_refused = self.refused.take().is_some();
                if std::mem::take(&mut self.beside_stuck) {
                    return Some(format!("ALARM: {name} is started{STUCK}"));
                }
                let tells = was_refused || !was_asked && self.patience.tells_start();
                tells.then(|| format!("{name} is started again"))
            }
            // Whoever mends that need not start the supervisor again.
            Err(e) => self.refuse(format!("{name} is not started: {e:#}")),
        }
    }

    /// An alarm, unless there was one already.
    fn refuse(&mut self, why: String) -> Option<String> {
        let alarm = format!("ALARM: {why}");
        let told = self.refused.replace(why);
        told.is_none().then_some(alarm)
    }

    /// What was left by whoever has had the replica must not outlive its recovery, nor keep it from starting: its processes end, and then its
    /// directory is made ready. One that is not to recover is looked at: whether it is the one that the replica had last. False where that goes on.
    fn make_ready(&mut self) -> Result<bool> {
        let Some(data) = self.launch.data.clone() else {
            return Ok(true);
        };
        if !self.recovers && self.launch.note.is_none() {
            return Ok(true);
        }
        let readying = match self.readying.take() {
            Some(readying) => readying,
            None => {
                let account = self.launch.account;
                if self.recovers {
                    self.beside_stuck = !account.map_or(Ok(true), Account::end_all)?;
                }
                let readying = Readying {
                    data,
                    note: self.launch.note.clone(),
                    account,
                    recovers: self.recovers,
                    keep: self.keep,
                };
                readying.begin()?
            }
        };
        match readying.recv_timeout(QUICK) {
            Ok(ready) => {
                let ready = ready.context("its directory can't be made ready")?;
                Ok(self.takes(ready))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.readying = Some(readying);
                Ok(false)
            }
            Err(RecvTimeoutError::Disconnected) => bail!("its directory was not made ready"),
        }
    }

    /// Whether it can be started in a directory that is ready.
    fn takes(&mut self, ready: Ready) -> bool {
        let name = self.launch.role.name();
        let left = ready.left.into_iter().map(|left| {
            format!("ALARM: processes of {name}'s user have left what would outlive its recovery: {left}")
        });
        self.alarms.extend(left);
        if let Some(e) = ready.unnoted {
            self.alarms.push(format!(
                "ALARM: which directory {name} has can't be noted, so that another one under its name would be taken for it: {e}"
            ));
        }
        if ready.is_another {
            let data = self.launch.data.iter().map(|data| data.display());
            let data: String = data.map(|data| data.to_string()).collect();
            self.alarms.push(format!(
                "ALARM: {data} is not the directory that {name} had last: is it a copy, or was a disk not mounted then? Nothing in it is believed, and it recovers"
            ));
            (self.recovers, self.keep, self.is_astray) = (true, Keep::All, true);
        }
        // It may have been told to recover meanwhile.
        ready.recovers == self.recovers
    }
}

/// What is said of a replica that has ended. Only one that failed has last words: the log's last line says nothing of an end
/// that came from outside.
fn end_of_life(name: &str, status: ExitStatus, log: &Path) -> String {
    if was_killed(status) {
        return format!("{name} was killed ({status}), by somebody or because memory ran out");
    }
    if status.success() {
        return format!("{name} was asked to end by somebody else ({status})");
    }
    format!("{name} died ({status}): {}", last_words(log))
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Whether it ended by itself, and not in order.
fn failed(status: ExitStatus) -> bool {
    !status.success() && !was_killed(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Last words are told where they are about the end, and only there.
    #[test]
    fn only_a_failure_has_last_words() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        std::fs::write(&log, "INFO all is well\nquorate: the last words\n").expect("a log");
        // As wait(2) gives them: killed, ended in order, failed, aborted.
        for (raw, words) in [(9, false), (0, false), (1 << 8, true), (6, true)] {
            let text = end_of_life("replica 2", ExitStatus::from_raw(raw), &log);
            assert_eq!(text.contains("quorate: the last words"), words, "{text}");
            assert!(text.starts_with("replica 2 "), "{text}");
        }
    }
}
