//! A replica: agreement and execution together, without a network and a disk.

mod at_work;
mod backup;
mod faults;
mod layers;
mod results;
mod support;
mod unreadable;
