//! How servers start, with what is left of their disks, and go down.

use bytes::Bytes;
use quorate_wire::{Certifies, Signer};

use super::*;
use crate::keys::{identity_of, signer_of, statement_of};

/// The first of the dice by which stores are set aside; one for each start of each server.
const FORMER_DICE: u64 = 1 << 32;
/// The same for those that recover on purpose when they start.
const PURPOSE_DICE: u64 = 1 << 37;

impl World {
    /// Starts a server from its disk.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn start(&mut self, server: usize) -> Result<(), Failure> {
        if self.servers[server].replica.is_some() || self.servers[server].dead {
            return Ok(());
        }
        self.damage_disk(server);
        self.recover_some(server);
        self.note(&[2, server as u64], || format!("server {server} starts"));
        self.take_key(server);
        self.servers[server].start(self.service.clone(), self.now);
        self.state_recovery(server)?;
        let it = &self.servers[server];
        let standing = it.replica.as_ref().map(|r| r.standing());
        if it.is_correct() && standing.is_some_and(|s| !s.fetching) {
            // It goes on from what its store holds, so that must be a state.
            let (seq, root) = (it.disk.store.seq, it.disk.store.root);
            self.announce(server, seq, root);
            self.check_roots()?;
        }
        for client in 0..self.clients.len() {
            let delay = self.dice.range(self.knobs.delay);
            self.after(delay, Event::Connect(client, server));
        }
        self.tell_link(server);
        self.carry_out(server)
    }

    /// Where there are key holders, a server has a new key with each start, and after a while the next.
    fn take_key(&mut self, server: usize) -> Option<Signer> {
        if self.knobs.epochs == 0 {
            return None;
        }
        let it = &mut self.servers[server];
        let counter = self.holders.entry(it.id).or_default();
        *counter += 1;
        let signer = signer_of(it.id, *counter);
        it.renew(&signer);
        let incarnation = it.incarnation + u64::from(it.replica.is_none());
        let counter = *counter;
        self.show_key(server, counter, &signer);
        self.after(self.knobs.epochs, Event::Renew(server, incarnation));
        Some(signer)
    }

    /// Under which number a server said that it recovers, when it started last.
    pub fn stated(&self, server: usize) -> Option<u64> {
        self.stated.get(&server).copied()
    }

    /// Where there are key holders, that of a server that has lost its log says so.
    fn state_recovery(&mut self, server: usize) -> Result<(), Failure> {
        let it = &self.servers[server];
        let standing = it.replica.as_ref().map(|r| r.standing());
        if self.knobs.epochs == 0 || standing.is_none_or(|s| s.recovering.is_none()) {
            self.stated.remove(&server);
            return Ok(());
        }
        let id = it.id;
        let counter = self.holders.entry(id).or_default();
        *counter += 1;
        self.stated.insert(server, *counter);
        let statement = statement_of(id, *counter);
        let request = statement.request(&identity_of(id).identity()).request;
        self.validity.on_sent(&request);
        self.handle(server, Input::Recover(Box::new(statement)))
    }

    pub(super) fn on_renew(&mut self, server: usize, incarnation: u64) -> Result<(), Failure> {
        let it = &self.servers[server];
        if it.incarnation != incarnation || it.replica.is_none() {
            return Ok(());
        }
        let signer = self.take_key(server).expect("there are key holders");
        self.note(&[13, server as u64], || {
            format!("server {server} has another key")
        });
        self.handle(server, Input::Renewed(Box::new(signer)))
    }

    /// By chance the log of a server that starts is damaged.
    fn damage_disk(&mut self, server: usize) {
        let it = &self.servers[server];
        let may = it.is_correct() && it.incarnation > 0 && self.knobs.forgets > 0;
        let faulty = self.knobs.adversaries.len();
        let others = self.forgetful.iter().filter(|s| **s != server).count();
        if !may || faulty + others >= self.quorum.f() {
            return;
        }
        if self.dice.per_mille(self.knobs.forgets) {
            let now = it.now(self.now).wall;
            if self.servers[server].disk.damage(&mut self.dice, now) {
                self.lost_log(server);
            }
        }
    }

    fn lost_log(&mut self, server: usize) {
        self.forgetful.insert(server);
        // Half of them do not believe their stores either: those that recover on purpose.
        let stream = FORMER_DICE + 16 * self.servers[server].incarnation + server as u64;
        let mut dice = Dice::new(self.seed, stream);
        if dice.per_mille(500) {
            self.servers[server].disk.set_aside(&mut dice);
        }
        self.note(&[12, server as u64], || {
            format!("server {server} has lost its log")
        });
    }

    /// A server that is down loses its log.
    pub fn lose_log(&mut self, server: usize) {
        assert!(self.servers[server].replica.is_none());
        let now = self.servers[server].now(self.now).wall;
        let disk = &mut self.servers[server].disk;
        disk.aside = None;
        disk.lose_log(now);
        self.lost_log(server);
    }

    /// By chance a server that starts does not believe what it has written, and recovers: whoever else is faulty.
    fn recover_some(&mut self, server: usize) {
        let it = &self.servers[server];
        let may = it.is_correct() && it.incarnation > 0 && self.knobs.recovers > 0;
        if may && self.dice.per_mille(self.knobs.recovers) {
            self.distrust(server, PURPOSE_DICE);
        }
    }

    /// A server that is down recovers on purpose: its log and its store are set aside. `dice`: see [`World::set_aside`].
    pub fn distrust(&mut self, server: usize, dice: u64) {
        assert!(self.servers[server].replica.is_none());
        let now = self.servers[server].now(self.now).wall;
        self.servers[server].disk.distrust(now);
        self.set_aside(server, dice);
        self.forgetful.insert(server);
        self.note(&[49, server as u64], || {
            format!("server {server} believes nothing that it has written")
        });
    }

    /// A server goes on with what it had.
    pub(super) fn on_take_back(&mut self, server: usize, incarnation: u64) -> Result<(), Failure> {
        let it = &self.servers[server];
        if it.incarnation != incarnation || it.replica.is_none() || it.disk.aside.is_none() {
            return Ok(());
        }
        self.note(&[50, server as u64], || {
            format!("server {server} goes back to what it had")
        });
        self.crash(server);
        self.servers[server].disk.take_back();
        self.forgetful.remove(&server);
        self.has_gone_back(server);
        self.stats.taken_back += 1;
        // Not by chance once more.
        let recovers = std::mem::take(&mut self.knobs.recovers);
        let started = self.start(server);
        self.knobs.recovers = recovers;
        let standing = self.servers[server].replica.as_ref().map(|r| r.standing());
        if standing.is_some_and(|s| s.recovering.is_some()) {
            // That one was lost before.
            self.forgetful.insert(server);
        }
        started
    }

    /// The store of a server that is down is not believed; see [`Disk::set_aside`](crate::disk::Disk::set_aside). `dice` is the first of
    /// those by which it is changed; one for each start of each server.
    pub fn set_aside(&mut self, server: usize, dice: u64) {
        assert!(self.servers[server].replica.is_none());
        let stream = dice + 16 * self.servers[server].incarnation + server as u64;
        let mut dice = Dice::new(self.seed, stream);
        self.servers[server].disk.set_aside(&mut dice);
    }

    /// A value in the store of a server that is down is changed, or taken away; see [`Disk::spoil`](crate::disk::Disk::spoil).
    pub fn spoil(&mut self, server: usize, key: Bytes, value: Option<Bytes>) {
        assert!(self.servers[server].replica.is_none());
        self.servers[server].disk.spoil(key, value);
    }

    /// The others notice that a server's process has started or is gone.
    fn tell_link(&mut self, server: usize) {
        let id = self.servers[server].id;
        for other in 0..self.servers.len() {
            if self.servers[other].id != id {
                let delay = self.dice.range(self.knobs.delay);
                self.after(delay, Event::PeerLink(other, id));
            }
        }
    }

    /// Whether the power of a server may go: where nobody comes back, no more than f replicas are faulty or gone.
    fn may_crash(&self, server: usize) -> bool {
        let gone = self.servers.iter().filter(|s| s.dead || !s.is_correct());
        let mut gone: BTreeSet<ReplicaId> = gone.map(|s| s.id).collect();
        gone.insert(self.servers[server].id);
        !self.knobs.memory || gone.len() <= self.quorum.f()
    }

    /// Takes the power from a server, where it may go.
    pub fn crash(&mut self, server: usize) {
        if self.servers[server].replica.is_none() || !self.may_crash(server) {
            return;
        }
        // What it has promised it knew in memory alone.
        self.servers[server].dead |= self.knobs.memory;
        self.note(&[3, server as u64], || format!("server {server} crashes"));
        self.stats.crashes += 1;
        self.servers[server].crash(&mut self.dice);
        self.tell_link(server);
        let gone: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| c.server == server)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            let Some(connection) = self.connections.remove(&id) else {
                continue;
            };
            self.unlink(connection.client, server);
        }
    }
}
