//! A client of a mount. What it asks for, another process does.

use std::path::PathBuf;
use std::sync::Arc;

use super::Shared;
use super::choose::Chooser;
use super::layout::Layout;
use crate::hand::{Link, Task};

/// Asks for one thing after the other until it is told to stop, or the process has ended.
pub async fn mounted(
    link: Link,
    mount: PathBuf,
    number: u8,
    layout: Layout,
    shared: Arc<Shared>,
    seed: u64,
) {
    let mut chooser = Chooser::new(seed, number, true);
    let root = layout.root(&mount);
    while !shared.is_over() {
        let op = chooser.next(&layout);
        let place = shared.recorder.begin(number, true, op.clone());
        let root = root.clone();
        // That it has ended, who looks after the processes says.
        let Ok(done) = link.work(&Task { root, op }).await else {
            return;
        };
        if let Some(outcome) = done.outcome {
            shared.recorder.end_as_seen(place, done.seen_ns, outcome);
        }
        tokio::time::sleep(shared.rest(&mut chooser)).await;
    }
    shared.left();
}
