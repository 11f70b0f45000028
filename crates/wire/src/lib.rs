//! What travels between the parts of a Quorate group, and who vouches for it.
//!
//! - [`ids`]: views, sequence numbers, replicas, sessions; [`Quorum`] is the one source of quorum sizes.
//! - [`codec`]: one canonical encoding. A value has exactly one byte form, and bytes that are not that
//!   form are refused, because digests and signatures are taken over bytes.
//! - [`segments`]: bytes that lie in several places, so that long strings need not be copied into a message.
//! - [`digest`]: BLAKE3 with a context for each kind of content.
//! - [`auth`]: keys, signatures, authenticators (one MAC a replica), and [`Verified`], the proof that a
//!   check was made.
//! - [`shared`]: one signature for many digests.
//! - [`message`]: requests, replies, and all that replicas say to each other.
//! - [`tree`]: the nodes of the partition tree over a state.
//! - [`identity`]: the key of a replica's key holder, which may be a TPM's.
//! - [`statement`]: what a replica's identity signs, and how old that may be.
//! - [`epoch`]: under which key a replica signs what is passed on.
//! - [`evidence`]: proof that a replica has contradicted itself.
//! - [`frame`]: checksummed frames of the write-ahead log.
//! - [`mutants`]: defects that tests can switch on, and nobody else.
//!
//! Absent on purpose: sockets, clocks, randomness, threads. The crate is `no_std`.
#![no_std]

extern crate alloc;

pub mod auth;
pub mod body;
pub mod codec;
pub mod digest;
pub mod epoch;
pub mod evidence;
pub mod frame;
pub mod identity;
pub mod ids;
pub mod message;
pub mod mutants;
pub mod segments;
pub mod shared;
pub mod statement;
pub mod tree;

pub use auth::{
    Authentication, Authenticator, KeyPair, Mac, MacKey, PublicKey, Signature, Verified,
};
pub use body::Body;
pub use codec::{Decode, DecodeError, Encode, Reader};
pub use digest::Digest;
pub use epoch::{EpochStatus, ReplicaKeys, ReplicaSignature, Signer, Signs};
pub use identity::{Certifies, IdentityKey, P256Pair};
pub use ids::{ClientId, LogIndex, Quorum, ReplicaId, RequestNumber, Seq, SessionId, Time, View};
pub use segments::{SegmentWriter, Segments};
pub use shared::{SharedSignature, in_group};
pub use statement::{Counters, EpochCertificate, RecoveryStatement, StatementError};
