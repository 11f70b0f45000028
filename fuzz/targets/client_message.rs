//! What a client says to a replica.
#![no_main]

use quorate_wire::message::ClientMessage;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_fuzz::one_form::<ClientMessage>(data));
