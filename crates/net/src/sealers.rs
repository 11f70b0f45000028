//! The threads that seal and write for the thread that owns links.
//!
//! A link of which much is to be sent lends its channel to one of them (`hub/lending.rs`), with the frames; the thread does what the owner
//! would do in a flush, and hands back the channel and what is left. None of them waits for a socket. What waits here is bounded by who
//! lends: a link has one channel.

use std::io;

use crate::channel::Lent;
use crate::hub::Lane;
use crate::threads::{Crew, Panicked};

/// To seal and write this takes the owner several times as long as to hand it over, and the hand-over costs the machine little more
/// (docs/performance.md).
const LENT_FROM: usize = 64 << 10;
/// Where all that is to be sent in a turn is so many times what one link has to have, the hand-over is shared, and links of which
/// less is to be sent are lent as well.
const TOGETHER: usize = 4;
const SHARE: usize = 16;

/// Where frames are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// On how many threads; 0: all on the thread that owns the links.
    pub threads: usize,
    /// How many bytes must wait on a link to be handed to these threads; a sixteenth, where four times so many wait on all links together. Fewer
    /// are sealed by the owner.
    pub from: usize,
}

impl Default for Sealing {
    /// What suits this machine: no threads where processors are few.
    fn default() -> Sealing {
        let processors = std::thread::available_parallelism();
        Sealing {
            threads: threads_for(processors.map_or(1, usize::from)),
            from: LENT_FROM,
        }
    }
}

impl Sealing {
    /// How much has to wait on a link to have it lent, where `all` waits on all links that can be written to.
    pub(crate) fn least(&self, all: usize) -> usize {
        match all / TOGETHER < self.from {
            true => self.from,
            false => self.from / SHARE,
        }
    }
}

/// None where processors are few, as of verifiers; two where there are enough of them that one would keep nobody waiting.
fn threads_for(processors: usize) -> usize {
    match processors {
        0..=3 => 0,
        4..=7 => 1,
        _ => 2,
    }
}

/// A channel on its way to a thread and back.
#[derive(Debug)]
pub(crate) struct Errand {
    /// Whose it is.
    pub token: usize,
    pub lane: Lane,
    pub lent: Lent,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Sealers {
    sealing: Sealing,
    crew: Crew<Errand, Errand>,
}

impl Sealers {
    /// Starts the threads. `tell` is called on them when there is something for [`Sealers::take_done`]; `died` where one panics.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        sealing: Sealing,
        tell: impl Fn() + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<Sealers> {
        let seal = |mut errand: Errand| {
            errand.lent.flush();
            errand
        };
        let crew = Crew::spawn(("sealer", sealing.threads), seal, tell, died)?;
        Ok(Sealers { sealing, crew })
    }

    /// How they are to be used.
    pub fn sealing(&self) -> Sealing {
        self.sealing
    }

    /// Has channels' frames sealed and written: also where this ends before, as far as the sockets take it, since it may be the last that is said. What goes to
    /// replicas is not to wait for what goes to clients.
    pub fn send(&self, errands: Vec<Errand>) {
        self.crew.send(errands, |errand| errand.lane == Lane::First);
    }

    /// What has been done since the last time.
    pub fn take_done(&self) -> Vec<Errand> {
        self.crew.take_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None where the processors are few.
    #[test]
    fn few_processors_have_none() {
        let threads = [1, 2, 3, 4, 7, 8, 64].map(threads_for);
        assert_eq!(threads, [0, 0, 0, 1, 1, 2, 2]);
    }
}
