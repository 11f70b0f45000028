//! One connection: its socket, its TLS state, the frames that came and those that wait to be sent.
//!
//! Nothing in here waits. Whatever a peer sends costs at most its connection; what it sends faster than its
//! owner works on it stays in its socket, because a link is read only when its owner has taken all that came before.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mio::net::TcpStream;
use quorate_credential::MAX_BYTES;
use quorate_wire::{EpochCertificate, MacKey, PublicKey};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::channel::{Channel, Lent};
use crate::frame::{Deframer, Frame, Length, LinkEnd};
use crate::group::Group;
use crate::outbox::{Outbox, OutboxLimits};
use crate::records::Records;
use crate::tls::{self, Identity};

/// How long a connection may take until both sides know each other.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer may leave sent bytes unacknowledged, or a probe unanswered, before its connection ends.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// How often a link is read until its owner looks after others: as long as the other side sends there is something to read.
const READS_AT_ONCE: usize = 4;
/// An empty list of frames with room for more than this is given back.
const KEEP_FRAMES: usize = 64;

/// Why a channel is there.
const LENT: &str = "only a hub lends channels, and asks for nothing of those meanwhile";

/// What bounds a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkLimits {
    /// The longest frame that the peer may send.
    pub max_frame_bytes: usize,
    /// What may wait to be sent.
    pub outbox: OutboxLimits,
}

impl LinkLimits {
    /// Of those whose key is not known yet: they have nothing to say, and nothing is said to them.
    pub fn of_strangers() -> LinkLimits {
        let outbox = OutboxLimits {
            bytes: 0,
            frames: 0,
        };
        LinkLimits {
            max_frame_bytes: 0,
            outbox,
        }
    }
}

/// How a link's two sides make themselves known once TLS stands.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// What this side says first: at once if it dials, and when it lets the other in if it accepts.
    pub says: Option<Frame>,
    /// The length of the other side's first frame, where there is one; a dialer's link stands when that has come.
    pub awaits: Option<Length>,
}

impl Opening {
    /// Of a side that accepts with the key of `identity`. What comes first is a certificate or a credential; which, the handshake says.
    pub fn accepting(identity: &Identity, group: &Group) -> Opening {
        let certificate = identity.certificate();
        Opening {
            awaits: match (&certificate, group.owner()) {
                (_, Some(_)) => Some(Length::UpTo(MAX_BYTES.max(EpochCertificate::BYTES))),
                (Some(_), None) => Some(Length::Exactly(EpochCertificate::BYTES)),
                (None, None) => None,
            },
            says: Some(certificate.unwrap_or_else(Frame::welcome)),
        }
    }

    /// Of a side that dials a replica of the group with the key of `identity`.
    pub fn dialing(identity: &Identity, group: &Group) -> Opening {
        Opening {
            says: identity.certificate().or_else(|| identity.credential()),
            awaits: Some(Length::Exactly(
                group.identities().map_or(0, |_| EpochCertificate::BYTES),
            )),
        }
    }
}

/// Bytes that a link has given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped {
    pub waiting: usize,
    pub partial: usize,
}

/// A connection, from its handshake on.
pub(crate) struct Link {
    /// Not there while it is lent, which a hub does.
    channel: Option<Box<Channel>>,
    records: Records,
    deframer: Deframer,
    /// Frames that came, in order.
    pub inbox: VecDeque<Bytes>,
    outbox: Outbox,
    dials: bool,
    /// What is to be said first.
    greeting: Option<Frame>,
    /// Whether the socket may have bytes, as far as is known.
    pub readable: bool,
    /// Whether the other side has closed it: it is read until it says so.
    hung_up: bool,
    /// Whether the socket has become writable while the channel was lent.
    pub became_writable: bool,
    /// The certificate that the other side has shown, where there was one to show.
    pub certificate: Option<Box<EpochCertificate>>,
    /// Why it is over. Frames in the inbox came before.
    pub end: Option<LinkEnd>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("channel", &self.channel)
            .field("inbox", &self.inbox.len())
            .field("outbox", &self.outbox)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// The side that was dialed.
    pub fn accepted(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        limits: LinkLimits,
        opening: Opening,
    ) -> Result<Link, LinkEnd> {
        let tls = ServerConnection::new(config).map_err(LinkEnd::Tls)?;
        Link::new(stream, tls.into(), limits, opening, false)
    }

    /// The side that dials, once its socket is connected.
    pub fn dialed(
        stream: TcpStream,
        config: Arc<ClientConfig>,
        limits: LinkLimits,
        opening: Opening,
    ) -> Result<Link, LinkEnd> {
        let tls = ClientConnection::new(config, tls::server_name()).map_err(LinkEnd::Tls)?;
        let mut link = Link::new(stream, tls.into(), limits, opening, true)?;
        if let Some(greeting) = link.greeting.take() {
            link.outbox.push(&greeting);
        }
        Ok(link)
    }

    fn new(
        stream: TcpStream,
        tls: Connection,
        limits: LinkLimits,
        opening: Opening,
        dials: bool,
    ) -> Result<Link, LinkEnd> {
        tune(&stream).map_err(LinkEnd::Io)?;
        let mut deframer = Deframer::new(limits.max_frame_bytes, opening.awaits);
        deframer.takes_notices =
            dials && opening.awaits.is_some() && opening.awaits != Some(Length::Exactly(0));
        Ok(Link {
            channel: Some(Box::new(Channel::new(stream, tls))),
            records: Records::default(),
            deframer,
            dials,
            greeting: opening.says,
            inbox: VecDeque::new(),
            outbox: Outbox::new(limits.outbox),
            readable: true,
            hung_up: false,
            became_writable: false,
            certificate: None,
            end: None,
        })
    }

    fn channel(&self) -> &Channel {
        self.channel.as_ref().expect(LENT)
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.channel.as_mut().expect(LENT).stream
    }

    /// Whose key the other side has proved to have.
    pub fn peer_key(&self) -> Option<PublicKey> {
        tls::peer_key(&self.channel().tls)
    }

    /// The number of the certificate that the other side has shown; 0 where there was none to show.
    pub fn certified(&self) -> u64 {
        self.certificate.as_ref().map_or(0, |it| it.counter)
    }

    /// Whether the dialing side comes as a guest.
    pub fn is_of_guest(&self) -> bool {
        tls::is_of_guest(&self.channel().tls)
    }

    /// The key for request MACs on this connection.
    pub fn mac_key(&self) -> Result<MacKey, LinkEnd> {
        let tls = &self.channel().tls;
        let export = |out, label: &[u8]| tls.export_keying_material(out, label, None);
        tls::mac_key(export).map_err(LinkEnd::Tls)
    }

    /// Replaces the limits of a stranger by those of a member.
    pub fn promote(&mut self, limits: LinkLimits) -> Result<(), LinkEnd> {
        // Nobody speaks before they were welcomed.
        if !self.deframer.is_between() || !self.inbox.is_empty() {
            return Err(LinkEnd::AnotherProtocol);
        }
        self.deframer = Deframer::new(limits.max_frame_bytes, None);
        self.outbox = Outbox::new(limits.outbox);
        Ok(())
    }

    /// What this side is to say when it lets the other in.
    pub fn take_greeting(&mut self) -> Option<Frame> {
        self.greeting.take()
    }

    /// The other side's first frame, when it has come whole. `None` as well where there may be more to read: then it is to be asked again, after others.
    pub fn introduction(&mut self, scratch: &mut [u8]) -> Result<Option<Bytes>, LinkEnd> {
        for _ in 0..READS_AT_ONCE {
            if !self.readable || self.deframer.opening.is_none() {
                break;
            }
            self.read(scratch)?;
        }
        match self.deframer.opening {
            Some(_) => Ok(None),
            None => Ok(self.inbox.pop_front()),
        }
    }

    /// Takes note of what the poll says.
    pub fn on_ready(&mut self, event: &mio::event::Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.hung_up |= event.is_read_closed() || event.is_error();
        match &mut self.channel {
            Some(channel) => channel.blocked &= !event.is_writable(),
            None => self.became_writable |= event.is_writable(),
        }
    }

    /// Moves the handshake on; true when both sides know each other, and a dialer has been let in. False as well where there may be more to
    /// read: then it is to be called again, after others.
    pub fn shake(&mut self, scratch: &mut [u8]) -> Result<bool, LinkEnd> {
        for _ in 0..READS_AT_ONCE {
            if !self.readable || self.is_established() {
                break;
            }
            self.read(scratch)?;
            self.flush()?;
        }
        self.flush()?;
        Ok(self.is_established())
    }

    fn is_established(&self) -> bool {
        let is_let_in = !self.dials || self.deframer.opening.is_none();
        let tls = &self.channel().tls;
        !tls.is_handshaking() && !tls.wants_write() && is_let_in
    }

    /// Reads once, up to the length of `scratch`, and puts the frames that are whole into the inbox.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<(), LinkEnd> {
        let Some(channel) = &mut self.channel else {
            return Ok(());
        };
        let got = match channel.stream.read(scratch) {
            Ok(0) if self.deframer.is_between() => return Err(LinkEnd::Closed),
            Ok(0) => return Err(LinkEnd::Truncated),
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(LinkEnd::Io(e)),
        };
        // A read that leaves room has emptied the socket, and what comes later is told again.
        self.readable = got == scratch.len() || self.hung_up;
        let mut input = &scratch[..got];
        while !input.is_empty() {
            let before = input;
            if channel.tls.read_tls(&mut input).map_err(LinkEnd::Io)? == 0 {
                return Err(LinkEnd::Closed);
            }
            if let Err(e) = channel.tls.process_new_packets() {
                // The peer is told why, if its socket takes it.
                let _ = channel.tls.write_tls(&mut channel.stream);
                return Err(LinkEnd::Tls(e));
            }
            self.records.pass(&before[..before.len() - input.len()]);
            let brought = take_plaintext(&mut channel.tls, &mut self.deframer, &mut self.inbox)?;
            self.records.brought(brought);
            if self.records.are_barren() {
                return Err(LinkEnd::Barren);
            }
        }
        Ok(())
    }

    /// How many more records came since this was asked than so many frames, and their bytes, account for.
    pub fn take_overhead(&mut self, frames: usize) -> u64 {
        self.records.take_overhead(frames)
    }

    /// Takes another key for what is sent, and has the other side do the same.
    #[cfg(test)]
    pub fn change_keys(&mut self) {
        self.channel
            .as_mut()
            .expect(LENT)
            .tls
            .refresh_traffic_keys()
            .unwrap();
    }

    /// Whether it can be read, as far as is known.
    pub fn is_readable(&self) -> bool {
        self.readable && self.channel.is_some()
    }

    /// The next frame that came.
    pub fn next_frame(&mut self) -> Option<Bytes> {
        let next = self.inbox.pop_front();
        if self.inbox.is_empty() && self.inbox.capacity() > KEEP_FRAMES {
            self.inbox = VecDeque::new();
        }
        next
    }

    /// Bytes that wait to be sent and are not sealed, or were not when they were lent.
    pub fn waiting_bytes(&self) -> usize {
        self.outbox.waiting_bytes()
    }

    /// Those of them that are not lent.
    pub fn idle_bytes(&self) -> usize {
        self.outbox.idle_bytes()
    }

    /// Bytes of a message that has not come whole.
    pub fn partial_bytes(&self) -> usize {
        self.deframer.partial_bytes()
    }

    /// Bytes that are missing of it.
    pub fn missing_bytes(&self) -> usize {
        self.deframer.missing_bytes()
    }

    /// Gives back all memory but that of its frames that came whole, and of those that are lent: it is to end. Says how much that was.
    pub fn drop_all(&mut self) -> Dropped {
        let partial = self.partial_bytes();
        self.deframer.clear();
        Dropped {
            waiting: self.outbox.close(),
            partial,
        }
    }

    /// Queues a frame; false if it was dropped.
    pub fn push(&mut self, frame: &Frame) -> bool {
        self.outbox.push(frame)
    }

    /// Whether [`Link::flush`] has something to do now.
    pub fn wants_flush(&self) -> bool {
        let wants = |c: &Channel| !c.blocked && (c.tls.wants_write() || !self.outbox.is_empty());
        self.channel.as_deref().is_some_and(wants)
    }

    /// Seals and writes what waits, as far as the socket takes it and others need not wait too long.
    pub fn flush(&mut self) -> Result<(), LinkEnd> {
        match &mut self.channel {
            Some(channel) => channel.flush(&mut self.outbox),
            None => Ok(()),
        }
    }

    /// Lends the channel, with what one flush would seal; `None` where the socket takes nothing, or it is lent.
    pub fn lend(&mut self) -> Option<Lent> {
        let channel = self.channel.take_if(|channel| !channel.blocked)?;
        self.became_writable = false;
        let frames = self.outbox.lend(Lent::MOST_BYTES);
        Some(Lent {
            bytes: frames.waiting_bytes(),
            channel,
            frames,
            end: None,
        })
    }

    /// Takes back what was lent.
    pub fn give_back(&mut self, lent: Lent) {
        let mut channel = lent.channel;
        // Perhaps after it had taken no more.
        channel.blocked &= !self.became_writable;
        self.channel = Some(channel);
        self.outbox.give_back(lent.frames);
        self.end = self.end.take().or(lent.end);
        if self.end.is_some() {
            self.outbox.close();
        }
    }
}

/// Cuts what has come into frames; says how many bytes that was.
fn take_plaintext(
    tls: &mut Connection,
    deframer: &mut Deframer,
    inbox: &mut VecDeque<Bytes>,
) -> Result<usize, LinkEnd> {
    let mut reader = tls.reader();
    let mut taken = 0;
    loop {
        let length = match reader.fill_buf() {
            Ok([]) => return Err(LinkEnd::Closed),
            Ok(chunk) => {
                deframer.feed(chunk, inbox)?;
                chunk.len()
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
            Err(e) => return Err(LinkEnd::Io(e)),
        };
        reader.consume(length);
        taken += length;
    }
}

/// No waiting for more bytes to send, and an end to connections whose other side is gone without a word.
fn tune(tcp: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, DEAD_AFTER / 3)?;
    sockopt::set_tcp_keepintvl(tcp, DEAD_AFTER / 5)?;
    sockopt::set_tcp_keepcnt(tcp, 3)?;
    sockopt::set_tcp_user_timeout(tcp, DEAD_AFTER.as_millis() as u32)?;
    if tcp.peer_addr().is_ok_and(|peer| is_near(peer.ip())) {
        // Where the kernel does not have it, the system's own serves as well.
        let _ = sockopt::set_tcp_congestion(tcp, "cubic");
    }
    Ok(())
}

/// Whether an address is of this machine or of a local network. There links are not to pace what they send, as those do whose system has BBR as its default: a
/// message of a few hundred bytes then waits for a timer, and every ten seconds all wait for a fifth of one (docs/performance.md has what that cost).
/// Farther away whoever runs the machine has chosen for such paths.
fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A link on this machine is not paced, whatever the system's default is, at either end.
    #[test]
    fn links_on_this_machine_are_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialed = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (taken, _) = listener.accept().unwrap();
        for end in [dialed, taken].map(TcpStream::from_std) {
            let _ = rustix::net::sockopt::set_tcp_congestion(&end, "bbr");
            tune(&end).unwrap();
            let algorithm = rustix::net::sockopt::tcp_congestion(&end).unwrap();
            assert_ne!(algorithm, "bbr");
        }
    }

    #[test]
    fn what_is_near() {
        let near = |address: &str| is_near(address.parse().unwrap());
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.9",
            "::1",
            "fd00::7",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(near(address), "{address}");
        }
        for address in ["8.8.8.8", "172.32.0.1", "2001:db8::1"] {
            assert!(!near(address), "{address}");
        }
    }
}
