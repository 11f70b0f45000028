//! The files of a round: made before it, and never used again.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_client::Volume;
use quorate_client::volume::Called;
use quorate_files::op::{Create, Mkdir, Place, Write, flags};
use quorate_files::{Ino, Nothing, Target, Who};

use crate::history::{DIRECTORIES, Slot};

/// Bytes of each register; the last ones are such that requests travel apart from batches, and lie in blobs.
const REGISTERS: [usize; 5] = [8, 8, 4096, 20_000, 70_000];
/// A mount writes and reads up to this in one piece: a page.
const PAGE_BYTES: usize = 4096;
const LOGS: u8 = 2;
const TREES: u8 = 2;

/// Where the objects of a round are.
#[derive(Clone, Debug)]
pub struct Layout {
    name: String,
    registers: Vec<Ino>,
    logs: Vec<Ino>,
    trees: Vec<Vec<Ino>>,
}

impl Layout {
    /// Makes the files of a round.
    ///
    /// # Errors
    /// Where the group refuses, or loses the session.
    pub async fn make(volume: &Volume, who: &Who, round: u64) -> Called<Layout> {
        let mkdir = async |parent: Ino, name: &str| {
            let (name, mode) = (Bytes::copy_from_slice(name.as_bytes()), 0o755);
            let mkdir = Mkdir {
                parent,
                name,
                mode,
                umask: 0,
            };
            let attr = volume.mkdir(who, mkdir).await?;
            Called::Ok(attr.ino)
        };
        let name = format!("round-{round}");
        let root = mkdir(Ino::ROOT, &name).await?;
        let file = async |name: String, data: Bytes| {
            let create = Create {
                parent: root,
                name: name.into(),
                mode: 0o644,
                umask: 0,
                flags: flags::WRITE,
            };
            let opened = volume.create(who, create).await?;
            let write = Write {
                target: Target::Handle(opened.handle),
                place: Place::At(0),
                data,
            };
            volume.write(who, write).await?;
            let Nothing = volume.release(who, opened.handle).await?;
            Called::Ok(opened.attr.ino)
        };
        let mut layout = Layout {
            name,
            registers: Vec::new(),
            logs: Vec::new(),
            trees: Vec::new(),
        };
        for (register, length) in REGISTERS.iter().enumerate() {
            let made = file(register_name(register as u8), content(0, *length)).await?;
            layout.registers.push(made);
        }
        for log in 0..LOGS {
            let made = file(format!("log-{log}"), Bytes::new()).await?;
            layout.logs.push(made);
        }
        for tree in 0..TREES {
            let mut directories = Vec::new();
            for directory in 0..DIRECTORIES {
                directories.push(mkdir(root, &directory_name(tree, directory)).await?);
            }
            layout.trees.push(directories);
        }
        Ok(layout)
    }

    pub(super) fn registers(&self) -> u8 {
        REGISTERS.len() as u8
    }

    /// The registers that can be used through a mount.
    pub(super) fn mounted_registers(&self) -> u8 {
        REGISTERS
            .iter()
            .filter(|length| **length <= PAGE_BYTES)
            .count() as u8
    }

    pub(super) fn logs(&self) -> u8 {
        LOGS
    }

    pub(super) fn trees(&self) -> u8 {
        TREES
    }

    pub(super) fn register(&self, register: u8) -> (Ino, usize) {
        let at = usize::from(register);
        (self.registers[at], REGISTERS[at])
    }

    pub(super) fn log(&self, log: u8) -> Ino {
        self.logs[usize::from(log)]
    }

    pub(super) fn directory(&self, tree: u8, directory: u8) -> Ino {
        self.trees[usize::from(tree)][usize::from(directory)]
    }

    /// The directory of the round, as a mount has it.
    pub(super) fn root(&self, mount: &Path) -> PathBuf {
        mount.join(&self.name)
    }
}

/// The length of a register, in bytes.
pub fn register_bytes(register: u8) -> usize {
    REGISTERS[usize::from(register)]
}

/// A register's file, in the directory of its round.
pub fn register_path(root: &Path, register: u8) -> PathBuf {
    root.join(register_name(register))
}

/// A tree's directory, in the directory of its round.
pub fn directory_path(root: &Path, tree: u8, directory: u8) -> PathBuf {
    root.join(directory_name(tree, directory))
}

/// A name's path, in the directory of its round.
pub fn slot_path(root: &Path, slot: Slot) -> PathBuf {
    directory_path(root, slot.tree, slot.directory).join(name_of(slot.name))
}

fn register_name(register: u8) -> String {
    format!("register-{register}")
}

fn directory_name(tree: u8, directory: u8) -> String {
    format!("tree-{tree}-{directory}")
}

/// The text of a name.
pub(super) fn name_of(name: u8) -> String {
    format!("n{name}")
}

/// The name of a text; one that is not used here is 255.
pub fn name_from(text: &[u8]) -> u8 {
    let digits = std::str::from_utf8(text)
        .ok()
        .and_then(|t| t.strip_prefix('n'));
    digits.and_then(|d| d.parse().ok()).unwrap_or(u8::MAX)
}

/// A register's content: its token again and again.
pub fn content(token: u64, length: usize) -> Bytes {
    let token = token.to_le_bytes();
    token
        .iter()
        .copied()
        .cycle()
        .take(length)
        .collect::<Vec<u8>>()
        .into()
}

/// The token of a register's content.
///
/// # Errors
/// What is wrong with content that no write can have left.
pub fn token_of(data: &[u8], length: usize) -> Result<u64, String> {
    let Some(first) = data.first_chunk() else {
        return Err(format!("{} bytes of {length}", data.len()));
    };
    let token = u64::from_le_bytes(*first);
    match content(token, length) == data {
        true => Ok(token),
        false => Err(format!(
            "{} bytes of {length}, begun by {token}",
            data.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content has its token, and a mixture of two, or a part, has none.
    #[test]
    fn content_shows_when_it_is_torn() {
        for length in REGISTERS {
            let data = content(0x0102_0304_0506_0708, length);
            assert_eq!(data.len(), length);
            assert_eq!(token_of(&data, length), Ok(0x0102_0304_0506_0708));
            assert!(token_of(&data[..length - 1], length).is_err());
            let mut torn = data.to_vec();
            torn[length - 8..].copy_from_slice(&[9; 8]);
            assert_eq!(token_of(&torn, length).is_err(), length > 8);
        }
        assert_eq!((name_from(b"n2"), name_from(b"other")), (2, 255));
    }
}
