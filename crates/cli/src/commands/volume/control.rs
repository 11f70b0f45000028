//! What operators say to a router: over a socket beside its log or instance file, which only its own user and root may open. One order a connection, a
//! line of JSON, and a line of JSON that says how it ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_router::intent::Log;
use quorate_router::volumes::{Keeper, Overview};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::operators::{self, SocketFile};

/// The longest order, in bytes.
const MAX_ORDER: u64 = 8192;
/// How long an order may take to come.
const ORDER_TIME: Duration = Duration::from_secs(5);
/// The most orders at a time; further ones wait to be taken.
const MAX_ORDERS: usize = 64;

/// What is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Tell how all volumes are.
    List {},
    /// Make an export part of the set.
    Add {
        /// Where it is.
        url: String,
    },
    /// Move all away from a volume.
    Drain {
        /// Its number.
        volume: u16,
        /// Leave the rest where it is instead.
        stop: bool,
    },
    /// End a volume's part in the set.
    Remove {
        /// Its number.
        volume: u16,
    },
    /// Have volumes hold equally many buckets.
    Balance {},
}

/// How an order ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// It is done.
    Done(Value),
    /// It is not, for this reason.
    Failed(String),
}

/// Where orders come in.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    _file: SocketFile,
}

/// Listens; the router holds a lock that no other has.
pub fn listen(path: PathBuf) -> Result<Control> {
    let (listener, file) = operators::listen(path, "`quorate volume` talks to this router")?;
    Ok(Control {
        listener,
        _file: file,
    })
}

impl Control {
    /// Carries out orders for ever.
    pub async fn obey<L: Log + 'static>(
        &self,
        keeper: &Arc<Keeper<L>>,
        overview: impl Fn() -> Overview + Clone + Send + Sync + 'static,
    ) {
        let keeper = keeper.clone();
        let obeyed = self.each(move |order| {
            let (keeper, overview) = (keeper.clone(), overview.clone());
            async move { carry_out(order, &keeper, &overview).await }
        });
        obeyed.await;
    }

    /// Several at once: one that waits for the end of a move keeps nobody from looking how far it is.
    async fn each<F>(&self, carry_out: impl Fn(Order) -> F + Clone + Send + 'static)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let mut orders = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept(), if orders.len() < MAX_ORDERS => accepted,
                Some(_) = orders.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) => drop(orders.spawn(attend(stream, carry_out.clone()))),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn attend<F>(mut stream: UnixStream, carry_out: impl Fn(Order) -> F)
where
    F: Future<Output = Answer>,
{
    let answer = match timeout(ORDER_TIME, read(&mut stream)).await {
        Ok(Ok(order)) => carry_out(order).await,
        Ok(Err(error)) => Answer::Failed(format!("that is no order: {error:#}")),
        Err(_) => return,
    };
    if let Ok(mut line) = serde_json::to_string(&answer) {
        line.push('\n');
        // Who has asked may be gone.
        let _ = timeout(ORDER_TIME, stream.write_all(line.as_bytes())).await;
    }
}

async fn read(stream: &mut UnixStream) -> Result<Order> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(MAX_ORDER));
    reader.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

async fn carry_out<L: Log>(
    order: Order,
    keeper: &Keeper<L>,
    overview: &impl Fn() -> Overview,
) -> Answer {
    let done = match order {
        Order::List {} => Ok(json!(overview())),
        Order::Add { url } => keeper
            .add(&url)
            .await
            .map(|volume| json!({"volume": volume})),
        Order::Drain { volume, stop } => keeper.drain(volume, stop).await.map(|()| json!({})),
        Order::Remove { volume } => keeper.remove(volume).await.map(|()| json!({})),
        Order::Balance {} => keeper.balance().map(|()| json!({})),
    };
    match done {
        Ok(value) => Answer::Done(value),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Orders something of the router with a socket.
///
/// # Errors
/// Why it was not done.
pub async fn order(path: &Path, order: &Order) -> Result<Value> {
    let stream = UnixStream::connect(path).await.with_context(|| {
        format!(
            "can't reach the router at {}: is `quorate route` with this configuration running on this machine, and are you its user?",
            path.display()
        )
    })?;
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_string(order)?;
    line.push('\n');
    write.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(read).read_line(&mut answer).await?;
    if answer.is_empty() {
        bail!("the router ended before it answered");
    }
    match serde_json::from_str(&answer)? {
        Answer::Done(value) => Ok(value),
        Answer::Failed(why) => bail!("{why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While an order waits, others are carried out.
    #[tokio::test]
    async fn who_looks_does_not_wait_for_others() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control");
        let control = listen(path.clone()).unwrap();
        let carry_out = |order| async move {
            match order {
                Order::List {} => Answer::Done(json!({})),
                _ => std::future::pending().await,
            }
        };
        let waiting = async {
            let stop = false;
            let drain = Order::Drain { volume: 3, stop };
            order(&path, &drain).await
        };
        let looking = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            order(&path, &Order::List {}).await
        };
        tokio::select! {
            () = control.each(carry_out) => {}
            waited = waiting => panic!("{waited:?}"),
            told = timeout(ORDER_TIME, looking) => {
                told.expect("it waits").unwrap();
            }
        }
    }

    #[test]
    fn orders_are_read_as_they_are_meant() {
        for order in [
            Order::List {},
            Order::Add { url: "x".into() },
            Order::Drain {
                volume: 3,
                stop: true,
            },
        ] {
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        }
        assert!(
            serde_json::from_str::<Order>("{\"drain\":{\"volume\":70000,\"stop\":false}}").is_err()
        );
        assert!(serde_json::from_str::<Order>("{\"melt\":{}}").is_err());
    }
}
