//! What must hold in every run, one property a file.
//!
//! | property | what is compared |
//! |---|---|
//! | [`agreement`] | what correct replicas execute at each place, also after a restart |
//! | [`validity`] | what is executed, with what clients really sent |
//! | [`reference`] | results and roots, with those of one more executor that runs the agreed batches by itself |
//! | [`kept`] | which results are kept for requests that are repeated, with the bytes of all results |
//! | [`order`] | the agreed order, with the order in which clients saw their operations begin and end |
//! | [`reads`] | reads that were not ordered, with the states of the same executor between their begin and end |
//! | [`lists`] | what clients read, with itself: no look at the replicas |
//!
//! Durability and exactly-once follow from [`reference`] (a result that was taken is that of an executed request, and the
//! state at the end has it) and [`lists`] (each token stands once in the final list). That all operations end
//! and all correct replicas meet is looked at by the world itself once the storm is over.

pub mod agreement;
pub mod kept;
pub mod lists;
pub mod order;
pub mod reads;
pub mod reference;
pub mod validity;

use std::any::Any;
use std::fmt;

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub property: &'static str,
    /// What was seen.
    pub what: String,
}

impl Failure {
    /// A property that does not hold, with what shows it.
    pub fn new(property: &'static str, what: impl Into<String>) -> Failure {
        Failure {
            property,
            what: what.into(),
        }
    }

    /// A panic of the code under test, which is where an invariant does not hold.
    pub fn panicked(panic: &(dyn Any + Send)) -> Failure {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Failure::new("invariants", text.unwrap_or("a panic without words"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.what)
    }
}
