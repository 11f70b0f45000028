//! What will happen, by time; at one time in the order in which it was decided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Event;

/// Events wait in slots that keep their places, since they are large: what is sorted are their times.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
    decided: u64,
}

impl Queue {
    /// Something will happen at a time.
    pub fn push(&mut self, time: u64, event: Event) {
        self.decided += 1;
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(place) => *place = Some(event),
            None => self.slots.push(Some(event)),
        }
        self.order.push(Reverse((time, self.decided, slot)));
    }

    /// When the next thing happens.
    pub fn next_time(&self) -> Option<u64> {
        self.order.peek().map(|Reverse((time, ..))| *time)
    }

    /// The next thing, and when it happens.
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, _, slot)) = self.order.pop()?;
        self.free.push(slot);
        let event = self.slots[slot].take();
        Some((time, event.expect("a slot is taken once")))
    }
}
