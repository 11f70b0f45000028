//! Who runs replicas from outside: starts them, starts them again, and has them recover. A replica has no way to talk to it.

mod account;
mod alive;
mod children;
mod control;
mod programs;
mod records;
mod recoveries;
mod schedule;
mod window;

pub use account::Account;
pub use alive::SignsOfLife;
pub use children::{Children, Launch, Role};
pub use control::{Control, Request, ask};
pub use programs::{Programs, digest};
pub use records::{Records, steps_to_json};
pub use recoveries::{Recoveries, now_ms};
pub use schedule::Schedule;
pub use window::{EXCEPT as NO_WINDOW_FOR, lines as window_lines};
