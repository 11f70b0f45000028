//! Checked blocks under redb.
//!
//! redb proves its pages only when it repairs: a bit that flips later would lead a search astray, and a
//! key that is there would seem absent. So redb gets its file through this layer, which keeps a sum beside each block
//! of 4096 bytes and checks it at each read. redb itself then reads what it wrote, or an error.
//!
//! # Format
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4096 | header slot 0 |
//! | 4096 | 4096 | header slot 1 |
//! | 8192 + g * 1025 * 4096 | 4096 | sums of group g: 1024 times a `u32` |
//! | after its sums | up to 1024 * 4096 | the blocks of group g, from redb's block 1 + g * 1024 on |
//!
//! The sum of a block is CRC-32 over its number in redb's file (`u64`) and its bytes; a sum of 0 is written as 1. 0 stands
//! beside blocks that were never written, which are zero.
//!
//! redb's block 0 is its header, and the one block that it overwrites in place. A header slot is:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4064 | the first bytes of redb's block 0; the rest of that block is zero |
//! | 4064 | 8 | "QRSTORE2" |
//! | 4072 | 8 | generation (`u64`) |
//! | 4080 | 4 | CRC-32 over bytes 0 to 4080 |
//! | 4084 | 12 | zero |
//!
//! The whole slot of the higher generation holds. Writes go to the other slot than the one that was last synced, so
//! a write that is torn by a power cut leaves that one. Blocks other than the header need no such care: redb commits in
//! two phases, and what an uncommitted transaction left behind is never read.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use redb::StorageBackend;
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, fadvise};

const BLOCK: u64 = 4096;
const GROUP_BLOCKS: u64 = 1024;
const GROUP_BYTES: u64 = (1 + GROUP_BLOCKS) * BLOCK;
const HEADER_SLOTS: u64 = 2;
const HEADER_KEPT: usize = 4064;
const HEADER_SUMMED: usize = 4080;
const MAGIC: &[u8; 8] = b"QRSTORE2";
/// The part of it that all versions have.
const MAGIC_OF_ALL: &[u8; 7] = b"QRSTORE";

/// Where the blocks are: a file, or in tests a disk that forgets.
pub(crate) trait Disk: fmt::Debug + Send + Sync + 'static {
    fn bytes(&self) -> io::Result<u64>;
    fn resize(&self, bytes: u64) -> io::Result<()>;
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()>;
    /// So many bytes, which nobody has made zero before.
    fn read_new(&self, length: usize, at: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
    fn write_all_at(&self, data: &[u8], at: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// Has the system forget what it has in memory of what is synced.
    fn forget_cached(&self);
}

impl Disk for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, out, at)
    }

    fn read_new(&self, length: usize, at: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let from = at + bytes.len() as u64;
            match rustix::io::pread(self, spare_capacity(&mut bytes), from) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        // There may have been room for more.
        bytes.truncate(length);
        Ok(bytes)
    }

    fn write_all_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        FileExt::write_all_at(self, data, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn forget_cached(&self) {
        // Not every file system knows of this; one in memory has nothing else.
        let _ = fadvise(self, 0, None, Advice::DontNeed);
    }
}

#[derive(Debug)]
pub(crate) struct Blocks<D> {
    file: D,
    header: Mutex<Header>,
    /// Held until redb lets go of the file.
    lock: Mutex<Option<File>>,
}

#[derive(Debug)]
struct Header {
    block: Box<[u8; BLOCK as usize]>,
    generation: u64,
    /// Whether the newest generation may not be on the disk yet.
    unsynced: bool,
}

impl Blocks<File> {
    /// Opens the file, or creates it. `lock` is let go of when redb closes the file.
    pub(crate) fn open(path: &Path, create: bool, lock: Option<File>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(create);
        Blocks::on(options.open(path)?, create, lock)
    }
}

impl<D: Disk> Blocks<D> {
    pub(crate) fn on(file: D, create: bool, lock: Option<File>) -> io::Result<Self> {
        let header = match create {
            true => Header {
                block: Box::new([0; BLOCK as usize]),
                generation: 0,
                unsynced: false,
            },
            false => {
                // A process that was killed may have left a header that is in memory alone. The next one is written in the place of the one before it, which
                // would be the only one on the disk.
                file.sync()?;
                // And after a sync that failed Linux takes pages for clean that never came to the disk: with these in memory the next header would be
                // written in the place of the last one on the disk, and blocks of an older tree be taken for the present one's once the power has gone.
                file.forget_cached();
                read_header(&file)?
            }
        };
        Ok(Blocks {
            file,
            header: Mutex::new(header),
            lock: Mutex::new(lock),
        })
    }

    fn write_header(&self, at: usize, data: &[u8]) -> io::Result<()> {
        let mut header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        header.block[at..at + data.len()].copy_from_slice(data);
        if header.block[HEADER_KEPT..].iter().any(|&b| b != 0) {
            return Err(io::Error::other(
                "redb's header is longer than this format's",
            ));
        }
        if !header.unsynced {
            header.generation += 1;
            header.unsynced = true;
        }
        let mut slot = *header.block;
        slot[HEADER_KEPT..HEADER_KEPT + 8].copy_from_slice(MAGIC);
        slot[HEADER_KEPT + 8..HEADER_SUMMED].copy_from_slice(&header.generation.to_le_bytes());
        let sum = crc32fast::hash(&slot[..HEADER_SUMMED]);
        slot[HEADER_SUMMED..HEADER_SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
        let at = header.generation % HEADER_SLOTS * BLOCK;
        self.file.write_all_at(&slot, at)
    }

    /// Reads whole blocks of one group from block `first` (1 or above) on.
    fn read_run(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let mut sums = vec![0; out.len() / BLOCK as usize * 4];
        self.file.read_exact_at(out, data_at(first))?;
        self.file.read_exact_at(&mut sums, sum_at(first))?;
        let blocks = out.chunks_exact(BLOCK as usize);
        for (number, (block, sum)) in (first..).zip(blocks.zip(sums.chunks_exact(4))) {
            let whole = match sum {
                [0, 0, 0, 0] => block.iter().all(|&b| b == 0),
                sum => sum == sum_of(number, block),
            };
            if !whole {
                let at = data_at(number);
                let what = format!("the block at byte {at} does not match its sum");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }

    fn write_run(&self, first: u64, data: &[u8]) -> io::Result<()> {
        let mut sums = Vec::with_capacity(data.len() / BLOCK as usize * 4);
        for (number, block) in (first..).zip(data.chunks_exact(BLOCK as usize)) {
            sums.extend_from_slice(&sum_of(number, block));
        }
        self.file.write_all_at(data, data_at(first))?;
        self.file.write_all_at(&sums, sum_at(first))
    }

    fn read_block(&self, number: u64) -> io::Result<[u8; BLOCK as usize]> {
        let mut block = [0; BLOCK as usize];
        match number {
            0 => {
                let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
                block.copy_from_slice(&header.block[..]);
            }
            _ => self.read_run(number, &mut block)?,
        }
        Ok(block)
    }
}

/// One piece of a read or write: whole blocks of one group, or a part of one block.
struct Piece {
    block: u64,
    /// The first byte within the block.
    at: usize,
    bytes: usize,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.block > 0 && self.at == 0 && self.bytes.is_multiple_of(BLOCK as usize)
    }
}

/// Cuts a range of redb's file into pieces.
fn pieces(mut offset: u64, mut left: usize) -> impl Iterator<Item = Piece> {
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let block = offset / BLOCK;
        let at = (offset % BLOCK) as usize;
        let room = match block {
            0 => BLOCK,
            // To the end of the group.
            _ => (GROUP_BLOCKS - (block - 1) % GROUP_BLOCKS) * BLOCK,
        };
        let bytes = if at != 0 || left < BLOCK as usize || block == 0 {
            left.min(BLOCK as usize - at)
        } else {
            (left - left % BLOCK as usize).min(room as usize)
        };
        offset += bytes as u64;
        left -= bytes;
        Some(Piece { block, at, bytes })
    })
}

impl<D: Disk> StorageBackend for Blocks<D> {
    fn len(&self) -> io::Result<u64> {
        let bytes = self.file.bytes()?;
        if bytes < HEADER_SLOTS * BLOCK {
            return Ok(0);
        }
        let rest = bytes - HEADER_SLOTS * BLOCK;
        let in_group = (rest % GROUP_BYTES / BLOCK).saturating_sub(1);
        Ok((1 + rest / GROUP_BYTES * GROUP_BLOCKS + in_group) * BLOCK)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.saturating_add(out.len() as u64) > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for piece in pieces(offset, rest.len()) {
            let (out, after) = rest.split_at_mut(piece.bytes);
            if piece.is_whole() {
                self.read_run(piece.block, out)?;
            } else {
                let block = self.read_block(piece.block)?;
                out.copy_from_slice(&block[piece.at..piece.at + piece.bytes]);
            }
            rest = after;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if !len.is_multiple_of(BLOCK) {
            return Err(io::Error::other("redb's file is not made of whole blocks"));
        }
        let before = self.len()?;
        if len == 0 {
            return self.file.resize(0);
        }
        let end = match len / BLOCK {
            1 => HEADER_SLOTS * BLOCK,
            blocks => data_at(blocks - 1) + BLOCK,
        };
        self.file.resize(end)?;
        // Sums of blocks that are cut off must not meet the zeros of blocks that come later.
        let (first, last) = (len / BLOCK, before / BLOCK);
        let in_group = first.saturating_sub(1) % GROUP_BLOCKS;
        if first > 1 && last > first && in_group > 0 {
            let stale = (last - first).min(GROUP_BLOCKS - in_group);
            let zeros = vec![0; stale as usize * 4];
            self.file.write_all_at(&zeros, sum_at(first))?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // Under the lock, so that no header is written meanwhile: in the slot of the one that is being synced it could tear what the sync then calls
        // safe, and in the other slot the only header that is on the disk for certain. It keeps nobody from reading: redb reads block 0 when
        // it opens the file and not again, other blocks need no lock, and one thread writes and syncs.
        let mut header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.sync()?;
        header.unsynced = false;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for piece in pieces(offset, data.len()) {
            let (data, after) = rest.split_at(piece.bytes);
            if piece.block == 0 {
                self.write_header(piece.at, data)?;
            } else if piece.is_whole() {
                self.write_run(piece.block, data)?;
            } else {
                let mut block = self.read_block(piece.block)?;
                block[piece.at..piece.at + piece.bytes].copy_from_slice(data);
                self.write_run(piece.block, &block)?;
            }
            rest = after;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock.take());
        Ok(())
    }
}

fn read_header(file: &impl Disk) -> io::Result<Header> {
    let mut newest: Option<(u64, [u8; BLOCK as usize])> = None;
    let mut other = None;
    for slot in 0..HEADER_SLOTS {
        let mut bytes = [0; BLOCK as usize];
        match file.read_exact_at(&mut bytes, slot * BLOCK) {
            Ok(()) => {}
            // Both slots are written before a store gets its name; a shorter file is not one.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e),
        }
        let sum = crc32fast::hash(&bytes[..HEADER_SUMMED]).to_le_bytes();
        let magic = &bytes[HEADER_KEPT..HEADER_KEPT + 8];
        let is_sound = bytes[HEADER_SUMMED..HEADER_SUMMED + 4] == sum;
        let whole = is_sound && magic == MAGIC;
        if is_sound && !whole && magic.starts_with(MAGIC_OF_ALL) {
            other = Some(char::from(magic[7]));
        }
        let mut generation = [0; 8];
        generation.copy_from_slice(&bytes[HEADER_KEPT + 8..HEADER_SUMMED]);
        let generation = u64::from_le_bytes(generation);
        if whole && newest.is_none_or(|(newest, _)| newest < generation) {
            newest = Some((generation, bytes));
        }
    }
    let Some((generation, mut block)) = newest else {
        if let Some(version) = other {
            let what = format!("its format is {version}, and this program reads 2");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let what = "it has no header of a Quorate store";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    block[HEADER_KEPT..].fill(0);
    Ok(Header {
        block: Box::new(block),
        generation,
        unsynced: false,
    })
}

fn sum_of(number: u64, block: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(block);
    hasher.finalize().max(1).to_le_bytes()
}

/// Where the sum of a block stands.
fn sum_at(number: u64) -> u64 {
    let (group, in_group) = ((number - 1) / GROUP_BLOCKS, (number - 1) % GROUP_BLOCKS);
    HEADER_SLOTS * BLOCK + group * GROUP_BYTES + in_group * 4
}

/// Where the bytes of a block stand.
fn data_at(number: u64) -> u64 {
    let (group, in_group) = ((number - 1) / GROUP_BLOCKS, (number - 1) % GROUP_BLOCKS);
    HEADER_SLOTS * BLOCK + group * GROUP_BYTES + (1 + in_group) * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is written, at whatever place and length, is read again; what was cut off and comes back is zero.
    #[test]
    fn blocks_behave_as_a_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let blocks = Blocks::open(&path, true, None).unwrap();
        let mut model = vec![0_u8; 3000 * 4096];
        blocks.set_len(model.len() as u64).unwrap();
        let mut x = 1_u64;
        let mut next = |below: usize| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as usize % below
        };
        for round in 0..300_u64 {
            let at = 4096 + next(model.len() - 4096 - 70_000);
            let bytes = next(70_000);
            // Every other write is of whole blocks.
            let (at, bytes) = match round % 2 {
                0 => (at, bytes),
                _ => (at / 4096 * 4096, bytes / 4096 * 4096),
            };
            model[at..at + bytes].fill(round as u8);
            blocks.write(at as u64, &model[at..at + bytes]).unwrap();
            if round == 150 {
                let cut = 1500 * 4096;
                blocks.set_len(cut as u64).unwrap();
                blocks.set_len(model.len() as u64).unwrap();
                model[cut..].fill(0);
            }
        }
        blocks.write(5, b"header").unwrap();
        model[5..11].copy_from_slice(b"header");
        blocks.sync_data().unwrap();
        for blocks in [blocks, Blocks::open(&path, false, None).unwrap()] {
            assert_eq!(blocks.len().unwrap(), model.len() as u64);
            let mut read = vec![1; model.len()];
            blocks.read(0, &mut read).unwrap();
            assert!(read == model);
            assert!(blocks.read(model.len() as u64 - 1, &mut [0; 2]).is_err());
        }
    }

    /// A header that is torn by a power cut leaves the one that was synced before it.
    #[test]
    fn a_torn_header_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let blocks = Blocks::open(&path, true, None).unwrap();
        blocks.set_len(8192).unwrap();
        blocks.write(0, b"one").unwrap();
        blocks.sync_data().unwrap();
        blocks.write(0, b"two").unwrap();
        blocks.write(0, b"six").unwrap();
        let torn = OpenOptions::new().write(true).open(&path).unwrap();
        // Generation 2 is in slot 0.
        Disk::write_all_at(&torn, b"???", 0).unwrap();
        let mut read = [0; 3];
        let again = Blocks::open(&path, false, None).unwrap();
        again.read(0, &mut read).unwrap();
        assert_eq!(&read, b"one");
    }
}
