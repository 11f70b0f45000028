//! The volumes, and which bucket lies on which: a small value that is kept beside the log of intentions. A bucket has moved when the
//! map says so, and not before.

use bytes::Bytes;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};

use crate::layout::{Bucket, Volume};

/// The most buckets.
pub const MAX_BUCKETS: usize = 1 << 16;
/// The most volumes that a set ever has had.
const MAX_VOLUMES: usize = 1 << 14;
/// The most tables of a volume.
const MAX_TABLES: usize = 1 << 20;
/// The longest location.
const MAX_URL_BYTES: usize = 1 << 12;
const FORMAT: u32 = 1;

/// What is done with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It holds buckets and may get more.
    Serving,
    /// Its buckets go to others.
    Draining,
    /// It is no part of the set any more.
    Removed,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it is.
    pub url: String,
    /// What is done with it.
    pub state: Use,
    /// The tables on it that count, oldest first: see [`crate::table`].
    pub tables: Vec<u64>,
}

/// Where a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// On which volume.
    pub volume: Volume,
    /// The number of the move that brought it there, which its directory and its table have in their names; 0 where it was made.
    pub moved: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// One more with each change.
    pub version: u64,
    /// By number.
    pub volumes: Vec<Member>,
    /// By number.
    pub buckets: Vec<Place>,
}

impl Map {
    /// Of a new set: buckets go round the volumes.
    pub fn first(urls: Vec<String>, buckets: u32) -> Map {
        let volumes = urls.len() as u32;
        let place = |bucket: u32| Place {
            volume: Volume((bucket % volumes) as u16),
            moved: 0,
        };
        Map {
            version: 1,
            buckets: (0..buckets).map(place).collect(),
            volumes: urls.into_iter().map(Member::new).collect(),
        }
    }

    /// Where a bucket is.
    pub fn place(&self, bucket: Bucket) -> Option<Place> {
        self.buckets.get(bucket.0 as usize).copied()
    }

    /// On which volume a bucket is.
    pub fn volume(&self, bucket: Bucket) -> Option<Volume> {
        self.place(bucket).map(|place| place.volume)
    }

    /// All buckets, and where they are.
    pub fn places(&self) -> impl Iterator<Item = (Bucket, Place)> + '_ {
        (0u32..).map(Bucket).zip(self.buckets.iter().copied())
    }

    /// The buckets of a volume.
    pub fn held_by(&self, volume: Volume) -> impl Iterator<Item = Bucket> + '_ {
        let here =
            move |(bucket, place): (Bucket, Place)| (place.volume == volume).then_some(bucket);
        self.places().filter_map(here)
    }

    /// How many buckets a volume has.
    pub fn held(&self, volume: Volume) -> usize {
        self.held_by(volume).count()
    }

    fn with(&self, wanted: impl Fn(Use) -> bool) -> impl Iterator<Item = Volume> {
        let all = (0u16..).map(Volume).zip(&self.volumes);
        all.filter_map(move |(number, member)| wanted(member.state).then_some(number))
    }

    /// The volumes that are part of the set.
    pub fn present(&self) -> impl Iterator<Item = Volume> {
        self.with(|state| state != Use::Removed)
    }

    /// The volumes that may get buckets.
    pub fn serving(&self) -> impl Iterator<Item = Volume> {
        self.with(|state| state == Use::Serving)
    }

    /// What is known of a volume.
    pub fn member(&self, volume: Volume) -> Option<&Member> {
        self.volumes.get(usize::from(volume.0))
    }

    /// The move that would bring the map nearer to its end: nothing on volumes that drain; if asked for, as many buckets on each as on
    /// any other, but for one.
    pub fn next_move(&self, even: bool) -> Option<(Bucket, Volume)> {
        let emptiest = self.serving().min_by_key(|&volume| self.held(volume))?;
        let draining = self.with(|state| state == Use::Draining);
        let leaving = draining.flat_map(|volume| self.held_by(volume)).next();
        if let Some(bucket) = leaving {
            return Some((bucket, emptiest));
        }
        let fullest = self
            .serving()
            .max_by_key(|&volume| (self.held(volume), std::cmp::Reverse(volume)))?;
        if !even || self.held(fullest) <= self.held(emptiest) + 1 {
            return None;
        }
        // The root stays as long as it may.
        let last = self.held_by(fullest).last()?;
        Some((last, emptiest))
    }

    /// As it is kept.
    pub fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(FORMAT);
        w.u64(self.version);
        w.u32(self.volumes.len() as u32);
        for member in &self.volumes {
            w.opaque(member.url.as_bytes());
            w.u32(member.state as u32);
            w.u32(member.tables.len() as u32);
            member.tables.iter().for_each(|&table| w.u64(table));
        }
        w.u32(self.buckets.len() as u32);
        for place in &self.buckets {
            w.u32(place.volume.0.into());
            w.u64(place.moved);
        }
        w.out
    }

    /// From what was kept.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(bytes: Bytes) -> Read<Map> {
        let r = &mut Reader::new(bytes);
        if r.u32()? != FORMAT {
            return Err(Malformed::Value("format of the map"));
        }
        let version = r.u64()?;
        let count = |r: &mut Reader, most: usize| match r.u32()? as usize {
            count if count > most => Err(Malformed::TooLong("map")),
            count => Ok(count),
        };
        let mut volumes = Vec::new();
        for _ in 0..count(r, MAX_VOLUMES)? {
            let url = r.opaque(MAX_URL_BYTES, "location")?.to_vec();
            let url = String::from_utf8(url).map_err(|_| Malformed::Value("location"))?;
            let state = match r.u32()? {
                0 => Use::Serving,
                1 => Use::Draining,
                2 => Use::Removed,
                _ => return Err(Malformed::Value("use of a volume")),
            };
            let mut tables = Vec::new();
            for _ in 0..count(r, MAX_TABLES)? {
                tables.push(r.u64()?);
            }
            volumes.push(Member { url, state, tables });
        }
        let mut buckets = Vec::new();
        for _ in 0..count(r, MAX_BUCKETS)? {
            let number = r.u32()?;
            let known = usize::try_from(number).is_ok_and(|number| number < volumes.len());
            let volume = u16::try_from(number).map_err(|_| Malformed::Value("volume"))?;
            if !known {
                return Err(Malformed::Value("volume"));
            }
            let moved = r.u64()?;
            buckets.push(Place {
                volume: Volume(volume),
                moved,
            });
        }
        if !r.rest().is_empty() || buckets.is_empty() {
            return Err(Malformed::Value("map"));
        }
        Ok(Map {
            version,
            volumes,
            buckets,
        })
    }
}

impl Member {
    /// A volume that is new to the set.
    pub fn new(url: String) -> Member {
        Member {
            url,
            state: Use::Serving,
            tables: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_comes_back_whole_or_not_at_all() {
        let mut map = Map::first(vec!["nfs://a/".into(), "nfs://b/".into()], 5);
        map.volumes[1].state = Use::Draining;
        map.volumes[1].tables = vec![3, 9];
        map.buckets[2].moved = 9;
        let bytes = map.write();
        assert_eq!(Map::read(bytes.clone().into()), Ok(map));
        for len in 0..bytes.len() {
            assert!(Map::read(bytes[..len].to_vec().into()).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x80;
            let _ = Map::read(bad.into());
        }
    }

    /// Whatever comes and goes, moves end, and end where they should.
    #[test]
    fn moves_come_to_an_end() {
        let mut map = Map::first(vec!["a".into(), "b".into(), "c".into()], 64);
        let settle = |map: &mut Map| {
            let mut moves = 0;
            while let Some((bucket, to)) = map.next_move(true) {
                assert_ne!(map.volume(bucket), Some(to));
                map.buckets[bucket.0 as usize].volume = to;
                moves += 1;
                assert!(moves <= 64);
            }
            moves
        };
        assert_eq!(settle(&mut map), 0);
        map.volumes.push(Member::new("d".into()));
        assert_eq!(map.next_move(false), None);
        assert_eq!(settle(&mut map), 16);
        map.volumes[0].state = Use::Draining;
        settle(&mut map);
        let held: Vec<_> = (0..4).map(|n| map.held(Volume(n))).collect();
        assert_eq!(held.iter().sum::<usize>(), 64);
        assert!(held[0] == 0 && held[1..].iter().all(|n| (21..=22).contains(n)));
        for member in &mut map.volumes {
            member.state = Use::Draining;
        }
        assert_eq!(map.next_move(true), None);
    }
}
