//! Identifiers as distinct types, and quorum sizes.

use core::fmt;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use alloc::vec::Vec;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $short:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($short, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
                Ok(Self(<$inner>::decode(r)?))
            }
        }
    };
}

number!(
    /// A configuration of the group in which one replica is the primary.
    View, u64, "v"
);
number!(
    /// The place of a batch in the agreed order. The first batch has 1; 0 is the initial state.
    Seq, u64, "n"
);
number!(
    /// A replica's place in the group file, from 0.
    ReplicaId, u8, "r"
);
number!(
    /// A client session, opened by an ordered operation. 0 is the control session, in which sessions are opened.
    SessionId, u64, "s"
);
number!(
    /// A request's number within its session, from 1 up.
    RequestNumber, u64, "q"
);
number!(
    /// Agreed time: nanoseconds since 1970-01-01 00:00 UTC.
    Time, u64, "t"
);
number!(
    /// The count of records that a replica has ever handed to its write-ahead log in this run.
    LogIndex, u64, "l"
);

/// A client is known by its long-lived public key.
pub type ClientId = crate::auth::PublicKey;

impl View {
    /// The view after this one. No group gets to the last number, but a peer can name it: then it stays there.
    #[must_use]
    pub fn next(self) -> View {
        View(self.0.saturating_add(1))
    }
}

impl Seq {
    /// The sequence number after this one. No group gets to the last number, but a peer can name it: then it stays there.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0.saturating_add(1))
    }
}

/// The size of a group and how many of its replicas may be faulty.
///
/// Every quorum size in the project comes from here. PBFT 2002, 2: n = 3f+1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    n: u8,
    f: u8,
}

impl Quorum {
    /// The largest group: authenticators and vote sets are bounded by it.
    pub const MAX_REPLICAS: usize = 64;

    /// A group of `n` replicas; `None` unless n = 3f+1 for some f, up to [`Self::MAX_REPLICAS`].
    pub fn new(n: usize) -> Option<Quorum> {
        if n == 0 || n > Self::MAX_REPLICAS || !(n - 1).is_multiple_of(3) {
            return None;
        }
        Some(Quorum {
            n: n as u8,
            f: ((n - 1) / 3) as u8,
        })
    }

    /// All replicas.
    pub fn n(self) -> usize {
        self.n as usize
    }

    /// How many replicas may be faulty.
    pub fn f(self) -> usize {
        self.f as usize
    }

    /// 2f+1: any two such sets share a correct replica.
    pub fn commit(self) -> usize {
        2 * self.f() + 1
    }

    /// f+1: any such set holds a correct replica.
    pub fn weak(self) -> usize {
        self.f() + 1
    }

    /// The primary of a view. PBFT 2002, 4: p = v mod n.
    pub fn primary(self, view: View) -> ReplicaId {
        ReplicaId((view.0 % u64::from(self.n)) as u8)
    }

    /// Whether `id` names a replica of the group.
    pub fn contains(self, id: ReplicaId) -> bool {
        id.0 < self.n
    }

    /// All replicas in order.
    pub fn replicas(self) -> impl Iterator<Item = ReplicaId> {
        (0..self.n).map(ReplicaId)
    }

    /// All replicas but `me`, in order.
    pub fn others(self, me: ReplicaId) -> impl Iterator<Item = ReplicaId> {
        self.replicas().filter(move |&r| r != me)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quorum sizes intersect as the protocol needs: two commit quorums share f+1 replicas.
    #[test]
    fn quorums_intersect_in_a_correct_replica() {
        for n in 0..=Quorum::MAX_REPLICAS + 4 {
            let Some(q) = Quorum::new(n) else {
                assert!(n == 0 || n > Quorum::MAX_REPLICAS || n % 3 != 1);
                continue;
            };
            assert_eq!(q.n(), 3 * q.f() + 1);
            assert!(2 * q.commit() - q.n() >= q.weak());
            assert!(
                q.n() - q.f() >= q.commit(),
                "correct replicas alone are a quorum"
            );
            assert_eq!(
                q.primary(View(q.n() as u64 + 1)),
                ReplicaId((1 % q.n()) as u8)
            );
        }
    }
}
