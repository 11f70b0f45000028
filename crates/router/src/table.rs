//! What a move has changed about the objects of a bucket: what the new server calls them, and their numbers.
//!
//! A handle that a client has stays good: the bucket's table says what the object is called now. Numbers are exchanged: what was copied shows the
//! number of what it is a copy of, and the old volume shows the copy's number for whatever gets the number that has become free there.
//! So numbers stay one to one, whichever servers use which again. A table lies on both volumes, as `tables/N` with the number of the move, and counts
//! there once the map says so.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_nfs::call::Fh;
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};

use crate::attrs::fileid;
use crate::handle::{key, origin, split};
use crate::layout::Volume;

/// The longest key.
const MAX_KEY_BYTES: usize = MAX_HANDLE_BYTES + 2;

/// An object that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// What it is called as long as it lives.
    pub key: Fh,
    /// What its new server calls it.
    pub server: Fh,
    /// Its number on its old server, and what the old volume shows for it from now on.
    pub from: (u64, u64),
    /// Its number on its new server, and what the new volume shows for it: the number that it always had.
    pub to: (u64, u64),
}

impl Copied {
    /// Appends its record.
    pub fn write(&self, w: &mut Writer) {
        w.opaque(&self.key);
        w.opaque(&self.server);
        for number in [self.from.0, self.from.1, self.to.0, self.to.1] {
            w.u64(number);
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(r: &mut Reader) -> Read<Copied> {
        Ok(Copied {
            key: r.opaque(MAX_KEY_BYTES, "key")?,
            server: r.opaque(MAX_HANDLE_BYTES, "handle")?,
            from: (r.u64()?, r.u64()?),
            to: (r.u64()?, r.u64()?),
        })
    }
}

/// All records of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<Copied>);

impl Table {
    /// As it lies on a volume: which volumes, how many, and a sum over them all.
    pub fn write(&self, from: Volume, to: Volume) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(from.0.into());
        w.u32(to.0.into());
        w.u32(self.0.len() as u32);
        self.0.iter().for_each(|copied| copied.write(&mut w));
        let sum = blake3::hash(&w.out);
        w.fixed(sum.as_bytes());
        w.out
    }

    /// What lies on a volume: from which volume to which, and the table.
    ///
    /// # Errors
    /// [`Malformed`]: it is not what was written.
    pub fn read(bytes: Bytes) -> Read<(Volume, Volume, Table)> {
        let Some((body, sum)) = bytes.split_last_chunk::<32>() else {
            return Err(Malformed::Value("table"));
        };
        if blake3::hash(body) != *sum {
            return Err(Malformed::Value("sum of a table"));
        }
        let r = &mut Reader::new(bytes.slice(..body.len()));
        let volume = |r: &mut Reader| {
            let number = u16::try_from(r.u32()?).map_err(|_| Malformed::Value("volume"))?;
            Ok(Volume(number))
        };
        let (from, to, count) = (volume(r)?, volume(r)?, r.u32()?);
        let mut records = Vec::new();
        for _ in 0..count {
            records.push(Copied::read(r)?);
        }
        Ok((from, to, Table(records)))
    }
}

/// What the objects of a bucket are called, where that is not what they always were.
#[derive(Clone, Debug, Default)]
pub struct Names {
    servers: BTreeMap<Fh, Fh>,
    keys: BTreeMap<Fh, Fh>,
}

impl Names {
    /// By a table.
    pub fn of(table: &Table) -> Names {
        let pair = |copied: &Copied| (copied.key.clone(), copied.server.clone());
        let turned = |copied: &Copied| (copied.server.clone(), copied.key.clone());
        Names {
            servers: table.0.iter().map(pair).collect(),
            keys: table.0.iter().map(turned).collect(),
        }
    }

    /// Whether all objects are called what they were called first.
    pub fn is_plain(&self) -> bool {
        self.servers.is_empty()
    }

    /// What the server of a volume calls an object; none if it is gone.
    pub fn server(&self, volume: Volume, key: &Fh) -> Option<Fh> {
        if let Some(server) = self.servers.get(key) {
            return Some(server.clone());
        }
        let (made_on, server) = origin(key)?;
        (made_on == volume).then_some(server)
    }

    /// What the server of a volume calls an object that was first seen on another, or on this, and was called so there; none if it is gone.
    pub fn server_of<'a>(
        &'a self,
        volume: Volume,
        (first, called): (Volume, &'a [u8]),
    ) -> Option<&'a [u8]> {
        let here = (first == volume).then_some(called);
        match self.servers.is_empty() {
            true => here,
            false => self
                .servers
                .get(&key(first, called))
                .map_or(here, |server| Some(&server[..])),
        }
    }

    /// The volume where what the server of a volume calls so was first seen, and what it was called there.
    pub fn first<'a>(&'a self, volume: Volume, server: &'a [u8]) -> (Volume, &'a [u8]) {
        let key = match self.keys.is_empty() {
            true => None,
            false => self.keys.get(server),
        };
        key.and_then(split).unwrap_or((volume, server))
    }

    /// The key of what the server of a volume calls so.
    pub fn key(&self, volume: Volume, server: &Fh) -> Fh {
        let found = self.keys.get(server).cloned();
        found.unwrap_or_else(|| key(volume, server))
    }
}

/// The numbers that a volume shows for others.
#[derive(Clone, Debug, Default)]
pub struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    /// Whether it shows no number for another but what the volume's own makes of it.
    pub fn is_plain(&self) -> bool {
        self.0.is_empty()
    }

    /// What clients see for a number on a volume.
    pub fn shown(&self, volume: Volume, number: u64) -> u64 {
        let other = self.0.get(&number).copied();
        other.unwrap_or_else(|| fileid(volume, number))
    }

    /// Takes in a table of a move from or to a volume.
    pub fn add(&mut self, volume: Volume, (from, to): (Volume, Volume), table: &Table) {
        for copied in &table.0 {
            if volume == from {
                self.0.insert(copied.from.0, copied.from.1);
            }
            if volume == to {
                self.0.insert(copied.to.0, copied.to.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(n: u64, from: (u64, u64), to: (u64, u64)) -> Copied {
        Copied {
            key: key(Volume(0), &n.to_be_bytes()),
            server: Bytes::copy_from_slice(&(n + 100).to_be_bytes()),
            from,
            to,
        }
    }

    #[test]
    fn a_table_comes_back_whole_or_not_at_all() {
        let table = Table(vec![copied(1, (1, 2), (3, 4)), copied(2, (5, 6), (7, 8))]);
        let bytes = table.write(Volume(3), Volume(4));
        let read = Table::read(bytes.clone().into());
        assert_eq!(read, Ok((Volume(3), Volume(4), table)));
        for at in 0..bytes.len() {
            assert!(Table::read(bytes[..at].to_vec().into()).is_err());
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Table::read(bad.into()).is_err());
        }
    }

    #[test]
    fn names_go_both_ways() {
        let names = Names::of(&Table(vec![copied(1, (0, 0), (0, 0))]));
        let (old, new) = (
            copied(1, (0, 0), (0, 0)).key,
            copied(1, (0, 0), (0, 0)).server,
        );
        assert_eq!(names.server(Volume(1), &old), Some(new.clone()));
        assert_eq!(names.key(Volume(1), &new), old);
        let later = key(Volume(1), b"later");
        assert_eq!(names.server(Volume(1), &later), Some(b"later"[..].into()));
        assert_eq!(names.key(Volume(1), &b"later"[..].into()), later);
        assert_eq!(names.server(Volume(1), &key(Volume(0), b"gone")), None);
        let (here, there) = (Volume(1), Volume(0));
        let called = 1u64.to_be_bytes();
        assert_eq!(names.server_of(here, (there, &called)), Some(&new[..]));
        assert_eq!(names.first(here, &new), (there, &called[..]));
        assert_eq!(names.server_of(here, (here, b"later")), Some(&b"later"[..]));
        assert_eq!(names.first(here, b"later"), (here, &b"later"[..]));
        assert_eq!(names.server_of(here, (there, b"gone")), None);
        assert_eq!(Names::default().server_of(here, (there, b"gone")), None);
    }

    /// Whatever moves where, each number on each volume shows as another.
    #[test]
    fn numbers_stay_one_to_one() {
        let mut all = vec![Numbers::default(); 3];
        let mut next = 1u64;
        for step in 0..50u16 {
            let (from, to) = (Volume(step % 3), Volume((step + 1 + step / 7 % 2) % 3));
            let mut table = Table::default();
            for n in 0..4 {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n);
                // Different numbers within one move, as they live at once.
                let (a, b) = ((next >> 33) % 8 * 4 + n, (next >> 40) % 8 * 4 + n);
                let shown = |v: Volume, number| all[usize::from(v.0)].shown(v, number);
                table
                    .0
                    .push(copied(n, (a, shown(to, b)), (b, shown(from, a))));
            }
            for volume in [from, to] {
                all[usize::from(volume.0)].add(volume, (from, to), &table);
            }
            let mut seen = std::collections::BTreeSet::new();
            for volume in 0..3 {
                for number in 0..32 {
                    let shown = all[usize::from(volume)].shown(Volume(volume), number);
                    assert!(seen.insert(shown), "{step}");
                }
            }
        }
    }
}
