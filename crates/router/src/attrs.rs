//! Attributes as servers send them (`fattr3`, RFC 1813, 2.6), and the two numbers in them that clients see otherwise.

use quorate_nfs::xdr::{Read, Reader};

use crate::layout::{Bucket, Volume};

/// The bytes of `fattr3`.
pub const ATTR_BYTES: usize = 84;
/// Where the file system's number stands in it.
const FSID: usize = 44;
/// Where the file's number stands in it.
const FILEID: usize = 52;

/// The owner of stubs. No user has this number: the router takes no call by it, and sets no owner to it for anybody.
pub const STUB_OWNER: u32 = 0x5152_4F55;

/// `ftype3` of a directory.
pub const DIRECTORY: u32 = 2;

/// Attributes of an object on a server, to the byte as it sent them.
#[derive(Clone, PartialEq, Eq)]
pub struct Attrs(pub [u8; ATTR_BYTES]);

impl std::fmt::Debug for Attrs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attrs")
            .field("kind", &self.kind())
            .field("mode", &self.mode())
            .field("uid", &self.uid())
            .field("gid", &self.gid())
            .field("fileid", &self.fileid())
            .finish_non_exhaustive()
    }
}

impl Attrs {
    /// Reads them.
    ///
    /// # Errors
    /// If they are cut off.
    pub fn read(r: &mut Reader) -> Read<Attrs> {
        Ok(Attrs(r.array()?))
    }

    fn word(&self, index: usize) -> u32 {
        let at = index * 4;
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn long(&self, index: usize) -> u64 {
        u64::from(self.word(index)) << 32 | u64::from(self.word(index + 1))
    }

    /// `ftype3`.
    pub fn kind(&self) -> u32 {
        self.word(0)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == DIRECTORY
    }

    /// Permission bits.
    pub fn mode(&self) -> u32 {
        self.word(1) & 0o7777
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.word(3)
    }

    /// The owner's group.
    pub fn gid(&self) -> u32 {
        self.word(4)
    }

    /// The file's number on its server.
    pub fn fileid(&self) -> u64 {
        self.long(FILEID / 4)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.long(5)
    }

    /// Major and minor number of a device.
    pub fn device(&self) -> (u32, u32) {
        (self.word(9), self.word(10))
    }

    /// When it was last read and written, in seconds since 1970 and nanoseconds.
    pub fn times(&self) -> [(u32, u32); 2] {
        [
            (self.word(15), self.word(16)),
            (self.word(17), self.word(18)),
        ]
    }

    /// If this is a stub, the bucket in which its target lies.
    pub fn stub(&self) -> Option<Bucket> {
        let is_stub = self.is_dir() && self.uid() == STUB_OWNER && self.mode() == 0;
        is_stub.then(|| Bucket(self.gid()))
    }
}

/// Changes attributes in place to what clients see.
pub fn show(attrs: &mut Attrs, fileid: u64, fsid: u64) {
    attrs.0[FSID..FILEID].copy_from_slice(&fsid.to_be_bytes());
    attrs.0[FILEID..FILEID + 8].copy_from_slice(&fileid.to_be_bytes());
}

/// A file's number as clients see it, where no table says another.
///
/// The volume's number is turned over into the topmost bits: no two objects have the same number as long as servers leave as many of
/// them zero as the highest volume's number has; and whatever servers use, no two objects of one volume have.
pub fn fileid(volume: Volume, number: u64) -> u64 {
    number ^ u64::from(volume.0).reverse_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_files_are_one_space() {
        let mut seen = std::collections::BTreeSet::new();
        for volume in 0..64 {
            for file in [1u64, 2, 64, 128, (1 << 58) - 1, 1 << 57] {
                let shown = fileid(Volume(volume), file);
                assert!(seen.insert(shown), "{volume} {file}");
                if volume == 0 {
                    assert_eq!(shown, file);
                }
            }
        }
    }

    #[test]
    fn what_clients_see_stands_where_the_standard_says() {
        let mut attrs = Attrs([0; ATTR_BYTES]);
        show(&mut attrs, fileid(Volume(1), 9), 0x0102_0304_0506_0708);
        let attrs = attrs.0;
        assert_eq!(attrs[44..52], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(attrs[52..60], [128, 0, 0, 0, 0, 0, 0, 9]);
        assert!(attrs[..44].iter().chain(&attrs[60..]).all(|&b| b == 0));
    }
}
