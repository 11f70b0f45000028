//! 4 KiB at random places: reads, and writes of which each is synced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

use super::content::Content;
use super::site::{Deadline, Meter, Site};
use super::work::Scale;
use crate::load::Random;

const BLOCK: usize = 4096;
/// What is read, and what each writer has.
const READ_BYTES: usize = 64 << 20;
const WRITER_BYTES: usize = 1 << 20;
/// Reads between two looks at the clock: one from the page cache costs no more than such a look.
const READS_A_LOOK: usize = 32;

/// Reads blocks of one file that the kernel has in its page cache, and then past that cache, where the file system lets one.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn read(meter: &mut Meter<'_>, scale: Scale, readers: usize) -> Result<()> {
    let site = meter.site;
    let directory = site.make("random reads")?;
    let path = directory.join("file");
    let content = Content::of(1, 0);
    let bytes = scale.of(READ_BYTES, READ_BYTES / 64);
    std::fs::write(&path, content.bytes(0, bytes))?;
    let file = File::open(&path)?;
    file.sync_all()?;
    let mut whole = vec![0; bytes];
    file.read_exact_at(&mut whole, 0)?;
    content.check(0, &whole)?;

    let blocks = (bytes / BLOCK) as u32;
    let reads = |file: &File| {
        let end = Deadline::after(scale.seconds);
        site.clients(readers, |reader| {
            let mut random = Random(reader as u64);
            let mut room = Aligned::new();
            let mut count = 0;
            while !end.passed() {
                site.go_on()?;
                for _ in 0..READS_A_LOOK {
                    let at = u64::from(random.below(blocks)) * BLOCK as u64;
                    file.read_exact_at(room.block(), at)?;
                    content.check(at, room.block())?;
                    count += 1;
                }
            }
            Ok(count)
        })
    };
    meter.operations("cached", || reads(&file))?;
    // Some file systems refuse it: then there is no such figure.
    if let Ok(direct) = past_the_cache(&path) {
        meter.operations("past the cache", || reads(&direct))?;
    }
    drop(file);
    site.remove(&directory)
}

fn past_the_cache(path: &Path) -> std::io::Result<File> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(path)
}

/// Room for a block where the kernel wants it for reads past the page cache.
#[derive(Debug)]
struct Aligned(Vec<u8>);

impl Aligned {
    fn new() -> Aligned {
        Aligned(vec![0; 2 * BLOCK])
    }

    fn block(&mut self) -> &mut [u8] {
        let at = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[at..at + BLOCK]
    }
}

/// Overwrites blocks, each writer in a file of its own, with fsync after each. Then all are read back, from the file system.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn write(meter: &mut Meter<'_>, scale: Scale, writers: usize) -> Result<()> {
    let site = meter.site;
    let directory = site.make("synced writes")?;
    let bytes = scale.of(WRITER_BYTES, WRITER_BYTES / 16);
    let files: Vec<_> = (0..writers)
        .map(|writer| Written::make(&directory, writer, bytes))
        .collect::<Result<_>>()?;
    let files: Vec<_> = files.into_iter().map(std::sync::Mutex::new).collect();
    meter.operations("write + fsync", || {
        let end = Deadline::after(scale.seconds);
        site.clients(writers, |writer| {
            let mut written = files[writer].lock().map_err(|_| Poisoned)?;
            let mut random = Random(writer as u64);
            let mut count = 0;
            // At least one each, however slow.
            while count == 0 || !end.passed() {
                site.go_on()?;
                written.overwrite(random.below((bytes / BLOCK) as u32) as usize)?;
                count += 1;
            }
            Ok(count)
        })
    })?;
    for file in files {
        file.into_inner().map_err(|_| Poisoned)?.check(site)?;
    }
    site.remove(&directory)
}

/// A writer's thread has panicked with its file in hand.
#[derive(Debug)]
struct Poisoned;

impl std::fmt::Display for Poisoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a writer panicked")
    }
}

impl std::error::Error for Poisoned {}

/// A writer's file, and how often each of its blocks was written.
#[derive(Debug)]
struct Written {
    number: u64,
    path: PathBuf,
    file: File,
    versions: Vec<u64>,
}

impl Written {
    fn make(directory: &Path, writer: usize, bytes: usize) -> Result<Written> {
        let path = directory.join(format!("file-{writer}"));
        let number = writer as u64;
        std::fs::write(&path, Content::of(number, 0).bytes(0, bytes))?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        file.sync_all()?;
        Ok(Written {
            number,
            path,
            file,
            versions: vec![0; bytes / BLOCK],
        })
    }

    fn overwrite(&mut self, block: usize) -> Result<()> {
        self.versions[block] += 1;
        let at = (block * BLOCK) as u64;
        let content = Content::of(self.number, self.versions[block]);
        self.file.write_all_at(&content.bytes(at, BLOCK), at)?;
        Ok(self.file.sync_data()?)
    }

    fn check(self, site: &Site) -> Result<()> {
        site.go_on()?;
        let what = || self.path.display().to_string();
        site.forget(&self.path)?;
        let bytes = std::fs::read(&self.path).with_context(what)?;
        let wanted = self.versions.len() * BLOCK;
        ensure!(bytes.len() == wanted, "{} has another length", what());
        for (block, version) in self.versions.iter().enumerate() {
            let at = block * BLOCK;
            let content = Content::of(self.number, *version);
            let bytes = &bytes[at..at + BLOCK];
            content.check(at as u64, bytes).with_context(what)?;
        }
        Ok(())
    }
}
