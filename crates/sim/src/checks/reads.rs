//! Linearizability of reads that were not ordered: each result is that of the state after some agreed batch; not of one before
//! what had ended when the read began, and not of one that had not been agreed on when it ended.

use std::collections::BTreeMap;

use quorate_wire::{ClientId, Seq};

use super::agreement::Agreement;
use super::{Failure, reference::Reference};
use crate::history::Operation;

/// A read with the places between which its state must lie.
struct Open<'a> {
    operation: &'a Operation,
    end: u64,
    from: Seq,
}

/// Executes all batches once more and finds a state for each read. `ordered` has seen all batches, `again` none.
pub fn check(
    operations: &[Operation],
    client: impl Fn(usize) -> ClientId,
    agreement: &Agreement,
    ordered: &Reference,
    mut again: Reference,
) -> Result<(), Failure> {
    let mut open = unordered(operations, ordered);
    while !open.is_empty() {
        let at = again.at();
        // In the order in which they began; a read takes no earlier state than one that had ended before it.
        let mut waiting: Vec<Open> = Vec::new();
        let mut first_end = open.iter().map(|r| r.end).collect::<Vec<u64>>();
        first_end.sort_unstable();
        for read in open {
            let blocked = first_end
                .first()
                .is_some_and(|end| *end < read.operation.begun);
            let fits = !blocked
                && read.from <= at
                && again.read(client(read.operation.client), read.operation)?
                    == read
                        .operation
                        .done
                        .as_ref()
                        .map(|(_, result)| result.clone());
            if !fits && read.operation.agreed_at_end <= at {
                let what = format!(
                    "{} read what no state from {:?} to {:?} holds",
                    read.operation, read.from, read.operation.agreed_at_end
                );
                return Err(Failure::new("linearizability", what));
            }
            match fits {
                true => first_end.retain(|end| *end != read.end),
                false => waiting.push(read),
            }
        }
        open = waiting;
        if open.is_empty() {
            break;
        }
        let Some((batch, requests)) = agreement.content(at.next()) else {
            let what = format!("a read waits for a batch after {at:?}, which nobody has");
            return Err(Failure::new("linearizability", what));
        };
        again.execute(&batch, &requests)?;
    }
    Ok(())
}

/// The reads that were not ordered, by when they began, each with the last place that had ended before.
fn unordered<'a>(operations: &'a [Operation], ordered: &Reference) -> Vec<Open<'a>> {
    // By end: the highest place of all that had ended by then.
    let mut ends: BTreeMap<u64, Seq> = BTreeMap::new();
    for operation in operations {
        let (Some(request), Some((end, result))) = (operation.request, &operation.done) else {
            continue;
        };
        if let Some(seq) = ordered.first_seq(request, result) {
            let known = ends.entry(*end).or_default();
            *known = seq.max(*known);
        }
    }
    let mut highest = Seq(0);
    for seq in ends.values_mut() {
        highest = highest.max(*seq);
        *seq = highest;
    }
    let mut reads: Vec<Open> = operations
        .iter()
        .filter(|o| o.request.is_none())
        .filter_map(|operation| {
            let (end, _) = operation.done.as_ref()?;
            let before = ends.range(..operation.begun).next_back();
            Some(Open {
                operation,
                end: *end,
                from: before.map_or(Seq(0), |(_, seq)| *seq),
            })
        })
        .collect();
    reads.sort_by_key(|r| r.operation.begun);
    reads
}
