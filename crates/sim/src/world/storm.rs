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
    Return,
    End(usize),
    Strike,
    Turn,
    Leave(usize),
}

/// Replicas that recover in turn.
#[derive(Debug, Default)]
pub(super) struct Rota {
    /// Microseconds from one turn to the next.
    between: u64,
    /// Whose the next is: one for each server, the faulty ones among them, which have none.
    next: u64,
    /// How many recoveries they were.
    turns: u64,
}

/// Of those that crash, how many in a thousand are asked to end, and how long that takes at most, in microseconds.
const ASKED: u64 = 200;
const LONGEST_END: u64 = 500_000;
/// The first of the dice by which that is decided; one for each start of each server.
const ASKED_DICE: u64 = 1 << 34;
/// The first of the dice by which the stores of those that recover in turn are tampered with.
const ROTA_DICE: u64 = 1 << 36;

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
        self.begin_floods();
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
                self.crash_some()?;
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
            // It would not come back.
            Blow::Exile(server) if self.knobs.memory => {
                self.note(&[52, server as u64], || {
                    format!("server {server} is cut off")
                });
                self.net.exile(Some(server));
                let back = self.knobs.storm * 9 / 10;
                self.at(back, Event::Storm(Blow::Return));
            }
            Blow::Return => {
                self.note(&[53], || "nobody is cut off any more".into());
                self.net.exile(None);
            }
            Blow::Exile(server) | Blow::End(server) => self.crash(server),
            Blow::Strike => self.strike()?,
            Blow::Turn => self.take_turn()?,
            Blow::Leave(server) => self.recover(server),
            Blow::Twins => {
                self.turn_twins();
                let delay = self.dice.around(TWINS_EVERY);
                self.after(delay, Event::Storm(blow));
            }
        }
        Ok(())
    }

    fn crash_some(&mut self) -> Result<(), Failure> {
        let all = self.dice.per_mille(self.knobs.crash_all);
        let victims: Vec<usize> = match all {
            true => (0..self.servers.len()).collect(),
            false => vec![self.dice.below(self.servers.len() as u64) as usize],
        };
        let exile = self.knobs.exile.map(|id| usize::from(id.0));
        for server in victims.into_iter().filter(|s| Some(*s) != exile) {
            let down = self.dice.range(self.knobs.down);
            // Some are asked to end, and hand over what they lead before they do. By dice of its own, so that runs without it are as they were.
            let stream = ASKED_DICE + 16 * self.servers[server].incarnation + server as u64;
            let mut dice = Dice::new(self.seed, stream);
            let length = match dice.per_mille(ASKED) {
                true => {
                    self.note(&[47, server as u64], || {
                        format!("server {server} is asked to end")
                    });
                    self.handle(server, Input::HandOver)?;
                    dice.below(LONGEST_END)
                }
                false => 0,
            };
            match length {
                0 => self.crash(server),
                _ => self.after(length, Event::Storm(Blow::End(server))),
            }
            self.after(length + down, Event::Start(server));
        }
        Ok(())
    }

    /// From now on one replica after the other recovers.
    pub fn begin_turns(&mut self, between: u64) {
        self.rota.between = between;
        self.after(between, Event::Storm(Blow::Turn));
    }

    /// How many replicas have recovered in turn so far.
    pub fn turns(&self) -> u64 {
        self.rota.turns
    }

    /// The next recovers, if all others are back: as supervisors do it, it is asked to end first.
    fn take_turn(&mut self) -> Result<(), Failure> {
        self.after(self.rota.between, Event::Storm(Blow::Turn));
        let server = (self.rota.next % self.servers.len() as u64) as usize;
        if !self.servers[server].is_correct() {
            self.rota.next += 1;
            return Ok(());
        }
        if !self.forgetful.is_empty() || self.servers[server].replica.is_none() {
            return Ok(());
        }
        self.rota.next += 1;
        self.rota.turns += 1;
        self.note(&[48, server as u64], || {
            format!("server {server} is asked to end, and to recover")
        });
        self.handle(server, Input::HandOver)?;
        let length = self.dice.below(LONGEST_END);
        self.after(length, Event::Storm(Blow::Leave(server)));
        Ok(())
    }

    fn recover(&mut self, server: usize) {
        self.crash(server);
        self.distrust(server, ROTA_DICE);
        let down = self.dice.range(self.knobs.down);
        self.after(down, Event::Start(server));
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
        dead.extend(self.servers.iter().filter(|s| s.dead).map(|s| s.id));
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
