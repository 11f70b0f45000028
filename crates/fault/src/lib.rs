//! Byzantine behaviours, as wrappers around what a correct replica sends.
//!
//! The replica inside follows the protocol; [`Faulty`] decides for each message and each destination what really
//! leaves, and when. So a behaviour is a few lines, speaks the newest protocol by itself, and is the same in the
//! simulator and in a demonstration against real processes (`quorate up --fault 2=lie`).
//!
//! All choices come from a seed. Absent on purpose: clocks, sockets, threads. The crate is `no_std`.
#![no_std]

extern crate alloc;

mod corrupt;
mod equivocate;
mod flood;
mod leap;
mod lie;
mod mislead;
mod mutate;
mod starve;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use quorate_wire::message::transfer::{Nodes, StateMessage};
use quorate_wire::message::{PeerMessage, ReplicaMessage, SignedViewChange, ViewChange};
use quorate_wire::{Digest, Quorum, ReplicaId, Seq, Signer, View};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use equivocate::Equivocator;
use flood::Flooder;
use leap::Leaper;
use mutate::Mutator;
use starve::Starver;

/// How a replica misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Wrong results to clients; wrong hints, checkpoints and positions to replicas.
    Lie,
    /// Different batches, votes and view changes to different replicas.
    Equivocate,
    /// Sends nothing; its links stay up.
    Silent,
    /// Sends everything late, by a third of a second up to almost a second.
    Slow,
    /// Follows the protocol, but answers whoever fetches content or state with content that is damaged.
    CorruptState,
    /// Small random changes: numbers off by one, old digests, repeated and withheld messages.
    Mutate,
    /// Asks for the next view again and again.
    Restless,
    /// Follows the protocol, and sends many valid and useless messages with each of its own.
    Flood,
    /// As primary puts the requests of one batch far ahead at once, and what leads there a fifth of a second late.
    Leap,
    /// Misleads who recovers about how far the group is, and says itself that it recovers and waits for views far ahead.
    Mislead,
    /// Has views begin, as all others do, and takes part in nothing that is ordered in them.
    Shirk,
    /// As primary proposes nothing of one client, and all that others ask.
    Starve,
    /// Follows the protocol, but of what replicas fetch from it they get the root of a state alone.
    Withhold,
    /// As primary makes each proposal 15 ms late: less than messages may take where many processes share a machine.
    Dawdle,
    /// As primary makes each proposal 4 ms late: so little that only a comparison with other primaries shows it.
    Linger,
    /// As primary proposes requests without their content, and gives that 65 ms after it is asked for it.
    Bare,
}

impl Fault {
    /// All behaviours.
    pub const ALL: [Fault; 16] = [
        Fault::Lie,
        Fault::Equivocate,
        Fault::Silent,
        Fault::Slow,
        Fault::CorruptState,
        Fault::Mutate,
        Fault::Restless,
        Fault::Flood,
        Fault::Leap,
        Fault::Mislead,
        Fault::Shirk,
        Fault::Starve,
        Fault::Withhold,
        Fault::Dawdle,
        Fault::Linger,
        Fault::Bare,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Lie => "lie",
            Fault::Equivocate => "equivocate",
            Fault::Silent => "silent",
            Fault::Slow => "slow",
            Fault::CorruptState => "corrupt-state",
            Fault::Mutate => "mutate",
            Fault::Restless => "restless",
            Fault::Flood => "flood",
            Fault::Leap => "leap",
            Fault::Mislead => "mislead",
            Fault::Shirk => "shirk",
            Fault::Starve => "starve",
            Fault::Withhold => "withhold",
            Fault::Dawdle => "dawdle",
            Fault::Linger => "linger",
            Fault::Bare => "bare",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Not the name of a behaviour: the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFault(pub String);

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no fault {:?}; there are ", self.0)?;
        for (i, fault) in Fault::ALL.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownFault {}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<Fault, UnknownFault> {
        Fault::ALL
            .into_iter()
            .find(|fault| fault.name() == name)
            .ok_or_else(|| UnknownFault(name.into()))
    }
}

/// What really leaves in place of a message: each with the milliseconds by which it is held back.
pub type Sent<M> = Vec<(M, u64)>;

/// The shortest and the longest delay of [`Fault::Slow`].
const SLOW_MS: (u64, u64) = (300, 900);
/// That of [`Fault::Dawdle`], and of [`Fault::Linger`].
const DAWDLE_MS: u64 = 15;
const LINGER_MS: u64 = 4;
/// How late [`Fault::Bare`] gives what it is asked for: soon enough that no client asks again.
const BARE_MS: u64 = 65;

/// What a faulty replica knows of its group.
#[derive(Clone, Debug)]
struct Identity {
    quorum: Quorum,
    me: ReplicaId,
    key: Signer,
}

/// One faulty replica's outgoing side.
#[derive(Debug)]
pub struct Faulty {
    fault: Fault,
    identity: Identity,
    rng: ChaCha8Rng,
    equivocator: Equivocator,
    mutator: Mutator,
    flooder: Flooder,
    leaper: Leaper,
    starver: Starver,
}

impl Faulty {
    /// The replica `me` with its own `key`. Equal seeds give equal misbehaviour.
    pub fn new(fault: Fault, quorum: Quorum, me: ReplicaId, key: Signer, seed: u64) -> Faulty {
        Faulty {
            fault,
            identity: Identity { quorum, me, key },
            rng: ChaCha8Rng::seed_from_u64(seed),
            equivocator: Equivocator::default(),
            mutator: Mutator::default(),
            flooder: Flooder::default(),
            leaper: Leaper::default(),
            starver: Starver::default(),
        }
    }

    /// It signs with another key from now on.
    pub fn renew(&mut self, key: Signer) {
        self.identity.key = key;
    }

    /// How it misbehaves.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// What leaves for a replica in place of `message`. A broadcast is one call for each destination.
    pub fn for_peer(&mut self, to: ReplicaId, message: PeerMessage) -> Sent<PeerMessage> {
        match self.fault {
            Fault::Lie => now(lie::for_peer(message, self.rng.next_u64())),
            Fault::Equivocate => self.equivocator.for_peer(&self.identity, to, message),
            Fault::Silent => Vec::new(),
            Fault::Slow => Vec::from([(message, self.slowness())]),
            Fault::CorruptState => now(corrupt::for_peer(message)),
            Fault::Mutate => self
                .mutator
                .for_peer(&self.identity, &mut self.rng, to, message),
            Fault::Restless => restless(&self.identity, message),
            Fault::Flood => self
                .flooder
                .for_peer(&self.identity, &mut self.rng, message),
            Fault::Leap => self.leaper.for_peer(to, message),
            Fault::Mislead => mislead::for_peer(&self.identity, &mut self.rng, message),
            Fault::Shirk => shirk(message),
            Fault::Starve => self.starver.for_peer(&self.identity, message),
            Fault::Withhold => withhold(message),
            Fault::Dawdle => late(message, DAWDLE_MS),
            Fault::Linger => late(message, LINGER_MS),
            Fault::Bare => bare(message),
        }
    }

    /// What leaves for a client in place of `message`.
    pub fn for_client(&mut self, message: ReplicaMessage) -> Sent<ReplicaMessage> {
        match self.fault {
            Fault::Lie => now(lie::for_client(message)),
            Fault::Equivocate
            | Fault::CorruptState
            | Fault::Restless
            | Fault::Flood
            | Fault::Leap
            | Fault::Mislead
            | Fault::Shirk
            | Fault::Starve
            | Fault::Withhold
            | Fault::Dawdle
            | Fault::Linger
            | Fault::Bare => now(message),
            Fault::Silent => Vec::new(),
            Fault::Slow => Vec::from([(message, self.slowness())]),
            Fault::Mutate => self.mutator.for_client(&mut self.rng, message),
        }
    }

    fn slowness(&mut self) -> u64 {
        SLOW_MS.0 + below(&mut self.rng, SLOW_MS.1 - SLOW_MS.0)
    }
}

/// A proposal's content comes by itself, late.
fn bare(message: PeerMessage) -> Sent<PeerMessage> {
    match message {
        PeerMessage::PrePrepare(mut m) => {
            m.bodies.clear();
            now(PeerMessage::PrePrepare(m))
        }
        body @ PeerMessage::Body(_) => Vec::from([(body, BARE_MS)]),
        other => now(other),
    }
}

/// With each word of where it stands, a VIEW-CHANGE in good form for the view after that.
fn restless(identity: &Identity, message: PeerMessage) -> Sent<PeerMessage> {
    let PeerMessage::Status(status) = &message else {
        return now(message);
    };
    let change = change_to(identity, status.view.next());
    Vec::from([(message, 0), (PeerMessage::ViewChange(change), 0)])
}

/// A VIEW-CHANGE in good form, of one that has nothing to tell.
fn change_to(identity: &Identity, view: View) -> SignedViewChange {
    let body = ViewChange {
        view,
        replica: identity.me,
        stable: Seq(0),
        checkpoints: Vec::from([(Seq(0), Digest::ZERO)]),
        prepared: Vec::new(),
        preprepared: Vec::new(),
    };
    SignedViewChange::sign(body, &identity.key).into_inner()
}

/// All but what orders anything.
fn shirk(message: PeerMessage) -> Sent<PeerMessage> {
    match message {
        PeerMessage::PrePrepare(_)
        | PeerMessage::Prepare(_)
        | PeerMessage::Commit(_)
        | PeerMessage::Checkpoint(_)
        | PeerMessage::Committed(_) => Vec::new(),
        other => now(other),
    }
}

/// All but content, and what is below the root of a state.
fn withhold(message: PeerMessage) -> Sent<PeerMessage> {
    let is_root = |m: &Nodes| m.nodes.first().is_some_and(|(path, _)| path.is_empty());
    match message {
        PeerMessage::State(StateMessage::Nodes(m)) if !is_root(&m) => Vec::new(),
        PeerMessage::State(StateMessage::Values(_))
        | PeerMessage::Batch(_)
        | PeerMessage::Body(_) => Vec::new(),
        other => now(other),
    }
}

/// All at once but proposals.
fn late(message: PeerMessage, by: u64) -> Sent<PeerMessage> {
    let is_proposal = matches!(message, PeerMessage::PrePrepare(_));
    Vec::from([(message, if is_proposal { by } else { 0 })])
}

fn now<M>(message: M) -> Sent<M> {
    Vec::from([(message, 0)])
}

/// A number below `bound`; the slight bias does not matter here.
fn below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    rng.next_u64() % bound.max(1)
}
