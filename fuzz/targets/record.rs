//! Records of the write-ahead log.
#![no_main]

use quorate_agreement::Record;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_fuzz::one_form::<Record>(data));
