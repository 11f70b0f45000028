//! The server over TCP, in front of the real file service in this process; the client's encoding is another hand's.

mod calls;
#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod client;
mod exports;
#[path = "../../../client/tests/it/common/mod.rs"]
mod group;
mod hostile;
mod retries;
mod same_tree;
