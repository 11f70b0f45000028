//! The router's own directories on a volume: how buckets and tables are called, how they are read, written, and taken away.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;

use crate::ask::{Ask, Entry, Given, Servers};
use crate::layout::{Bucket, Volume};
use crate::map::Map;
use crate::table::{Names, Numbers, Table};

/// How much of a table is read or written at a time.
const BLOCK: usize = 32 << 10;
/// The longest table, in bytes.
const MAX_TABLE_BYTES: usize = 1 << 30;
/// How deep directories can lie that are taken away.
const MAX_DEPTH: usize = 4096;
/// How often a listing is begun, where its server refuses to go on with it.
pub const LISTINGS: usize = 16;

/// The name of a bucket's directory.
pub fn bucket_name(bucket: Bucket, moved: u64) -> Bytes {
    format!("{:08x}-{moved:016x}", bucket.0).into()
}

/// Which bucket's directory has a name, and which move made it.
pub fn bucket_of(name: &[u8]) -> Option<(Bucket, u64)> {
    let (bucket, moved) = std::str::from_utf8(name).ok()?.split_once('-')?;
    let bucket = u32::from_str_radix(bucket, 16).ok()?;
    Some((Bucket(bucket), u64::from_str_radix(moved, 16).ok()?))
}

/// The name of a table.
pub fn table_name(number: u64) -> Bytes {
    format!("{number:016x}").into()
}

/// Which table has a name.
pub fn table_number(name: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

/// The router's own directories on a volume, as its server calls them.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// The export's own root.
    pub top: Fh,
    /// Of buckets: each a directory of the number of the bucket and of the move that brought it.
    pub buckets: Fh,
    /// Of tables.
    pub tables: Fh,
}

/// Those of all volumes.
#[derive(Debug, Default)]
pub struct Shelves(RwLock<BTreeMap<Volume, Shelf>>);

impl From<BTreeMap<Volume, Shelf>> for Shelves {
    fn from(all: BTreeMap<Volume, Shelf>) -> Shelves {
        Shelves(RwLock::new(all))
    }
}

impl Shelves {
    /// Those of a volume.
    pub fn get(&self, volume: Volume) -> Option<Shelf> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&volume).cloned()
    }

    /// Sets or takes away those of a volume.
    pub fn set(&self, volume: Volume, shelf: Option<Shelf>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match shelf {
            Some(shelf) => drop(all.insert(volume, shelf)),
            None => drop(all.remove(&volume)),
        }
    }
}

fn place(dir: &Fh, name: &Bytes) -> Place {
    Place {
        dir: dir.clone(),
        name: name.clone(),
    }
}

/// A volume, and questions to its server as user 0.
#[derive(Debug)]
pub struct Shelved<'a, S> {
    /// The servers of all volumes.
    pub servers: &'a S,
    /// Which volume.
    pub volume: Volume,
}

impl<S> Clone for Shelved<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Shelved<'_, S> {}

impl<S: Servers> Shelved<'_, S> {
    /// Asks.
    ///
    /// # Errors
    /// The server's.
    pub async fn ask(self, ask: Ask) -> Result<Given, Status> {
        self.servers.ask(self.volume, &Who::root(), ask).await
    }

    /// What a name stands for; none if for nothing.
    ///
    /// # Errors
    /// The server's.
    pub async fn look(self, dir: &Fh, name: &Bytes) -> Result<Option<Fh>, Status> {
        match self.ask(Ask::Lookup(place(dir, name))).await {
            Ok(Given::Object(object)) => Ok(Some(object.handle)),
            Ok(_) => Err(Status::ServerFault),
            Err(Status::NoEnt | Status::Stale) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// A directory of user 0 alone; made if it is not there.
    ///
    /// # Errors
    /// The server's.
    pub async fn directory(self, dir: &Fh, name: &Bytes) -> Result<Fh, Status> {
        if let Some(found) = self.look(dir, name).await? {
            return Ok(found);
        }
        let new = NewAttrs {
            mode: Some(0o700),
            ..NewAttrs::default()
        };
        self.ask(Ask::Mkdir(place(dir, name), new)).await?;
        self.look(dir, name).await?.ok_or(Status::ServerFault)
    }

    /// All names in a directory but its own and its parent's.
    ///
    /// # Errors
    /// The server's.
    pub async fn list(self, dir: &Fh) -> Result<Vec<Entry>, Status> {
        entries(|ask| self.ask(ask), dir).await
    }

    /// Takes away a name and all below it.
    ///
    /// # Errors
    /// The server's.
    pub async fn remove_all(self, dir: &Fh, name: &Bytes) -> Result<(), Status> {
        // Directories on the way down, each with what is its name in the one above.
        let mut way = vec![(dir.clone(), name.clone())];
        while let Some((dir, name)) = way.last().cloned() {
            let gone = match self.ask(Ask::Remove(place(&dir, &name))).await {
                Ok(_) | Err(Status::NoEnt | Status::Stale) => true,
                // As servers refuse to remove a directory so.
                Err(Status::IsDir | Status::Perm | Status::Acces | Status::Inval) => false,
                Err(status) => return Err(status),
            };
            let gone = gone
                || match self.ask(Ask::Rmdir(place(&dir, &name))).await {
                    Ok(_) | Err(Status::NoEnt | Status::Stale) => true,
                    Err(Status::NotEmpty | Status::Exist) => false,
                    Err(status) => return Err(status),
                };
            if gone {
                way.pop();
                continue;
            }
            let Some(below) = self.look(&dir, &name).await? else {
                way.pop();
                continue;
            };
            if way.len() > MAX_DEPTH {
                return Err(Status::Inval);
            }
            let inside = self.list(&below).await?;
            way.extend(inside.into_iter().map(|entry| (below.clone(), entry.name)));
        }
        Ok(())
    }

    /// Writes a file of user 0 alone, on the disk when this is done.
    ///
    /// # Errors
    /// The server's.
    pub async fn write_file(self, dir: &Fh, name: &Bytes, bytes: &Bytes) -> Result<(), Status> {
        let new = NewAttrs {
            mode: Some(0o600),
            ..NewAttrs::default()
        };
        match self.ask(Ask::Create(place(dir, name), new)).await {
            Ok(_) | Err(Status::Exist) => {}
            Err(status) => return Err(status),
        }
        let file = self.look(dir, name).await?.ok_or(Status::ServerFault)?;
        let mut offset = 0;
        while offset < bytes.len() {
            let data = bytes.slice(offset..bytes.len().min(offset + BLOCK));
            let ask = Ask::Write {
                file: file.clone(),
                offset: offset as u64,
                data,
                stable: true,
            };
            match self.ask(ask).await? {
                Given::Written { count, .. } if count > 0 => offset += count as usize,
                _ => return Err(Status::ServerFault),
            }
        }
        Ok(())
    }

    async fn read_file(self, dir: &Fh, name: &Bytes) -> Result<Bytes, Status> {
        let file = self.look(dir, name).await?.ok_or(Status::NoEnt)?;
        let mut out = Vec::new();
        loop {
            let ask = Ask::Read {
                file: file.clone(),
                offset: out.len() as u64,
                count: BLOCK as u32,
            };
            let Given::Data { data, end } = self.ask(ask).await? else {
                return Err(Status::ServerFault);
            };
            out.extend_from_slice(&data);
            if end {
                return Ok(out.into());
            }
            if data.is_empty() || out.len() > MAX_TABLE_BYTES {
                return Err(Status::ServerFault);
            }
        }
    }
}

/// Reads a table of a volume: of a move from which volume to which.
///
/// # Errors
/// The server's; [`Status::Io`] if it is not what was written.
pub async fn read_table<S: Servers>(
    servers: &S,
    volume: Volume,
    tables: &Fh,
    number: u64,
) -> Result<(Volume, Volume, Table), Status> {
    let on = Shelved { servers, volume };
    let bytes = on.read_file(tables, &table_name(number)).await?;
    Table::read(bytes).map_err(|_| Status::Io)
}

/// What all tables that count say: what objects of buckets that have moved are called, and the numbers that volumes show.
///
/// # Errors
/// Which volume's, and its server's.
pub async fn read_tables<S: Servers>(
    servers: &S,
    map: &Map,
    shelves: &BTreeMap<Volume, Shelf>,
) -> Result<(BTreeMap<Bucket, Names>, Vec<Numbers>), (Volume, Status)> {
    let (mut names, mut numbers) = (BTreeMap::new(), Vec::new());
    for (volume, member) in (0u16..).map(Volume).zip(&map.volumes) {
        let mut of = Numbers::default();
        let tables = shelves.get(&volume).map(|shelf| (shelf, &member.tables));
        for (shelf, &number) in tables
            .iter()
            .flat_map(|(shelf, all)| all.iter().map(|n| (*shelf, n)))
        {
            let read = read_table(servers, volume, &shelf.tables, number).await;
            let (from, to, table) = read.map_err(|status| (volume, status))?;
            of.add(volume, (from, to), &table);
            let brought = |&(_, place): &(_, crate::map::Place)| {
                (place.volume, place.moved) == (volume, number)
            };
            if let Some((bucket, _)) = map.places().find(brought) {
                names.insert(bucket, Names::of(&table));
            }
        }
        numbers.push(of);
    }
    Ok((names, numbers))
}

/// All names in a directory but its own and its parent's; `ask` asks its server.
///
/// # Errors
/// The server's; [`Status::BadCookie`] if it has refused to go on [`LISTINGS`] times; [`Status::ServerFault`] if it neither goes on nor ends.
pub async fn entries<F: Future<Output = Result<Given, Status>>>(
    ask: impl Fn(Ask) -> F,
    dir: &Fh,
) -> Result<Vec<Entry>, Status> {
    for _ in 1..LISTINGS {
        match listing(&ask, dir).await {
            // Some servers do so when a name has changed since the listing began.
            Err(Status::BadCookie) => {}
            done => return done,
        }
    }
    listing(&ask, dir).await
}

async fn listing<F: Future<Output = Result<Given, Status>>>(
    ask: impl Fn(Ask) -> F,
    dir: &Fh,
) -> Result<Vec<Entry>, Status> {
    let (mut all, mut cookie, mut verifier) = (Vec::new(), 0, 0);
    loop {
        let listing = Ask::ReadDir {
            dir: dir.clone(),
            cookie,
            verifier,
        };
        let Given::Entries {
            verifier: next,
            entries,
            end,
        } = ask(listing).await?
        else {
            return Err(Status::ServerFault);
        };
        let last = entries.last().map(|entry| entry.cookie);
        let own = |entry: &Entry| matches!(&entry.name[..], b"." | b"..");
        all.extend(entries.into_iter().filter(|entry| !own(entry)));
        match last {
            _ if end => return Ok(all),
            Some(last) => (cookie, verifier) = (last, next),
            // What was left out would be taken for gone.
            None => return Err(Status::ServerFault),
        }
    }
}

/// The names alone.
///
/// # Errors
/// The server's.
pub async fn list<F: Future<Output = Result<Given, Status>>>(
    ask: impl Fn(Ask) -> F,
    dir: &Fh,
) -> Result<Vec<Bytes>, Status> {
    let all = entries(ask, dir).await?;
    Ok(all.into_iter().map(|entry| entry.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        assert_eq!(
            bucket_of(&bucket_name(Bucket(77), 1 << 40)),
            Some((Bucket(77), 1 << 40))
        );
        assert_eq!(table_number(&table_name(99)), Some(99));
        for wrong in ["", "1", "x-1", "1-x", "100000000-1"] {
            assert_eq!(bucket_of(wrong.as_bytes()), None);
        }
    }

    fn page(names: &[&'static str], verifier: u64, end: bool) -> Result<Given, Status> {
        let entry = |(n, name): (u64, &&'static str)| Entry {
            fileid: n,
            name: Bytes::from_static(name.as_bytes()),
            cookie: n,
        };
        Ok(Given::Entries {
            verifier,
            entries: (1..).zip(names).map(entry).collect(),
            end,
        })
    }

    async fn listed(server: impl Fn(u64, u64) -> Result<Given, Status>) -> Result<usize, Status> {
        let ask = |ask: Ask| {
            let Ask::ReadDir {
                cookie, verifier, ..
            } = ask
            else {
                panic!("{ask:?}");
            };
            std::future::ready(server(cookie, verifier))
        };
        let all = entries(ask, &Fh::new()).await?;
        Ok(all.len())
    }

    /// A listing that its server does not go on with, since a name has changed, is begun again, and no name is told twice; not for ever.
    #[tokio::test]
    async fn listings_are_begun_again() {
        let changes = std::cell::Cell::new(0);
        let server = |last_change: u64| {
            let changes = &changes;
            move |cookie, verifier| match cookie {
                0 => page(&[".", "..", "a"], changes.get(), false),
                _ => {
                    changes.set(last_change.min(changes.get() + 1));
                    match verifier == changes.get() {
                        true => page(&["b", "c"], verifier, true),
                        false => Err(Status::BadCookie),
                    }
                }
            }
        };
        assert_eq!(listed(server(5)).await, Ok(3));
        assert_eq!(changes.get(), 5);
        assert_eq!(listed(server(u64::MAX)).await, Err(Status::BadCookie));
        assert_eq!(changes.get(), 5 + LISTINGS as u64);
    }

    #[tokio::test]
    async fn an_empty_page_is_no_end() {
        let server = |cookie, _| match cookie {
            0 => page(&["a"], 0, false),
            _ => page(&[], 0, false),
        };
        assert_eq!(listed(server).await, Err(Status::ServerFault));
        assert_eq!(listed(|_, _| page(&[], 0, true)).await, Ok(0));
        assert_eq!(listed(|_, _| page(&["..", "."], 0, true)).await, Ok(0));
    }
}
