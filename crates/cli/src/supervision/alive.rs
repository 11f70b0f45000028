//! Signs of life of the supervisor, for those who start it again or the machine if it stands still: systemd (`WatchdogSec=`, sd_notify(3)),
//! and a watchdog of the machine's, such as /dev/watchdog.

use std::fs::File;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use anyhow::{Context, Result};

/// Who hears them.
#[derive(Debug, Default)]
pub struct SignsOfLife {
    manager: Option<UnixDatagram>,
    watchdog: Option<File>,
}

impl SignsOfLife {
    /// For the service manager that has started this process, if one has and wants to hear, and a watchdog device.
    ///
    /// # Errors
    /// If the device can't be opened. A service manager that can't be reached is done without: it will see to that.
    pub fn new(device: Option<&Path>) -> Result<SignsOfLife> {
        let watchdog = device.map(|path| {
            let opened = File::options().write(true).open(path);
            opened.with_context(|| format!("can't open the watchdog {}", path.display()))
        });
        Ok(SignsOfLife {
            manager: std::env::var_os("NOTIFY_SOCKET")
                .and_then(|address| connect(address.as_bytes()).ok()),
            watchdog: watchdog.transpose()?,
        })
    }

    /// The supervisor has begun its work.
    pub fn ready(&self) {
        self.tell(b"READY=1");
    }

    /// It is at work.
    pub fn give(&mut self) {
        self.tell(b"WATCHDOG=1");
        if let Some(device) = &mut self.watchdog {
            // Nothing better than that the machine starts again, if this fails for long.
            let _ = device.write_all(b"1");
        }
    }

    /// It ends because it is asked to: the watchdog is to let the machine be.
    pub fn end(mut self) {
        self.tell(b"STOPPING=1");
        if let Some(device) = &mut self.watchdog {
            // The "magic close" of the kernel's watchdogs.
            let _ = device.write_all(b"V");
        }
    }

    fn tell(&self, word: &[u8]) {
        if let Some(manager) = &self.manager {
            let _ = manager.send(word);
        }
    }
}

fn connect(address: &[u8]) -> std::io::Result<UnixDatagram> {
    let address = match address.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(address)))?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not keep the supervisor from its work.
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both hear all of it, and the device is let go of in order.
    #[test]
    fn signs_are_heard() {
        let directory = tempfile::tempdir().unwrap();
        let (path, device) = (
            directory.path().join("s"),
            directory.path().join("watchdog"),
        );
        let manager = UnixDatagram::bind(&path).unwrap();
        std::fs::write(&device, b"").unwrap();
        let mut signs = SignsOfLife {
            manager: Some(connect(path.as_os_str().as_bytes()).unwrap()),
            ..SignsOfLife::new(Some(&device)).unwrap()
        };
        signs.ready();
        signs.give();
        signs.end();
        for word in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
            let mut heard = [0; 64];
            let bytes = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..bytes], word.as_bytes());
        }
        assert_eq!(std::fs::read(&device).unwrap(), b"1V");
        assert!(SignsOfLife::new(Some(&directory.path().join("none"))).is_err());
    }
}
