//! How a child process is started.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_net::{Epochs, Group};
use tokio::process::{Child, Command};

use super::super::account::Account;
use super::super::ear::Ear;
use super::super::programs::{Admitted, Programs};
use super::super::voice::Voice;
use super::{Launch, Role, output};

/// Options of a replica that make its directory.
const FOR_ONCE: [&str; 2] = ["--first-start", "--lost-disk"];

/// How this program is started again, as a replica or a key holder.
#[derive(Debug)]
pub struct Starter {
    /// Its file, as it was named when this process began: what lies there now may be another one.
    pub program: PathBuf,
    /// Which programs may be replicas, if that is limited.
    pub programs: Option<Programs>,
    /// Where the numbers of replicas' certificates are kept that were seen from here, and of which group.
    pub certificates: Option<Certificates>,
    /// How often replicas are to renew their keys, where that was set.
    pub key_refresh: Option<Duration>,
}

/// What the supervisor has seen of the replicas' certificates, by links of its own: whoever has had the replica could not change that.
#[derive(Clone, Debug)]
pub struct Certificates {
    group: Arc<Group>,
    file: PathBuf,
}

impl Certificates {
    /// Of a supervisor that keeps what is its own in `state`.
    pub fn new(group: &Arc<Group>, state: &Path) -> Certificates {
        Certificates {
            group: group.clone(),
            file: state.join("certificates"),
        }
    }

    /// What is to be told where nothing of it can be used: from then on keys of any age pass here, until newer ones are seen. A supervisor that has not
    /// run before has no such file.
    pub fn lost(&self, has_run: bool) -> Option<String> {
        if !has_run && std::fs::symlink_metadata(&self.file).is_err() {
            return None;
        }
        let lost = Epochs::lost(&self.group, &self.file)?;
        Some(format!(
            "ALARM: which certificates of the replicas are old is not known any more, and is learnt anew from those that they show: {lost}"
        ))
    }

    /// What is known now; none in a group without key holders.
    pub fn known(&self) -> Option<Epochs> {
        Epochs::noted(&self.group, &self.file)
    }
}

impl Starter {
    /// The program as it may be run as a replica, where that is limited.
    pub fn admit(&mut self) -> Result<Option<Arc<Admitted>>> {
        let list = self.programs.as_mut();
        list.map(|list| list.admit(&self.program)).transpose()
    }

    /// Looks whether that is another one by now. Gives what is to be told.
    pub fn look(&mut self) -> Vec<String> {
        let list = self.programs.as_mut();
        list.map_or_else(Vec::new, |list| list.look(&self.program))
    }

    /// What is wrong with it.
    pub fn alarm(&self) -> Option<&str> {
        self.programs.as_ref()?.alarm()
    }

    /// The numbers that were seen.
    pub fn certificates(&self) -> Option<Vec<u64>> {
        let epochs = self.certificates.as_ref().and_then(Certificates::known)?;
        Some(epochs.highest().to_vec())
    }

    /// What a replica is told of the others' certificates that believes nothing of what it has written.
    fn seen(&self) -> Vec<String> {
        let numbers = self.certificates().map(|highest| {
            let highest: Vec<String> = highest.iter().map(u64::to_string).collect();
            ["--seen".into(), highest.join(",")]
        });
        numbers.into_iter().flatten().collect()
    }

    /// Starts a process, with what speaks to it; one that recovers with where it says how it is.
    pub fn spawn(&mut self, launch: &Launch, recover: bool) -> Result<(Child, Voice, Option<Ear>)> {
        let admitted = match launch.role {
            Role::Replica(_) => self.admit()?,
            Role::Holder(_) => None,
        };
        let program = admitted.as_ref().map(|admitted| admitted.path());
        let mut command = Command::new(program.as_ref().unwrap_or(&self.program));
        // A name that says what it is, also where the program has none any more.
        command.arg0(&self.program);
        command.args(["-v", launch.role.command(), "--with-parent"]);
        // What is for one start alone does not go with a recovery, which does the same and more.
        let stays = |said: &&OsString| !recover || !FOR_ONCE.iter().any(|once| *said == once);
        command.args(launch.arguments.iter().filter(stays));
        if let (Role::Replica(_), Some(every)) = (launch.role, self.key_refresh) {
            // The last one counts, so this and not what the arguments say.
            command.args(["--key-refresh", &format!("{}ms", every.as_millis())]);
        }
        // Where the disk takes no more, a replica that says nothing is better than none.
        let nowhere = || OpenOptions::new().append(true).open("/dev/null");
        let log = output::open(&launch.log).or_else(|_| nowhere());
        let log = log.with_context(|| format!("can't write {}", launch.log.display()))?;
        let mut ear = None;
        if recover {
            command.arg("--recover");
            command.args(self.seen());
            let (ours, its) = Ear::new().context("a pipe")?;
            command.stdout(its);
            ear = Some(ours);
        } else {
            command.stdout(log.try_clone()?);
        }
        // The child keeps reading standard input: when this process dies, however it dies, the pipe ends and so does the child.
        let (hears, voice) = Voice::new().context("a pipe")?;
        command.stdin(hears).stderr(log);
        if let Some(Account { uid, gid }) = launch.account {
            // As root it leaves its other groups as well.
            command.uid(uid).gid(gid);
        }
        // Ctrl-C in the terminal is for this process, which then stops the replicas in order.
        command.process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("can't start {}", launch.role.name()))?;
        Ok((child, voice, ear))
    }
}
