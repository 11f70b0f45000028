//! Calling a replica again and again, for as long as it takes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::time::Instant;

use crate::link::{self, Stream};

/// The wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// A connection that lasted this long starts the waits anew when it ends.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// Dials `address` for ever and gives each connection to `serve`, which returns when it has ended.
pub(crate) async fn for_ever<F: Future<Output = ()>>(
    address: &str,
    config: Arc<ClientConfig>,
    serve: impl Fn(Stream) -> F,
) {
    let mut wait = FIRST_WAIT;
    let mut reported = None;
    loop {
        let started = Instant::now();
        match link::dial(address, config.clone()).await {
            Ok(stream) => {
                reported = None;
                serve(stream).await;
            }
            Err(e) => report(address, &e, &mut reported),
        }
        if started.elapsed() >= GOOD_AFTER + wait {
            wait = FIRST_WAIT;
        }
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Says why a replica can't be reached: once for each kind of reason, since dialing goes on for ever.
fn report(address: &str, error: &io::Error, reported: &mut Option<io::ErrorKind>) {
    if *reported == Some(error.kind()) {
        tracing::debug!("{address} still can't be reached: {error}");
    } else {
        tracing::info!("{address} can't be reached, and is tried again: {error}");
        *reported = Some(error.kind());
    }
}

/// Between a half and all of the wait, so that replicas that lost each other together don't dial together.
fn jittered(wait: Duration) -> Duration {
    let mut byte = [128];
    // Without randomness the waits are equal, which is no harm.
    let _ = getrandom::fill(&mut byte);
    wait.mul_f64(0.5 + f64::from(byte[0]) / 512.0)
}
