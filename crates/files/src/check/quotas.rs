//! Quotas count what is there.

use alloc::format;
use alloc::string::String;

use super::{Volume, want};
use crate::layout::{ENTRY_BYTES, MAX_QUOTAS};
use crate::types::Kind;

/// Each quota is a directory's, and counts exactly the objects that are noted to be under it.
pub(super) fn check(v: &Volume) -> Result<(), String> {
    want(v.quotas.len() <= MAX_QUOTAS, || "too many quotas".into())?;
    let is_there = |ino: &u64| v.inodes.contains_key(ino);
    want(v.members.keys().all(is_there), || {
        "nothing counts under a quota".into()
    })?;
    for (number, quota) in &v.quotas {
        let dir = v.inodes.get(&quota.dir.0);
        let is_own = v.members.get(&quota.dir.0) == Some(number);
        want(
            is_own && dir.is_some_and(|dir| dir.kind == Kind::Directory),
            || format!("quota {number} is of no directory"),
        )?;
        let (mut bytes, mut files) = (0, 0);
        let counts = |(ino, of): &(&u64, &u64)| *of == number && !v.lingering.contains_key(ino);
        for (ino, _) in v.members.iter().filter(counts) {
            let inode = v.inodes.get(ino).ok_or("nothing counts under a quota")?;
            let entries = match inode.kind {
                Kind::Directory => inode.size,
                _ => 0,
            };
            bytes += inode.space() + entries * ENTRY_BYTES;
            files += 1;
        }
        want(
            (bytes, files) == (quota.used_bytes, quota.used_files),
            || {
                format!(
                    "quota {number} has {bytes} bytes and {files} objects, {} and {} are counted",
                    quota.used_bytes, quota.used_files
                )
            },
        )?;
    }
    Ok(())
}
