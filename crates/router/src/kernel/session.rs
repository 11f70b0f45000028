//! A client's session: its connection, one to each server, and one of the router with itself, behind which the proxy answers what the
//! switch leaves to it.
//!
//! The switch loses what it has for a connection that ends. So a session ends as a whole, as with a server that starts again: its client
//! comes back over a new connection, and sends again what was not answered.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_files::Who;
use quorate_nfs::{Carried, Carrier, Doing, Tally};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::streams::{CLIENT, State, TcpSwitch, USER};
use super::{lock, turn};
use crate::layout::Volume;
use crate::upstream::{self, ANSWER_TIME};

/// Room for a record that is not all there: the longest, in packets that are not full.
const ROOM: usize = 8 << 20;
/// How long a record may take to come, once it has begun.
const TRANSFER_TIME: Duration = Duration::from_secs(60);
/// How long a connection may be silent.
const IDLE_TIME: Duration = Duration::from_secs(1800);
/// How often it is looked at servers and whether anything goes on.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// How long a server answers no calls before it is asked whether it is there.
const SILENCE: Duration = Duration::from_millis(500);
/// Before a server is connected to again that could not be reached.
const AGAIN: Duration = Duration::from_secs(10);
/// How often a client that takes no replies is looked at.
const PAUSE: Duration = Duration::from_millis(5);
/// How long it may take to connect to oneself.
const PAIR_TIME: Duration = Duration::from_secs(2);
/// How long it may take to answer a client that has said all.
const LAST_TIME: Duration = Duration::from_secs(25);
/// How long a socket that has ended may still have what the switch has not looked at.
const REST_TIME: Duration = Duration::from_secs(1);
/// From higher ports many servers take no calls.
const LOW_PORTS: u16 = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    number: u32,
    switch: Arc<TcpSwitch>,
    peer: SocketAddr,
    client: TcpStream,
    /// This end of the connection with itself.
    user: TcpStream,
    broken: Arc<Notify>,
    /// Where it is counted what the client does, if that decides about its next connections.
    tally: Option<Arc<Tally>>,
    /// All that are in the switch's tables: what they are, and their cookies.
    ends: Mutex<Vec<(u32, u64)>>,
    /// Whether it has ended for a reason of the switch.
    early: AtomicBool,
}

/// The connection to a server.
#[derive(Debug)]
struct Server {
    address: String,
    load: Arc<upstream::Load>,
    /// Until then it is not connected to again.
    pause: Option<Instant>,
    /// Calls that were passed on and answered, and since when no more were.
    went: (u64, u64),
    since: Instant,
    /// Whether it is asked whether it is there.
    is_asked: bool,
}

impl Session {
    /// Has the switch carry a connection. Where that can't be, it stays the client's own.
    pub(super) async fn begin(
        switch: Arc<TcpSwitch>,
        stream: TcpStream,
        peer: SocketAddr,
        tally: Option<Arc<Tally>>,
    ) -> Carried {
        let own = |stream| Carried {
            tally: tally.clone(),
            ..Carried::from(stream)
        };
        let (served, user) = match timeout(PAIR_TIME, pair()).await {
            Ok(Ok(pair)) => pair,
            failed => {
                tracing::warn!(%peer, ?failed, "a client is served in user space");
                return own(stream);
            }
        };
        let (number, broken) = match switch.tables.place() {
            Ok(place) => place,
            Err(error) => {
                tracing::warn!(%peer, %error, "a client is served in user space");
                return own(stream);
            }
        };
        let mut ends = Vec::new();
        let mut put = |what, stream: &TcpStream| -> io::Result<()> {
            prepare(stream)?;
            ends.push((what, switch.tables.put([number, what], stream)?));
            Ok(())
        };
        // The client's last: from there on calls go.
        if let Err(error) = put(USER, &user).and_then(|()| put(CLIENT, &stream)) {
            tracing::debug!(%peer, %error, "a client is served in user space");
            switch.end(number, &ends, false);
            return own(stream);
        }
        poke(&stream);
        let session = Session {
            number,
            switch,
            peer,
            client: stream,
            user,
            broken,
            tally,
            ends: Mutex::new(ends),
            early: AtomicBool::new(false),
        };
        Carried {
            stream: served,
            carrier: Some(Box::new(session)),
            // The session counts itself: most does not come to who is served.
            tally: None,
        }
    }

    async fn run(&self) -> String {
        let mut servers: BTreeMap<Volume, Server> = BTreeMap::new();
        let mut connecting = JoinSet::new();
        let mut watched = JoinSet::new();
        let mut asked: JoinSet<(Volume, u64, bool)> = JoinSet::new();
        let mut looks = interval(LOOK_TIME);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut active) = (self.switch.tables.state(self.number), Instant::now());
        loop {
            tokio::select! {
                why = closed(&self.user) => return format!("the proxy: {why}"),
                why = closed(&self.client) => {
                    let _ = timeout(LAST_TIME, self.last()).await;
                    return format!("the client: {why}");
                }
                () = self.broken.notified() => {
                    let why = match self.switch.tables.state(self.number).broken {
                        0 => return "a bucket moves".into(),
                        1 => "it leaves too much undone",
                        2 => "a server sent what is no reply",
                        _ => "a record found no socket",
                    };
                    return self.apart(why);
                }
                Some(Ok((volume, connected))) = connecting.join_next() => {
                    match self.link(volume, connected) {
                        Ok(stream) => {
                            watched.spawn(async move { closed(&stream).await });
                        }
                        Err(error) => {
                            tracing::debug!(volume = volume.0, %error, "calls go by user space");
                            if let Some(server) = servers.get_mut(&volume) {
                                server.pause = Some(Instant::now() + AGAIN);
                            }
                        }
                    }
                }
                Some(Ok(why)) = watched.join_next() => return format!("a server: {why}"),
                Some(Ok((volume, answered, is_there))) = asked.join_next() => {
                    let Some(server) = servers.get_mut(&volume) else {
                        continue;
                    };
                    server.is_asked = false;
                    let went = self.switch.tables.went([self.number, volume.0.into()]);
                    if !is_there && went.1 == answered {
                        return self.unanswered(server, went);
                    }
                }
                _ = looks.tick() => {
                    self.look(&mut servers, &mut connecting);
                    if let Some(why) = self.count(&mut servers, &mut asked) {
                        return why;
                    }
                    let state = self.switch.tables.state(self.number);
                    if let Some(tally) = &self.tally {
                        let calls = |of: &State| of.passed + of.user_calls;
                        let (more, bytes) = (calls(&state), state.carried);
                        tally.add(
                            more.saturating_sub(calls(&last)),
                            bytes.saturating_sub(last.carried),
                        );
                        if TcpSwitch::is_small(tally) {
                            return "its calls are small by now, for which user space is better".into();
                        }
                    }
                    if state != last {
                        (last, active) = (state, Instant::now());
                    }
                    if active.elapsed() > IDLE_TIME {
                        return "it was silent for long".into();
                    }
                }
            }
        }
    }

    /// Ends for a reason that would be there again: from here on the client is served in user space.
    fn apart(&self, why: &str) -> String {
        tracing::warn!(peer = %self.peer, why, "a client's connection is ended, and its next ones are served in user space");
        self.early.store(true, Ordering::Relaxed);
        self.switch.set_apart(self.peer.ip());
        why.into()
    }

    /// Until a client that has said all has got its answers.
    async fn last(&self) {
        loop {
            let state = self.switch.tables.state(self.number);
            let is_done = state.calls == 0 && state.user_calls <= state.user_replies;
            if is_done || state.broken != 0 {
                // They are on their way from one socket to the other.
                tokio::time::sleep(20 * PAUSE).await;
                return self.room().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Begins connections to servers that have none.
    fn look(
        &self,
        servers: &mut BTreeMap<Volume, Server>,
        connecting: &mut JoinSet<(Volume, io::Result<TcpStream>)>,
    ) {
        let buckets = &self.switch.buckets;
        for volume in buckets.map().present() {
            let Some((server, load)) = buckets.servers.server(volume) else {
                continue;
            };
            let now = Instant::now();
            match servers.get_mut(&volume) {
                Some(known) if known.address == server.address() => match known.pause {
                    Some(until) if until <= now => known.pause = None,
                    _ => continue,
                },
                // It has moved: what is under way there goes on, and the rest by user space.
                Some(_) => continue,
                None => {
                    let address = server.address().to_string();
                    let server = Server {
                        address,
                        load,
                        pause: None,
                        went: (0, 0),
                        since: now,
                        is_asked: false,
                    };
                    servers.insert(volume, server);
                }
            }
            let address = server.address().to_string();
            connecting.spawn(async move { (volume, upstream::connect(&address).await) });
        }
    }

    /// Has calls go to a server.
    fn link(&self, volume: Volume, connected: io::Result<TcpStream>) -> io::Result<Arc<TcpStream>> {
        let stream = connected?;
        if stream.local_addr()?.port() >= LOW_PORTS {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        prepare(&stream)?;
        let end = [self.number, volume.0.into()];
        self.switch.tables.link(end, turn(volume))?;
        // Even where the rest fails the table has to be cleared.
        let cookie = self.switch.tables.put(end, &stream);
        let known = *cookie.as_ref().unwrap_or(&0);
        lock(&self.ends).push((volume.0.into(), known));
        cookie?;
        Ok(Arc::new(stream))
    }

    /// Counts what went to servers; why it can't go on, if one is silent. For those that may be, the router's own connection finds out: it
    /// knows a server that thinks for long from a machine that is gone.
    fn count(
        &self,
        servers: &mut BTreeMap<Volume, Server>,
        asked: &mut JoinSet<(Volume, u64, bool)>,
    ) -> Option<String> {
        for (&volume, server) in servers {
            let went = self.switch.tables.went([self.number, volume.0.into()]);
            let more = went.0.saturating_sub(server.went.0);
            server.load.calls.fetch_add(more, Ordering::Relaxed);
            if went.1 != server.went.1 || went.0 == went.1 {
                server.since = Instant::now();
            }
            server.went = went;
            let silent = server.since.elapsed();
            if silent > ANSWER_TIME {
                return Some(self.unanswered(server, went));
            }
            let upstream = self.switch.buckets.servers.get(volume);
            if let (true, false, Some(upstream)) = (silent > SILENCE, server.is_asked, upstream) {
                server.is_asked = true;
                asked.spawn(async move {
                    let null = upstream.nfs(0, &Who::root(), &[]).await;
                    (volume, went.1, null.is_ok())
                });
            }
        }
        None
    }

    fn unanswered(&self, server: &Server, (passed, answered): (u64, u64)) -> String {
        let lost = passed.saturating_sub(answered);
        server.load.unanswered.fetch_add(lost, Ordering::Relaxed);
        self.apart("a server does not answer")
    }

    async fn has_room(&self) {
        loop {
            let now = Timespec::default();
            let mut asked = [PollFd::new(&self.client, PollFlags::OUT)];
            match poll(&mut asked, Some(&now)) {
                // What is broken is found out elsewhere.
                Ok(1) | Err(_) => return,
                Ok(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

impl Carrier for Session {
    fn room(&self) -> Doing<'_, ()> {
        Box::pin(self.has_room())
    }

    fn ended(&self) -> Doing<'_, String> {
        Box::pin(self.run())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let early = self.early.load(Ordering::Relaxed);
        self.switch.end(self.number, &lock(&self.ends), early);
    }
}

/// A connection of the router with itself.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let one = TcpStream::connect(listener.local_addr()?).await?;
    let own = one.local_addr()?;
    loop {
        let (two, from) = listener.accept().await?;
        if from == own {
            return Ok((one, two));
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    set_socket_recv_buffer_size_force(stream, ROOM)?;
    let time = Some(TRANSFER_TIME);
    set_socket_timeout(stream, rustix::net::sockopt::Timeout::Recv, time)?;
    Ok(())
}

/// Has the switch look at what came before the socket had its place. Nothing is ever left there for who reads it.
fn poke(stream: &TcpStream) {
    let _ = recv(stream, &mut [0; 1], RecvFlags::DONTWAIT);
}

/// Until a connection that the switch has is closed, or broken.
async fn closed(stream: &TcpStream) -> String {
    let mut ending: Option<Instant> = None;
    loop {
        let ready = match stream.ready(Interest::READABLE).await {
            Ok(ready) => ready,
            Err(e) => return e.to_string(),
        };
        match stream.try_read(&mut [0]) {
            Ok(0) => return "it was ended".into(),
            Ok(_) => return "it has bytes that nobody takes".into(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return e.to_string(),
        }
        if ready.is_read_closed() {
            // The switch may not have looked at the last of it.
            if ending.get_or_insert_with(Instant::now).elapsed() > REST_TIME {
                return "it ended within a record".into();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
