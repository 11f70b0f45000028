//! What the log's window costs where operations queue, as a model of nothing else: `cargo run -p quorate-bench --example window`.
//!
//! Clients ask again as soon as they are answered; each operation takes 20 ms on one of 100 threads and waits for those of its
//! bucket. A place in the log holds so many requests, and at most `LOG_WINDOW` places are given above the last checkpoint, which
//! there is when all operations up to its place are done.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW};
use quorate_bench::load::Random;

const CLIENTS: usize = 150;
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
        self.waiting += 1;
        while self.undone.front() == Some(&0)
            && self.checkpoint() > self.stable / CHECKPOINT_INTERVAL
        {
            self.undone.pop_front();
            self.stable += CHECKPOINT_INTERVAL;
        }
    }
}

/// Operations in a second.
fn throughput(factor: usize, per_place: u64, window: u64) -> f64 {
    let mut model = Model {
        random: Random(1),
        per_place,
        window,
        placed: 0,
        waiting: CLIENTS,
        stable: 0,
        undone: VecDeque::new(),
        buckets: vec![VecDeque::new(); factor],
        ready: VecDeque::new(),
    };
    // When each that runs is done, in microseconds.
    let mut running = BinaryHeap::new();
    let mut now_us = 0;
    for _ in 0..OPERATIONS {
        model.give_places();
        while running.len() < THREADS
            && let Some(bucket) = model.ready.pop_front()
        {
            running.push(Reverse((now_us + (WAIT_MS * 1e3) as u64, bucket)));
        }
        let Some(Reverse((done_us, bucket))) = running.pop() else {
            break;
        };
        now_us = done_us;
        model.done(bucket);
    }
    OPERATIONS as f64 / (now_us as f64 / 1e6)
}

fn main() {
    for factor in [1, 5, 10, 20, 50, 100, 150] {
        let ideal = throughput(factor, 1, u64::MAX / 2);
        let shares = [1, 2, 4, 8].map(|per_place| {
            let share = throughput(factor, per_place, LOG_WINDOW) / ideal;
            format!("{per_place} a place {:.0} %", share * 100.0)
        });
        println!("factor {factor}: ideal {ideal:.0}/s; {}", shares.join(", "));
    }
}
