//! What all targets check: bytes are refused, or they are the one form of a value.

use std::fmt::Debug;

use bytes::Bytes;
use quorate_wire::{Decode, Encode};

/// For types that have one form wherever they stand.
pub fn one_form<T: Encode + Decode + PartialEq + Debug>(data: &[u8]) {
    let Ok(value) = T::from_bytes(Bytes::copy_from_slice(data)) else {
        return;
    };
    let again = value.to_bytes();
    assert_eq!(again, data, "another form of {value:?}");
    assert_eq!(T::from_bytes(Bytes::from(again)).as_ref(), Ok(&value));
}
