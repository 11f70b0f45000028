//! The Andrew benchmark, scaled up: a source tree is copied n times, looked at, read and made. Phases as Castro and Liskov (OSDI 2000,
//! 8.2) and Howard et al. (TOCS 1988) have them; the tree is made up, and so is the compiler.
//!
//! One thread, as there.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::content::{Content, mix};
use super::site::{Meter, Site};
use super::work::Scale;
use crate::load::Random;

/// The original's number of files; with their objects some 2 MB a copy, as in the paper.
const SOURCES: usize = 70;
const SOURCES_A_DIRECTORY: usize = 7;
/// How often the compiler goes over a source: about a millisecond for a usual one.
const PASSES: u64 = 300;
/// Objects' numbers are apart from sources'.
const OBJECT: u64 = 1 << 32;
/// What is linked, of all objects.
const LINKED: usize = 4;

/// Makes, copies, examines, reads and compiles.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale, copies: usize) -> Result<()> {
    let site = meter.site;
    let tree = Tree::new(scale.of(SOURCES, 2 * SOURCES_A_DIRECTORY));
    let original = site.make("original")?;
    tree.make_directories(site, &original)?;
    for (number, len) in tree.sources() {
        let bytes = Content::of(number, 0).bytes(0, len);
        fs::write(tree.path(&original, number, "c"), bytes)?;
    }
    let copies: Vec<_> = (0..copies)
        .map(|copy| site.directory.join(format!("copy-{copy}")))
        .collect();
    let each = |work: &dyn Fn(&Path) -> Result<()>| copies.iter().try_for_each(|c| work(c));

    meter.time("1 make directories", || {
        each(&|copy| {
            fs::create_dir(copy)?;
            tree.make_directories(site, copy)
        })
    })?;
    meter.time("2 copy", || each(&|copy| tree.copy(site, &original, copy)))?;
    meter.time("3 examine", || {
        each(&|copy| {
            let found = examine(site, copy)?;
            let there = tree.sizes.len() as u64;
            ensure!(found == there, "{found} files, not {there}");
            Ok(())
        })
    })?;
    meter.time("4 read", || each(&|copy| tree.read(site, copy)))?;
    meter.time("5 make", || each(&|copy| tree.compile(site, copy)))?;
    meter.total();
    Ok(())
}

/// The sources of one copy.
#[derive(Debug)]
struct Tree {
    sizes: Vec<usize>,
}

impl Tree {
    fn new(sources: usize) -> Tree {
        let mut random = Random(1);
        let mut size = || match random.below(10) {
            0..6 => 1_000 + random.below(7_000),
            _ => 8_000 + random.below(40_000),
        };
        let sizes = (0..sources).map(|_| size() as usize);
        Tree {
            sizes: sizes.collect(),
        }
    }

    /// Numbers and lengths.
    fn sources(&self) -> impl Iterator<Item = (u64, usize)> {
        (0..).zip(self.sizes.iter().copied())
    }

    /// Each directory is in the one before, in twos.
    fn directory(root: &Path, number: usize) -> PathBuf {
        let own = format!("part-{number}");
        match number % 2 {
            0 => root.join(own),
            _ => root.join(format!("part-{}", number - 1)).join(own),
        }
    }

    fn path(&self, root: &Path, source: u64, kind: &str) -> PathBuf {
        let directory = Tree::directory(root, source as usize / SOURCES_A_DIRECTORY);
        directory.join(format!("source-{source}.{kind}"))
    }

    fn make_directories(&self, site: &Site, root: &Path) -> Result<()> {
        for number in 0..self.sizes.len().div_ceil(SOURCES_A_DIRECTORY) {
            site.go_on()?;
            fs::create_dir(Tree::directory(root, number))?;
        }
        Ok(())
    }

    fn copy(&self, site: &Site, from: &Path, to: &Path) -> Result<()> {
        for (source, _) in self.sources() {
            site.go_on()?;
            let bytes = read(&self.path(from, source, "c"))?;
            write(&self.path(to, source, "c"), &bytes)?;
        }
        Ok(())
    }

    fn read(&self, site: &Site, root: &Path) -> Result<()> {
        for (source, len) in self.sources() {
            site.go_on()?;
            check(&self.path(root, source, "c"), source, len)?;
        }
        Ok(())
    }

    /// An object from each source, as long as that, and a program from the objects.
    fn compile(&self, site: &Site, root: &Path) -> Result<()> {
        for (source, len) in self.sources() {
            site.go_on()?;
            let bytes = check(&self.path(root, source, "c"), source, len)?;
            std::hint::black_box(compute(&bytes));
            let object = Content::of(OBJECT | source, 0).bytes(0, len);
            write(&self.path(root, source, "o"), &object)?;
        }
        let mut program = Vec::new();
        for (source, len) in self.sources() {
            site.go_on()?;
            let object = check(&self.path(root, source, "o"), OBJECT | source, len)?;
            program.extend_from_slice(&object[..len / LINKED]);
        }
        write(&root.join("program"), &program)
    }
}

/// How many files a tree has, by asking for the status of each.
fn examine(site: &Site, directory: &Path) -> Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        site.go_on()?;
        let entry = entry?;
        match entry.metadata()?.is_dir() {
            true => files += examine(site, &entry.path())?,
            false => files += 1,
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// Reads a file that has to hold this content.
fn check(path: &Path, number: u64, len: usize) -> Result<Vec<u8>> {
    let bytes = read(path)?;
    let what = || path.display().to_string();
    ensure!(bytes.len() == len, "{} has {} bytes", what(), bytes.len());
    Content::of(number, 0).check(0, &bytes).with_context(what)?;
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create_new(path).and_then(|mut file| file.write_all(bytes));
    written.with_context(|| path.display().to_string())
}

/// What a compiler does, as far as a file system sees it: it takes time.
fn compute(source: &[u8]) -> u64 {
    let words = || source.as_chunks::<8>().0.iter();
    let pass = |sum: u64, _| words().fold(sum, |sum, word| mix(sum ^ u64::from_le_bytes(*word)));
    (0..PASSES).fold(0, pass)
}
