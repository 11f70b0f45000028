//! Linearizability against the agreed order: an operation that ended before another began stands before it, and each
//! result is the one that the operation has at its place.

use super::{Failure, reference::Reference};
use crate::history::Operation;

/// Holds the operations of all clients against the reference's order.
pub fn check(operations: &[Operation], reference: &Reference) -> Result<(), Failure> {
    let mut placed: Vec<(u64, &Operation)> = Vec::new();
    for operation in operations {
        let (Some(request), Some((_, result))) = (operation.request, &operation.done) else {
            continue;
        };
        let places = reference.places(request, result);
        let Some(&first) = places.first() else {
            return Err(Failure::new(
                "durability",
                format!(
                    "{operation} has a result that none of its {} executions gave",
                    reference.outcomes(request)
                ),
            ));
        };
        // A read that was executed more than once has several places; `lists` looks at what it saw.
        if !operation.reads || places.len() == 1 {
            placed.push((first, operation));
        }
    }
    placed.sort_by_key(|(place, _)| *place);
    // Whoever stands later must not have ended before one that stands earlier began.
    let mut latest_begin: Option<(u64, &Operation)> = None;
    for &(place, operation) in &placed {
        let (end, _) = operation.done.as_ref().expect("only those that ended");
        if let Some((begin, earlier)) = latest_begin
            && begin > *end
        {
            return Err(Failure::new(
                "linearizability",
                format!(
                    "{operation} stands at {place}, behind {earlier}, which began after it ended"
                ),
            ));
        }
        if latest_begin.is_none_or(|(begin, _)| begin < operation.begun) {
            latest_begin = Some((operation.begun, operation));
        }
    }
    Ok(())
}
