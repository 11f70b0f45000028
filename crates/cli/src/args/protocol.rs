//! How the replicas of a group agree, which is fixed when it is made.

use clap::{Args as ClapArgs, ValueEnum};
use quorate_net::group::{Durability, Protocol};
use quorate_wire::Authentication;

/// Options of commands that make groups. What is not given is as in the file of a group that says nothing.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct ProtocolArgs {
    /// When replicas of a new group give their word: when it is on their disks, so that a power cut of all loses nothing that was
    /// acknowledged; or at once, from memory: as the papers measure, for a replica that has stopped can't come back [default: disk].
    #[arg(long, value_enum, value_name = "WHERE")]
    pub durability: Option<DurabilityArg>,
    /// What the members' words in a new group rest on: MACs and the links' own; or signatures under every request that is ordered and every message
    /// between replicas, which costs several times as much, and goes without key holders (--no-key-holders) [default: mac].
    #[arg(long, value_enum, value_name = "KIND")]
    pub authentication: Option<AuthenticationArg>,
}

/// See [`Durability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    Disk,
    Memory,
}

/// See [`Authentication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthenticationArg {
    Mac,
    Signature,
}

impl ProtocolArgs {
    /// What a new group is made with.
    pub fn protocol(self) -> Protocol {
        let mut protocol = Protocol::default();
        if let Some(durability) = self.durability {
            protocol.durability = match durability {
                DurabilityArg::Disk => Durability::Disk,
                DurabilityArg::Memory => Durability::Memory,
            };
        }
        if let Some(authentication) = self.authentication {
            protocol.authentication = match authentication {
                AuthenticationArg::Mac => Authentication::Mac,
                AuthenticationArg::Signature => Authentication::Signature,
            };
        }
        protocol
    }

    /// The option that a group which is there already does not follow, if there is one.
    pub fn differs_from(self, group: Protocol) -> Option<&'static str> {
        let wanted = self.protocol();
        let durability = self.durability.is_some() && wanted.durability != group.durability;
        let authentication = wanted.authentication != group.authentication;
        match () {
            () if durability => Some("--durability"),
            () if self.authentication.is_some() && authentication => Some("--authentication"),
            () => None,
        }
    }
}
