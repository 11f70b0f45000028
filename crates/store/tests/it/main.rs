//! The store on a real disk.

mod blobs;
mod catch_up;
mod damage;
mod store;
