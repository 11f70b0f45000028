//! Operations through a mount: system calls of one thread, which is the only one that uses this mount. So all that the mount's
//! kernel has in its cache this client has written or asked for.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::history::{Mode, Op, Outcome};
use crate::work::layout::{
    content, directory_path, name_from, register_bytes, register_path, slot_path, token_of,
};

/// Has the kernel do it, within the directory of a round. `None`: nobody knows whether it was done.
pub fn call(root: &Path, op: &Op) -> Option<Outcome> {
    outcome(op, perform(root, op))
}

fn perform(root: &Path, op: &Op) -> io::Result<Outcome> {
    let slot = |slot| slot_path(root, slot);
    match op {
        Op::Write { register, token } => {
            let path = register_path(root, *register);
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&content(*token, register_bytes(*register)), 0)?;
            if token.is_multiple_of(2) {
                file.sync_all()?;
            }
            // Else its end, which is close(2), has to bring it to the group. It can't be asked whether it did; where it
            // didn't, a later read tells.
            Ok(Outcome::Done)
        }
        Op::Read { register } => {
            let length = register_bytes(*register);
            let file = File::open(register_path(root, *register))?;
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
            for entry in std::fs::read_dir(directory_path(root, *tree, *directory))? {
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
