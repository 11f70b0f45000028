//! The key pairs of replicas and clients, by the byte of which their secrets consist.

use std::sync::OnceLock;

use quorate_wire::KeyPair;

/// Each is made once: that costs as much as to sign, and every run has the same.
static MADE: [OnceLock<KeyPair>; 256] = [const { OnceLock::new() }; 256];

/// The key pair of a byte.
pub fn key_pair(byte: u8) -> KeyPair {
    let made = &MADE[usize::from(byte)];
    made.get_or_init(|| KeyPair::from_seed(&[byte; 32])).clone()
}
