//! What lingers is a file without names and handles, and waits in its place.

use alloc::format;
use alloc::string::String;

use super::{Volume, want};
use crate::types::Kind;

pub(super) fn check(v: &Volume) -> Result<(), String> {
    let (mut bytes, mut until) = (0, 0);
    for (place, waiting) in &v.waiting {
        let ino = waiting.ino.0;
        want(v.lingering.get(&ino) == Some(place), || {
            format!("{ino} waits in place {place}, and lingers in another")
        })?;
        want(until <= waiting.until, || {
            format!("{ino} lingers for less time than one before it")
        })?;
        until = waiting.until;
        let inode = v.inodes.get(&ino);
        let inode = inode.ok_or_else(|| format!("{ino} lingers, and is gone"))?;
        let is_open = v.opens.values().any(|open| open.ino.0 == ino);
        want(
            inode.kind == Kind::Regular && inode.nlink == 0 && !is_open,
            || format!("{ino} lingers, and is in use"),
        )?;
        bytes += inode.space();
    }
    let files = v.waiting.len() as u64;
    want(v.lingering.len() as u64 == files, || {
        "what lingers does not wait".into()
    })?;
    let Some(all) = &v.lingering_all else {
        return want(files == 0, || "what lingers is not counted".into());
    };
    let places = all.first..all.next;
    want(
        files > 0 && v.waiting.keys().all(|place| places.contains(place)),
        || "what lingers is out of place".into(),
    )?;
    want((all.files, all.bytes) == (files, bytes), || {
        format!("{files} files of {bytes} bytes linger, {all:?} are counted")
    })
}
