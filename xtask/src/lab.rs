//! The laboratory, `quorate-lab`: a program of its own, since this one is to be built at once.

use crate::ci::{cargo, program_with, target};
use crate::tests::{EVERYTHING, LINTED};

/// One of its commands, with its arguments. It is built with defects that can be switched on, and with signatures that are remembered.
pub fn run<S: AsRef<str>>(args: &[S]) -> Result<(), String> {
    let build = ["run", "--quiet", "--package", "quorate-lab"];
    let features = ["--features", "mutants,remember", "--"];
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    cargo(&[&build[..], &features, &args].concat()).map_err(|_| "see above".into())
}

/// The same with the one that was built with all tests: it builds those that look for defects as they are built already.
pub fn run_built(args: &[&str]) -> Result<(), String> {
    let program = format!("{}/debug/quorate-lab", target());
    let selection = EVERYTHING.join(" ");
    let vars = [&LINTED[..], &[("QUORATE_LAB_BUILD", &*selection)]].concat();
    program_with(&program, args, &vars)
}
