//! Segments of the write-ahead log.
#![no_main]

use bytes::Bytes;
use quorate_wire::frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (frames, _) = frame::read(&Bytes::copy_from_slice(data));
    let mut again = Vec::new();
    for (index, payload) in &frames {
        frame::write(&mut again, *index, payload);
    }
    assert!(data.starts_with(&again));
});
