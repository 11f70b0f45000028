//! What a replica that recovers tells its supervisor: how it is, again and again, over its standard output. That is a pipe which the supervisor
//! makes with each start, so that what comes out of it is of no process but the one that was started then, and what that one has started.
//! The process before, of which an intruder may have been master, has no end of it; nor has anybody on the network.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};

use quorate_wire::message::Report;
use quorate_wire::{Decode, Encode};
use rustix::io::ioctl_fionbio;

/// The longest report: it has some bytes for each other replica.
const MAX_BYTES: usize = 1 << 14;
/// So much is read at a time, however much is said.
const READ_BYTES: usize = 1 << 16;

/// Says how a replica is: the length of a report, and the report.
///
/// # Errors
/// If nobody hears it.
pub fn tell(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let report = report.to_bytes();
    let mut bytes = (report.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&report);
    out.write_all(&bytes)?;
    out.flush()
}

/// Where a supervisor hears it.
#[derive(Debug)]
pub struct Ear {
    pipe: PipeReader,
    bytes: Vec<u8>,
    heard: Option<Report>,
    /// Whether something came that is no report: then nothing is heard any more.
    garbled: bool,
}

impl Ear {
    /// With the end that is for the process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> io::Result<(Ear, PipeWriter)> {
        let (pipe, writer) = pipe()?;
        ioctl_fionbio(&pipe, true)?;
        let (bytes, heard, garbled) = (Vec::new(), None, false);
        let ear = Ear {
            pipe,
            bytes,
            heard,
            garbled,
        };
        Ok((ear, writer))
    }

    /// Hears what has been said since. Waits for nothing.
    pub fn listen(&mut self) {
        let mut piece = [0; 4096];
        let mut left = READ_BYTES;
        while left > 0 && !self.garbled {
            let read = match self.pipe.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => read,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            left = left.saturating_sub(read);
            self.bytes.extend_from_slice(&piece[..read]);
            self.garbled = self.take().is_none();
        }
    }

    /// Takes whole reports; what follows them is no longer than one.
    fn take(&mut self) -> Option<()> {
        while let Some((length, rest)) = self.bytes.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX_BYTES {
                return None;
            }
            let Some(report) = rest.get(..length) else {
                break;
            };
            self.heard = Some(Report::from_slice(report).ok()?);
            self.bytes.drain(..4 + length);
        }
        Some(())
    }

    /// What was said last.
    pub fn heard(&self) -> Option<&Report> {
        self.heard.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::tests::report;
    use super::*;

    /// The last whole report counts, in however many pieces it comes.
    #[test]
    fn the_last_word_is_heard() {
        let (mut ear, mut process) = Ear::new().unwrap();
        ear.listen();
        assert_eq!(ear.heard(), None);
        let (mut first, mut second) = (report(None), report(None));
        (first.uptime_ms, second.uptime_ms) = (1, 2);
        tell(&first, &mut process).unwrap();
        let mut bytes = Vec::new();
        tell(&second, &mut bytes).unwrap();
        for byte in bytes {
            ear.listen();
            assert_eq!(ear.heard(), Some(&first));
            process.write_all(&[byte]).unwrap();
        }
        ear.listen();
        assert_eq!(ear.heard(), Some(&second));
        drop(process);
        ear.listen();
        assert_eq!(ear.heard(), Some(&second), "it was said");
    }

    /// Whatever comes, little is kept; and after what is no report nothing counts.
    #[test]
    fn what_is_no_report_is_the_end() {
        let mut wrong = Vec::new();
        tell(&report(None), &mut wrong).unwrap();
        wrong[4 + 16] ^= 0xff;
        wrong.truncate(wrong.len() - 1);
        wrong[0] -= 1;
        for wrong in [vec![0xff; 9_000], wrong, vec![0; 8]] {
            let (mut ear, mut process) = Ear::new().unwrap();
            process.write_all(&wrong).unwrap();
            ear.listen();
            tell(&report(None), &mut process).unwrap();
            ear.listen();
            assert_eq!(ear.heard(), None);
            assert!(ear.bytes.len() <= 4 + MAX_BYTES);
        }
    }
}
