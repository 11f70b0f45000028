//! The laboratory, `quorate-lab`: a program of its own, since this one is to be built at once.

use crate::ci::cargo;

/// One of its commands, with its arguments. It is built with defects that can be switched on, and with signatures that are remembered.
pub fn run<S: AsRef<str>>(args: &[S]) -> Result<(), String> {
    let build = ["run", "--quiet", "--package", "quorate-lab"];
    let features = ["--features", "mutants,remember", "--"];
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    cargo(&[&build[..], &features, &args].concat()).map_err(|_| "see above".into())
}
