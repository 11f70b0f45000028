//! What the log's window and the time of agreement cost where operations queue, as a model of nothing else:
//! `cargo run -p quorate-bench --example window`.
//!
//! Clients ask again as soon as they are answered; each operation takes 20 ms on one of 100 threads and waits for those of its
//! bucket. A place in the log holds so many requests, and at most `LOG_WINDOW` places are given above the last checkpoint, which
//! there is when all operations up to its place are done. From an answer until the client's next request has its place there may be some time: that of
//! the answer's way back, of the request's, and of agreement.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW};
use quorate_bench::load::Random;

const THREADS: usize = 100;
const WAIT_MS: f64 = 20.0;
const OPERATIONS: u64 = 200_000;

struct Model {
    random: Random,
    per_place: u64,
    window: u64,
    /// Requests that have a place.
    placed: u64,
    waiting: usize,
    stable: u64,
    /// Operations that are not done, by the checkpoint that waits for them; the first is the next.
    undone: VecDeque<u64>,
    /// Of each bucket the operations in order, as the checkpoint that each belongs to.
    buckets: Vec<VecDeque<u64>>,
    /// Buckets whose first operation waits for a thread.
    ready: VecDeque<usize>,
}

impl Model {
    fn checkpoint(&self) -> u64 {
        (self.placed / self.per_place) / CHECKPOINT_INTERVAL
    }

    fn give_places(&mut self) {
        while self.waiting > 0 && self.placed / self.per_place < self.stable + self.window {
            let checkpoint = self.checkpoint();
            let next = self.stable / CHECKPOINT_INTERVAL;
            let at = (checkpoint - next) as usize;
            if self.undone.len() <= at {
                self.undone.resize(at + 1, 0);
            }
            self.undone[at] += 1;
            let bucket = self.random.below(self.buckets.len() as u32) as usize;
            self.buckets[bucket].push_back(checkpoint);
            if self.buckets[bucket].len() == 1 {
                self.ready.push_back(bucket);
            }
            self.placed += 1;
            self.waiting -= 1;
        }
    }

    fn done(&mut self, bucket: usize) {
        let next = self.stable / CHECKPOINT_INTERVAL;
        if let Some(checkpoint) = self.buckets[bucket].pop_front() {
            self.undone[(checkpoint - next) as usize] -= 1;
        }
        if !self.buckets[bucket].is_empty() {
            self.ready.push_back(bucket);
        }
        while self.undone.front() == Some(&0)
            && self.checkpoint() > self.stable / CHECKPOINT_INTERVAL
        {
            self.undone.pop_front();
            self.stable += CHECKPOINT_INTERVAL;
        }
    }
}

/// Operations in a second; `agreement_us`: from an answer to the next place.
fn throughput(
    (clients, factor): (usize, usize),
    (per_place, window): (u64, u64),
    agreement_us: u64,
) -> f64 {
    let mut model = Model {
        random: Random(1),
        per_place,
        window,
        placed: 0,
        waiting: clients,
        stable: 0,
        undone: VecDeque::new(),
        buckets: vec![VecDeque::new(); factor],
        ready: VecDeque::new(),
    };
    // When each that runs is done, in microseconds, and when those that were answered ask again.
    let mut running = BinaryHeap::new();
    let mut asking = VecDeque::new();
    let (mut now_us, mut done) = (0, 0);
    while done < OPERATIONS {
        model.give_places();
        while running.len() < THREADS
            && let Some(bucket) = model.ready.pop_front()
        {
            running.push(Reverse((now_us + (WAIT_MS * 1e3) as u64, bucket)));
        }
        let next_done = running.peek().map(|Reverse((done_us, _))| *done_us);
        let next_ask = asking.front().copied();
        match next_ask.is_some_and(|ask| next_done.is_none_or(|done| ask <= done)) {
            true => {
                asking.pop_front();
                now_us = next_ask.unwrap_or(now_us);
                model.waiting += 1;
            }
            false => {
                let Some(Reverse((done_us, bucket))) = running.pop() else {
                    break;
                };
                now_us = done_us;
                done += 1;
                model.done(bucket);
                asking.push_back(now_us + agreement_us);
            }
        }
    }
    OPERATIONS as f64 / (now_us as f64 / 1e6)
}

fn main() {
    const NO_WINDOW: (u64, u64) = (1, u64::MAX / 2);
    println!("150 clients, by how many requests have one place:");
    for factor in [1, 5, 10, 20, 50, 100, 150] {
        let ideal = throughput((150, factor), NO_WINDOW, 0);
        let shares = [1, 2, 4, 8].map(|per_place| {
            let share = throughput((150, factor), (per_place, LOG_WINDOW), 0) / ideal;
            format!("{per_place} a place {:.0} %", share * 100.0)
        });
        println!("factor {factor}: ideal {ideal:.0}/s; {}", shares.join(", "));
    }
    println!("200 clients without a window, by the time from an answer to the next place:");
    for factor in [1, 5, 10, 20, 50, 100, 150] {
        let ideal = throughput((200, factor), NO_WINDOW, 0);
        let shares = [1, 2, 4, 6].map(|ms| {
            let share = throughput((200, factor), NO_WINDOW, ms * 1_000) / ideal;
            format!("{ms} ms {:.1} %", share * 100.0)
        });
        println!("factor {factor}: ideal {ideal:.0}/s; {}", shares.join(", "));
    }
    println!("200 clients with the window, by both:");
    for factor in [50, 100, 150] {
        let ideal = throughput((200, factor), NO_WINDOW, 0);
        for ms in [2, 4] {
            let shares = [2, 4, 6, 8].map(|per_place| {
                let window = (per_place, LOG_WINDOW);
                let share = throughput((200, factor), window, ms * 1_000) / ideal;
                format!("{per_place} a place {:.1} %", share * 100.0)
            });
            println!("factor {factor}, {ms} ms: {}", shares.join(", "));
        }
    }
}
