//! One direction of a connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{PIECE_BYTES, PIECES, Weather};
use crate::dice::Dice;

/// Carries bytes until one side closes, through the weather as it is when they come.
pub(super) async fn pump(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    weather: watch::Receiver<Weather>,
    mut dice: Dice,
) -> io::Result<()> {
    let (pieces, queue) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let now = weather.clone();
    let damage = Dice::new(dice.any(), 1);
    let read = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let Weather {
                delay_ms,
                jitter_ms,
                ..
            } = *now.borrow();
            let delay = delay_ms + dice.below(jitter_ms + 1);
            let due = Instant::now() + Duration::from_millis(delay);
            if pieces.send((due, buffer[..count].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    // The reader's end closes the queue, and what is in it is still written.
    let (read, written) = tokio::join!(read, write(to, queue, weather, damage));
    io::Result::and(read, written)
}

async fn write(
    mut to: OwnedWriteHalf,
    mut queue: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut weather: watch::Receiver<Weather>,
    mut dice: Dice,
) -> io::Result<()> {
    while let Some((due, mut piece)) = queue.recv().await {
        if due > Instant::now() {
            sleep_until(due).await;
        }
        // An error: the proxy is gone.
        let now = weather.wait_for(|now| !now.held).await;
        let now = *now.map_err(|_| io::ErrorKind::NotConnected)?;
        if dice.below(1000) < now.corrupt_per_mille {
            let at = dice.below(piece.len() as u64) as usize;
            piece[at] ^= 1 << dice.below(8);
        }
        to.write_all(&piece).await?;
        if now.bytes_per_s > 0 {
            let seconds = piece.len() as f64 / now.bytes_per_s as f64;
            sleep(Duration::from_secs_f64(seconds)).await;
        }
    }
    Ok(())
}
