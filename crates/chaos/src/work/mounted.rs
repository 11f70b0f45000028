//! A client of a mount: system calls of one thread, which is the only one that uses this mount. So all that the mount's
//! kernel has in its cache this client has written or asked for.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::Shared;
use super::choose::Chooser;
use super::layout::{Layout, content, name_from, token_of};
use crate::history::{Mode, Op, Outcome};

/// Asks for one thing after the other until it is told to stop. Waits within system calls.
pub fn mounted(mount: PathBuf, number: u8, layout: &Layout, shared: &Arc<Shared>, seed: u64) {
    let mut chooser = Chooser::new(seed, number, true);
    while !shared.is_over() {
        let op = chooser.next(layout);
        let place = shared.recorder.begin(number, true, op.clone());
        if let Some(outcome) = outcome(&op, perform(&mount, layout, &op)) {
            shared.recorder.end(place, outcome);
        }
        std::thread::sleep(shared.rest(&mut chooser));
    }
    shared.left();
}

fn perform(mount: &std::path::Path, layout: &Layout, op: &Op) -> io::Result<Outcome> {
    let slot = |slot| layout.slot_path(mount, slot);
    match op {
        Op::Write { register, token } => {
            let (_, length) = layout.register(*register);
            let path = layout.register_path(mount, *register);
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&content(*token, length), 0)?;
            if token.is_multiple_of(2) {
                file.sync_all()?;
            }
            // Else its end, which is close(2), has to bring it to the group. It can't be asked whether it did; where it
            // didn't, a later read tells.
            Ok(Outcome::Done)
        }
        Op::Read { register } => {
            let (_, length) = layout.register(*register);
            let file = File::open(layout.register_path(mount, *register))?;
            // One byte more than there may be.
            let mut data = vec![0; length + 1];
            let mut filled = 0;
            loop {
                match file.read_at(&mut data[filled..], filled as u64)? {
                    0 => break,
                    count => filled += count,
                }
            }
            Ok(token_of(&data[..filled], length).map_or_else(Outcome::Torn, Outcome::Value))
        }
        Op::Create { at, .. } => {
            let file = File::create_new(slot(*at))?;
            Ok(Outcome::Made(file.metadata()?.ino()))
        }
        Op::Remove { at } => std::fs::remove_file(slot(*at)).map(|()| Outcome::Done),
        Op::Rename { from, to, mode, .. } => {
            let flags = match mode {
                Mode::Replace => RenameFlags::empty(),
                Mode::NoReplace => RenameFlags::NOREPLACE,
                Mode::Exchange => RenameFlags::EXCHANGE,
            };
            renameat_with(CWD, slot(*from), CWD, slot(*to), flags)?;
            Ok(Outcome::Done)
        }
        Op::Look { at } => {
            let found = std::fs::symlink_metadata(slot(*at))?;
            Ok(Outcome::Found(found.ino()))
        }
        Op::List { tree, directory } => {
            let mut listed = Vec::new();
            for entry in std::fs::read_dir(layout.directory_path(mount, *tree, *directory))? {
                let entry = entry?;
                listed.push((name_from(entry.file_name().as_bytes()), entry.ino()));
            }
            Ok(Outcome::Listing(listed))
        }
        // Not asked for through a mount.
        Op::Append { .. } | Op::ReadLog { .. } | Op::Link { .. } => {
            Err(ErrorKind::Unsupported.into())
        }
    }
}

/// What a system call's answer says. `None`: nobody knows whether it was done.
fn outcome(op: &Op, result: io::Result<Outcome>) -> Option<Outcome> {
    let error = match result {
        Ok(outcome) => return Some(outcome),
        Err(error) => error,
    };
    let errno = Errno::from_io_error(&error)?;
    match (op, errno) {
        (Op::Remove { .. } | Op::Rename { .. } | Op::Look { .. }, Errno::NOENT) => {
            Some(Outcome::Missing)
        }
        (Op::Create { .. } | Op::Rename { .. }, Errno::EXIST) => Some(Outcome::Exists),
        // The session was lost meanwhile. Or: a name was taken away while the kernel used it.
        (_, Errno::IO | Errno::STALE) => None,
        // The mount has ended.
        (_, Errno::NOTCONN | Errno::CONNABORTED) => None,
        (_, errno) => Some(Outcome::Refused(errno.raw_os_error() as u16)),
    }
}
