//! What executes the order, against the same operations one after the other.

mod arrays;
mod flight;
mod graph;
mod sessions;
mod support;
