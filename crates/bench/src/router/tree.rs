//! The files of the load, and what is asked of them: Fstress's web server, as in Anypoint's Figure 9.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_nfs::call::Fh;

use crate::load::Random;

/// Subdirectories of a directory, and how deep they go.
const SUBDIRS: usize = 5;
const DEPTH: usize = 3;
/// How many sizes there are, and how many classes of popularity.
const CLASSES: u32 = 100;
/// Files of each class of popularity; their sizes are drawn.
const FILES_OF_A_CLASS: u32 = 10;
/// Files for long READs, and the bytes of each; each is in a directory of its own, so that all servers have some.
const LARGE_FILES: usize = 16;
pub const LARGE_BYTES: u64 = 1 << 20;
/// The exponent of popularity.
const ZIPF: f64 = 0.6;
/// Bytes that a READ asks for, and how often, of a hundred.
const READS: [(u32, u32); 5] = [
    (8 << 10, 85),
    (16 << 10, 8),
    (32 << 10, 4),
    (64 << 10, 2),
    (128 << 10, 1),
];
/// What calls there are, of a hundred.
const CALLS: [(Kind, u32); 6] = [
    (Kind::GetAttr, 55),
    (Kind::Read, 28),
    (Kind::Lookup, 14),
    (Kind::ReadDir, 1),
    (Kind::FsStat, 1),
    (Kind::Access, 1),
];

/// A procedure of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    GetAttr,
    Read,
    Lookup,
    ReadDir,
    FsStat,
    Access,
}

/// A directory.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Its own place in the list, but for the topmost.
    pub parent: Option<usize>,
    pub name: String,
    /// As the router calls it, once it is made.
    pub handle: Fh,
    /// All names in it.
    pub names: BTreeSet<Bytes>,
}

/// A file.
#[derive(Clone, Debug)]
pub struct File {
    pub dir: usize,
    pub name: Bytes,
    pub bytes: u64,
    /// As the router calls it, once it is made.
    pub handle: Fh,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Parents come before what is in them.
    pub dirs: Vec<Dir>,
    /// By their classes of popularity, equally many in each; and those for long READs after them.
    pub files: Vec<File>,
    /// How many there are before those.
    small: usize,
    /// How many of 2^32 choices come to a class or to one before it.
    popularity: Vec<u32>,
}

impl Tree {
    /// The files as they are to be; `quick` has few.
    pub fn new(quick: bool) -> Tree {
        let (depth, of_a_class) = if quick {
            (1, 1)
        } else {
            (DEPTH, FILES_OF_A_CLASS)
        };
        let mut dirs = vec![dir(None, "web".into())];
        let mut level = 0..1;
        for _ in 0..depth {
            let next = dirs.len();
            for parent in level {
                for at in 0..SUBDIRS {
                    let name = format!("d{at}");
                    dirs[parent].names.insert(name.clone().into());
                    dirs.push(dir(Some(parent), name));
                }
            }
            level = next..dirs.len();
        }
        let mut random = Random(1);
        let mut files = Vec::new();
        let number_of_dirs = dirs.len();
        let mut add = |within: usize, bytes| {
            let name = Bytes::from(format!("f{}", files.len()));
            dirs[within].names.insert(name.clone());
            files.push(File {
                dir: within,
                name,
                bytes,
                handle: Fh::new(),
            });
        };
        let small = (CLASSES * of_a_class) as usize;
        for _ in 0..small {
            let within = random.below(number_of_dirs as u32) as usize;
            add(within, size(random.below(CLASSES) + 1));
        }
        (0..number_of_dirs.min(LARGE_FILES)).for_each(|within| add(within, LARGE_BYTES));
        Tree {
            dirs,
            files,
            small,
            popularity: popularity(),
        }
    }

    /// A file, the popular ones more often.
    pub fn choose(&self, random: &mut Random) -> usize {
        let at = random.below(u32::MAX);
        let class = self.popularity.partition_point(|&up_to| up_to <= at);
        let class = class.min(CLASSES as usize - 1);
        let of_a_class = self.small / CLASSES as usize;
        class * of_a_class + random.below(of_a_class as u32) as usize
    }

    /// One of the files for long READs.
    pub fn choose_large(&self, random: &mut Random) -> usize {
        let large = self.files.len() - self.small;
        self.small + random.below(large as u32) as usize
    }

    /// Whether a file is for long READs.
    pub fn is_large(&self, file: usize) -> bool {
        file >= self.small
    }
}

fn dir(parent: Option<usize>, name: String) -> Dir {
    Dir {
        parent,
        name,
        handle: Fh::new(),
        names: BTreeSet::new(),
    }
}

/// The bytes of a file of the i-th size, of 1 to 100.
fn size(i: u32) -> u64 {
    (419_430.0 * f64::from(i).powf(-1.4)) as u64
}

fn popularity() -> Vec<u32> {
    let weights = (1..=CLASSES).map(|rank| f64::from(rank).powf(-ZIPF));
    let sum: f64 = weights.clone().sum();
    let mut up_to = 0.0;
    let part = |weight: f64| {
        up_to += weight / sum;
        (up_to * f64::from(u32::MAX)) as u32
    };
    weights.map(part).collect()
}

/// What is called next.
pub fn call(random: &mut Random) -> Kind {
    of_a_hundred(&CALLS, random)
}

/// How many bytes of a file are asked for at once.
pub fn read_bytes(random: &mut Random) -> u32 {
    of_a_hundred(&READS, random)
}

fn of_a_hundred<T: Copy>(shares: &[(T, u32)], random: &mut Random) -> T {
    let mut at = random.below(100);
    for &(what, share) in shares {
        if at < share {
            return what;
        }
        at -= share;
    }
    shares[0].0
}

/// What a file holds from an offset on: each eight bytes are told by the file's number and their place alone.
pub fn content(file: usize, offset: u64, len: usize) -> Vec<u8> {
    let first = offset / 8;
    let words = (first..).take(len / 8 + 2);
    let bytes = words.flat_map(|word| self::word(file, word).to_be_bytes());
    bytes.skip((offset % 8) as usize).take(len).collect()
}

/// Whether these are the bytes of a file from an offset on. Without memory for what they should be: the load's own work is not to hide the
/// router's.
pub fn is_content(file: usize, offset: u64, bytes: &[u8]) -> bool {
    if !offset.is_multiple_of(8) {
        return content(file, offset, bytes.len()) == bytes;
    }
    let (words, rest) = bytes.as_chunks::<8>();
    let mut places = offset / 8..;
    let mut is_right = |bytes: &[u8]| {
        let expected = places.next().map(|place| word(file, place).to_be_bytes());
        expected.is_some_and(|expected| expected[..bytes.len()] == *bytes)
    };
    words.iter().all(|word| is_right(word)) && is_right(rest)
}

fn word(file: usize, place: u64) -> u64 {
    let mixed = (file as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 156 directories, a thousand files of 664 to 419,430 bytes; as many of each kind of call as is wanted.
    #[test]
    fn the_load_is_as_described() {
        let tree = Tree::new(false);
        assert_eq!(tree.dirs.len(), 1 + 5 + 25 + 125);
        assert_eq!(tree.files.len(), 1000 + LARGE_FILES);
        assert_eq!((size(1), size(100)), (419_430, 664));
        let mut random = Random(7);
        let mut counts = [0u32; 6];
        let mut first_class = 0;
        for _ in 0..100_000 {
            let kind = call(&mut random);
            counts[CALLS.iter().position(|(k, _)| *k == kind).unwrap()] += 1;
            let file = tree.choose(&mut random);
            first_class += u32::from(file < 10);
            assert!(!tree.is_large(file));
        }
        for ((_, share), count) in CALLS.iter().zip(counts) {
            assert!(
                count.abs_diff(share * 1000) < 300 + share * 20,
                "{counts:?}"
            );
        }
        // 1 of the sum of i^-0.6 up to 100, which is 14.1.
        assert!((6_500..7_700).contains(&first_class), "{first_class}");
    }

    /// Another file, another place or one other byte is noticed.
    #[test]
    fn content_is_told_apart() {
        for (offset, len) in [(0, 8), (8192, 100), (8, 3), (5, 21), (0, 0)] {
            let bytes = content(3, offset, len);
            assert_eq!(bytes.len(), len);
            assert!(is_content(3, offset, &bytes));
            if len > 0 {
                assert!(!is_content(4, offset, &bytes));
                assert!(!is_content(3, offset + 8, &bytes));
                for at in [0, len - 1] {
                    let mut other = bytes.clone();
                    other[at] ^= 1;
                    assert!(!is_content(3, offset, &other));
                }
            }
        }
    }
}
