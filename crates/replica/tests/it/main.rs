//! A replica: agreement and execution together, without a network and a disk.

mod at_work;
mod backup;
mod faults;
mod layers;
mod support;
mod unreadable;
