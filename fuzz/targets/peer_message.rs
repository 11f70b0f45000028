//! What one replica says to another.
#![no_main]

use quorate_wire::message::PeerMessage;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_fuzz::one_form::<PeerMessage>(data));
