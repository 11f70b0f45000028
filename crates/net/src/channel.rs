//! A connection's socket and TLS state.
//!
//! This is what seals, and what can be lent to another thread that does (`sealers.rs`). All else of a link stays with its owner.

use std::fmt;
use std::io::{self, Write};

use mio::net::TcpStream;
use rustls::Connection;

use crate::frame::LinkEnd;
use crate::outbox::Outbox;

/// How much is sealed before it is written: some records for each system call.
const SEAL_BYTES: usize = 128 << 10;
/// How often so much is written to one link before others have their turn.
const ROUNDS: usize = 8;

/// See the [module](self).
pub(crate) struct Channel {
    pub stream: TcpStream,
    pub tls: Connection,
    /// Whether the socket takes no more bytes, as far as is known.
    pub blocked: bool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("stream", &self.stream)
            .field("blocked", &self.blocked)
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub fn new(stream: TcpStream, mut tls: Connection) -> Channel {
        // Bounded here: no more than `SEAL_BYTES` are sealed at a time.
        tls.set_buffer_limit(None);
        Channel {
            stream,
            tls,
            blocked: false,
        }
    }

    /// Seals and writes what waits, as far as the socket takes it and others need not wait too long.
    pub fn flush(&mut self, outbox: &mut Outbox) -> Result<(), LinkEnd> {
        for _ in 0..ROUNDS {
            // Nothing is sealed while sealed bytes wait: those can't be dropped any more.
            self.write()?;
            if self.blocked || outbox.is_empty() || self.tls.is_handshaking() {
                return Ok(());
            }
            self.seal(outbox).map_err(LinkEnd::Io)?;
        }
        self.write()
    }

    fn seal(&mut self, outbox: &mut Outbox) -> io::Result<()> {
        let mut left = SEAL_BYTES;
        while left > 0 && !outbox.is_empty() {
            let mut writer = self.tls.writer();
            let sealed = outbox.take(left, |pieces| writer.write_vectored(pieces))?;
            if sealed == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            left -= sealed;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), LinkEnd> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(0) => return Err(LinkEnd::Io(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(LinkEnd::Io(e)),
            }
        }
        Ok(())
    }
}

/// A channel away from its link, with what is to be sealed and written on it.
#[derive(Debug)]
pub(crate) struct Lent {
    pub channel: Box<Channel>,
    /// What is to be sent; afterwards, what is left of that.
    pub frames: Outbox,
    /// How much that was.
    pub bytes: usize,
    /// Why the link is over, if that was found.
    pub end: Option<LinkEnd>,
}

impl Lent {
    /// How much is lent at a time: what one flush seals.
    pub const MOST_BYTES: usize = SEAL_BYTES * ROUNDS;

    /// Seals and writes once, as its link's owner would do it.
    pub fn flush(&mut self) {
        self.end = self.channel.flush(&mut self.frames).err();
    }
}
