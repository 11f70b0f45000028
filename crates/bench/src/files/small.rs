//! Small files, as an archive is unpacked, read and removed. One thread.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::content::Content;
use super::site::{Meter, Site};
use super::work::Scale;
use crate::load::Random;

const FILES: usize = 2_000;
const FILES_A_DIRECTORY: usize = 25;

/// Unpacks a tree and reads it; then removes it and another like it.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale) -> Result<()> {
    let site = meter.site;
    let files = scale.of(FILES, 2 * FILES_A_DIRECTORY);
    let (first, second) = (site.make("first")?, site.make("second")?);
    meter.time("unpack", || unpack(site, &first, files))?;
    meter.time("read", || read(site, &first, files))?;
    unpack(site, &second, files)?;
    meter.time("remove both", || {
        site.remove(&first)?;
        site.remove(&second)
    })
}

/// Makes, writes and closes the files.
fn unpack(site: &Site, tree: &Path, files: usize) -> Result<()> {
    for (number, len) in sizes(files) {
        site.go_on()?;
        let path = path(tree, number);
        if number.is_multiple_of(FILES_A_DIRECTORY)
            && let Some(directory) = path.parent()
        {
            fs::create_dir(directory)?;
        }
        let content = Content::of(number as u64, 0).bytes(0, len);
        let written = File::create_new(&path).and_then(|mut file| file.write_all(&content));
        written.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn read(site: &Site, tree: &Path, files: usize) -> Result<()> {
    let mut bytes = Vec::new();
    for (number, len) in sizes(files) {
        site.go_on()?;
        let path = path(tree, number);
        let what = || path.display().to_string();
        bytes.clear();
        let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
        let read = read.with_context(what)?;
        anyhow::ensure!(read == len, "{} has {read} bytes, not {len}", what());
        Content::of(number as u64, 0)
            .check(0, &bytes)
            .with_context(what)?;
    }
    Ok(())
}

fn path(tree: &Path, number: usize) -> PathBuf {
    let directory = format!("part-{}", number / FILES_A_DIRECTORY);
    tree.join(directory).join(format!("file-{number}"))
}

/// The files' numbers and lengths: up to 40 KB, most of them small.
fn sizes(files: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut random = Random(1);
    (0..files).map(move |number| {
        let len = match random.below(20) {
            0 => 0,
            1..=15 => random.below(8_000),
            _ => 8_000 + random.below(32_000),
        };
        (number, len as usize)
    })
}
