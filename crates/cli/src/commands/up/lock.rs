//! One `quorate up` for each directory.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use quorate_net::disk;

/// The name of the lock's file in the data directory.
const NAME: &str = "up.lock";

/// The right to run the group of a directory. It ends with the process, however that ends; replicas don't inherit it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// As [`Lock::take`], where an earlier `up` has left the lock's file; else `None`, and nothing is made.
    pub fn take_if_there(data: &Path, mount: Option<&Path>) -> Result<Option<Lock>> {
        let there = data.join(NAME).exists();
        there.then(|| Lock::take(data, mount)).transpose()
    }

    /// Takes the lock, or says who has it. The file tells others about this process and its mount.
    pub fn take(data: &Path, mount: Option<&Path>) -> Result<Lock> {
        disk::make_private_directory(data)
            .with_context(|| format!("can't make the directory {}", data.display()))?;
        let path = data.join(NAME);
        let write = || format!("can't write {}", path.display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(write)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut content = Vec::new();
                let _ = file.read_to_end(&mut content);
                bail!("{}", running(data, &content));
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("can't lock {}", path.display()));
            }
        }
        let mut content = format!("{}\n", std::process::id()).into_bytes();
        if let Some(mount) = mount {
            let absolute = std::path::absolute(mount).with_context(write)?;
            content.extend_from_slice(absolute.as_os_str().as_bytes());
        }
        file.set_len(0).with_context(write)?;
        file.write_all(&content).with_context(write)?;
        Ok(Lock { _file: file })
    }
}

/// What a second `up` says, as far as the first one has told about itself.
fn running(data: &Path, content: &[u8]) -> String {
    let mut parts = content.splitn(2, |byte| *byte == b'\n');
    let process = parts.next().and_then(|pid| std::str::from_utf8(pid).ok());
    let process = process.filter(|pid| !pid.is_empty());
    let mount = parts.next().filter(|mount| !mount.is_empty());
    let mut out = format!("the group in {} is already running", data.display());
    if let Some(process) = process {
        out += &format!(", by process {process}; ");
        out += &match mount {
            Some(mount) => {
                let mount = Path::new(OsStr::from_bytes(mount));
                format!("its mount is {}", mount.display())
            }
            None => "it is not mounted".into(),
        };
    }
    out + ". Use that one, stop it first, or choose another --data"
}
