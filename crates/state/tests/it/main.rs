//! The replicated state and its partition tree.

mod former;
mod layers;
mod nodes;
mod transfer;
mod tree;
