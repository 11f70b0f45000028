//! The sockets by which operators talk to processes that run: only the user of the process and root may open them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::net::UnixListener;

/// A socket's file, as long as somebody listens there.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A socket that nobody listens on only misleads.
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens at `path`, in the place of what a process before has left there. The caller holds a lock that no other has. `by_which`
/// ends the message if it can't.
///
/// # Errors
/// Where the socket can't be made.
pub fn listen(path: PathBuf, by_which: &str) -> Result<(UnixListener, SocketFile)> {
    let listen = || {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let made =
        listen().with_context(|| format!("can't make {}, by which {by_which}", path.display()));
    Ok((made?, SocketFile(path)))
}
