//! The store on a real disk.

mod blobs;
#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod catch_up;
mod damage;
mod store;
