//! Links that are made anew with another key, beside those that there are.

use std::time::{Duration, Instant};

use super::{Origin, Peer, ReplicaLinks, Who};
use crate::frame::Frame;
use crate::tls::Identity;
use quorate_wire::ReplicaId;

/// Clients are shown newer certificates of one replica no sooner one after the other: one that takes other keys without end costs them no more than this.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

impl Peer {
    /// When clients are to be shown its newest certificate, if they have not been.
    fn shows_at(&self, now: Instant) -> Option<Instant> {
        let (number, _) = self.newest.as_ref()?;
        match self.shown {
            Some((shown, _)) if shown == *number => None,
            Some((_, at)) => Some(at + SHOWN_EVERY),
            None => Some(now),
        }
    }
}

impl ReplicaLinks {
    /// When [`ReplicaLinks::show_certificates`] has something to do.
    pub(super) fn next_showing(&self, now: Instant) -> Option<Instant> {
        self.peers.iter().filter_map(|p| p.shows_at(now)).min()
    }

    /// Shows the clients that are here certificates of others that are newer than those that they were shown: whoever stands between one of them and that
    /// replica, with a key of before, is to be known for what he is before the client's link here is made anew.
    pub(super) fn show_certificates(&mut self, now: Instant) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.shows_at(now).is_none_or(|at| at > now) {
                continue;
            }
            let Some((number, frame)) = peer.newest.clone() else {
                continue;
            };
            peer.shown = Some((number, now));
            let clients: Vec<usize> = self.hub.notes().filter(is_clients).map(|n| n.0).collect();
            for token in clients {
                self.hub.push(token, &frame);
            }
        }
    }

    /// Makes all links anew with another key of this replica's, beside those that there are. Whoever dials this replica is asked to do so
    /// anew; a link that was asked for so one renewal ago, and is still there, ends.
    pub fn renew_keys(&mut self, identity: &Identity) {
        assert_eq!(identity.replica_of(&self.group), Some(self.me));
        self.door.renew(identity.clone());
        let links: Vec<_> = self.hub.notes().collect();
        for (token, who) in links {
            let is_former = |p: &Peer| p.former.is_some_and(|(former, _)| former == token);
            let asks = match who {
                Who::Peer(id) if is_former(&self.peers[usize::from(id.0)]) => continue,
                Who::Peer(id) => id > self.me,
                Who::Client(_) => true,
            };
            if token < self.renewed_below {
                self.hub.close(token);
            } else if asks {
                self.hub.push(token, &Frame::notice());
            }
        }
        self.renewed_below = self.hub.next_token();
    }

    /// What a replica certified before the one before this number is void: the group has ordered that it recovers. Links that rest on
    /// that end, and no more are made.
    pub fn void(&mut self, replica: ReplicaId, number: u64) {
        self.door.void(replica, number);
        let peer = &mut self.peers[usize::from(replica.0)];
        peer.void_below = peer.void_below.max(number.saturating_sub(1));
        let below = peer.void_below;
        let links: Vec<_> = self.hub.notes().collect();
        for (token, who) in links {
            if who == Who::Peer(replica) && self.hub.certified(token) < below {
                tracing::warn!(
                    "a link with replica {} ends: its key is older than the replica's last recovery",
                    replica.0
                );
                self.hub.close(token);
            }
        }
    }

    /// A replica that was dialed has a new key.
    pub(super) fn on_notice(&mut self, token: usize, who: Who) {
        self.refused(Origin { who, bytes: 0 });
        if let Who::Peer(id) = who
            && self.peers[usize::from(id.0)].link == Some(token)
        {
            self.door.again(id);
        }
    }

    /// Ends older links whose time is over.
    pub(super) fn end_formers(&mut self, now: Instant) {
        for peer in &mut self.peers {
            if let Some((former, _)) = peer.former.take_if(|(_, until)| *until <= now) {
                self.hub.remove(former);
            }
        }
    }
}

fn is_clients((_, who): &(usize, Who)) -> bool {
    matches!(who, Who::Client(_))
}
