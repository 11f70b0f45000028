//! Whose operations are asked about, and against which owner credentials are held.

use alloc::collections::BTreeSet;

use quorate_wire::{ClientId, Digest, PublicKey};

/// Who the group file lets in without a credential. Part of the group's configuration: equal on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The group's id, which credentials name as their volume.
    pub volume: Digest,
    /// The key that signs first links. Without one there are no credentials, and whoever is let in is a member.
    pub owner: Option<PublicKey>,
    /// The clients that need no credential. Any other key is a *guest*, but for the owner's.
    pub members: BTreeSet<ClientId>,
}

impl Admission {
    /// No owner, so all clients are members and nothing is asked.
    pub fn members_only() -> Admission {
        Admission {
            volume: Digest::ZERO,
            owner: None,
            members: BTreeSet::new(),
        }
    }

    /// Whether a client needs no credential.
    pub fn is_member(&self, client: &ClientId) -> bool {
        match self.owner {
            None => true,
            Some(owner) => owner == *client || self.members.contains(client),
        }
    }
}
