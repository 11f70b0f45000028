//! Who runs replicas from outside: starts them, starts them again, and has them recover. A replica has no way to talk to it.

mod children;
mod control;
mod recoveries;
mod schedule;

pub use children::{Children, Launch, Role};
pub use control::{Control, Request, ask};
pub use recoveries::Recoveries;
pub use schedule::Schedule;
