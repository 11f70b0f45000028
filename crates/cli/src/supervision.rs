//! Who runs replicas from outside: starts them, starts them again, and has them recover. A replica has no way to talk to it, but to say how it is
//! while it recovers.

mod account;
mod alive;
mod children;
mod control;
mod ear;
mod intentions;
mod lock;
mod others;
mod programs;
mod records;
mod recoveries;
mod schedule;
mod scribe;
mod turns;
mod voice;
pub(crate) mod window;

pub use account::Account;
pub use alive::SignsOfLife;
pub use children::{Certificates, Children, Launch, Role};
pub use control::{Control, Request, ask};
pub use ear::tell;
pub use lock::Lock;
pub use others::alarm;
pub use programs::{Programs, digest};
pub use records::{Records, steps_to_json};
pub use recoveries::{Recoveries, check_may_recover, now_ms};
pub use schedule::{Schedule, signing_pace};
pub use voice::intended;
pub use window::{EXCEPT as NO_WINDOW_FOR, lines as window_lines};

/// A test can't have what it needs: it is skipped, with a word, and fails where continuous integration runs.
#[cfg(test)]
pub(crate) fn left_out(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("skipped: {why}");
}
