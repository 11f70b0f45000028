//! IOzone's write and random mix, as the CBASE paper has them (DSN 2004, 6.2.2): files of 256 KB, each client with files of its own.
//!
//! Clients are threads on one mount; the paper's were machines. IOzone runs until a file is done; here both go on for a time,
//! over many files, so that figures of slow and of fast file systems are equally good.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, ensure};

use super::content::Content;
use super::site::{Deadline, Meter, Site};
use super::work::Scale;
use crate::load::Random;

const FILE: usize = 256 << 10;
const RECORD: usize = 4 << 10;
const RECORDS: usize = FILE / RECORD;
/// A client's files; when it has written them all it begins with the first again, as a new file.
const FILES: usize = 16;

/// New files, then records at random places of them, half of them read and half written. A file is synced before it is closed.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale, clients: usize) -> Result<()> {
    let site = meter.site;
    let own: Vec<_> = (0..clients)
        .map(|client| Ok(Mutex::new(Client::new(site, client)?)))
        .collect::<Result<_>>()?;
    let each = |work: &(dyn Fn(&mut Client<'_>) -> Result<usize> + Sync)| {
        let end = Deadline::after(scale.seconds);
        site.clients(clients, |client| {
            let own = own[client].lock();
            let mut own = own.map_err(|_| anyhow!("a client panicked"))?;
            let mut bytes = 0;
            // At least one file each, however slow.
            while bytes == 0 || !end.passed() {
                site.go_on()?;
                bytes += work(&mut own)? as u64;
            }
            Ok(bytes)
        })
    };
    meter.bytes("write", || each(&|client| client.write()))?;
    meter.bytes("random mix", || each(&|client| client.mix()))?;
    for client in own {
        let client = client.into_inner();
        client.map_err(|_| anyhow!("a client panicked"))?.check()?;
    }
    Ok(())
}

/// A client's files.
#[derive(Debug)]
struct Client<'a> {
    site: &'a Site,
    number: u64,
    directory: PathBuf,
    random: Random,
    /// How many files it has written.
    written: usize,
    /// The version of each record of each file that is there.
    files: Vec<[u64; RECORDS]>,
}

impl Client<'_> {
    fn new(site: &Site, client: usize) -> Result<Client<'_>> {
        Ok(Client {
            site,
            number: client as u64,
            directory: site.make(&format!("client-{client}"))?,
            random: Random(client as u64),
            written: 0,
            files: Vec::new(),
        })
    }

    fn path(&self, file: usize) -> PathBuf {
        self.directory.join(format!("file-{file}"))
    }

    fn content(&self, file: usize, version: u64) -> Content {
        Content::of(self.number << 32 | file as u64, version)
    }

    /// A new file, record by record. How many bytes.
    fn write(&mut self) -> Result<usize> {
        let file = self.written % FILES;
        let version = (self.written / FILES) as u64;
        let path = self.path(file);
        if self.written >= FILES {
            std::fs::remove_file(&path)?;
        }
        let out = File::create_new(&path).with_context(|| path.display().to_string())?;
        let bytes = self.content(file, version).bytes(0, FILE);
        for (at, record) in (0..).step_by(RECORD).zip(bytes.chunks(RECORD)) {
            out.write_all_at(record, at)?;
        }
        out.sync_all()?;
        match self.files.get_mut(file) {
            Some(versions) => *versions = [version; RECORDS],
            None => self.files.push([version; RECORDS]),
        }
        self.written += 1;
        Ok(FILE)
    }

    /// As many records of one file as it has, at random places. How many bytes.
    fn mix(&mut self) -> Result<usize> {
        let file = self.random.below(self.files.len() as u32) as usize;
        let path = self.path(file);
        let what = || path.display().to_string();
        let open = OpenOptions::new().read(true).write(true).open(&path);
        let open = open.with_context(what)?;
        let mut room = [0; RECORD];
        for _ in 0..RECORDS {
            let record = self.random.below(RECORDS as u32) as usize;
            let at = (record * RECORD) as u64;
            let version = self.files[file][record];
            match self.random.below(2) {
                0 => {
                    open.read_exact_at(&mut room, at).with_context(what)?;
                    let content = self.content(file, version);
                    content.check(at, &room).with_context(what)?;
                }
                _ => {
                    self.content(file, version + 1).fill(at, &mut room);
                    open.write_all_at(&room, at).with_context(what)?;
                    self.files[file][record] = version + 1;
                }
            }
        }
        open.sync_all().with_context(what)?;
        Ok(FILE)
    }

    /// All that is there, from the file system.
    fn check(&self) -> Result<()> {
        for (file, versions) in self.files.iter().enumerate() {
            self.site.go_on()?;
            self.check_file(file, versions, &self.path(file))?;
        }
        Ok(())
    }

    fn check_file(&self, file: usize, versions: &[u64; RECORDS], path: &Path) -> Result<()> {
        let what = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(what)?;
        ensure!(bytes.len() == FILE, "{} has another length", what());
        let records = (0..).step_by(RECORD).zip(bytes.chunks(RECORD));
        for ((at, record), version) in records.zip(versions) {
            let content = self.content(file, *version);
            content.check(at, record).with_context(what)?;
        }
        Ok(())
    }
}
