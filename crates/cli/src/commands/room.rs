//! How much a volume may hold, by the disks of its replicas. What a group agrees to hold is part of its first state and stays: a volume that says that it
//! is full refuses a write, and a disk that is full takes its replica out.

use std::path::Path;

use anyhow::{Context, Result};
use quorate_net::group::show_capacity;
use rustix::fs::statvfs;

/// What a replica needs beside what the volume holds, at the most: its log, and what was superseded since the last checkpoint. Of a small disk it is two thirds of each copy's part:
/// where a volume is rewritten faster than checkpoints are made, half was not enough.
const BESIDE: u64 = 512 << 20;

/// The least that is worth having.
const LEAST: u64 = 16 << 20;

/// The size of a new volume of which so many copies come to lie on the disk of `place`, which is there.
pub fn shared(place: &Path, copies: usize) -> Result<u64> {
    let disk = statvfs(place).with_context(|| format!("{}", place.display()))?;
    Ok(of(disk.f_bavail.saturating_mul(disk.f_frsize), copies))
}

/// The same, where so many bytes are free: four fifths of what each copy can have beside its log, in whole MiB.
fn of(free: u64, copies: usize) -> u64 {
    let each = free / copies.max(1) as u64;
    let content = (each - BESIDE.min(each / 3 * 2)) / 5 * 4;
    (content >> 20 << 20).max(LEAST)
}

/// How many files, directories and links such a volume may hold: one for each 16 KiB, as file systems are mostly made. What content does not count of them, the targets of
/// symbolic links, of up to 4 KiB, and long names, then has room in what is left beside the content.
pub fn objects(capacity: u64) -> u64 {
    capacity.max(LEAST) / (16 << 10)
}

/// What is to be said where a volume may come to hold more than the whole disk on which a replica keeps it.
pub fn too_small(place: &Path, capacity: u64) -> Option<String> {
    let disk = statvfs(place).ok()?;
    let size = disk.f_blocks.saturating_mul(disk.f_frsize);
    (size < capacity).then(|| {
        format!(
            "the volume may come to hold {}, and the disk of {} has {} MiB in all: when that is full, this replica stops",
            show_capacity(capacity),
            place.display(),
            size >> 20,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies and what they need beside the content have room on the disk, however small it is.
    #[test]
    fn there_is_room_for_all_copies() {
        assert_eq!(of(100 << 30, 4), 20_070 << 20);
        assert_eq!((objects(1), objects(32 << 20)), (1_024, 2_048));
        for free in [0, 1 << 20, 300 << 20, 1 << 30, 13 << 30, 1 << 50] {
            for copies in [1, 4, 7] {
                let size = of(free, copies);
                assert!(
                    size == LEAST || size * copies as u64 <= free / 5 * 4,
                    "{free}"
                );
                assert!(size.is_multiple_of(1 << 20));
            }
        }
    }
}
