//! PostMark: the files of a mail server. J. Katcher, Network Appliance TR-3022, with the sizes and biases of the CBASE paper (DSN
//! 2004, 6.3).
//!
//! Clients are threads on one mount, each with a directory and random numbers of its own; the paper's were machines.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, ensure};

use super::content::Content;
use super::site::{Meter, Site};
use super::work::Scale;
use crate::load::Random;

const FILES: usize = 100;
const TRANSACTIONS: usize = 500;
const SMALLEST: u32 = 1 << 10;
const LARGEST: u32 = 100 << 10;
/// Of ten transactions, how many create a file rather than delete one: the program's default.
const CREATE_BIAS: u32 = 5;
const TEN: u32 = 10;
/// What the C library hands to the kernel at a time.
const STEP: usize = 4096;

/// Creates files, does transactions, deletes what is left; phases of all clients together.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale, read_bias: u32, clients: usize) -> Result<()> {
    let site = meter.site;
    let pools: Vec<_> = (0..clients)
        .map(|client| Ok(Mutex::new(Pool::new(site, client)?)))
        .collect::<Result<_>>()?;
    let each = |work: &(dyn Fn(&mut Pool<'_>) -> Result<()> + Sync)| {
        site.clients(clients, |client| {
            let mut pool = pools[client]
                .lock()
                .map_err(|_| anyhow!("a client panicked"))?;
            work(&mut pool).map(|()| 0)
        })
    };
    let files = scale.of(FILES, FILES / 10);
    let transactions = scale.of(TRANSACTIONS, TRANSACTIONS / 25);
    meter.time("create", || {
        each(&|pool| (0..files).try_for_each(|_| pool.create()))
    })?;
    meter.time("transactions", || {
        each(&|pool| (0..transactions).try_for_each(|_| pool.transaction(read_bias)))
    })?;
    meter.time("delete", || each(&|pool| pool.delete_all()))?;
    meter.total();
    Ok(())
}

/// A client's files.
#[derive(Debug)]
struct Pool<'a> {
    site: &'a Site,
    directory: PathBuf,
    random: Random,
    /// The number of the next file.
    next: u64,
    /// Those that there are: number and length.
    files: Vec<(u64, u32)>,
}

impl Pool<'_> {
    fn new(site: &Site, client: usize) -> Result<Pool<'_>> {
        Ok(Pool {
            site,
            directory: site.make(&format!("client-{client}"))?,
            random: Random(client as u64),
            // Content follows from it, and no two files are to be alike.
            next: (client as u64) << 32,
            files: Vec::new(),
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// A read or an append, then a create or a delete.
    fn transaction(&mut self, read_bias: u32) -> Result<()> {
        match self.random.below(TEN) < read_bias {
            true => self.read()?,
            false => self.append()?,
        }
        match self.random.below(TEN) < CREATE_BIAS {
            true => self.create(),
            false => self.delete(),
        }
    }

    fn create(&mut self) -> Result<()> {
        self.site.go_on()?;
        let len = SMALLEST + self.random.below(LARGEST - SMALLEST + 1);
        let (number, path) = (self.next, self.path(self.next));
        self.next += 1;
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        write(file, number, 0, len)?;
        self.files.push((number, len));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        self.site.go_on()?;
        let Some(at) = self.choose() else {
            return Ok(());
        };
        let (number, _) = self.files.swap_remove(at);
        let path = self.path(number);
        std::fs::remove_file(&path).with_context(|| path.display().to_string())
    }

    fn delete_all(&mut self) -> Result<()> {
        while !self.files.is_empty() {
            self.delete()?;
        }
        Ok(())
    }

    /// All of it.
    fn read(&mut self) -> Result<()> {
        self.site.go_on()?;
        let Some(at) = self.choose() else {
            return Ok(());
        };
        let (number, len) = self.files[at];
        let path = self.path(number);
        let what = || path.display().to_string();
        let mut file = File::open(&path).with_context(what)?;
        let (mut room, mut offset) = ([0; STEP], 0);
        loop {
            let read = file.read(&mut room).with_context(what)?;
            if read == 0 {
                break;
            }
            let content = Content::of(number, 0);
            content.check(offset, &room[..read]).with_context(what)?;
            offset += read as u64;
        }
        ensure!(offset == u64::from(len), "{} has {offset} bytes", what());
        Ok(())
    }

    /// As much as there is room for up to the largest size, or less.
    fn append(&mut self) -> Result<()> {
        self.site.go_on()?;
        let Some(at) = self.choose() else {
            return Ok(());
        };
        let (number, len) = self.files[at];
        if len < LARGEST {
            let more = 1 + self.random.below(LARGEST - len);
            let path = self.path(number);
            let file = OpenOptions::new().append(true).open(&path);
            let file = file.with_context(|| path.display().to_string())?;
            write(file, number, len, more)?;
            self.files[at].1 += more;
        }
        Ok(())
    }

    /// One of the files, if there is any.
    fn choose(&mut self) -> Option<usize> {
        match self.files.len() {
            0 => None,
            count => Some(self.random.below(count as u32) as usize),
        }
    }
}

fn write(mut file: File, number: u64, offset: u32, len: u32) -> Result<()> {
    let bytes = Content::of(number, 0).bytes(offset.into(), len as usize);
    for part in bytes.chunks(STEP) {
        file.write_all(part)?;
    }
    Ok(())
}
