//! libFuzzer over the target that the environment's `TARGET` names.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::sync::OnceLock;

use quorate_fuzz::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|t| t.name == name);
        found.unwrap_or_else(|| panic!("TARGET={name} is none of {}", quorate_fuzz::names()))
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (target().run)(data));

#[cfg(not(feature = "fuzzer"))]
fn main() {
    eprintln!("built without libFuzzer: give --features fuzzer, see docs/fuzzing.md");
    std::process::exit(2);
}
