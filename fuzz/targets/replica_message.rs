//! What a replica says to a client.
#![no_main]

use quorate_wire::message::ReplicaMessage;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_fuzz::one_form::<ReplicaMessage>(data));
