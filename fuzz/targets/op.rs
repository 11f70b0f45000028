//! Operations on the volume.
#![no_main]

use quorate_files::Op;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_fuzz::one_form::<Op>(data));
