//! File handles: what clients get, and what it says.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 1 | the format: 1 |
//! | 1 | 1 | 0 |
//! | 2 | 2 | the volume on which the handle was first given out |
//! | 4 | 4 | the bucket |
//! | 8 | up to 56 | what that volume's server called it, unchanged |
//!
//! Offsets are fixed so that a switch can send a call to its server by looking at 8 bytes. A handle stays what it is when its bucket
//! moves: then the bucket's table says what the object is called where it is now.

use bytes::Bytes;
use quorate_nfs::call::Fh;
use quorate_nfs::status::Status;

use crate::layout::{Bucket, Volume};

const FORMAT: u8 = 1;
const HEAD: usize = 8;
/// The bytes of the volume in a key.
const ORIGIN: usize = 2;
/// The longest handle of a server that fits.
pub const MAX_SERVER_HANDLE: usize = 56;

/// A handle as clients have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    /// In which bucket.
    pub bucket: Bucket,
    /// What it is called there: see [`key`].
    pub key: Fh,
}

/// What an object is called as long as it lives: the volume where it was first seen, and what its server called it there.
pub fn key(volume: Volume, server: &[u8]) -> Fh {
    [&volume.0.to_be_bytes()[..], server].concat().into()
}

/// What a key says.
pub fn origin(key: &Fh) -> Option<(Volume, Fh)> {
    let (volume, _) = split(key)?;
    Some((volume, key.slice(ORIGIN..)))
}

/// The same, borrowed.
pub fn split(key: &Fh) -> Option<(Volume, &[u8])> {
    let (volume, server) = key.split_first_chunk::<ORIGIN>()?;
    Some((Volume(u16::from_be_bytes(*volume)), server))
}

impl Handle {
    /// What a client sent.
    ///
    /// # Errors
    /// [`Status::BadHandle`]: the router has not made it.
    pub fn read(bytes: &Bytes) -> Result<Handle, Status> {
        let (bucket, volume, server) = parts(bytes)?;
        let key = key(volume, server);
        Ok(Handle { bucket, key })
    }

    /// As clients get it.
    ///
    /// # Errors
    /// [`Status::ServerFault`] if the server's handle is too long, or none.
    pub fn write(&self) -> Result<Vec<u8>, Status> {
        let (volume, server) = origin(&self.key).ok_or(Status::ServerFault)?;
        Ok(Shown::new(self.bucket, volume, &server)?.bytes().to_vec())
    }
}

/// A handle as clients get it, without a place of its own in memory.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    bytes: [u8; HEAD + MAX_SERVER_HANDLE],
    len: usize,
}

impl Shown {
    /// Of an object in a bucket, by the volume where it was first seen and what its server called it there.
    ///
    /// # Errors
    /// [`Status::ServerFault`] if the server's handle is too long, or none.
    pub fn new(bucket: Bucket, volume: Volume, server: &[u8]) -> Result<Shown, Status> {
        if server.is_empty() || server.len() > MAX_SERVER_HANDLE {
            return Err(Status::ServerFault);
        }
        let mut bytes = [0; HEAD + MAX_SERVER_HANDLE];
        let len = HEAD + server.len();
        bytes[0] = FORMAT;
        bytes[2..4].copy_from_slice(&volume.0.to_be_bytes());
        bytes[4..HEAD].copy_from_slice(&bucket.0.to_be_bytes());
        bytes[HEAD..len].copy_from_slice(server);
        Ok(Shown { bytes, len })
    }

    /// The handle.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a handle says that a client sent: its bucket, the volume where the object was first seen, and what its server called it there.
///
/// # Errors
/// [`Status::BadHandle`]: the router has not made it.
pub fn parts(bytes: &[u8]) -> Result<(Bucket, Volume, &[u8]), Status> {
    let Some((head, server)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(Status::BadHandle);
    };
    let fits = (1..=MAX_SERVER_HANDLE).contains(&server.len());
    if head[..2] != [FORMAT, 0] || !fits {
        return Err(Status::BadHandle);
    }
    let volume = Volume(u16::from_be_bytes([head[2], head[3]]));
    let bucket = Bucket(u32::from_be_bytes([head[4], head[5], head[6], head[7]]));
    Ok((bucket, volume, server))
}

/// The name under which the target of a stub lies in its bucket: whose stub it is.
pub fn target_name(bucket: Bucket, stub: &[u8]) -> Bytes {
    let mut name = format!("{:08x}-", bucket.0);
    for byte in stub {
        name.push_str(&format!("{byte:02x}"));
    }
    name.into()
}

/// Whose target has a name: the stub's bucket and key.
pub fn stub_of(name: &[u8]) -> Option<(Bucket, Fh)> {
    let text = std::str::from_utf8(name).ok()?;
    let (bucket, key) = text.split_once('-')?;
    if bucket.len() != 8 || !key.len().is_multiple_of(2) {
        return None;
    }
    let bucket = u32::from_str_radix(bucket, 16).ok()?;
    let byte = |at: usize| u8::from_str_radix(key.get(at..at + 2)?, 16).ok();
    let stub: Option<Vec<u8>> = (0..key.len()).step_by(2).map(byte).collect();
    let (bucket, stub) = (Bucket(bucket), stub?);
    // Numbers have other forms as well, which are no names of ours.
    (target_name(bucket, &stub) == name).then(|| (bucket, stub.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_as_they_were_given_out() {
        for len in 1..=MAX_SERVER_HANDLE {
            let server: Vec<u8> = (0..len as u8).collect();
            let handle = Handle {
                bucket: Bucket(0x1234_5678),
                key: key(Volume(0x0abc), &server),
            };
            let out = handle.write().unwrap();
            assert!(out.len() <= 64);
            assert_eq!(out[2..8], [0x0a, 0xbc, 0x12, 0x34, 0x56, 0x78]);
            assert_eq!(Handle::read(&out.into()), Ok(handle.clone()));
            let name = target_name(handle.bucket, &handle.key);
            assert!(name.len() < 255);
            assert_eq!(stub_of(&name), Some((handle.bucket, handle.key)));
        }
        let long = Handle {
            bucket: Bucket(0),
            key: vec![0; MAX_SERVER_HANDLE + 3].into(),
        };
        assert_eq!(long.write(), Err(Status::ServerFault));
    }

    #[test]
    fn what_was_never_given_out_is_refused() {
        let good = [1, 0, 0, 2, 0, 0, 0, 2, 7];
        assert!(Handle::read(&Bytes::copy_from_slice(&good)).is_ok());
        for at in 0..2 {
            let mut bad = good;
            bad[at] ^= 1;
            let bad = Bytes::copy_from_slice(&bad);
            assert_eq!(Handle::read(&bad), Err(Status::BadHandle), "{at}");
        }
        for len in 0..9 {
            let cut = Bytes::copy_from_slice(&good[..len]);
            assert_eq!(Handle::read(&cut), Err(Status::BadHandle));
        }
        let long = vec![1, 0].into_iter().chain([0; 63]).collect();
        assert_eq!(Handle::read(&long), Err(Status::BadHandle));
        for name in [
            "",
            "00000001",
            "0001-aa",
            "00000001-a",
            "00000001-zz",
            "0000000g-aa",
            "+0000001-aa",
            "00000001-+a",
            "00000001-AA",
        ] {
            assert_eq!(stub_of(name.as_bytes()), None, "{name}");
        }
    }
}
