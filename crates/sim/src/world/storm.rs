//! Trouble by chance, and its end.

use super::*;

/// One kind of trouble; each schedules the next of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Blow {
    Crash,
    Partition,
    Join,
    ClientCrash,
    Twins,
    Exile(usize),
    Strike,
}

/// How often twins change who sees which of them.
const TWINS_EVERY: u64 = 300_000;

impl World {
    /// Lets the trouble begin that the knobs ask for.
    pub fn begin_storm(&mut self) {
        let blows = [
            (self.knobs.crash_every, Blow::Crash),
            (self.knobs.partition_every, Blow::Partition),
            (self.knobs.client_crash_every, Blow::ClientCrash),
        ];
        for (every, blow) in blows {
            self.again(every, blow);
        }
        if let Some(id) = self.knobs.exile {
            let (server, back) = (usize::from(id.0), self.knobs.storm * 9 / 10);
            self.after(50_000, Event::Storm(Blow::Exile(server)));
            self.at(back, Event::Start(server));
        }
        if !self.second_twin.is_empty() {
            self.after(0, Event::Storm(Blow::Twins));
        }
    }

    fn again(&mut self, every: u64, blow: Blow) {
        if every > 0 {
            let delay = self.dice.around(every);
            self.after(delay, Event::Storm(blow));
        }
    }

    pub(super) fn blow(&mut self, blow: Blow) -> Result<(), Failure> {
        if self.healed {
            return Ok(());
        }
        match blow {
            Blow::Crash => {
                self.crash_some();
                self.again(self.knobs.crash_every, blow);
            }
            Blow::Partition => {
                let nodes = self.servers.len() + self.clients.len();
                let (island, one_way) = self.net.random_island(nodes);
                self.note(&[41, island.len() as u64], || {
                    format!("the network cuts {island:?} off (one way: {one_way})")
                });
                self.net.cut(&island, nodes, one_way);
                let length = self.dice.around(self.knobs.partition_every);
                self.after(length, Event::Storm(Blow::Join));
            }
            Blow::Join => {
                self.note(&[42], || "the network is whole again".into());
                self.net.join();
                self.again(self.knobs.partition_every, Blow::Partition);
            }
            Blow::ClientCrash => {
                let client = self.dice.below(self.clients.len() as u64) as usize;
                self.crash_client(client);
                let delay = self.dice.below(500_000);
                self.after(delay, Event::StartClient(client));
                self.again(self.knobs.client_crash_every, blow);
            }
            Blow::Exile(server) => self.crash(server),
            Blow::Strike => self.strike()?,
            Blow::Twins => {
                self.turn_twins();
                let delay = self.dice.around(TWINS_EVERY);
                self.after(delay, Event::Storm(blow));
            }
        }
        Ok(())
    }

    fn crash_some(&mut self) {
        let all = self.dice.per_mille(self.knobs.crash_all);
        let victims: Vec<usize> = match all {
            true => (0..self.servers.len()).collect(),
            false => vec![self.dice.below(self.servers.len() as u64) as usize],
        };
        let exile = self.knobs.exile.map(|id| usize::from(id.0));
        for server in victims.into_iter().filter(|s| Some(*s) != exile) {
            self.crash(server);
            let down = self.dice.range(self.knobs.down);
            self.after(down, Event::Start(server));
        }
    }

    fn turn_twins(&mut self) {
        let nodes = self.servers.len() + self.clients.len();
        let ids: Vec<ReplicaId> = self.second_twin.keys().copied().collect();
        for id in ids {
            let second: BTreeSet<usize> = (0..nodes).filter(|_| self.dice.per_mille(500)).collect();
            self.note(&[43, u64::from(id.0), second.len() as u64], || {
                format!("the second {id:?} is seen by {second:?}")
            });
            self.second_twin.insert(id, second);
            // Clients hold on to the twin that they have, until it goes.
            let nodes = self.clients.len();
            for client in 0..nodes {
                let node = self.servers.len() + client;
                if let Some(server) = self.instance(id, node) {
                    let other = self.clients[client].links.keys();
                    let other: Vec<usize> = other
                        .copied()
                        .filter(|s| *s != server && self.servers[*s].id == id)
                        .collect();
                    for old in other {
                        if let Some(gone) = self.clients[client].links.remove(&old) {
                            self.connections.remove(&gone);
                            let _ = self.handle(old, Input::ClientDown(gone));
                        }
                    }
                    self.after(0, Event::Connect(client, server));
                }
            }
        }
    }

    /// f replicas die for ever: the faulty ones, and as many correct ones as are allowed beside them. What is left is a quorum of
    /// correct replicas, and none of it can be missed.
    fn leave_a_core(&mut self) {
        let mut dead: BTreeSet<ReplicaId> =
            self.knobs.adversaries.iter().map(|(r, _)| *r).collect();
        while dead.len() < self.quorum.f() {
            dead.insert(ReplicaId(self.dice.below(self.quorum.n() as u64) as u8));
        }
        self.note(&[44, dead.len() as u64], || format!("{dead:?} are dead"));
        for server in 0..self.servers.len() {
            if dead.contains(&self.servers[server].id) {
                self.crash(server);
                self.servers[server].dead = true;
            }
        }
    }

    /// The storm is over: the network is whole, and whoever is down comes back.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn heal(&mut self) -> Result<(), Failure> {
        self.note(&[40], || "the storm is over".into());
        self.healed = true;
        self.net.heal();
        self.end_intrusion()?;
        if self.knobs.core_alone {
            self.leave_a_core();
        }
        for server in 0..self.servers.len() {
            if self.knobs.silent_after {
                self.servers[server].fall_silent();
            }
            self.start(server)?;
        }
        for client in 0..self.clients.len() {
            self.start_client(client);
        }
        Ok(())
    }

    /// Keeps messages between servers from arriving; `None` lets all through again.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Changes the network by hand.
    pub fn net(&mut self) -> &mut Net {
        &mut self.net
    }
}
