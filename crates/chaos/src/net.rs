//! The network between members: a proxy on loopback for each dialer and each replica that it dials.
//!
//! A member is told to reach each replica by the proxy's address, so that each direction of each link can be held, cut, delayed, limited or
//! damaged by itself. What members do to their own sockets passes through: a process that dies ends its connections.
//! In a proxy and direction are at most [`PIECES`] pieces of [`PIECE_BYTES`]; then the sender's socket fills.

mod pump;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::dice::Dice;
use crate::schedule::{Node, Trouble};
use pump::pump;

/// See the module.
const PIECES: usize = 256;
/// See the module.
const PIECE_BYTES: usize = 16 << 10;

/// What one direction of a link suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Weather {
    held: bool,
    cut: bool,
    delay_ms: u64,
    jitter_ms: u64,
    corrupt_per_mille: u64,
    /// 0: no limit.
    bytes_per_s: u64,
}

impl Weather {
    /// With one more trouble.
    fn with(mut self, trouble: Trouble) -> Weather {
        match trouble {
            Trouble::Hold => self.held = true,
            Trouble::Cut => self.cut = true,
            Trouble::Delay { ms, jitter_ms } => {
                self.delay_ms += ms;
                self.jitter_ms += jitter_ms;
            }
            Trouble::Corrupt { per_mille } => {
                self.corrupt_per_mille = self.corrupt_per_mille.max(per_mille);
            }
            Trouble::Limit { kib_per_s } => {
                let rate = kib_per_s << 10;
                self.bytes_per_s = match self.bytes_per_s {
                    0 => rate,
                    other => other.min(rate),
                };
            }
        }
        self
    }
}

/// A rule of the network while it lasts.
#[derive(Clone, Debug)]
struct Rule {
    id: usize,
    from: Vec<Node>,
    to: Vec<Node>,
    both: bool,
    trouble: Trouble,
}

impl Rule {
    fn hits(&self, from: Node, to: Node) -> bool {
        let hits = |from, to| self.from.contains(&from) && self.to.contains(&to);
        hits(from, to) || self.both && hits(to, from)
    }
}

/// The two directions of a link.
#[derive(Debug)]
struct Proxy {
    address: SocketAddr,
    /// What the dialer sends, and what it is sent.
    there: watch::Sender<Weather>,
    back: watch::Sender<Weather>,
}

/// All links.
#[derive(Debug, Default)]
pub struct Net {
    proxies: BTreeMap<(Node, u8), Proxy>,
    rules: Vec<Rule>,
}

impl Net {
    /// Opens proxies for a dialer to replicas; within a tokio runtime, in which they live. `seed` is for damage and jitter.
    ///
    /// # Errors
    /// If there are no more sockets.
    pub async fn connect(
        &mut self,
        dialer: Node,
        replicas: impl Iterator<Item = (u8, SocketAddr)>,
        seed: u64,
    ) -> io::Result<()> {
        for (replica, target) in replicas {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            let (there, there_seen) = watch::channel(Weather::default());
            let (back, back_seen) = watch::channel(Weather::default());
            let name = match dialer {
                Node::Replica(id) => u64::from(id),
                Node::Client(id) => 256 + u64::from(id),
            };
            let dice = Dice::new(seed, 1 << 20 | name << 8 | u64::from(replica));
            tokio::spawn(serve(listener, target, there_seen, back_seen, dice));
            let proxy = Proxy {
                address,
                there,
                back,
            };
            self.proxies.insert((dialer, replica), proxy);
        }
        Ok(())
    }

    /// Where a dialer reaches the replicas that it dials.
    pub fn routes(&self, dialer: Node) -> Vec<(u8, SocketAddr)> {
        let own = self.proxies.iter().filter(|((from, _), _)| *from == dialer);
        own.map(|((_, to), proxy)| (*to, proxy.address)).collect()
    }

    /// Begins a trouble, under a number by which it is ended.
    pub fn begin(&mut self, id: usize, from: &[Node], to: &[Node], both: bool, trouble: Trouble) {
        self.rules.push(Rule {
            id,
            from: from.to_vec(),
            to: to.to_vec(),
            both,
            trouble,
        });
        self.apply();
    }

    /// Ends a trouble.
    pub fn end(&mut self, id: usize) {
        self.rules.retain(|rule| rule.id != id);
        self.apply();
    }

    /// Ends all.
    pub fn heal(&mut self) {
        self.rules.clear();
        self.apply();
    }

    fn apply(&self) {
        for ((dialer, replica), proxy) in &self.proxies {
            let target = Node::Replica(*replica);
            set(&proxy.there, self.weather(*dialer, target));
            set(&proxy.back, self.weather(target, *dialer));
        }
    }

    fn weather(&self, from: Node, to: Node) -> Weather {
        let rules = self.rules.iter().filter(|rule| rule.hits(from, to));
        rules.fold(Weather::default(), |weather, rule| {
            weather.with(rule.trouble)
        })
    }
}

fn set(sender: &watch::Sender<Weather>, weather: Weather) {
    sender.send_if_modified(|now| {
        let changed = *now != weather;
        *now = weather;
        changed
    });
}

/// Takes connections until the proxy is dropped.
async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    there: watch::Receiver<Weather>,
    back: watch::Receiver<Weather>,
    mut dice: Dice,
) {
    let mut dropped = there.clone();
    let target = Arc::new(target);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gone(&mut dropped) => return,
        };
        // Out of descriptors, or the dialer has gone already.
        let Ok((dialer, _)) = accepted else {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let (there, back, target) = (there.clone(), back.clone(), target.clone());
        let (one, other) = (dice.any(), dice.any());
        tokio::spawn(async move {
            let (mut cut_there, mut cut_back) = (there.clone(), back.clone());
            tokio::select! {
                _ = carry(dialer, *target, there, back, Dice::new(one, 0), Dice::new(other, 0)) => {}
                // Its end resets the sockets, whatever is under way.
                () = cut(&mut cut_there) => {}
                () = cut(&mut cut_back) => {}
            }
        });
    }
}

async fn gone(weather: &mut watch::Receiver<Weather>) {
    while weather.changed().await.is_ok() {}
}

async fn cut(weather: &mut watch::Receiver<Weather>) {
    // An error: the proxy is gone, which is a cut as well.
    let _ = weather.wait_for(|now| now.cut).await;
}

async fn carry(
    dialer: TcpStream,
    target: SocketAddr,
    there: watch::Receiver<Weather>,
    back: watch::Receiver<Weather>,
    dice_there: Dice,
    dice_back: Dice,
) -> io::Result<()> {
    let replica = TcpStream::connect(target).await?;
    dialer.set_nodelay(true)?;
    replica.set_nodelay(true)?;
    let (from_dialer, to_dialer) = dialer.into_split();
    let (from_replica, to_replica) = replica.into_split();
    // Who closes one direction of a link closes it.
    tokio::select! {
        end = pump(from_dialer, to_replica, there, dice_there) => end,
        end = pump(from_replica, to_dialer, back, dice_back) => end,
    }
}

#[cfg(test)]
mod tests;
