//! The key holder: a process apart from the replica's that has the identity key and signs two kinds of statements with it.
//!
//! Who takes over a replica's process can have statements signed while it is there, and takes no key along: what it
//! was given is refused when newer statements were seen (see [`quorate_wire::statement`]). For that each statement has a number that
//! is on disk before the signature leaves ([`CounterFile`]).
//!
//! It signs no more in some time than a replica asks for that nobody has taken over ([`pace()`]).
//!
//! Key and counter are files, or what a device has in their place ([`Vault`]).
//!
//! The two speak over a Unix socket. Each connection brings one ask and one answer, in the canonical encoding; whoever has spoken
//! closes that direction. An ask names a kind of statement and never bytes to be signed.
//!
//! [`Holder`] is the process's side, [`HolderClient`] the replica's.

mod client;
pub(crate) mod counter;
mod pace;
mod server;
pub(crate) mod talk;
mod vault;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::clock;

pub use client::{AskError, HolderClient};
pub use counter::{CounterError, CounterFile};
pub(crate) use pace::Pace;
pub use pace::pace;
pub use server::{Holder, HolderError};
pub use vault::{FileVault, Vault, VaultError};

/// The longest ask or answer; a longer one is none.
pub(crate) const MAX_BYTES: u64 = 256;
/// How long an ask may take to come, and an answer: a disk that is busy with other things makes it wait.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads all that comes until the other side has closed its direction: [`MAX_BYTES`] at most, and for so long at most, however
/// slowly it comes.
fn read_whole(stream: &mut UnixStream, most: Duration) -> io::Result<Vec<u8>> {
    let until = clock::now() + most;
    let mut out = Vec::new();
    let mut piece = [0; MAX_BYTES as usize + 1];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(out),
            Ok(got) if (out.len() + got) as u64 > MAX_BYTES => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it is too long to be one",
                ));
            }
            Ok(got) => out.extend_from_slice(&piece[..got]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(e) => return Err(e),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(clock::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

#[cfg(test)]
mod tests;
