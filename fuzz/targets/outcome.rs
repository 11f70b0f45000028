//! Results: the executor's, and the file service's within it.
#![no_main]

use quorate_wire::message::Outcome;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    quorate_fuzz::one_form::<Outcome>(data);
    quorate_fuzz::one_form::<quorate_files::Outcome>(data);
});
