//! The signed messages of a view change. PBFT 2002, 4.4.

use alloc::vec::Vec;

use crate::auth::{AuthError, Verified};
use crate::codec::Encode;
use crate::digest::{Content, Digest};
use crate::epoch::{ReplicaKeys, ReplicaSignature, Signs};
use crate::ids::{ReplicaId, Seq, View};
use crate::record;

record! {
    /// A batch that was prepared or pre-prepared at a place in a view.
    pub struct Vote {
        /// The place.
        pub seq: Seq,
        /// The view.
        pub view: View,
        /// The batch.
        pub digest: Digest,
    }
}

record! {
    /// `<VIEW-CHANGE, v, h, C, P, Q, i>`.
    pub struct ViewChange {
        /// The view that the sender moves to.
        pub view: View,
        /// The sender.
        pub replica: ReplicaId,
        /// h: its last stable checkpoint.
        pub stable: Seq,
        /// C: the checkpoints that it holds (place and root), the stable one first, in rising order.
        pub checkpoints: Vec<(Seq, Digest)>,
        /// P: for each place the last batch that prepared there, in rising order of place.
        pub prepared: Vec<Vote>,
        /// Q: for each place and batch the last view in which it was pre-prepared there, in rising order of (place, digest).
        pub preprepared: Vec<Vote>,
    }
}

record! {
    /// `<NEW-VIEW, v, V, X>`.
    pub struct NewView {
        /// The view that starts.
        pub view: View,
        /// V: which VIEW-CHANGEs it rests on, by sender and digest, in rising order of sender.
        pub proofs: Vec<(ReplicaId, Digest)>,
        /// The checkpoint to start from.
        pub start: (Seq, Digest),
        /// X: the batches for the places after `start`, without gaps.
        pub selection: Vec<Digest>,
    }
}

record! {
    /// A VIEW-CHANGE with its sender's signature.
    pub struct SignedViewChange {
        /// What is said.
        pub body: ViewChange,
        /// The sender's, over [`SignedViewChange::digest`].
        pub signature: ReplicaSignature,
    }
}

record! {
    /// A NEW-VIEW with the signature of the view's primary.
    pub struct SignedNewView {
        /// What is said.
        pub body: NewView,
        /// The primary's.
        pub signature: ReplicaSignature,
    }
}

impl NewView {
    /// The batches that the view starts with, as the pre-prepares that they are. There are none beyond the last number.
    pub fn votes(&self) -> impl Iterator<Item = Vote> {
        let (start, view) = (self.start.0.0, self.view);
        let places = (1..=u64::MAX - start).map(move |i| start + i);
        let places = places.zip(&self.selection);
        places.map(move |(seq, digest)| Vote {
            seq: Seq(seq),
            view,
            digest: *digest,
        })
    }

    /// Whether a certificate of an earlier view has come to nothing where the view has begun so: the view gives its place another batch, or none.
    pub fn supersedes(&self, certificate: &Vote) -> bool {
        let given = self.given(certificate.seq);
        certificate.seq > self.start.0
            && certificate.view < self.view
            && given != Some(certificate.digest)
    }

    /// The batch that it starts with at a place, if it has one there.
    pub fn given(&self, seq: Seq) -> Option<Digest> {
        let at = seq.0.checked_sub(self.start.0.0)?.checked_sub(1)?;
        self.selection.get(usize::try_from(at).ok()?).copied()
    }
}

impl SignedViewChange {
    /// Signs.
    pub fn sign(body: ViewChange, by: &impl Signs) -> Verified<SignedViewChange> {
        let signature = by.sign_for_others(&Digest::of(Content::ViewChange, &body.to_bytes()));
        Verified::new(SignedViewChange { body, signature })
    }

    /// The digest by which a NEW-VIEW names this message.
    pub fn digest(&self) -> Digest {
        Digest::of(Content::ViewChange, &self.body.to_bytes())
    }

    /// Checks the signature; how old it is, only the certificate's number says.
    ///
    /// # Errors
    /// As [`ReplicaKeys::verify`].
    pub fn verify(self, keys: &ReplicaKeys) -> Result<Verified<SignedViewChange>, AuthError> {
        keys.verify(self.body.replica, &self.digest(), &self.signature)?;
        Ok(Verified::new(self))
    }
}

impl SignedNewView {
    /// Signs.
    pub fn sign(body: NewView, by: &impl Signs) -> Verified<SignedNewView> {
        let signature = by.sign_for_others(&Digest::of(Content::NewView, &body.to_bytes()));
        Verified::new(SignedNewView { body, signature })
    }

    /// Checks the signature of the view's primary; how old it is, only the certificate's number says.
    ///
    /// # Errors
    /// As [`ReplicaKeys::verify`].
    pub fn verify(
        self,
        keys: &ReplicaKeys,
        primary: ReplicaId,
    ) -> Result<Verified<SignedNewView>, AuthError> {
        keys.verify(primary, &self.digest(), &self.signature)?;
        Ok(Verified::new(self))
    }
}
