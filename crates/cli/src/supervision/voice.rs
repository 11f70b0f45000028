//! What a supervisor tells its replica: whether it is about to have it recover, which the replica says to those who ask how it is. So the supervisors of
//! other machines hear of it. It goes over the replica's standard input, a pipe which the supervisor makes with each start, and which ends with the
//! supervisor. The replica gets no power by it: one that does not pass it on is seen to be away soon, and one that says so of itself, all the time, is not
//! believed for long (`intentions.rs`).

use std::io::{self, PipeReader, PipeWriter, Write, pipe};

use rustix::io::ioctl_fionbio;

const INTENDED: u8 = b'1';
const NOT_INTENDED: u8 = b'0';

/// The supervisor's end.
#[derive(Debug)]
pub struct Voice(PipeWriter);

impl Voice {
    /// With the end that is for the process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> io::Result<(PipeReader, Voice)> {
        let (reader, pipe) = pipe()?;
        // Who does not listen holds nobody up.
        ioctl_fionbio(&pipe, true)?;
        Ok((reader, Voice(pipe)))
    }

    /// Says whether a recovery is intended. It may not be heard: say it again.
    pub fn intends(&mut self, is_intended: bool) {
        let word = match is_intended {
            true => INTENDED,
            false => NOT_INTENDED,
        };
        // The process may have ended, or not take it.
        let _ = self.0.write(&[word]);
    }
}

/// Whether a recovery is intended, by what came over standard input; `None` where that says nothing of it.
pub fn intended(word: u8) -> Option<bool> {
    match word {
        INTENDED => Some(true),
        NOT_INTENDED => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// What is said is heard, and whoever does not listen is not waited for.
    #[test]
    fn a_word_is_heard_and_never_waited_for() {
        let (mut process, mut voice) = Voice::new().unwrap();
        voice.intends(true);
        voice.intends(false);
        let mut words = [0; 2];
        process.read_exact(&mut words).unwrap();
        assert_eq!(words.map(intended), [Some(true), Some(false)]);
        assert_eq!(intended(b'\n'), None);
        for _ in 0..200_000 {
            voice.intends(true);
        }
        drop(process);
        voice.intends(true);
    }
}
