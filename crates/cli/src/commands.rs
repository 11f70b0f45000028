//! One file for each command.

pub mod bench;
pub mod evidence;
pub mod init;
pub mod keygen;
pub mod mount;
pub mod replica;
pub mod status;
pub mod umount;
pub mod up;

use anyhow::{Context, Result};

/// The runtime on which a command's links run.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")
}

/// Done when the process is asked to end.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
