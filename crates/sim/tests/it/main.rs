//! Whole groups in simulated time.

mod guests;
mod histories;
mod intrusion;
mod rota;
mod scenarios;
mod seeds;
mod twins;
mod view_changes;
