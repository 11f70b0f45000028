//! `cargo xtask mutants`: puts known bugs into the code, one after the other, and sees that the simulator finds each.

#[cfg(feature = "mutants")]
mod hunt;

/// `cargo xtask mutants`.
#[cfg(feature = "mutants")]
pub fn main(args: &[String]) -> Result<(), String> {
    hunt::main(args)
}

/// `cargo xtask mutants`: builds this program once more, with the defects in it, and runs that.
#[cfg(not(feature = "mutants"))]
pub fn main(args: &[String]) -> Result<(), String> {
    crate::again("mutants", args)
}
