//! File handles: which object of which export. They are tagged, so that only what was handed out comes back: whoever may mount
//! one export can't make up a handle in another.
//!
//! A handle lives as long as its object: it holds nothing of this process. An object's number is never used again (files.md),
//! so it needs no generation; the key of the tags follows from the group's id, so a handle meets no other group's object.

use quorate_files::Ino;
use quorate_wire::Digest;

use crate::status::Status;

/// The length of each handle.
pub const HANDLE_BYTES: usize = 36;
/// The longest handle of anybody's (RFC 1813, 2.4).
pub const MAX_HANDLE_BYTES: usize = 64;
const HEAD: [u8; 4] = [1, 0, 0, 0];
const TAGGED: usize = 20;

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The export that it was handed out for.
    pub export: u64,
    /// The object.
    pub ino: Ino,
}

/// Makes and checks handles, and has the other numbers that are the same for a group wherever and whenever it is served.
#[derive(Clone)]
pub struct Secrets {
    key: [u8; 32],
    /// The file system's number in attributes.
    pub fsid: u64,
    /// What COMMIT and WRITE say is the same as long as nothing that was written is lost. All that is answered is durable
    /// in the group, so it is never another.
    pub verifier: [u8; 8],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets")
            .field("fsid", &self.fsid)
            .finish_non_exhaustive()
    }
}

impl Secrets {
    /// From the client's secret key and the group's id: fronts that have the same take each other's handles.
    pub fn new(seed: &[u8; 32], group: &Digest) -> Secrets {
        let mut key = blake3::Hasher::new_derive_key("quorate v1 nfs handles");
        key.update(seed).update(&group.0);
        let public = blake3::derive_key("quorate v1 nfs volume", &group.0);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&public[at..at + 8]);
            word
        };
        Secrets {
            key: *key.finalize().as_bytes(),
            fsid: u64::from_be_bytes(word(0)),
            verifier: word(8),
        }
    }

    /// The handle of an object.
    pub fn handle(&self, named: Named) -> [u8; HANDLE_BYTES] {
        let mut out = [0; HANDLE_BYTES];
        out[..4].copy_from_slice(&HEAD);
        out[4..12].copy_from_slice(&named.export.to_be_bytes());
        out[12..TAGGED].copy_from_slice(&named.ino.0.to_be_bytes());
        let tag = self.tag(&out[..TAGGED]);
        out[TAGGED..].copy_from_slice(&tag.as_bytes()[..HANDLE_BYTES - TAGGED]);
        out
    }

    /// What a handle names.
    ///
    /// # Errors
    /// [`Status::BadHandle`] for what never was a handle; [`Status::Stale`] for one of another group or key.
    pub fn read(&self, handle: &[u8]) -> Result<Named, Status> {
        if handle.len() != HANDLE_BYTES || handle[..4] != HEAD {
            return Err(Status::BadHandle);
        }
        let (tagged, tag) = handle.split_at(TAGGED);
        let expected = self.tag(tagged);
        // The rest of the hash is not in the handle; its type compares in constant time.
        let mut found = *expected.as_bytes();
        found[..tag.len()].copy_from_slice(tag);
        if expected != blake3::Hash::from_bytes(found) {
            return Err(Status::Stale);
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&tagged[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Ok(Named {
            export: word(4),
            ino: Ino(word(12)),
        })
    }

    fn tag(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.key, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: Named = Named {
        export: 7,
        ino: Ino(1 << 40),
    };

    /// A handle comes back as what it was handed out for; not with a bit changed, nor under another group or key.
    #[test]
    fn only_what_was_handed_out_is_taken() {
        let secrets = Secrets::new(&[1; 32], &Digest([2; 32]));
        let handle = secrets.handle(NAMED);
        assert_eq!(secrets.read(&handle), Ok(NAMED));
        for bit in 0..HANDLE_BYTES * 8 {
            let mut other = handle;
            other[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 32 {
                Status::BadHandle
            } else {
                Status::Stale
            };
            assert_eq!(secrets.read(&other), Err(expected), "bit {bit}");
        }
        for len in 0..HANDLE_BYTES {
            assert_eq!(secrets.read(&handle[..len]), Err(Status::BadHandle));
        }
        for other in [
            Secrets::new(&[1; 32], &Digest([3; 32])),
            Secrets::new(&[3; 32], &Digest([2; 32])),
        ] {
            assert_eq!(other.read(&handle), Err(Status::Stale));
        }
        let again = Secrets::new(&[1; 32], &Digest([2; 32]));
        assert_eq!(again.read(&handle), Ok(NAMED));
        assert_eq!(
            (again.fsid, again.verifier),
            (secrets.fsid, secrets.verifier)
        );
    }
}
