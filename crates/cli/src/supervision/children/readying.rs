//! What is done to a replica's directory before the replica is started in it, on a thread of its own: it may be much, and signs of life are to be given
//! meanwhile.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};

use anyhow::{Context, Result};
use quorate_node::daemon::ground::nonce::{self, Found};
use quorate_node::daemon::ground::{self, Keep, Owner};

use super::super::account::Account;

/// A directory, and how it is to be.
#[derive(Debug)]
pub struct Readying {
    pub data: PathBuf,
    /// Where it is noted which directory the replica has, if that is elsewhere.
    pub note: Option<PathBuf>,
    pub account: Option<Account>,
    /// Whether the replica is to recover.
    pub recovers: bool,
    /// How much it may have then.
    pub keep: Keep,
}

/// What came of it.
#[derive(Debug)]
pub struct Ready {
    /// Whether it is so for a replica that recovers.
    pub recovers: bool,
    /// Whether it is not the directory that the replica had last, which must not go on with what lies there.
    pub is_another: bool,
    /// What the replica's user had left elsewhere.
    pub left: Vec<String>,
    /// Why it could not be noted which directory it is.
    pub unnoted: Option<io::Error>,
}

impl Readying {
    /// Begins it.
    pub fn begin(self) -> Result<Receiver<io::Result<Ready>>> {
        let (ready, readying) = mpsc::sync_channel(1);
        // Whoever waits for it may have ended.
        let work = move || drop(ready.send(self.run()));
        let thread = std::thread::Builder::new().name("ground".into());
        thread.spawn(work).context("a thread")?;
        Ok(readying)
    }

    fn run(self) -> io::Result<Ready> {
        let note = self.note.as_deref();
        let found = note.map(|note| nonce::look(&self.data, note)).transpose()?;
        let found = found.unwrap_or(Found::Unnoted);
        let mut ready = Ready {
            recovers: self.recovers,
            is_another: false,
            left: Vec::new(),
            unnoted: None,
        };
        let renew = || note.map_or(Ok(()), |note| nonce::renew(&self.data, note));
        if !self.recovers {
            // Where nothing is a replica says so, and what is to be done.
            let is_made = nonce::is_made(&self.data);
            ready.is_another = is_made && found == Found::Another;
            if is_made && found == Found::Unnoted {
                ready.unnoted = renew().err();
            }
            return Ok(ready);
        }
        ready.left = self
            .account
            .map(Account::clear_leavings)
            .unwrap_or_default();
        let owner = self.account.map(|Account { uid, gid }| Owner { uid, gid });
        let keep = match found {
            // Whatever log is there, the replica has told more since.
            Found::Another => self.keep.without_log(),
            Found::Same | Found::Unnoted => self.keep,
        };
        ground::clear(&self.data, owner, keep)?;
        match renew() {
            // The one that was noted may come back, and would be taken for the one that the replica had last.
            Err(e) if found == Found::Another => return Err(e),
            renewed => ready.unnoted = renewed.err(),
        }
        Ok(ready)
    }
}
