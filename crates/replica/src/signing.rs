//! Signed messages between replicas, in groups whose authentication is `signature` (BFT-PK in PBFT 2000): each carries its
//! sender's signature over sender and content, and nothing unsigned is believed.
//!
//! A driver seals what the replica wants sent and opens what has come, on whatever thread it likes. What leaves at a time shares
//! one signature, which costs its receivers most; each message carries what it takes to be believed without the others, since
//! it may become evidence.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_agreement::{Rejected, Signed};
use quorate_state::transfer::Lie;
use quorate_wire::evidence::Evidence;
use quorate_wire::message::{PeerMessage, SignedMessage};
use quorate_wire::{
    Authentication, Decode, Digest, Encode, PublicKey, Quorum, ReplicaId, Signature, Signer,
};

use crate::witness::Witness;

/// Signs what leaves and checks what comes.
#[derive(Clone, Debug)]
pub struct Signing {
    mode: Authentication,
    me: ReplicaId,
    key: Signer,
    keys: Vec<PublicKey>,
    /// Of each replica the last signature that was found right, with what it is over.
    known: Vec<Option<(Digest, Signature)>>,
    witness: Witness,
}

/// A message that has come, and the signature that it came in, where messages are signed.
#[derive(Debug)]
pub struct Sealed {
    message: PeerMessage,
    /// What carried it, and what the signature there is over.
    seal: Option<(SignedMessage, Digest)>,
}

impl Sealed {
    /// What it says, whoever does so.
    pub fn message(&self) -> &PeerMessage {
        &self.message
    }
}

impl Signing {
    /// For the replica `me` with this key, in a group with these keys.
    pub fn new(
        mode: Authentication,
        quorum: Quorum,
        me: ReplicaId,
        key: Signer,
        keys: Vec<PublicKey>,
    ) -> Signing {
        Signing {
            mode,
            me,
            key,
            known: alloc::vec![None; keys.len()],
            keys,
            witness: Witness::new(quorum),
        }
    }

    /// The group's id.
    pub fn group(&self) -> Digest {
        *self.key.group()
    }

    /// Whether messages are signed at all.
    pub fn signs(&self) -> bool {
        self.mode == Authentication::Signature
    }

    /// A message as it leaves by itself.
    pub fn seal(&self, message: PeerMessage) -> PeerMessage {
        match self.signs() {
            true => self.seal_all(&[message]).remove(0),
            false => message,
        }
    }

    /// Signs messages that leave at a time, for whomever each is; in their order.
    pub fn seal_all(&self, messages: &[PeerMessage]) -> Vec<PeerMessage> {
        let contents = messages.iter().map(|m| Bytes::from(m.to_bytes()));
        let contents: Vec<Bytes> = contents.collect();
        let digests = contents.iter().map(|c| SignedMessage::digest(self.me, c));
        let digests: Vec<Digest> = digests.collect();
        let signatures = self.key.key().sign_together(self.key.group(), &digests);
        let sealed = contents.into_iter().zip(signatures);
        let sealed = sealed.map(|(content, signature)| SignedMessage { content, signature });
        sealed.map(PeerMessage::Signed).collect()
    }

    /// The message that a replica has sent.
    ///
    /// # Errors
    /// The sender's fault: not signed by it, or signed where nobody signs.
    pub fn open(&mut self, from: ReplicaId, message: PeerMessage) -> Result<PeerMessage, Rejected> {
        let sealed = self.look(from, message)?;
        self.open_sealed(from, sealed, None)
    }

    /// What a replica has sent, taken apart. Nobody has checked yet whether the replica says so.
    ///
    /// # Errors
    /// As [`Signing::open`].
    pub fn look(&self, from: ReplicaId, message: PeerMessage) -> Result<Sealed, Rejected> {
        match (self.mode, message) {
            (Authentication::Mac, PeerMessage::Signed(_)) => Err(Rejected::NotAsked),
            (Authentication::Mac, message) => Ok(Sealed {
                message,
                seal: None,
            }),
            (Authentication::Signature, PeerMessage::Signed(m)) => {
                match PeerMessage::from_bytes(m.content.clone()) {
                    Ok(PeerMessage::Signed(_)) | Err(_) => Err(Rejected::Malformed),
                    Ok(message) => {
                        let root = m
                            .signature
                            .root(self.key.group(), &SignedMessage::digest(from, &m.content));
                        let seal = Some((m, root));
                        Ok(Sealed { message, seal })
                    }
                }
            }
            (Authentication::Signature, _) => Err(Rejected::BadAuthentication),
        }
    }

    /// The signature that [`Signing::open_sealed`] would check. What a replica has said at a time comes together, with one signature.
    pub fn unchecked(&self, from: ReplicaId, sealed: &Sealed) -> Option<Signed> {
        let (m, root) = sealed.seal.as_ref()?;
        let (at, its) = (usize::from(from.0), *m.signature.signature());
        let is_known = *self.known.get(at)? == Some((*root, its));
        (!is_known).then_some((self.keys[at], *root, its))
    }

    /// Opens what was looked at. `is_right`: whether the signature that was to be checked is right, if somebody has done so.
    ///
    /// # Errors
    /// As [`Signing::open`].
    pub fn open_sealed(
        &mut self,
        from: ReplicaId,
        sealed: Sealed,
        is_right: Option<bool>,
    ) -> Result<PeerMessage, Rejected> {
        if !self.has(from) && self.signs() {
            return Err(Rejected::UnknownSender);
        }
        if let Some((key, root, its)) = self.unchecked(from, &sealed) {
            let is_right = is_right.unwrap_or_else(|| key.verify(&root, &its).is_ok());
            if !is_right {
                return Err(Rejected::BadAuthentication);
            }
            self.known[usize::from(from.0)] = Some((root, its));
        }
        if let Some((m, _)) = sealed.seal {
            self.witness.hear(from, &sealed.message, m);
        }
        Ok(sealed.message)
    }

    fn has(&self, from: ReplicaId) -> bool {
        usize::from(from.0) < self.keys.len()
    }

    /// A replica has sent this, which is not in the certified state: there may be evidence now. The message that it came in was opened
    /// here not long ago.
    pub fn convict(&mut self, lie: &Lie) {
        self.witness.convict(lie);
    }

    /// Contradictions that were heard since the last time.
    pub fn take_evidence(&mut self) -> Vec<Evidence> {
        self.witness.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use quorate_wire::evidence::Kind;
    use quorate_wire::message::transfer::{Nodes, StateMessage};
    use quorate_wire::message::{Checkpoint, Prepare};
    use quorate_wire::{KeyPair, ReplicaKeys, Seq, View};

    const GROUP: Digest = Digest([7; 32]);

    fn key(replica: u8) -> KeyPair {
        KeyPair::from_seed(&[replica + 1; 32])
    }

    fn keys() -> ReplicaKeys {
        ReplicaKeys::Standing {
            group: GROUP,
            keys: (0..4).map(|r| key(r).public()).collect(),
        }
    }

    fn signing(me: u8) -> Signing {
        let keys = keys().standing().to_vec();
        let quorum = Quorum::new(4).expect("f = 1");
        Signing::new(
            Authentication::Signature,
            quorum,
            ReplicaId(me),
            Signer::standing(GROUP, key(me)),
            keys,
        )
    }

    fn vote(seq: u64, digest: u8) -> PeerMessage {
        PeerMessage::Prepare(Prepare {
            view: View(0),
            seq: Seq(seq),
            digest: Digest([digest; 32]),
        })
    }

    /// Two votes at one place are evidence, one of a kind; the same vote again, and votes elsewhere, are none; and what is
    /// remembered of one replica is bounded.
    #[test]
    fn contradictions_are_heard() {
        let (liar, mut other) = (signing(3), signing(0));
        let mut hear = |seq, digest| {
            let sealed = liar.seal(vote(seq, digest));
            other.open(ReplicaId(3), sealed).expect("signed");
            other.take_evidence()
        };
        for seq in 1..=2000 {
            assert!(hear(seq, 1).is_empty() && hear(seq, 1).is_empty());
        }
        assert!(hear(1, 2).is_empty(), "long forgotten");
        let found = hear(2000, 2);
        assert_eq!(found.len(), 1);
        let quorum = Quorum::new(4).expect("f = 1");
        let subject = found[0].verify(quorum, &keys()).expect("proved");
        assert_eq!((subject.replica, subject.seq), (ReplicaId(3), Seq(2000)));
        assert!(hear(1999, 2).is_empty(), "one of a kind");
    }

    fn checkpoint(root: u8) -> PeerMessage {
        PeerMessage::Checkpoint(Checkpoint {
            seq: Seq(128),
            root: Digest([root; 32]),
        })
    }

    /// What the listener has found after all of this, each said by the replica before it.
    fn found(said: &[(u8, PeerMessage)], lie: Option<&Lie>) -> Vec<Evidence> {
        let mut listener = signing(0);
        for (replica, message) in said {
            let sealed = signing(*replica).seal(message.clone());
            listener.open(ReplicaId(*replica), sealed).expect("signed");
        }
        lie.into_iter().for_each(|lie| listener.convict(lie));
        let found = listener.take_evidence();
        let quorum = Quorum::new(4).expect("f = 1");
        for evidence in &found {
            let subject = evidence.verify(quorum, &keys()).expect("proved");
            assert_eq!((subject.replica, subject.kind), (ReplicaId(3), Kind::State));
        }
        found
    }

    /// A root that f+1 others contradict is evidence, in whatever order they come; where nobody has f+1, nobody can tell who lies.
    #[test]
    fn a_wrong_root_is_heard() {
        let (right, wrong) = (checkpoint(1), checkpoint(2));
        let all = [(1, right.clone()), (2, right.clone()), (3, wrong.clone())];
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            let said = order.map(|at: usize| all[at].clone());
            assert_eq!(found(&said, None).len(), 1, "{order:?}");
        }
        assert!(found(&[(1, right.clone()), (3, wrong)], None).is_empty());
        assert!(found(&[(1, right.clone()), (3, right)], None).is_empty());
    }

    /// So is a piece of state, if the answer that it was in was heard, and f+1 have signed the root.
    #[test]
    fn a_wrong_piece_is_heard() {
        let (path, piece) = (Bytes::new(), Bytes::from("no node of the state"));
        let answer = |checkpoint| {
            PeerMessage::State(StateMessage::Nodes(Nodes {
                checkpoint: Seq(checkpoint),
                nodes: vec![(path.clone(), piece.clone())],
            }))
        };
        let lie = Lie {
            donor: ReplicaId(3),
            checkpoint: Seq(128),
            name: path.clone(),
            piece: piece.clone(),
            nodes: Vec::new(),
        };
        let certified = |other| [(1, checkpoint(1)), (2, checkpoint(1)), (3, other)];
        assert_eq!(found(&certified(answer(128)), Some(&lie)).len(), 1);
        let own_word = [(3, checkpoint(1)), (3, answer(128))];
        let all = [&certified(answer(128))[..2], &own_word].concat();
        assert_eq!(
            found(&all, Some(&lie)).len(),
            1,
            "its own word beside others"
        );
        assert!(found(&[&all[1..2], &own_word].concat(), Some(&lie)).is_empty());
        assert!(found(&certified(answer(256)), Some(&lie)).is_empty());
        assert!(found(&certified(answer(128))[1..], Some(&lie)).is_empty());
        assert!(found(&certified(answer(128))[..2], Some(&lie)).is_empty());

        // A replica that has started anew hears what others signed only when it fetches.
        let mut listener = signing(0);
        let mut open = |replica, message| {
            let sealed = signing(replica).seal(message);
            listener.open(ReplicaId(replica), sealed).expect("signed");
        };
        open(3, answer(128));
        open(1, checkpoint(1));
        listener.convict(&lie);
        assert!(listener.take_evidence().is_empty());
        let sealed = signing(2).seal(checkpoint(1));
        listener.open(ReplicaId(2), sealed).expect("signed");
        assert_eq!(listener.take_evidence().len(), 1);
    }

    /// What a driver has found right is not checked again, and known from then on; what it has found wrong is refused, and what it has only
    /// looked at is not known.
    #[test]
    fn others_may_check() {
        let (sender, mut me, from) = (signing(3), signing(0), ReplicaId(3));
        let sealed = sender.seal_all(&[vote(1, 1), vote(2, 1)]);
        let look = |me: &Signing, from, at: usize| me.look(from, sealed[at].clone()).expect("one");
        let first = look(&me, from, 0);
        let open = me.unchecked(from, &first).expect("unknown");
        assert!(open.0.verify(&open.1, &open.2).is_ok());
        let refused = me.open_sealed(from, first, Some(false));
        assert_eq!(refused, Err(Rejected::BadAuthentication));
        let second = look(&me, from, 1);
        assert_eq!(me.unchecked(from, &second), Some(open), "shared");
        assert_eq!(me.open_sealed(from, second, Some(true)), Ok(vote(2, 1)));
        let first = look(&me, from, 0);
        assert_eq!(me.unchecked(from, &first), None);
        assert_eq!(me.open_sealed(from, first, None), Ok(vote(1, 1)));

        let other = look(&me, ReplicaId(2), 0);
        assert!(me.unchecked(ReplicaId(2), &other).is_some());
        let refused = me.open_sealed(ReplicaId(2), other, None);
        assert_eq!(refused, Err(Rejected::BadAuthentication));
    }

    /// What is sealed together is opened by itself, by whoever gets it, in whatever order; and it convicts its sender by itself.
    #[test]
    fn each_message_stands_alone() {
        let (liar, mut first, mut second) = (signing(3), signing(0), signing(1));
        let sealed = liar.seal_all(&[vote(1, 1), vote(1, 2), vote(2, 1)]);
        assert_eq!(first.open(ReplicaId(3), sealed[2].clone()), Ok(vote(2, 1)));
        for (sealed, said) in [(&sealed[1], 2), (&sealed[0], 1)] {
            assert_eq!(second.open(ReplicaId(3), sealed.clone()), Ok(vote(1, said)));
        }
        let found = second.take_evidence();
        let quorum = Quorum::new(4).expect("f = 1");
        assert!(found[0].verify(quorum, &keys()).is_ok());

        let PeerMessage::Signed(mut forged) = sealed[0].clone() else {
            panic!("signed");
        };
        forged.content = vote(9, 9).to_bytes().into();
        let refused = second.open(ReplicaId(3), PeerMessage::Signed(forged));
        assert_eq!(refused, Err(Rejected::BadAuthentication));
        let refused = second.open(ReplicaId(2), sealed[0].clone());
        assert_eq!(refused, Err(Rejected::BadAuthentication));
    }
}
