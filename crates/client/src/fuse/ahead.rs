//! Reading ahead: what a program will read next is asked for before it does.
//!
//! The kernel asks for 128 KiB at a time, and the group's answer takes as long for that as for a block of 1 MiB. So who
//! reads a file in order gets whole blocks, several of them under way; how many doubles with each block that was of use.
//! A block is used while the mount knows of no newer change of the file, as a page of the kernel's cache is.
//! What blocks of all files hold together is bounded; without room there is no reading ahead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_files::Attr;
use quorate_files::answer::Data;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// A reader who asks for nothing for so long loses what was read ahead for him: others want the room.
const IDLE: Duration = Duration::from_secs(3);
/// What is asked for at once. Blocks begin at multiples of it.
pub(super) const BLOCK_BYTES: u64 = 1 << 20;
/// The most blocks of one file ahead of its reader.
const MAX_WINDOW: u64 = 8;
/// The most blocks of all files.
const MAX_BLOCKS: usize = 64;
/// So much in a row makes a reader in order.
const IN_ORDER_BYTES: u64 = 256 << 10;
/// The kernel sends several reads at once, and they may come in another order: this far apart they are in a row.
const NEAR_BYTES: u64 = 1 << 20;

/// A block that was asked for: its content once it is there, `None` if it could not be had.
pub(super) type Block = watch::Receiver<Option<Option<Data>>>;

/// A block to be asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub offset: u64,
    pub answer: watch::Sender<Option<Option<Data>>>,
}

/// What a read is to do.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The blocks that have what is read, by their offsets; none if it is to be read by itself.
    pub blocks: Vec<(u64, Block)>,
    /// To be asked for now.
    pub wanted: Vec<Wanted>,
}

/// Room for the blocks of all files.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(MAX_BLOCKS)))
    }
}

/// The reader of an open file.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the furthest read of the row ended.
    next: u64,
    /// How much was read in a row.
    row_bytes: u64,
    /// The block in which the reader is.
    current: Option<u64>,
    /// How many blocks to be ahead.
    window: u64,
    /// Whether he has paused since he came into it.
    has_paused: bool,
    /// Whether nothing is to be read ahead in it: he has paused in it, or in the one before.
    is_slow: bool,
    /// The file's size, and the change that told it.
    size: Option<u64>,
    change: u64,
    read_at: Option<Instant>,
    blocks: BTreeMap<u64, (Block, OwnedSemaphorePermit)>,
}

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read comes.
    pub fn on_read(&self, offset: u64, len: u64, room: &Room) -> Plan {
        let mut state = self.lock();
        state.read_at = Some(Instant::now());
        state.note(offset, len);
        if state.row_bytes < IN_ORDER_BYTES {
            return Plan::default();
        }
        let wanted = state.want(offset, len, room);
        Plan {
            blocks: state.covering(offset, len),
            wanted,
        }
    }

    /// An answer told of the file.
    pub fn on_answer(&self, attr: &Attr) {
        let mut state = self.lock();
        // Answers of blocks may overtake each other.
        if state.size.is_none() || state.change <= attr.change {
            (state.size, state.change) = (Some(attr.size), attr.change);
        }
    }

    /// Gives the room back, if the reader has paused for long. Where he is stays known: who is slow, and reads a little now and then, is
    /// given what he asks for, and nothing is read ahead again and again only to be dropped.
    pub fn pause(&self, now: Instant) {
        let mut state = self.lock();
        if state.read_at.is_some_and(|at| now - at >= IDLE) {
            state.blocks.clear();
            (state.is_slow, state.has_paused) = (true, true);
        }
    }

    /// What was read ahead is of no use any more.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }
}

impl State {
    /// Whether the reader goes on in order.
    fn note(&mut self, offset: u64, len: u64) {
        if offset.abs_diff(self.next) > NEAR_BYTES {
            *self = State {
                size: self.size,
                change: self.change,
                read_at: self.read_at,
                ..State::default()
            };
        }
        self.next = self.next.max(offset.saturating_add(len));
        self.row_bytes = self.row_bytes.saturating_add(len);
    }

    /// Makes the blocks that are to be asked for, and forgets those behind the reader.
    fn want(&mut self, offset: u64, len: u64, room: &Room) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let Some(size) = self.size.filter(|size| *size > offset.saturating_add(len)) else {
            return wanted;
        };
        let first = block_of(offset);
        if self.current < Some(first) {
            self.current = Some(first);
            self.is_slow = std::mem::take(&mut self.has_paused);
            self.window = match self.is_slow {
                true => 0,
                false => (self.window * 2).clamp(1, MAX_WINDOW),
            };
        }
        if self.is_slow {
            return wanted;
        }
        let behind = first.saturating_sub(NEAR_BYTES);
        self.blocks.retain(|at, _| *at >= behind);
        for at in (0..=self.window).map(|n| first + n * BLOCK_BYTES) {
            if at >= size || self.blocks.contains_key(&at) {
                continue;
            }
            let Ok(permit) = room.0.clone().try_acquire_owned() else {
                break;
            };
            let (answer, block) = watch::channel(None);
            self.blocks.insert(at, (block, permit));
            wanted.push(Wanted { offset: at, answer });
        }
        wanted
    }

    /// The blocks that a read lies in; none unless all are there.
    fn covering(&self, offset: u64, len: u64) -> Vec<(u64, Block)> {
        let end = self.size.unwrap_or(0).min(offset.saturating_add(len));
        let mut blocks = Vec::new();
        let mut at = block_of(offset);
        while at < end {
            let Some((block, _)) = self.blocks.get(&at) else {
                return Vec::new();
            };
            blocks.push((at, block.clone()));
            at += BLOCK_BYTES;
        }
        blocks
    }
}

fn block_of(offset: u64) -> u64 {
    offset - offset % BLOCK_BYTES
}

/// Waits for blocks and takes a read's bytes out of them, if all are as new as they must be, and there is no more than they have:
/// the file may have grown since it was planned how far it is to be read.
pub(super) async fn gather(
    blocks: Vec<(u64, Block)>,
    offset: u64,
    len: u64,
    is_newest: impl Fn(&Attr) -> bool,
) -> Option<Bytes> {
    let end = offset + len;
    let mut parts: Vec<Bytes> = Vec::new();
    let mut is_end = false;
    for (at, mut block) in blocks {
        let held = block.wait_for(Option::is_some).await.ok()?;
        let data = held.as_ref()?.as_ref()?;
        if !is_newest(&data.attr) {
            return None;
        }
        let from = (offset.max(at) - at).min(data.data.len() as u64);
        let to = (end - at).min(data.data.len() as u64);
        parts.push(data.data.slice(from as usize..to as usize));
        is_end = (data.data.len() as u64) < BLOCK_BYTES;
        if is_end {
            break;
        }
    }
    let found: usize = parts.iter().map(Bytes::len).sum();
    if (found as u64) < len && !is_end {
        return None;
    }
    match parts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => {
            let mut all = BytesMut::with_capacity(len as usize);
            several.iter().for_each(|part| all.extend_from_slice(part));
            Some(all.freeze())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 128 << 10;

    fn reader(size: u64) -> Ahead {
        let ahead = Ahead::default();
        ahead.lock().size = Some(size);
        ahead
    }

    /// The blocks that are asked for while a file is read in order, by the read that causes it.
    fn asked(ahead: &Ahead, offsets: impl Iterator<Item = u64>) -> Vec<(u64, Vec<u64>)> {
        let room = Room::default();
        let mut out = Vec::new();
        for offset in offsets {
            let plan = ahead.on_read(offset, STEP, &room);
            if !plan.wanted.is_empty() {
                let blocks = plan.wanted.iter().map(|w| w.offset / BLOCK_BYTES);
                out.push((offset / STEP, blocks.collect()));
            }
        }
        out
    }

    /// Who reads in order has ever more blocks ahead, each asked for once, none behind the end.
    #[test]
    fn the_window_grows() {
        let ahead = reader(20 << 20);
        let asked = asked(&ahead, (0..160).map(|n| n * STEP));
        assert_eq!(asked[0], (1, vec![0, 1]));
        assert_eq!(asked[1], (8, vec![2, 3]));
        assert_eq!(asked[2], (16, vec![4, 5, 6]));
        let all: Vec<u64> = asked.into_iter().flat_map(|(_, blocks)| blocks).collect();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert!(ahead.lock().blocks.len() <= MAX_WINDOW as usize + 2);
    }

    /// Reads that change places on their way are still in order; jumps are not.
    #[test]
    fn jumps_end_it() {
        let swapped = (0..32).map(|n: u64| (n ^ 1) * STEP);
        assert!(!asked(&reader(20 << 20), swapped).is_empty());
        let jumps = (0..100).map(|n| n * 7 % 100 * (3 << 20));
        assert!(asked(&reader(400 << 20), jumps).is_empty());
    }

    fn block(change: u64, len: u64) -> Block {
        let attr = Attr {
            change,
            ..super::super::sample::attr(quorate_files::Ino(1))
        };
        let data = Bytes::from(vec![7; len as usize]);
        let (sender, block) = watch::channel(Some(Some(Data { attr, data })));
        drop(sender);
        block
    }

    /// What ends at the end of a block was planned so when the file ended there. It is no whole answer if the file goes on.
    #[tokio::test]
    async fn a_short_answer_is_the_end_of_the_file() {
        let gathered = async |blocks: &[u64], offset| {
            let blocks = blocks.iter().enumerate();
            let blocks = blocks.map(|(n, len)| (n as u64 * BLOCK_BYTES, block(3, *len)));
            let data = gather(blocks.collect(), offset, STEP, |attr| attr.change == 3).await;
            data.map(|data| data.len() as u64)
        };
        let edge = BLOCK_BYTES - STEP / 2;
        assert_eq!(gathered(&[BLOCK_BYTES], edge).await, None);
        assert_eq!(
            gathered(&[BLOCK_BYTES, 10], edge).await,
            Some(STEP / 2 + 10)
        );
        assert_eq!(gathered(&[BLOCK_BYTES, 0], edge).await, Some(STEP / 2));
        assert_eq!(gathered(&[BLOCK_BYTES, STEP], edge).await, Some(STEP));
        assert_eq!(gathered(&[edge + 10], edge).await, Some(10));
    }

    /// How long a file is, the newest answer says, also that of a block.
    #[test]
    fn the_newest_answer_says_how_long_it_is() {
        let ahead = Ahead::default();
        for (change, size) in [(1, 10), (3, 30), (2, 20)] {
            let attr = super::super::sample::attr(quorate_files::Ino(1));
            ahead.on_answer(&Attr {
                change,
                size,
                ..attr
            });
        }
        assert_eq!(ahead.lock().size, Some(30));
    }

    /// A small file is not read twice.
    #[test]
    fn nothing_is_asked_for_at_the_end() {
        let ahead = reader(3 * STEP);
        assert_eq!(asked(&ahead, (1..3).map(|n| n * STEP)), []);
    }

    /// Who reads slowly is given no more than he asks for; once he goes on without a pause, he has blocks ahead again.
    #[test]
    fn the_slow_have_nothing_ahead() {
        let (ahead, room) = (reader(40 << 20), Room::default());
        let mut wanted = Vec::new();
        for n in 0..160 {
            wanted.push(ahead.on_read(n * STEP, STEP, &room).wanted.len());
            if (10..100).contains(&n) {
                ahead.pause(Instant::now() + IDLE);
            }
        }
        assert_eq!(wanted[..=10].iter().sum::<usize>(), 4);
        assert_eq!(wanted[11..104].iter().sum::<usize>(), 0);
        // From the block on that he came into after a whole one without a pause.
        assert_eq!((wanted[104], wanted[112], wanted[120]), (0, 2, 2));
        assert!(wanted[128] > 2);
    }

    /// All files together have no more blocks than there is room for.
    #[test]
    fn room_is_bounded() {
        let room = Room::default();
        let readers: Vec<Ahead> = (0..100).map(|_| reader(20 << 20)).collect();
        let mut wanted = 0;
        for ahead in &readers {
            for offset in (0..16).map(|n| n * STEP) {
                wanted += ahead.on_read(offset, STEP, &room).wanted.len();
            }
        }
        assert_eq!(wanted, MAX_BLOCKS);
        readers[0].clear();
        assert!(room.0.available_permits() > 0);
        // Who does not go on has no more of it after a while.
        let now = Instant::now();
        readers.iter().for_each(|ahead| ahead.pause(now));
        assert!(room.0.available_permits() < MAX_BLOCKS / 2);
        readers.iter().for_each(|ahead| ahead.pause(now + IDLE));
        assert_eq!(room.0.available_permits(), MAX_BLOCKS);
    }
}
