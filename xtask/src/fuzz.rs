//! The fuzz targets, without a fuzzer: a build that needs no C++, the committed corpus, and mutations of it.

use crate::ci::cargo;

/// `cargo xtask fuzz`.
pub fn replay(args: &[String]) -> Result<(), String> {
    let build = [
        "run",
        "--quiet",
        "-p",
        "quorate-fuzz",
        "--bin",
        "replay",
        "--",
    ];
    let args = args.iter().map(String::as_str);
    cargo(&build.into_iter().chain(args).collect::<Vec<_>>())
}
