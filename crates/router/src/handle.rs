//! File handles: what clients get, and what it says.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 1 | the format: 1 |
//! | 1 | 1 | 0 |
//! | 2 | 2 | the volume on which the server's handle is good |
//! | 4 | 4 | the bucket |
//! | 8 | up to 56 | the server's handle, unchanged |
//!
//! Offsets are fixed so that a switch can send a call to its server by looking at 8 bytes. A volume holds one bucket so far, which
//! has its number.

use bytes::Bytes;
use quorate_nfs::status::Status;

use crate::layout::Volume;

const FORMAT: u8 = 1;
const HEAD: usize = 8;
/// The longest handle of a server that fits.
pub const MAX_SERVER_HANDLE: usize = 56;

/// A handle as clients have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    /// On which volume.
    pub volume: Volume,
    /// What its server calls it.
    pub server: Bytes,
}

impl Handle {
    /// What a client sent.
    ///
    /// # Errors
    /// [`Status::BadHandle`]: the router has not made it.
    pub fn read(bytes: &Bytes) -> Result<Handle, Status> {
        let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(Status::BadHandle);
        };
        let volume = Volume(u16::from_be_bytes([head[2], head[3]]));
        let bucket = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        if head[..2] != [FORMAT, 0] || bucket != u32::from(volume.0) || bytes.len() == HEAD {
            return Err(Status::BadHandle);
        }
        if bytes.len() > HEAD + MAX_SERVER_HANDLE {
            return Err(Status::BadHandle);
        }
        Ok(Handle {
            volume,
            server: bytes.slice(HEAD..),
        })
    }

    /// As clients get it.
    ///
    /// # Errors
    /// [`Status::ServerFault`] if the server's handle is too long.
    pub fn write(&self) -> Result<Vec<u8>, Status> {
        if self.server.is_empty() || self.server.len() > MAX_SERVER_HANDLE {
            return Err(Status::ServerFault);
        }
        let mut out = vec![FORMAT, 0];
        out.extend_from_slice(&self.volume.0.to_be_bytes());
        out.extend_from_slice(&u32::from(self.volume.0).to_be_bytes());
        out.extend_from_slice(&self.server);
        Ok(out)
    }
}

/// The name under which the target of a stub lies on its volume: whose stub it is.
pub fn target_name(volume: Volume, stub: &[u8]) -> Bytes {
    let mut name = format!("{:04x}-", volume.0);
    for byte in stub {
        name.push_str(&format!("{byte:02x}"));
    }
    name.into()
}

/// Whose target has a name: the stub's volume and handle.
pub fn stub_of(name: &[u8]) -> Option<(Volume, Bytes)> {
    let text = std::str::from_utf8(name).ok()?;
    let (volume, handle) = text.split_once('-')?;
    if volume.len() != 4 || !handle.len().is_multiple_of(2) {
        return None;
    }
    let volume = u16::from_str_radix(volume, 16).ok()?;
    let byte = |at: usize| u8::from_str_radix(handle.get(at..at + 2)?, 16).ok();
    let handle: Option<Vec<u8>> = (0..handle.len()).step_by(2).map(byte).collect();
    Some((Volume(volume), handle?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_as_they_were_given_out() {
        for len in 1..=MAX_SERVER_HANDLE {
            let handle = Handle {
                volume: Volume(0x1234),
                server: (0..len as u8).collect(),
            };
            let out = handle.write().unwrap();
            assert!(out.len() <= 64);
            assert_eq!(out[2..8], [0x12, 0x34, 0, 0, 0x12, 0x34]);
            assert_eq!(Handle::read(&out.into()), Ok(handle.clone()));
            let name = target_name(handle.volume, &handle.server);
            assert!(name.len() < 255);
            assert_eq!(stub_of(&name), Some((handle.volume, handle.server)));
        }
        let long = Handle {
            volume: Volume(0),
            server: vec![0; MAX_SERVER_HANDLE + 1].into(),
        };
        assert_eq!(long.write(), Err(Status::ServerFault));
    }

    #[test]
    fn what_was_never_given_out_is_refused() {
        let good = [1, 0, 0, 2, 0, 0, 0, 2, 7];
        assert!(Handle::read(&Bytes::copy_from_slice(&good)).is_ok());
        for at in 0..8 {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(
                Handle::read(&bad.to_vec().into()),
                Err(Status::BadHandle),
                "{at}"
            );
        }
        for len in 0..9 {
            let cut = Bytes::copy_from_slice(&good[..len]);
            assert_eq!(Handle::read(&cut), Err(Status::BadHandle));
        }
        for name in ["", "0001", "001-aa", "0001-a", "0001-zz", "00g1-aa"] {
            assert_eq!(stub_of(name.as_bytes()), None, "{name}");
        }
    }
}
