//! One large file in order, as Bonnie does it: written, written again in place, and read.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::content::Content;
use super::site::{Meter, Site};
use super::work::Scale;

const BYTES: usize = 256 << 20;
const QUICK_BYTES: usize = 4 << 20;
/// Moved with one system call.
const STEP: usize = 64 << 10;

/// Writes, rewrites, and reads from the page cache and without it. What is written is on the disk when the time is taken.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale) -> Result<()> {
    let site = meter.site;
    let bytes = scale.of(BYTES, QUICK_BYTES);
    let path = site.directory.join("large");
    let [first, second] = [0, 1].map(|version| Content::of(1, version));
    meter.bytes("write", || {
        let mut file = File::create_new(&path)?;
        for at in offsets(bytes) {
            site.go_on()?;
            file.write_all(&first.bytes(at, STEP))?;
        }
        file.sync_all()?;
        Ok(bytes as u64)
    })?;
    meter.bytes("rewrite", || {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut room = vec![0; STEP];
        for at in offsets(bytes) {
            site.go_on()?;
            file.read_exact_at(&mut room, at)?;
            first.check(at, &room)?;
            second.fill(at, &mut room);
            file.write_all_at(&room, at)?;
        }
        file.sync_all()?;
        Ok(bytes as u64)
    })?;
    // The kernel need not have kept what was written.
    read(site, &path, second)?;
    meter.bytes("read, cached", || read(site, &path, second))?;
    site.forget(&path)?;
    meter.bytes("read, from the disk", || read(site, &path, second))?;
    let len = std::fs::metadata(&path)?.len();
    ensure!(len == bytes as u64, "the file has {len} bytes");
    Ok(())
}

fn offsets(bytes: usize) -> impl Iterator<Item = u64> {
    (0..bytes as u64).step_by(STEP)
}

/// How many bytes it has.
fn read(site: &Site, path: &Path, content: Content) -> Result<u64> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let (mut room, mut at) = (vec![0; STEP], 0);
    loop {
        site.go_on()?;
        let read = file.read(&mut room)?;
        if read == 0 {
            return Ok(at);
        }
        content.check(at, &room[..read])?;
        at += read as u64;
    }
}
