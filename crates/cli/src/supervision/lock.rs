//! One supervisor for each replica: two would end each other's, and the second one would take the first one's socket.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The name of the lock's file in the supervisor's directory.
const NAME: &str = "supervisor.lock";

/// The right to look after a replica from this directory. It ends with the process, however that ends; the replica does not inherit it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, which says by which process it is held.
    ///
    /// # Errors
    /// Another process has it; or the directory is not there, or takes no file.
    pub fn take(state: &Path) -> Result<Lock> {
        let path = state.join(NAME);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = opened.with_context(|| {
            format!(
                "the supervisor can't make {}: is its directory there (--state, else the replica's), and its own?",
                path.display()
            )
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                bail!(
                    "another supervisor, process {}, keeps what is its own in {}: two that look after one replica end each other's. \
                     Stop that one first; another replica's supervisor needs another directory (--state)",
                    holder.trim(),
                    state.display()
                );
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("can't lock {}", path.display()));
            }
        }
        // Only for people: on a full disk the lock is as good without.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second one is refused, and told who is in its way and what to do; when the first one has ended, the next one has it.
    #[test]
    fn one_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let lock = Lock::take(place.path()).unwrap();
        let refused = Lock::take(place.path()).unwrap_err().to_string();
        let own = format!("process {},", std::process::id());
        assert!(
            refused.contains(&own) && refused.contains("Stop that one first"),
            "{refused}"
        );
        drop(lock);
        Lock::take(place.path()).unwrap();
        assert!(Lock::take(&place.path().join("nowhere")).is_err());
    }
}
