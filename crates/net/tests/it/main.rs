//! Links over real sockets on the loopback address.

mod barren;
mod epochs;
mod floods;
mod guests;
mod links;
mod sealers;
mod support;
