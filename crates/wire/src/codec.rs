//! The canonical encoding.
//!
//! Integers are little-endian and of fixed width. A sequence is a `u32` count and its items. A flag is one
//! byte, 0 or 1. An enum is one tag byte and its fields. Sets are sequences in strictly rising order. Nothing
//! is padded, and [`Reader::finish`] refuses trailing bytes, so equal values have equal bytes and the other way round.
//!
//! Counts are checked against the bytes that are left before anything is allocated, so that a hostile length costs nothing.
//! So an item of a sequence has at least one byte.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::{Buf, Bytes};
use core::fmt;

use crate::segments::SegmentWriter;

/// Items of a sequence for which there is room before the first was read: most sequences are no longer.
const ITEMS_AT_ONCE: usize = 64;

/// Why bytes are not the encoding of a value. All of these are the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end before the value does.
    Truncated,
    /// Bytes are left after the value.
    TrailingBytes,
    /// A tag, flag or count that no value has; with the name of what was being read.
    Invalid(&'static str),
    /// A count above the bound that the format states.
    TooLong(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Truncated => write!(f, "the bytes end before the value does"),
            DecodeError::TrailingBytes => write!(f, "bytes are left after the value"),
            DecodeError::Invalid(what) => write!(f, "invalid {what}"),
            DecodeError::TooLong(what) => write!(f, "too many of {what}"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// A value with a canonical byte form.
pub trait Encode {
    /// Appends the value's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Appends the same bytes; long strings among them are shared with the value, not copied.
    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.encode(out.tail());
    }

    /// How many of them are in byte strings of any length: what to make room for beforehand.
    fn string_bytes(&self) -> usize {
        0
    }

    /// The value's bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SMALL_BYTES + self.string_bytes());
        self.encode(&mut out);
        out
    }
}

/// Room for what is not in byte strings: most messages need no more.
const SMALL_BYTES: usize = 128;

/// A value that can be read from its canonical byte form.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being the canonical form of a value.
    fn decode(r: &mut Reader) -> Result<Self, DecodeError>;

    /// Reads one value that must take up all of `bytes`.
    ///
    /// # Errors
    /// As [`Decode::decode`], and [`DecodeError::TrailingBytes`].
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let value = Self::decode(&mut r)?;
        r.finish()?;
        Ok(value)
    }

    /// As [`Decode::from_bytes`], copying `bytes` first. For small values.
    ///
    /// # Errors
    /// As [`Decode::from_bytes`].
    fn from_slice(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::from_bytes(Bytes::copy_from_slice(bytes))
    }
}

/// Reads values from shared bytes; byte strings are slices of them, not copies.
#[derive(Clone, Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: Bytes) -> Reader {
        Reader { rest: bytes }
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Takes the next `n` bytes, shared with the input.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn take(&mut self, n: usize) -> Result<Bytes, DecodeError> {
        if n > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(self.rest.split_to(n))
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        let head = self.rest.get(..N).ok_or(DecodeError::Truncated)?;
        out.copy_from_slice(head);
        // Not `slice`, which would count a reference up and another down for each integer.
        self.rest.advance(N);
        Ok(out)
    }

    /// Reads a count of items of which each takes at least `item_bytes`, so that the count is bounded by the input.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the input can't hold so many.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let count = u32::decode(self)? as usize;
        if count.saturating_mul(item_bytes.max(1)) > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`] if something is left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TrailingBytes)
        }
    }
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Encode for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $t {
            fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
                Ok(<$t>::from_le_bytes(r.array()?))
            }
        }
    )*};
}
integer!(u8, u16, u32, u64, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(r)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("flag")),
        }
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl Decode for () {
    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.array()
    }
}

impl Encode for Bytes {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        out.extend_from_slice(self);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        (self.len() as u32).encode(out.tail());
        out.put(self);
    }

    fn string_bytes(&self) -> usize {
        self.len()
    }
}

impl Decode for Bytes {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let n = r.count(1)?;
        r.take(n)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.is_some().encode(out.tail());
        if let Some(value) = self {
            value.encode_shared(out);
        }
    }

    fn string_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::string_bytes)
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if bool::decode(r)? {
            Some(T::decode(r)?)
        } else {
            None
        })
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        for item in self {
            item.encode(out);
        }
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        (self.len() as u32).encode(out.tail());
        for item in self {
            item.encode_shared(out);
        }
    }

    fn string_bytes(&self) -> usize {
        self.iter().map(T::string_bytes).sum()
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.as_slice().encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        self.as_slice().string_bytes()
    }
}

impl<T: Decode> Decode for Vec<T> {
    /// A count, then the items. Grows as items are read, so that memory follows the input and not the count.
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let count = r.count(1)?;
        items(r, count)
    }
}

/// A shared value has its own encoding.
impl<T: Encode> Encode for Arc<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        (**self).encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        (**self).string_bytes()
    }
}

impl<T: Decode> Decode for Arc<T> {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        T::decode(r).map(Arc::new)
    }
}

/// Reads a sequence of at most `most` items; more are refused before the first is read. `what` names them.
///
/// # Errors
/// [`DecodeError::TooLong`], or what keeps the bytes from being the items.
pub fn bounded<T: Decode>(
    r: &mut Reader,
    most: usize,
    what: &'static str,
) -> Result<Vec<T>, DecodeError> {
    let count = r.count(1)?;
    if count > most {
        return Err(DecodeError::TooLong(what));
    }
    items(r, count)
}

fn items<T: Decode>(r: &mut Reader, count: usize) -> Result<Vec<T>, DecodeError> {
    let mut out = Vec::with_capacity(count.min(ITEMS_AT_ONCE));
    for _ in 0..count {
        out.push(T::decode(r)?);
    }
    Ok(out)
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.0.encode_shared(out);
        self.1.encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        self.0.string_bytes() + self.1.string_bytes()
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok((A::decode(r)?, B::decode(r)?))
    }
}

/// As what is in it.
impl<T: Encode> Encode for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        (**self).encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        (**self).string_bytes()
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        T::decode(r).map(Box::new)
    }
}

/// Declares a struct together with its canonical encoding: its fields, in order. A field that is a sequence may have a
/// bound and a name for its items: `pub field: Vec<Item> => 64, "items"`.
#[macro_export]
macro_rules! record {
    (@decode $r:ident, $ty:ty) => { <$ty as $crate::codec::Decode>::decode($r)? };
    (@decode $r:ident, $ty:ty, $most:expr, $what:literal) => { $crate::codec::bounded($r, $most, $what)? };
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$fdoc:meta])* pub $field:ident : $ty:ty $(=> $most:expr, $what:literal)?),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut alloc::vec::Vec<u8>) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }

            fn encode_shared(&self, out: &mut $crate::SegmentWriter) {
                $($crate::codec::Encode::encode_shared(&self.$field, out);)*
            }

            fn string_bytes(&self) -> usize {
                0 $(+ $crate::codec::Encode::string_bytes(&self.$field))*
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(r: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                Ok($name { $($field: $crate::record!(@decode r, $ty $(, $most, $what)?)),* })
            }
        }
    };
}

/// Declares an enum of one-field variants together with its canonical encoding: the tag byte, then the field.
#[macro_export]
macro_rules! tagged {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$vdoc:meta])* $tag:literal => $variant:ident($ty:ty)),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant($ty)),* }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut alloc::vec::Vec<u8>) {
                match self {
                    $($name::$variant(value) => { out.push($tag); $crate::codec::Encode::encode(value, out); })*
                }
            }

            fn encode_shared(&self, out: &mut $crate::SegmentWriter) {
                match self {
                    $($name::$variant(value) => { out.tail().push($tag); $crate::codec::Encode::encode_shared(value, out); })*
                }
            }

            fn string_bytes(&self) -> usize {
                match self {
                    $($name::$variant(value) => $crate::codec::Encode::string_bytes(value),)*
                }
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(r: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Decode>::decode(r)? {
                    $($tag => Ok($name::$variant(<$ty as $crate::codec::Decode>::decode(r)?)),)*
                    _ => Err($crate::codec::DecodeError::Invalid(concat!("tag of ", stringify!($name)))),
                }
            }
        }
    };
}
