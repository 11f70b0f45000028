//! Whether a guest has anything by which replicas let it in.
//!
//! They end the links of one whose last credential has ended, and let it come no more. So nobody answers it, and what it asks would wait for ever. But it knows
//! by itself when that is so: what it asks then it is refused here, as the group would refuse it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// For how long the group is asked all the same: it refuses by itself where its clock says so too, and what is under way may have its answer.
const GRACE: Duration = Duration::from_secs(2);

/// Shared by who looks after the credentials and a [`Volume`](crate::Volume). In from the start.
#[derive(Clone, Debug)]
pub struct LetIn {
    /// Since when there is nothing; none while there is something.
    since: Arc<watch::Sender<Option<Instant>>>,
    grace: Duration,
}

impl Default for LetIn {
    fn default() -> LetIn {
        LetIn::with_grace(GRACE)
    }
}

impl LetIn {
    fn with_grace(grace: Duration) -> LetIn {
        LetIn {
            since: Arc::default(),
            grace,
        }
    }

    /// Whether there is a credential now.
    pub fn set(&self, is_in: bool) {
        self.since.send_if_modified(|since| {
            let before = since.is_none();
            *since = match is_in {
                true => None,
                false => Some(since.unwrap_or_else(Instant::now)),
            };
            before != is_in
        });
    }

    /// Whether nothing is to be asked.
    pub(crate) fn is_out(&self) -> bool {
        let since = *self.since.borrow();
        since.is_some_and(|since| since.elapsed() >= self.grace)
    }

    /// Returns when nobody will answer any more.
    pub(crate) async fn out(&self) {
        let mut state = self.since.subscribe();
        loop {
            // The sender lives as long as `self`, so there is no error.
            let since = state.wait_for(Option::is_some).await.ok().and_then(|s| *s);
            let until = since.map(|since| since + self.grace);
            let Some(until) = until else { continue };
            let comes = timeout_at(until, state.wait_for(Option::is_none)).await;
            if comes.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has nothing for a moment is not out, and who has nothing for longer is, also if it is told so again.
    #[tokio::test]
    async fn out_is_who_has_nothing_for_a_while() {
        const MOMENT: Duration = Duration::from_millis(400);
        let let_in = LetIn::with_grace(MOMENT);
        let begun = Instant::now();
        let waits = tokio::spawn({
            let let_in = let_in.clone();
            async move { let_in.out().await }
        });
        let_in.set(false);
        let_in.set(true);
        tokio::time::sleep(2 * MOMENT).await;
        assert!(!let_in.is_out() && !waits.is_finished(), "something came");
        let_in.set(false);
        tokio::time::sleep(MOMENT / 2).await;
        let_in.set(false);
        waits.await.expect("it ends");
        assert!(let_in.is_out() && begun.elapsed() >= 3 * MOMENT);
        let_in.set(true);
        assert!(!let_in.is_out());
    }
}
