//! The agreement core, the real one and not a copy, explored exhaustively: four replicas, of which one may say anything of a bounded
//! vocabulary at any time to anyone, a place or two to agree on, a view change or two, and a network that delivers what was said
//! in any order, at any time, again, or never.
//!
//! [`scenario`] says what there is, [`cast`] what the faulty replica can say, [`local`] keeps the states of one replica, [`explore`]
//! searches those of the group, [`checks`] look at each, [`live`] runs some of them to their end. The manual is `docs/model.md`.

mod cast;
pub mod checks;
mod explore;
mod live;
mod local;
mod said;
pub mod scenario;
mod words;

pub use checks::Violation;
pub use explore::{Counts, Explorer, Options};
pub use said::Which;
pub use scenario::Scenario;

/// Explores a scenario. If something does not hold it is explored once more, to tell the shortest way there.
///
/// # Errors
/// What does not hold.
pub fn explore(scenario: &Scenario, options: Options) -> Result<Counts, Violation> {
    let result = Explorer::new(scenario, options)?.run();
    match result {
        Err(_) if !options.trace => {
            let options = Options {
                trace: true,
                ..options
            };
            Explorer::new(scenario, options)?.run()
        }
        result => result,
    }
}
