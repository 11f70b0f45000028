//! A volume as a directory of this machine.
//!
//! - [`mount`]: mounting, unmounting, and what can be in the way.
//! - `front`: what the kernel asks, decoded; each request becomes a task, so that many are under way. `begin`: where a task begins.
//! - `core`: what the tasks share. `names`, `data`, `locking`, `listing`: the operations by group.
//! - `inode`: write-back of one file, its data and its attributes. `settling`: both sent together. `ahead`: reading ahead. `changes`: which content the kernel's page cache is from.
//! - `granted`: locks that programs of this machine have, and those that they have lost with a session.
//! - `plain`: which objects have no extended attributes, so that none are asked for.
//! - `directories`: their attributes as own changes have left them; what is left of those that were removed while they are open.
//! - `pins`: files that are replaced while they are opened.
//! - `shares`: what a guest's mount has as its root. `owners`: whose files are, as it shows that. `withdrawn`: what was
//!   taken back, also from the kernel's cache.
//! - `caching`: for how long the kernel takes what it was told for granted.
//! - `caller`: who asks, with supplementary groups, and whether a signal waits for them.
//!
//! Consistency is close-to-open, as NFS has it: what was written is at the group when close(2), fsync(2) or a lock's
//! release returns, and an open or a lock's grant sees what was there. Attributes and names may be as old as [`Caching`] says, so which file is opened by a name, too. A file that
//! is kept open shows what others write at the latest when its attributes are asked for. What this mount alone has
//! written and read comes from the kernel's page cache. What is set on a file while it is open for writing (times, and modes
//! and owners that take nobody's rights away) is written back like its data, so it is at the group when the file is closed.
//! Absent on purpose: the kernel's own write-back cache, which would own size and time of files that others
//! change too; and any permission check that only this machine makes.

use std::time::Duration;

mod ahead;
mod begin;
mod caching;
mod caller;
mod changes;
mod convert;
mod core;
mod data;
mod directories;
#[cfg(test)]
mod fake;
mod front;
mod granted;
mod handles;
mod holds;
mod inode;
mod listing;
mod locking;
mod mount;
mod names;
mod owners;
mod pins;
mod plain;
mod ranges;
#[cfg(test)]
mod sample;
mod settling;
mod shares;
mod withdrawn;

pub use caching::{Caching, Lifetime};
pub use mount::{
    MountError, MountOptions, Mounted, UnmountError, check_device, is_dead, mount, mount_from,
    unmount_at,
};
pub use owners::Acting;
pub use shares::{Shares, Start};

/// For how long the kernel takes attributes and names for granted, where nobody says otherwise.
pub const TTL: Duration = Duration::from_secs(1);
/// The extended attribute of each object on a mount in which the mount says what credentials call it: the group's id in
/// hexadecimal, a space, the object's number in decimal.
pub const OBJECT: &str = "quorate.object";
/// The most that one request of the kernel reads or writes.
const MAX_REQUEST_BYTES: u32 = 1 << 20;
