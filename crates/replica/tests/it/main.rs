//! A replica: agreement and execution together, without a network and a disk.

mod at_work;
mod faults;
mod unreadable;
