//! What executes the order, against the same operations one after the other.

mod arrays;
#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod flight;
mod graph;
mod sessions;
mod support;
