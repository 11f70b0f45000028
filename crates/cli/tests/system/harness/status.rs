//! What `quorate status --json` says, as far as tests go by it.

use std::path::Path;

use serde::Deserialize;

use super::programs::holds_in_time;
use super::{Patience, finish, quorate};

#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub state: String,
    pub n: usize,
    pub replicas: Vec<Replica>,
    /// The exit code of the command.
    #[serde(skip)]
    pub code: i32,
}

/// One replica's entry; what it says is missing when it does not answer.
#[derive(Clone, Debug, Deserialize)]
pub struct Replica {
    pub answers: bool,
    #[serde(flatten)]
    pub said: Option<Said>,
}

/// What a replica says of itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Said {
    pub view: u64,
    pub active: bool,
    pub committed: u64,
    pub executed: u64,
    pub stable: u64,
    pub root: String,
    pub fetching: bool,
    /// Whether it has lost its log and is silent.
    pub recovering: bool,
    /// The fault that was injected; empty where none was.
    pub fault: String,
    pub links: Vec<Link>,
}

/// A replica's link to another.
#[derive(Clone, Debug, Deserialize)]
pub struct Link {
    pub peer: u8,
    pub up: bool,
}

impl Status {
    /// Asks the group of a directory.
    pub fn ask(directory: &Path) -> Status {
        let mut command = quorate();
        command
            .args(["status", "--json"])
            .arg(directory.join("group.toml"));
        let finished = finish(&mut command, Patience::default());
        let parsed = serde_json::from_str(&finished.stdout);
        let status: Status =
            parsed.unwrap_or_else(|e| panic!("{e} in {:?}; {}", finished.stdout, finished.stderr));
        Status {
            code: finished.code(),
            ..status
        }
    }

    /// Waits until these replicas have executed the same and hold the same state.
    pub fn wait_until_they_agree(directory: &Path, ids: &[u8]) {
        let mut last = None;
        let agreed = holds_in_time(|| last.insert(Status::ask(directory)).agree(ids));
        assert!(
            agreed,
            "replicas {ids:?} do not come to the same state: {last:#?}"
        );
    }

    /// Makes changes in a mounted directory until these replicas have a checkpoint after all that was done before: they tell
    /// their roots at checkpoints, so what came after the last one would not be compared.
    pub fn wait_for_a_checkpoint(directory: &Path, ids: &[u8], mounted: &Path) {
        let heads = |pick: fn(&Said) -> u64| {
            let status = Status::ask(directory);
            let all = ids.iter().map(|id| status.said(*id).map(pick));
            all.collect::<Option<Vec<_>>>().unwrap_or_default()
        };
        // Not all need answer the first time: links are made in these moments.
        let mut done = None;
        let answered = holds_in_time(|| {
            done = heads(|said| said.executed).into_iter().max();
            done.is_some()
        });
        assert!(answered, "replicas {ids:?} do not all answer");
        let turn = mounted.join("turn");
        let covered = holds_in_time(|| {
            for _ in 0..16 {
                std::fs::create_dir(&turn).expect("a directory");
                std::fs::remove_dir(&turn).expect("it is empty");
            }
            heads(|said| said.stable).into_iter().min() >= done
        });
        assert!(covered, "there is no checkpoint after {done:?}");
    }

    pub fn said(&self, id: u8) -> Option<&Said> {
        self.replicas[usize::from(id)].said.as_ref()
    }

    /// The faults that were injected, of those that answer: replica and kind.
    pub fn faults(&self) -> Vec<(u8, &str)> {
        let fault = |id: u8| Some((id, self.said(id)?.fault.as_str()));
        let all = (0..self.replicas.len()).filter_map(|id| fault(id as u8));
        all.filter(|(_, fault)| !fault.is_empty()).collect()
    }

    /// The primary of the highest view that a replica is in.
    pub fn primary(&self) -> Option<u8> {
        let views = self
            .replicas
            .iter()
            .filter_map(|r| r.said.as_ref())
            .map(|s| s.view);
        views.max().map(|view| (view % self.n as u64) as u8)
    }

    /// Whether these replicas have done the same up to the same place and hold the same state.
    pub fn agree(&self, ids: &[u8]) -> bool {
        let heads = ids.iter().map(|id| {
            let said = self.said(*id)?;
            let steady = said.active
                && !said.fetching
                && !said.recovering
                && said.committed == said.executed;
            steady.then(|| (said.executed, said.stable, said.root.clone()))
        });
        match heads.collect::<Option<Vec<_>>>() {
            Some(heads) => heads.windows(2).all(|pair| pair[0] == pair[1]),
            None => false,
        }
    }
}
