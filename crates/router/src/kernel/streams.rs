//! The switch for TCP: `bpf/tcp_switch.bpf.c`, between sockets of the router, and what all sessions have together. A session is in
//! [`session`](super::session).
//!
//! The program keeps account of what it has sent on: more than a bound goes to user space, which takes no more than it has room for.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::maps::{Array, HashMap, MapData, RingBuf, SockHash};
use aya::programs::SkSkb;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use quorate_nfs::exports::{Export, Squash};
use quorate_nfs::{Carried, Exports, Tally};
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::session::Session;
use super::{Shortcut, Unavailable, array, fsid_words, lock, refused, table};
use crate::buckets::{Buckets, Changes};
use crate::layout::{Bucket, Volume};
use crate::upstream::Upstreams;

/// The programs.
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/tcp_switch.bpf.o");
const PROGRAMS: [&str; 2] = ["tcp_records", "tcp_switch"];

// Sizes and places of the program's tables.
const SESSIONS: u32 = 512;
pub(super) const CLIENT: u32 = 0x10000;
pub(super) const USER: u32 = 0x10001;
const WRITE: u32 = 7;
type Config = [u32; 4];
/// A session, and what a socket is in it.
pub(super) type End = [u32; 2];
type SessionEntry = [u64; 11];
/// What numbers differ by; calls that were passed on; of these, how many were answered.
pub(super) type Link = [u64; 3];
type CallKey = [u32; 3];
type Call = [u32; 5];
/// Calls to a bucket that have begun and ended.
type Way = [u64; 2];

/// From so many bytes a call on a client's next connections are carried where that is chosen by what they were used for, and below
/// which they are not any more. Each record costs the system a wakeup of its own, so that it pays for large ones alone; where exactly
/// was not measured.
const LARGE: u64 = 32 << 10;
const SMALL: u64 = 16 << 10;
/// Of fewer calls nothing is concluded.
const ENOUGH: u64 = 256;
/// The most clients of which it is known what they do.
const MAX_KNOWN: usize = 4096;

/// How long a client is served in user space whose session could not go on.
const APART: Duration = Duration::from_secs(600);
/// The most of these.
const MAX_APART: usize = 4096;

/// Which connections are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All that can be.
    All,
    /// Those of clients whose connections before were used for large READs and WRITEs mostly.
    ByUse,
}

/// What the switch has done since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Streamed {
    /// Connections that it carries now.
    pub connections: u64,
    /// Calls that went to a server.
    pub passed: u64,
    /// Of these, how many replies went to clients.
    pub answered: u64,
    /// Calls that went to user space.
    pub left: u64,
    /// Connections that were ended since they could not go on so.
    pub ended: u64,
}

/// A session as the program has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Why it can't go on; 0: it can.
    pub broken: u32,
    /// Calls at servers.
    pub calls: u32,
    /// What these count for.
    pub bytes: u64,
    pub user_calls: u64,
    pub user_replies: u64,
    pub passed: u64,
    pub answered: u64,
    /// Bytes of calls and replies.
    pub carried: u64,
}

impl From<SessionEntry> for State {
    fn from(entry: SessionEntry) -> State {
        State {
            broken: (entry[0] >> 32) as u32,
            calls: (entry[1] >> 32) as u32,
            bytes: entry[3],
            user_calls: entry[6],
            user_replies: entry[7],
            passed: entry[8],
            answered: entry[9],
            carried: entry[4] + entry[5] + entry[10],
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct TcpSwitch {
    /// Ends the programs with this.
    _programs: Mutex<Programs>,
    pub(super) tables: Arc<Tables>,
    broken: Mutex<Option<Broken>>,
    pub(super) buckets: Arc<Buckets<Upstreams>>,
    export: Export,
    apart: Mutex<BTreeMap<IpAddr, Instant>>,
    choice: Choice,
    /// What clients have used their connections for.
    known: Mutex<BTreeMap<IpAddr, Arc<Tally>>>,
    told: Mutex<Streamed>,
}

struct Programs(#[allow(dead_code, reason = "it is kept")] Ebpf);

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").finish_non_exhaustive()
    }
}

/// Where it says which sessions can't go on.
struct Broken(RingBuf<MapData>);

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broken").finish_non_exhaustive()
    }
}

/// The program's tables, and who has which place in them.
pub(super) struct Tables {
    buckets: Mutex<Array<MapData, u32>>,
    ways: Array<MapData, Way>,
    sessions: Mutex<Array<MapData, SessionEntry>>,
    ends: Mutex<HashMap<MapData, u64, End>>,
    sockets: Mutex<SockHash<MapData, End>>,
    links: Mutex<HashMap<MapData, End, Link>>,
    calls: Mutex<HashMap<MapData, CallKey, Call>>,
    all_bytes: Mutex<Array<MapData, u64>>,
    /// Calls of sessions that have ended, by bucket, and what they counted for.
    given_up: Mutex<(BTreeMap<Bucket, u64>, u64)>,
    /// Sessions by number; and numbers that are free, those that were given back last at the end.
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    taken: BTreeMap<u32, Arc<Notify>>,
    free: std::collections::VecDeque<u32>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = lock(&self.places);
        f.debug_struct("Tables")
            .field("places", &*places)
            .finish_non_exhaustive()
    }
}

impl TcpSwitch {
    /// Gives the programs to the system.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn start(
        exports: &Exports,
        fsid: u64,
        buckets: Arc<Buckets<Upstreams>>,
        choice: Choice,
    ) -> Result<TcpSwitch, Unavailable> {
        let [export] = exports.all() else {
            let why = "there is more than one export";
            return Err(Unavailable::Configuration(why));
        };
        if export.squash == Squash::AllSquash {
            let why = "it changes nobody's ids, and the export squashes all";
            return Err(Unavailable::Configuration(why));
        }
        let mut programs = EbpfLoader::new().load(OBJECT).map_err(|e| refused(&e))?;
        let mut table = |name: &str| table(&mut programs, name);
        let [one, two] = fsid_words(fsid);
        let squash_root = u32::from(export.squash == Squash::RootSquash);
        let mut configs: Array<_, Config> = array(table("config")?)?;
        let config = [one, two, squash_root, export.read_only.into()];
        configs.set(0, config, 0).map_err(|e| refused(&e))?;
        let sockets = SockHash::try_from(table("sockets")?).map_err(|e| refused(&e))?;
        let on = sockets.fd().try_clone()?;
        let broken = RingBuf::try_from(table("broken")?).map_err(|e| refused(&e))?;
        let tables = Tables {
            buckets: Mutex::new(array(table("buckets")?)?),
            ways: array(table("passages")?)?,
            sessions: Mutex::new(array(table("sessions")?)?),
            ends: Mutex::new(HashMap::try_from(table("ends")?).map_err(|e| refused(&e))?),
            sockets: Mutex::new(sockets),
            links: Mutex::new(HashMap::try_from(table("links")?).map_err(|e| refused(&e))?),
            calls: Mutex::new(HashMap::try_from(table("calls")?).map_err(|e| refused(&e))?),
            all_bytes: Mutex::new(array(table("all_bytes")?)?),
            given_up: Mutex::default(),
            places: Mutex::new(Places {
                taken: BTreeMap::new(),
                free: (0..SESSIONS).collect(),
            }),
        };
        for name in PROGRAMS {
            let program = programs.program_mut(name);
            let program = program.and_then(|program| <&mut SkSkb>::try_from(program).ok());
            let Some(program) = program else {
                return Err(Unavailable::Program(format!("no {name} in the object")));
            };
            program.load().map_err(|e| refused(&e))?;
            program.attach(&on).map_err(|e| refused(&e))?;
        }
        let tables = Arc::new(tables);
        buckets.add_shortcut(tables.clone());
        Ok(TcpSwitch {
            _programs: Mutex::new(Programs(programs)),
            tables,
            broken: Mutex::new(Some(Broken(broken))),
            buckets,
            export: export.clone(),
            apart: Mutex::default(),
            choice,
            known: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Tells sessions that they can't go on, while it is served.
    pub async fn serve(&self) {
        let broken = lock(&self.broken).take();
        #[allow(
            deprecated,
            reason = "the table keeps its descriptor as long as it lives, and `register` is not for safe code"
        )]
        let broken = broken.map(|broken| AsyncFd::new(broken.0));
        let Some(Ok(mut broken)) = broken else {
            return std::future::pending().await;
        };
        loop {
            let Ok(mut ready) = broken.readable_mut().await else {
                return;
            };
            while let Some(number) = ready.get_inner_mut().next() {
                if let Some(number) = number.first_chunk() {
                    self.tables.tell(u32::from_ne_bytes(*number));
                }
            }
            ready.clear_ready();
        }
    }

    /// What it has done so far.
    pub fn streamed(&self) -> Streamed {
        let mut told = *lock(&self.told);
        let numbers: Vec<u32> = lock(&self.tables.places).taken.keys().copied().collect();
        for number in numbers {
            told.connections += 1;
            add(&mut told, &self.tables.state(number));
        }
        told
    }

    /// Carries a client's connection, if that can be; else it stays as it is.
    pub async fn carry(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> Carried {
        if !self.takes(peer) {
            return Carried::from(stream);
        }
        let tally = match self.choice {
            Choice::All => None,
            Choice::ByUse => self.tally(peer.ip()),
        };
        let is_large = |tally: &Arc<Tally>| tally.bytes_a_call(ENOUGH) >= Some(LARGE);
        if self.choice == Choice::All || tally.as_ref().is_some_and(is_large) {
            return Session::begin(self.clone(), stream, peer, tally).await;
        }
        Carried {
            tally,
            ..Carried::from(stream)
        }
    }

    /// Where it is counted what a client does.
    fn tally(&self, client: IpAddr) -> Option<Arc<Tally>> {
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            // Of those that have no connection.
            known.retain(|_, tally| Arc::strong_count(tally) > 1);
        }
        let has_room = known.len() < MAX_KNOWN || known.contains_key(&client);
        has_room.then(|| known.entry(client).or_default().clone())
    }

    /// Whether a client's connections are better served in user space.
    pub(super) fn is_small(tally: &Tally) -> bool {
        tally
            .bytes_a_call(ENOUGH)
            .is_some_and(|bytes| bytes < SMALL)
    }

    fn takes(&self, peer: SocketAddr) -> bool {
        let export = &self.export;
        if !export.admits(peer.ip()) || export.secure && peer.port() >= 1024 {
            return false;
        }
        let mut apart = lock(&self.apart);
        apart.retain(|_, since| since.elapsed() < APART);
        !apart.contains_key(&peer.ip())
    }

    /// Serves a client in user space from here on, for a while.
    pub(super) fn set_apart(&self, client: IpAddr) {
        let mut apart = lock(&self.apart);
        if apart.len() < MAX_APART {
            apart.insert(client, Instant::now());
        }
    }

    /// A session has ended: what it has in tables goes, its calls are given up.
    pub(super) fn end(&self, number: u32, ends: &[(u32, u64)], early: bool) {
        let state = self.tables.state(number);
        let mut told = lock(&self.told);
        add(&mut told, &state);
        told.ended += u64::from(early);
        drop(told);
        for bucket in self.tables.end(number, ends) {
            self.buckets.changed(bucket, Changes::unknown());
        }
    }
}

fn add(told: &mut Streamed, state: &State) {
    told.passed += state.passed;
    told.answered += state.answered;
    told.left += state.user_calls;
}

impl Shortcut for Tables {
    fn set(&self, bucket: Bucket, volume: Option<Volume>) {
        let entry = volume.map_or(0, |volume| u32::from(volume.0) + 1);
        if let Err(error) = lock(&self.buckets).set(bucket.0, entry, 0) {
            tracing::error!(%error, bucket = bucket.0, "the switch does not learn where a bucket is");
        }
    }

    fn is_clear(&self, bucket: Bucket, patience: bool) -> bool {
        // What has ended is read first: so as many as have begun by then have ended.
        let given_up = lock(&self.given_up).0.get(&bucket).copied().unwrap_or(0);
        let Ok([_, ended]) = self.ways.get(&bucket.0, 0) else {
            return true;
        };
        let begun = self.ways.get(&bucket.0, 0).map_or(0, |way| way[0]);
        if begun == ended + given_up {
            return true;
        }
        if patience {
            let calls = lock(&self.calls);
            let of_it = calls.iter().filter_map(Result::ok);
            let of_it = of_it.filter(|(_, call)| call[1] == bucket.0);
            let numbers: Vec<u32> = of_it.map(|(key, _)| key[0]).collect();
            drop(calls);
            numbers.into_iter().for_each(|number| self.tell(number));
        }
        false
    }
}

impl Tables {
    /// A place for a session, and who is told when it can't go on.
    pub(super) fn place(&self) -> io::Result<(u32, Arc<Notify>)> {
        let mut places = lock(&self.places);
        let number = places.free.pop_front();
        let number = number.ok_or(io::ErrorKind::QuotaExceeded)?;
        let mut entry = SessionEntry::default();
        entry[0] = 1;
        if let Err(e) = lock(&self.sessions).set(number, entry, 0) {
            places.free.push_back(number);
            return Err(io::Error::other(e));
        }
        let notify = Arc::new(Notify::new());
        places.taken.insert(number, notify.clone());
        Ok((number, notify))
    }

    fn tell(&self, number: u32) {
        if let Some(session) = lock(&self.places).taken.get(&number) {
            session.notify_one();
        }
    }

    /// Has what comes in at a socket looked at by the program.
    pub(super) fn put(&self, end: End, stream: &TcpStream) -> io::Result<u64> {
        let cookie = rustix::net::sockopt::socket_cookie(stream)?;
        let put = lock(&self.ends).insert(cookie, end, 0);
        put.map_err(io::Error::other)?;
        if let Err(e) = lock(&self.sockets).insert(end, stream.as_raw_fd(), 0) {
            let _ = lock(&self.ends).remove(&cookie);
            return Err(io::Error::other(e));
        }
        Ok(cookie)
    }

    /// Calls may go to the server of a volume.
    pub(super) fn link(&self, end: End, turn: u32) -> io::Result<()> {
        let set = lock(&self.links).insert(end, [turn.into(), 0, 0], 0);
        set.map_err(io::Error::other)
    }

    /// How many calls went to a server, and how many were answered.
    pub(super) fn went(&self, end: End) -> (u64, u64) {
        let link = lock(&self.links).get(&end, 0);
        link.map_or((0, 0), |[_, passed, answered]| (passed, answered))
    }

    pub(super) fn state(&self, number: u32) -> State {
        let entry = lock(&self.sessions).get(&number, 0);
        entry.unwrap_or_default().into()
    }

    /// Gives the buckets of which it is not known what has changed in them.
    fn end(&self, number: u32, ends: &[(u32, u64)]) -> Vec<Bucket> {
        for (what, cookie) in ends {
            // What is not there is not looked at any more either.
            let _ = lock(&self.sockets).remove(&[number, *what]);
            let _ = lock(&self.ends).remove(cookie);
            let _ = lock(&self.links).remove(&[number, *what]);
        }
        let mut changed = Vec::new();
        {
            let mut calls = lock(&self.calls);
            let own = calls.iter().filter_map(Result::ok);
            let own: Vec<_> = own.filter(|(key, _)| key[0] == number).collect();
            let given_up = &mut *lock(&self.given_up);
            for (key, [procedure, bucket, _, bytes, _]) in own {
                // Its reply may have come at this very moment.
                if calls.remove(&key).is_ok() {
                    *given_up.0.entry(Bucket(bucket)).or_default() += 1;
                    given_up.1 += u64::from(bytes);
                    if procedure == WRITE {
                        changed.push(Bucket(bucket));
                    }
                }
            }
            let told = lock(&self.all_bytes).set(1, given_up.1, 0);
            if let Err(error) = told {
                tracing::error!(%error, "the switch does not learn that room is free");
            }
        }
        let _ = lock(&self.sessions).set(number, SessionEntry::default(), 0);
        let mut places = lock(&self.places);
        places.taken.remove(&number);
        places.free.push_back(number);
        changed
    }
}
