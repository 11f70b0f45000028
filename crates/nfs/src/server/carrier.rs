//! Connections that somebody else carries: calls that are for here, and their replies, go over another connection in the client's place.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpStream;

/// What somebody does in his own time.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is served of a client's connection.
#[derive(Debug)]
pub struct Carried {
    /// Where its calls come and replies go.
    pub stream: TcpStream,
    /// Who carries them from there to the client, if that is not the client's own connection. It ends with the connection.
    pub carrier: Option<Box<dyn Carrier>>,
    /// Where what comes and goes is counted, if anybody wants to know.
    pub tally: Option<Arc<Tally>>,
}

/// How many calls have come, and how many bytes came and went with them. What is long ago counts less.
#[derive(Debug, Default)]
pub struct Tally {
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// From so many calls on half of all is forgotten.
const MOST_CALLS: u64 = 4096;

impl Tally {
    /// Counts calls, and bytes of calls and replies.
    pub fn add(&self, calls: u64, bytes: u64) {
        let all = self.calls.fetch_add(calls, Ordering::Relaxed) + calls;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if all >= MOST_CALLS {
            // Another thread may count meanwhile: it is no exact account.
            self.calls.store(all / 2, Ordering::Relaxed);
            let bytes = self.bytes.load(Ordering::Relaxed);
            self.bytes.store(bytes / 2, Ordering::Relaxed);
        }
    }

    /// How many bytes there are to a call, if there were at least so many calls.
    pub fn bytes_a_call(&self, least: u64) -> Option<u64> {
        let calls = self.calls.load(Ordering::Relaxed);
        (calls >= least.max(1)).then(|| self.bytes.load(Ordering::Relaxed) / calls)
    }
}

impl From<TcpStream> for Carried {
    /// A client's own.
    fn from(stream: TcpStream) -> Carried {
        Carried {
            stream,
            carrier: None,
            tally: None,
        }
    }
}

/// Who carries records between a client and what is served in its place.
pub trait Carrier: Debug + Send + Sync {
    /// Waits until the client takes replies: none are given before.
    fn room(&self) -> Doing<'_, ()>;

    /// Carries until the connection has to end, and says why.
    fn ended(&self) -> Doing<'_, String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_counts_less() {
        let tally = Tally::default();
        tally.add(9, 900_000);
        assert_eq!(tally.bytes_a_call(10), None);
        tally.add(1, 100_000);
        assert_eq!(tally.bytes_a_call(10), Some(100_000));
        (0..40_000).for_each(|_| tally.add(1, 300));
        assert_eq!(tally.bytes_a_call(10), Some(300));
    }
}
