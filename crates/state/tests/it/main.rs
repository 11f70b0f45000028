//! The replicated state and its partition tree.

#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod former;
mod layers;
mod nodes;
mod transfer;
mod tree;
