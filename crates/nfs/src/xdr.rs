//! XDR (RFC 4506), as far as ONC RPC, MOUNT and NFS need it. Byte strings are slices of what came, and nothing is allocated
//! by a length that only stands in the input.

use bytes::{Buf, Bytes};

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("cut off")]
    Short,
    /// A part is longer than it can be.
    #[error("{0} too long")]
    TooLong(&'static str),
    /// A part is none of what it can be.
    #[error("not a {0}")]
    Value(&'static str),
}

/// What reading brings.
pub type Read<T> = Result<T, Malformed>;

/// Reads values from the front of shared bytes.
#[derive(Clone, Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: Bytes) -> Reader {
        Reader { rest: bytes }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }

    /// An unsigned integer; also the number of an enumeration.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`Malformed`], also for any number but 0 and 1.
    pub fn bool(&mut self) -> Read<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value("boolean")),
        }
    }

    /// Something that may be absent.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Reader) -> Read<T>) -> Read<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    /// Opaque bytes of a fixed number, which is a multiple of four in all that is read here.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.rest.get(..N).ok_or(Malformed::Short)?);
        self.rest.advance(N);
        Ok(out)
    }

    /// Opaque bytes of any number up to `most`. What fills them up to a multiple of four is not looked at.
    ///
    /// # Errors
    /// [`Malformed`]; `what` names the part.
    pub fn opaque(&mut self, most: usize, what: &'static str) -> Read<Bytes> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Malformed::TooLong(what));
        }
        let padded = len.next_multiple_of(4);
        if padded > self.rest.len() {
            return Err(Malformed::Short);
        }
        let mut bytes = self.rest.split_to(padded);
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// As [`Reader`], of bytes that somebody else keeps.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    rest: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> View<'a> {
        View { rest: bytes }
    }

    /// What was not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An unsigned integer; also the number of an enumeration.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    #[inline]
    pub fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_be_bytes(*self.array()?))
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    #[inline]
    pub fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_be_bytes(*self.array()?))
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`Malformed`], also for any number but 0 and 1.
    #[inline]
    pub fn bool(&mut self) -> Read<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value("boolean")),
        }
    }

    /// Something that may be absent.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn option<T>(&mut self, read: impl FnOnce(&mut View<'a>) -> Read<T>) -> Read<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    /// Opaque bytes of a fixed number, which is a multiple of four in all that is read here.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Read<&'a [u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Opaque bytes of any number up to `most`. What fills them up to a multiple of four is not looked at.
    ///
    /// # Errors
    /// [`Malformed`]; `what` names the part.
    #[inline]
    pub fn opaque(&mut self, most: usize, what: &'static str) -> Read<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Malformed::TooLong(what));
        }
        let padded = len.next_multiple_of(4);
        let (bytes, rest) = self.rest.split_at_checked(padded).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(&bytes[..len])
    }
}

/// Writes values one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    /// What was written so far.
    pub out: Vec<u8>,
}

impl Writer {
    /// Writes with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer {
            out: Vec::with_capacity(bytes),
        }
    }

    /// An unsigned integer; also the number of an enumeration.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Opaque bytes of a fixed number, which is a multiple of four in all that is written here.
    #[inline]
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Opaque bytes with their number. Nothing that is written is longer than a few megabytes.
    #[inline]
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.out.extend_from_slice(bytes);
        let zeros = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.extend_from_slice(&[0; 3][..zeros]);
    }
}

/// How many bytes opaque bytes take up with their number and what fills them up.
pub fn opaque_bytes(len: usize) -> usize {
    4 + len.next_multiple_of(4)
}
