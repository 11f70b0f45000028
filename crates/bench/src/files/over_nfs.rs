//! One large file in order, over NFS: written, written again in place, and read, by a client that caches nothing. What Bonnie does on a mount.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

use super::content::Content;
use super::nfs::{Handle, Nfs};
use super::site::{Meter, Site};
use super::work::Scale;

const BYTES: usize = 256 << 20;
const QUICK_BYTES: usize = 4 << 20;
const NAME: &str = "large";
/// How much is read before it is written again.
const REWRITE_BYTES: usize = 8 << 20;

/// Writes, rewrites, and reads from the servers' caches and from their disks. What is written is durable when the time is taken.
///
/// # Errors
/// Where the server fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale) -> Result<()> {
    let site = meter.site;
    let at = site.nfs.as_ref().context("nothing is served over NFS")?;
    let mut nfs = Nfs::mount(at)?;
    let root = nfs.root.clone();
    let bytes = scale.of(BYTES, QUICK_BYTES);
    let [first, second] = [0, 1].map(|version| Content::of(1, version));
    let file = nfs.create(&root, NAME)?;
    meter.bytes("write", || {
        let step = nfs.io_bytes();
        let blocks = blocks(0, bytes, step);
        let goes_on = blocks.take_while(|_| site.go_on().is_ok());
        nfs.write(&file, goes_on.map(|(at, len)| (at, first.bytes(at, len))))?;
        site.go_on()?;
        nfs.commit(&file)?;
        Ok(bytes as u64)
    })?;
    meter.bytes("rewrite", || {
        for (at, len) in blocks(0, bytes, REWRITE_BYTES) {
            site.go_on()?;
            rewrite(&mut nfs, &file, (at, len), [first, second])?;
        }
        nfs.commit(&file)?;
        Ok(bytes as u64)
    })?;
    // Servers need not have kept what was written.
    read(site, &mut nfs, &file, bytes, second)?;
    meter.bytes("read, cached by servers", || {
        read(site, &mut nfs, &file, bytes, second)
    })?;
    site.forget_beneath()?;
    meter.bytes("read, from the disk", || {
        read(site, &mut nfs, &file, bytes, second)
    })?;
    let len = nfs.len(&file)?;
    ensure!(len == bytes as u64, "the file has {len} bytes");
    nfs.remove(&root, NAME)
}

fn rewrite(
    nfs: &mut Nfs,
    file: &Handle,
    (at, len): (u64, usize),
    [old, new]: [Content; 2],
) -> Result<()> {
    let step = nfs.io_bytes();
    let mut changed: Vec<(u64, Vec<u8>)> = Vec::new();
    nfs.read(file, blocks(at, len, step), |at, data: Bytes| {
        old.check(at, &data)?;
        changed.push((at, new.bytes(at, data.len())));
        Ok(())
    })?;
    nfs.write(file, changed.into_iter())
}

/// How many bytes it has.
fn read(site: &Site, nfs: &mut Nfs, file: &Handle, bytes: usize, content: Content) -> Result<u64> {
    let (step, mut sum) = (nfs.io_bytes(), 0);
    nfs.read(file, blocks(0, bytes, step), |at, data| {
        site.go_on()?;
        sum += data.len() as u64;
        content.check(at, &data)
    })?;
    Ok(sum)
}

/// Places and lengths of what lies from an offset on.
fn blocks(from: u64, bytes: usize, step: usize) -> impl Iterator<Item = (u64, usize)> {
    let starts = (0..bytes).step_by(step);
    starts.map(move |at| (from + at as u64, step.min(bytes - at)))
}
