//! The search of a source tree: all names and attributes (`find`), then all contents for a word (`grep`). As DisCFS (2003), Figure 7, has it, with a
//! tree that is made up.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::site::{Meter, Site};
use super::work::Scale;
use crate::load::Random;

const DIRECTORIES: usize = 150;
const QUICK_DIRECTORIES: usize = 5;
const FILES_A_DIRECTORY: usize = 14;
/// Stands in every seventh file, once.
const WORD: &str = "credential_check";
const EVERY: usize = 7;

/// Makes a tree, which is not timed, and searches it: when the kernel has forgotten the contents, and again.
///
/// # Errors
/// Where the file system fails or is wrong.
pub fn run(meter: &mut Meter<'_>, scale: Scale) -> Result<()> {
    let site = meter.site;
    let directories = scale.of(DIRECTORIES, QUICK_DIRECTORIES);
    let files = directories * FILES_A_DIRECTORY;
    let tree = site.make("tree")?;
    let made = make(site, &tree, directories)?;
    for path in &made {
        site.forget_one(path)?;
    }
    site.forget(&tree)?;
    meter.time("find", || {
        let found = find(site, &tree)?;
        ensure!(found == files, "{found} files, not {files}");
        Ok(())
    })?;
    let wanted = files.div_ceil(EVERY);
    for name in ["grep", "grep again"] {
        meter.time(name, || {
            let found = grep(site, &tree)?;
            ensure!(found == wanted, "{found} files have the word, not {wanted}");
            Ok(())
        })?;
    }
    Ok(())
}

fn make(site: &Site, tree: &Path, directories: usize) -> Result<Vec<std::path::PathBuf>> {
    let mut random = Random(1);
    let mut made = Vec::new();
    for directory in 0..directories {
        // Some levels, as sources have them.
        let mut path = tree.join(format!("part-{}", directory % 10));
        path.push(format!("sub-{directory}"));
        fs::create_dir_all(&path)?;
        for file in 0..FILES_A_DIRECTORY {
            site.go_on()?;
            let mut text = String::new();
            let lines = 20 + random.below(400);
            for line in 0..lines {
                text += &format!("static int value_{line} = {};\n", random.below(1 << 30));
            }
            if (directory * FILES_A_DIRECTORY + file).is_multiple_of(EVERY) {
                text += &format!("return {WORD}(guest);\n");
            }
            let path = path.join(format!("source-{file}.c"));
            fs::write(&path, text)?;
            made.push(path);
        }
    }
    Ok(made)
}

/// Looks at all there is, and counts files.
fn find(site: &Site, directory: &Path) -> Result<usize> {
    each(site, directory, &mut |_| Ok(true))
}

/// Counts files that have the word.
fn grep(site: &Site, directory: &Path) -> Result<usize> {
    each(site, directory, &mut |path| {
        let text = fs::read(path)?;
        let mut lines = text.split(|byte| *byte == b'\n');
        Ok(lines.any(|line| line.windows(WORD.len()).any(|part| part == WORD.as_bytes())))
    })
}

fn each(
    site: &Site,
    directory: &Path,
    wanted: &mut impl FnMut(&Path) -> Result<bool>,
) -> Result<usize> {
    let what = || directory.display().to_string();
    let mut count = 0;
    for entry in fs::read_dir(directory).with_context(what)? {
        site.go_on()?;
        let entry = entry.with_context(what)?;
        let path = entry.path();
        if entry.metadata().with_context(what)?.is_dir() {
            count += each(site, &path, wanted)?;
        } else if wanted(&path).with_context(what)? {
            count += 1;
        }
    }
    Ok(count)
}
