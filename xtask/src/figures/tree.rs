//! The archive that is unpacked: the same in each run.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program;

pub const FILES: usize = 2_000;
const FILES_A_DIRECTORY: usize = 25;

/// Makes a tree of files of up to 40 KB, most of them small, and packs it.
pub fn pack(place: &Path) -> Result<PathBuf, String> {
    let tree = place.join("tree");
    let io = |e: std::io::Error| format!("{}: {e}", tree.display());
    let mut random = 1u64;
    let mut next = || {
        // Linear congruential, Knuth's numbers: sizes and content need no better.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for file in 0..FILES {
        let directory = tree.join(format!("part-{}", file / FILES_A_DIRECTORY));
        std::fs::create_dir_all(&directory).map_err(io)?;
        let len = match next() % 20 {
            0 => 0,
            1..=15 => next() % 8_000,
            _ => 8_000 + next() % 32_000,
        };
        let words = len.div_ceil(8) + 1;
        let mut content: Vec<u8> = (0..words)
            .flat_map(|_| (next() << 32 | next()).to_le_bytes())
            .collect();
        content.truncate(len as usize);
        std::fs::write(directory.join(format!("file-{file}")), content).map_err(io)?;
    }
    let archive = place.join("tree.tar");
    let mut tar = Command::new("tar");
    tar.arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(place)
        .arg("tree");
    program::run(&mut tar)?;
    std::fs::remove_dir_all(&tree).map_err(io)?;
    Ok(archive)
}
