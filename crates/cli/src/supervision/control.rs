//! What operators say to a supervisor: over a socket in its directory, which only its own user and root may open. One request a
//! connection, a line of JSON; what comes back are lines of JSON, the last of which says how it ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::operators::{self, SocketFile};

const NAME: &str = "control.sock";
/// The longest request, in bytes.
const MAX_REQUEST: u64 = 4096;
/// All that a supervisor answers to one, with what it tells meanwhile.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// Requests that may wait, and answers to one.
const WAITING: usize = 16;
/// How long a request may take to come.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Before connections are taken again, where one could not be.
const BREATH: Duration = Duration::from_millis(100);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Have a replica recover now.
    Recover {
        /// Which.
        replica: u8,
        /// Though the group would stop meanwhile.
        force: bool,
    },
    /// How often replicas recover and renew their keys; with one of these from now on so often, 0 for never.
    Schedule {
        /// Tw in seconds.
        every_s: Option<u64>,
        /// Tk in milliseconds.
        key_refresh_ms: Option<u64>,
    },
}

impl Request {
    /// The schedule as it is.
    pub const LOOK: Request = Request::Schedule {
        every_s: None,
        key_refresh_ms: None,
    };
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Goes on.
    Note(String),
    /// The last word: it is done, with what is to be told.
    Done(serde_json::Value),
    /// The last word: it is not done, for this reason.
    Failed(String),
}

/// The socket of the supervisor in a directory.
fn socket(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Requests as they come, each with where its answers go.
#[derive(Debug)]
pub struct Control {
    requests: mpsc::Receiver<(Request, mpsc::Sender<Answer>)>,
    _file: SocketFile,
}

impl Control {
    /// Listens in a directory.
    ///
    /// # Errors
    /// Where the socket can't be made.
    pub fn listen(directory: &Path) -> Result<Control> {
        let path = socket(directory);
        let (listener, file) = operators::listen(path, "operators talk to this process")?;
        let (sender, requests) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(serve(stream, sender.clone()))),
                    // Mostly too many open files, of this moment.
                    Err(_) => tokio::time::sleep(BREATH).await,
                }
            }
        });
        Ok(Control {
            requests,
            _file: file,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> (Request, mpsc::Sender<Answer>) {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

async fn serve(stream: UnixStream, sender: mpsc::Sender<(Request, mpsc::Sender<Answer>)>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(MAX_REQUEST));
    let Ok(read) = timeout(REQUEST_TIME, read.read_line(&mut line)).await else {
        return;
    };
    let (answer, mut answers) = mpsc::channel(WAITING);
    match read.map(|_| serde_json::from_str(&line)) {
        Ok(Ok(request)) => {
            if sender.send((request, answer)).await.is_err() {
                return;
            }
        }
        Ok(Err(e)) => {
            let _ = answer.try_send(Answer::Failed(format!("the request is none: {e}")));
            drop(answer);
        }
        Err(_) => return,
    }
    while let Some(answer) = answers.recv().await {
        let Ok(mut line) = serde_json::to_string(&answer) else {
            return;
        };
        line.push('\n');
        if write.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Asks the supervisor in a directory; `tell` gets what comes back before the last word.
///
/// # Errors
/// Why it was not done.
pub async fn ask(
    directory: &Path,
    request: &Request,
    mut tell: impl FnMut(&str),
) -> Result<serde_json::Value> {
    let path = socket(directory);
    let stream = UnixStream::connect(&path).await.with_context(|| {
        format!(
            "nobody answers at {}: is `quorate up` or `quorate supervise` running there? Say where its directory is (--data)",
            path.display()
        )
    })?;
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    write.write_all(line.as_bytes()).await?;
    // Whoever listens there must not fill this process's memory.
    let mut lines = BufReader::new(read.take(MAX_ANSWER_BYTES)).lines();
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line)? {
            Answer::Note(text) => tell(&text),
            Answer::Done(value) => return Ok(value),
            Answer::Failed(why) => anyhow::bail!("{why}"),
        }
    }
    anyhow::bail!("the supervisor has ended before it was done")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who connects and says nothing is let go, and keeps no file of the supervisor's open.
    #[tokio::test]
    async fn who_asks_nothing_is_let_go() {
        const PATIENCE: Duration = Duration::from_secs(120);
        let directory = tempfile::tempdir().unwrap();
        let _control = Control::listen(directory.path()).unwrap();
        let mut silent = UnixStream::connect(socket(directory.path())).await.unwrap();
        let end = timeout(PATIENCE, silent.read_u8()).await;
        let end = end.expect("it is kept").unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
