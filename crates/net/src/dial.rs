//! Calling a replica again and again, for as long as it takes, without ever waiting for it.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use quorate_wire::ReplicaId;
use rustls::ClientConfig;

use crate::clock;
use crate::epochs::Epochs;
use crate::frame::LinkEnd;
use crate::group::Group;
use crate::hub::Waker;
use crate::link::{HANDSHAKE_TIMEOUT, Link, LinkLimits, Opening};
use crate::tls::Identity;

/// The wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// A connection that lasted this long starts the waits anew when it ends.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// A link is not made anew sooner than this after it was begun, whoever asks for it.
const LEAST_AGE: Duration = Duration::from_millis(250);

/// Dials one address, as a part of a loop that its owner runs.
#[derive(Debug)]
pub(crate) struct Dialer {
    replica: ReplicaId,
    address: String,
    config: Arc<ClientConfig>,
    opening: Opening,
    limits: LinkLimits,
    token: Token,
    waker: Waker,
    state: State,
    /// When the present attempt began.
    started: Instant,
    wait: Duration,
    /// What was said last about why it can't be reached.
    reported: Option<String>,
}

#[derive(Debug)]
enum State {
    Waiting(Instant),
    /// Another thread asks for the addresses of a name, since that may take long.
    Resolving(Receiver<io::Result<Vec<SocketAddr>>>),
    Connecting(Attempt),
    Shaking(Box<Link>),
    /// The link was given away.
    Up,
}

/// One address of several is called.
#[derive(Debug)]
struct Attempt {
    stream: TcpStream,
    others: Vec<SocketAddr>,
    /// When the next of the others is called instead, if there are any.
    until: Instant,
}

impl Dialer {
    /// Starts to dial a replica. What happens under `token` is to be told with [`Dialer::on_ready`]; `waker` is of the same loop.
    pub fn new(
        (group, replica): (&Group, ReplicaId),
        identity: &Identity,
        limits: LinkLimits,
        token: Token,
        waker: Waker,
    ) -> Dialer {
        let now = clock::now();
        let entry = &group.replicas()[usize::from(replica.0)];
        Dialer {
            replica,
            address: entry.dialed_at().into(),
            config: identity.dialing_config(group, entry),
            opening: Opening::dialing(identity, group),
            limits,
            token,
            waker,
            state: State::Waiting(now),
            started: now,
            wait: FIRST_WAIT,
            reported: None,
        }
    }

    /// When [`Dialer::advance`] has something to do at the latest.
    pub fn next_due(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(until) => Some(until),
            // It was left for others, and there may be more to read.
            State::Shaking(ref link) if link.is_readable() => Some(self.started),
            State::Connecting(ref attempt) => Some(attempt.until),
            State::Resolving(_) | State::Shaking(_) => Some(self.started + HANDSHAKE_TIMEOUT),
            State::Up => None,
        }
    }

    /// Takes note of what the poll says.
    pub fn on_ready(&mut self, event: &mio::event::Event) {
        if let State::Shaking(link) = &mut self.state {
            link.on_ready(event);
        }
    }

    /// The link that was given away has ended: dial again, after a wait.
    pub fn ended(&mut self, now: Instant) {
        self.reported = None;
        self.wait_from(now);
    }

    /// Makes the link anew, while the one that was given away still stands.
    pub fn again(&mut self, now: Instant) {
        match &self.state {
            State::Up => self.state = State::Waiting(now.max(self.started + LEAST_AGE)),
            // It is being made.
            State::Waiting(_) | State::Resolving(_) => {}
            State::Connecting(..) | State::Shaking(_) => {}
        }
    }

    /// Makes the link anew with another key of this side.
    pub fn renew(&mut self, group: &Group, identity: &Identity, now: Instant) {
        let entry = &group.replicas()[usize::from(self.replica.0)];
        self.config = identity.dialing_config(group, entry);
        self.opening = Opening::dialing(identity, group);
        if matches!(self.state, State::Shaking(_)) {
            self.state = State::Waiting(now);
        }
        self.again(now);
    }

    /// Whether the link was given away and none is being made.
    pub fn rests(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Goes on as far as that is possible now; gives the link when it stands. Certificates are judged by `epochs`, where replicas have any.
    pub fn advance(
        &mut self,
        registry: &Registry,
        now: Instant,
        scratch: &mut [u8],
        epochs: &mut Option<Epochs>,
    ) -> Option<Box<Link>> {
        if matches!(self.state, State::Up) {
            return None;
        }
        loop {
            match self.step(registry, now, scratch, epochs) {
                Ok(Step::Forward) => {}
                Ok(Step::Rest) => return None,
                Ok(Step::Done(link)) => return Some(link),
                Err(end) => {
                    self.report(&end);
                    self.wait_from(now);
                    return None;
                }
            }
        }
    }

    fn step(
        &mut self,
        registry: &Registry,
        now: Instant,
        scratch: &mut [u8],
        epochs: &mut Option<Epochs>,
    ) -> Result<Step, LinkEnd> {
        if !matches!(self.state, State::Waiting(_)) && now >= self.started + HANDSHAKE_TIMEOUT {
            return Err(LinkEnd::TooSlow);
        }
        match std::mem::replace(&mut self.state, State::Up) {
            State::Waiting(until) if until > now => {
                self.state = State::Waiting(until);
                Ok(Step::Rest)
            }
            State::Waiting(_) => {
                self.started = now;
                self.state = State::Resolving(resolve(&self.address, &self.waker));
                Ok(Step::Forward)
            }
            State::Resolving(answer) => match answer.try_recv() {
                Ok(addresses) => self.connect(registry, now, addresses.map_err(LinkEnd::Io)?),
                Err(TryRecvError::Empty) => {
                    self.state = State::Resolving(answer);
                    Ok(Step::Rest)
                }
                Err(TryRecvError::Disconnected) => Err(LinkEnd::Io(io::ErrorKind::Other.into())),
            },
            State::Connecting(attempt) => match is_connected(&attempt.stream) {
                Ok(true) => {
                    let link = Link::dialed(
                        attempt.stream,
                        self.config.clone(),
                        self.limits,
                        self.opening.clone(),
                    )?;
                    self.state = State::Shaking(Box::new(link));
                    Ok(Step::Forward)
                }
                Ok(false) if now >= attempt.until => self.connect(registry, now, attempt.others),
                Ok(false) => {
                    self.state = State::Connecting(attempt);
                    Ok(Step::Rest)
                }
                Err(e) if attempt.others.is_empty() => Err(LinkEnd::Io(e)),
                Err(_) => self.connect(registry, now, attempt.others),
            },
            State::Shaking(mut link) => {
                if link.shake(scratch)? {
                    if let Some(epochs) = epochs {
                        let key = link.peer_key().ok_or(LinkEnd::AnotherProtocol)?;
                        let shown = link.inbox.pop_front().unwrap_or_default();
                        let judged = epochs.judge_called(self.replica, &key, shown);
                        let judged = judged.map_err(LinkEnd::Certificate)?;
                        link.certificate = Some(Box::new(judged));
                    }
                    registry.deregister(link.stream()).map_err(LinkEnd::Io)?;
                    self.reported = None;
                    return Ok(Step::Done(link));
                }
                self.state = State::Shaking(link);
                Ok(Step::Rest)
            }
            State::Up => Ok(Step::Rest),
        }
    }

    /// Calls the first of these addresses that can be called. Each has its share of the time that is left, and the last one also that for
    /// the handshake.
    fn connect(
        &mut self,
        registry: &Registry,
        now: Instant,
        addresses: Vec<SocketAddr>,
    ) -> Result<Step, LinkEnd> {
        let mut addresses = VecDeque::from(addresses);
        let mut failure = io::ErrorKind::NotFound.into();
        while let Some(address) = addresses.pop_front() {
            match self.call(registry, address) {
                Ok(stream) => {
                    let end = self.started + HANDSHAKE_TIMEOUT;
                    let shares = addresses.len() as u32 + 2;
                    let until = match addresses.is_empty() {
                        true => end,
                        false => now + end.saturating_duration_since(now) / shares,
                    };
                    self.state = State::Connecting(Attempt {
                        stream,
                        others: addresses.into(),
                        until,
                    });
                    return Ok(Step::Rest);
                }
                Err(e) => failure = e,
            }
        }
        Err(LinkEnd::Io(failure))
    }

    fn call(&self, registry: &Registry, address: SocketAddr) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(address)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, self.token, interest)?;
        Ok(stream)
    }

    fn wait_from(&mut self, now: Instant) {
        if now - self.started >= GOOD_AFTER + self.wait {
            self.wait = FIRST_WAIT;
        }
        self.state = State::Waiting(now + jittered(self.wait));
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }

    /// Says why a replica can't be reached: once for each reason, since dialing goes on for ever.
    fn report(&mut self, end: &LinkEnd) {
        let (address, reason) = (&self.address, end.to_string());
        if self.reported.as_ref() == Some(&reason) {
            tracing::debug!("{address} still can't be reached: {reason}");
        } else {
            tracing::info!("{address} can't be reached, and is tried again: {reason}");
            self.reported = Some(reason);
        }
    }
}

enum Step {
    Forward,
    Rest,
    Done(Box<Link>),
}

fn resolve(address: &str, waker: &Waker) -> Receiver<io::Result<Vec<SocketAddr>>> {
    // One answer.
    let (sender, receiver) = mpsc::sync_channel(1);
    if let Ok(address) = address.parse() {
        let _ = sender.send(Ok(vec![address]));
        return receiver;
    }
    let (address, waker) = (address.to_owned(), waker.clone());
    // If the thread can't be started, the sender is dropped, and that is a failure like others.
    let _ = std::thread::Builder::new()
        .name("resolve".into())
        .spawn(move || {
            let _ = sender.send(address.to_socket_addrs().map(Iterator::collect));
            waker.wake();
        });
    receiver
}

fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

/// Between a half and all of the wait, so that replicas that lost each other together don't dial together.
fn jittered(wait: Duration) -> Duration {
    let mut byte = [128];
    // Without randomness the waits are equal, which is no harm.
    let _ = getrandom::fill(&mut byte);
    wait.mul_f64(0.5 + f64::from(byte[0]) / 512.0)
}

#[cfg(test)]
mod tests;
