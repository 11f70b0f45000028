//! The load: connections that send calls and look at each answer, in one thread.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_nfs::call::{self, Fh};
use quorate_nfs::xdr::{Malformed, Reader, Writer};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::link::Link;
use super::tree::{self, Kind, LARGE_BYTES, Tree};
use crate::clock;
use crate::load::Random;
use crate::rpc::{read_reply, write_call};

/// How long an answer may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a connection without a window of its own, the most calls in flight; later ones wait, and their waiting counts.
const MOST_IN_FLIGHT: usize = 64;
/// Enough for each directory in one answer.
const LISTING_BYTES: u32 = 32 << 10;
/// The number of a connection's first call. The others count from one, so that an answer to it that comes twice is none of theirs.
const GREETING: u32 = u32::MAX;
/// READ, LOOKUP, MODIFY, EXTEND, DELETE and EXECUTE (RFC 1813, 3.3.4).
const ALL_ACCESS: u32 = 0x3f;

/// When calls are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many are in flight on each connection, always.
    InFlight(usize),
    /// So many a second on all connections together, at random times.
    PerSecond(f64),
}

/// What is asked, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asks {
    pub pace: Pace,
    /// How many bytes each READ of the large files asks for, if nothing else is asked; none: what a web server asks.
    pub reads: Option<u32>,
}

/// What a server calls the files: by numbers in the tree.
#[derive(Clone, Debug)]
pub struct Names {
    pub dirs: Vec<Fh>,
    pub files: Vec<Fh>,
    /// The numbers of the files, as attributes tell them, once they are known.
    pub numbers: Vec<Option<u64>>,
}

/// A connection, and which files are asked for over it.
#[derive(Debug)]
pub struct Lane {
    pub link: Link,
    /// For each file, whether it is.
    pub has: Vec<bool>,
}

impl Lane {
    /// Waits until the other end has answered a call, so that all that comes before the first answer is done.
    ///
    /// # Errors
    /// Where the answer is an error or does not come.
    pub async fn greet(&mut self, names: &Names) -> Result<()> {
        let file = self.has.iter().position(|has| *has);
        let mut w = Writer::default();
        w.opaque(&names.files[file.context("a connection without files")?]);
        let mut call = Vec::new();
        write_call(&mut call, GREETING, (call::PROGRAM, 1), &w.out);
        let answered = async {
            self.link.send(&call, clock()).await?;
            loop {
                self.link.fill().await?;
                if let Some(record) = self.link.next()? {
                    let (xid, mut results) = read_reply(record)?;
                    ensure!(xid == GREETING, "an answer to nothing");
                    let status = results.u32()?;
                    ensure!(status == 0, "status {status}");
                    return Ok(());
                }
            }
        };
        let answered = timeout(PATIENCE, answered).await;
        answered.context("the first call is not answered")?
    }
}

/// When counting begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Instant,
    pub to: Instant,
}

/// A call that is on its way.
#[derive(Debug)]
struct Asked {
    kind: Kind,
    /// In the tree.
    file: usize,
    offset: u64,
    count: u32,
    /// When it was to be sent.
    due: Instant,
}

/// Drives a lane until the window ends; gives how long each call took that was answered within it, in nanoseconds.
///
/// # Errors
/// Where an answer is wrong or does not come.
pub async fn drive(
    lane: &mut Lane,
    tree: &Tree,
    names: &Names,
    Asks { pace, reads }: Asks,
    seed: u64,
    window: Window,
) -> Result<Vec<u32>> {
    let mut asking = Asking {
        tree,
        names,
        has: &lane.has,
        most: lane.link.io_bytes(),
        reads,
        random: Random(seed),
        reading: None,
        xid: 0,
    };
    let link = &mut lane.link;
    let most = match pace {
        Pace::InFlight(calls) => calls,
        Pace::PerSecond(_) => MOST_IN_FLIGHT,
    };
    let mut arrivals = match pace {
        Pace::InFlight(_) => None,
        Pace::PerSecond(rate) => Some(arrivals(rate, seed, window.to)),
    };
    let (mut on_their_way, mut took) = (BTreeMap::new(), Vec::new());
    let mut going = Vec::new();
    let mut is_over = false;
    loop {
        let now = clock();
        is_over |= now >= window.to;
        if is_over && on_their_way.is_empty() {
            return Ok(took);
        }
        while !is_over && on_their_way.len() < most {
            let due = match &mut arrivals {
                None => now,
                Some(arrivals) => match arrivals.try_recv() {
                    Ok(due) => due,
                    Err(_) => break,
                },
            };
            let (xid, asked) = asking.next(due, &mut going);
            on_their_way.insert(xid, asked);
        }
        if !going.is_empty() {
            link.send(&going, now).await.context("sending")?;
            going.clear();
        }
        let has_room = on_their_way.len() < most;
        tokio::select! {
            read = link.fill(), if !on_their_way.is_empty() => {
                read.context("receiving")?;
                let now = clock();
                while let Some(record) = link.next()? {
                    let (xid, results) = read_reply(record)?;
                    let asked: Asked = match on_their_way.remove(&xid) {
                        Some(asked) => asked,
                        None if link.may_repeat() => continue,
                        None => bail!("an answer to nothing"),
                    };
                    if let Err(why) = asking.check(&asked, results) {
                        bail!("a wrong answer to {:?} of file {}: {why}", asked.kind, asked.file);
                    }
                    if window.from <= now && now < window.to {
                        let ns = now.duration_since(asked.due).as_nanos();
                        took.push(u32::try_from(ns).unwrap_or(u32::MAX));
                    }
                }
            }
            due = next_of(&mut arrivals), if has_room && !is_over => match due {
                Some(due) => {
                    let (xid, asked) = asking.next(due, &mut going);
                    on_their_way.insert(xid, asked);
                }
                None => is_over = true,
            },
            () = tokio::time::sleep_until((window.to.max(now) + PATIENCE).into()) => {
                bail!("{} calls are not answered", on_their_way.len());
            }
        }
    }
}

/// When calls are due that come at random times, so many in a second, until `to`. By a thread that sleeps: the runtime's own times are
/// whole milliseconds.
#[allow(
    clippy::disallowed_methods,
    reason = "keeping to a rate is what it is for"
)]
fn arrivals(per_second: f64, seed: u64, to: Instant) -> mpsc::UnboundedReceiver<Instant> {
    let (due_calls, arrivals) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut random = Random(!seed);
        let mut due = clock();
        loop {
            let chance = (f64::from(random.below(u32::MAX)) + 1.0) / f64::from(u32::MAX);
            due += Duration::from_secs_f64(-chance.ln() / per_second);
            if due >= to {
                return;
            }
            std::thread::sleep(due.saturating_duration_since(clock()));
            if due_calls.send(due).is_err() {
                return;
            }
        }
    });
    arrivals
}

/// The next arrival; nothing after the last. Where calls do not come by themselves it waits for ever.
async fn next_of(arrivals: &mut Option<mpsc::UnboundedReceiver<Instant>>) -> Option<Instant> {
    match arrivals {
        Some(arrivals) => arrivals.recv().await,
        None => std::future::pending().await,
    }
}

/// What is asked over a lane.
struct Asking<'a> {
    tree: &'a Tree,
    names: &'a Names,
    has: &'a [bool],
    /// The most bytes of one READ.
    most: u32,
    /// See [`Asks`].
    reads: Option<u32>,
    random: Random,
    /// A file that is read in order: where it goes on, and how many bytes at once.
    reading: Option<(usize, u64, u32)>,
    xid: u32,
}

impl Asking<'_> {
    /// A file that is asked for here, of those that this chooses from.
    fn choose(&mut self, from: fn(&Tree, &mut Random) -> usize) -> usize {
        loop {
            let file = from(self.tree, &mut self.random);
            if self.has[file] {
                return file;
            }
        }
    }

    /// Writes the next call.
    fn next(&mut self, due: Instant, out: &mut Vec<u8>) -> (u32, Asked) {
        let kind = match self.reads {
            Some(_) => Kind::Read,
            None => tree::call(&mut self.random),
        };
        let (file, offset, count) = match (kind, self.reads, self.reading) {
            (Kind::Read, Some(count), _) => {
                let places = (LARGE_BYTES / u64::from(count)).max(1) as u32;
                let offset = u64::from(self.random.below(places)) * u64::from(count);
                (self.choose(Tree::choose_large), offset, count)
            }
            (Kind::Read, None, Some((file, offset, count))) => (file, offset, count),
            (Kind::Read, None, None) => {
                let count = tree::read_bytes(&mut self.random);
                (self.choose(Tree::choose), 0, count.min(self.most))
            }
            _ => (self.choose(Tree::choose), 0, 0),
        };
        let mut w = Writer::default();
        let (dir, handle) = (self.tree.files[file].dir, &self.names.files[file]);
        let procedure = match kind {
            Kind::GetAttr => {
                w.opaque(handle);
                1
            }
            Kind::Lookup => {
                w.opaque(&self.names.dirs[dir]);
                w.opaque(&self.tree.files[file].name);
                3
            }
            Kind::Access => {
                w.opaque(handle);
                w.u32(ALL_ACCESS);
                4
            }
            Kind::Read => {
                let next = offset + u64::from(count);
                let goes_on = self.reads.is_none() && next < self.tree.files[file].bytes;
                self.reading = goes_on.then_some((file, next, count));
                w.opaque(handle);
                w.u64(offset);
                w.u32(count);
                6
            }
            Kind::ReadDir => {
                w.opaque(&self.names.dirs[dir]);
                w.u64(0);
                w.u64(0);
                w.u32(LISTING_BYTES);
                16
            }
            Kind::FsStat => {
                w.opaque(handle);
                18
            }
        };
        self.xid = self.xid.wrapping_add(1);
        write_call(out, self.xid, (call::PROGRAM, procedure), &w.out);
        let asked = Asked {
            kind,
            file,
            offset,
            count,
            due,
        };
        (self.xid, asked)
    }

    /// Looks whether this is the answer, of this very file.
    fn check(&self, asked: &Asked, mut r: Reader) -> Result<()> {
        let status = r.u32()?;
        ensure!(status == 0, "status {status}");
        match asked.kind {
            Kind::GetAttr => self.check_attr(asked.file, &mut r),
            Kind::Lookup => {
                let handle = r.opaque(64, "handle")?;
                ensure!(handle == self.names.files[asked.file], "another handle");
                self.check_after(asked.file, &mut r)
            }
            Kind::Access => {
                self.check_after(asked.file, &mut r)?;
                let allowed = r.u32()?;
                ensure!(allowed & !ALL_ACCESS == 0, "more than was asked for");
                Ok(())
            }
            Kind::Read => {
                self.check_after(asked.file, &mut r)?;
                let left = self.tree.files[asked.file].bytes - asked.offset;
                let expected = left.min(u64::from(asked.count));
                let (count, is_end) = (r.u32()?, r.bool()?);
                ensure!(u64::from(count) == expected, "{count} bytes");
                ensure!(is_end == (expected == left), "where the file ends");
                let data = r.opaque(count as usize, "data")?;
                let is_right = tree::is_content(asked.file, asked.offset, &data);
                ensure!(data.len() as u64 == expected && is_right, "other bytes");
                Ok(())
            }
            Kind::ReadDir => self.check_listing(asked.file, &mut r),
            Kind::FsStat => {
                skip_after(&mut r)?;
                ensure!(r.u64()? > 0, "no space at all");
                Ok(())
            }
        }
    }

    /// Attributes that may be there.
    fn check_after(&self, file: usize, r: &mut Reader) -> Result<()> {
        match r.bool()? {
            true => self.check_attr(file, r),
            false => Ok(()),
        }
    }

    fn check_attr(&self, file: usize, r: &mut Reader) -> Result<()> {
        let attr = Attributes::read(r)?;
        ensure!(attr.bytes == self.tree.files[file].bytes, "another size");
        let known = self.names.numbers[file];
        let is_same = known.is_none_or(|number| number == attr.number);
        ensure!(is_same, "another number");
        Ok(())
    }

    fn check_listing(&self, file: usize, r: &mut Reader) -> Result<()> {
        skip_after(r)?;
        let _verifier = r.u64()?;
        let dir = &self.tree.dirs[self.tree.files[file].dir];
        let mut found = 0;
        while r.bool()? {
            let (_number, name, _cookie) = (r.u64()?, r.opaque(255, "name")?, r.u64()?);
            if name != "." && name != ".." {
                ensure!(dir.names.contains(&name), "a name that was not made");
                found += 1;
            }
        }
        ensure!(r.bool()? && found == dir.names.len(), "{found} names");
        Ok(())
    }
}

/// What is looked at of a file's attributes (`fattr3`, RFC 1813, 2.5).
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub bytes: u64,
    pub number: u64,
}

impl Attributes {
    pub fn read(r: &mut Reader) -> Result<Attributes, Malformed> {
        let _kind_mode_links_ids: [u8; 20] = r.array()?;
        let bytes = r.u64()?;
        let _used_device_fsid: [u8; 24] = r.array()?;
        let number = r.u64()?;
        let _times: [u8; 24] = r.array()?;
        Ok(Attributes { bytes, number })
    }
}

fn skip_after(r: &mut Reader) -> Result<(), Malformed> {
    r.option(Attributes::read).map(drop)
}
