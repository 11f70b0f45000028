//! One signature for many digests: over the root of a hash tree of which they are the leaves. Merkle, CRYPTO 1987.
//!
//! Each digest has a form of the signature that stands by itself: with the digests that lead from it to the root. So what was
//! signed together can be passed on, kept and shown one by one; and who checks several needs to check their signature once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::auth::{AuthError, KeyPair, PublicKey, Signature};
use crate::codec::{Decode, DecodeError, Encode, Reader, bounded};
use crate::digest::{Content, Digest};

/// The most digests that share one signature: a session's window, and more than a replica has to say at a time.
pub const MAX_SHARERS: usize = 64;
const MAX_PATH: usize = MAX_SHARERS.ilog2() as usize;

/// A signature over a digest, which others may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSignature {
    /// Over the root; that is the digest itself where nobody shares it.
    signature: Signature,
    /// Bit i: whether the digest's side is the right one at step i.
    place: u8,
    /// The other side at each step from the digest to the root.
    path: Vec<Digest>,
}

impl SharedSignature {
    /// What is signed, where it stands for `digest`.
    pub fn root(&self, group: &Digest, digest: &Digest) -> Digest {
        let mut node = *digest;
        for (step, other) in self.path.iter().enumerate() {
            node = match self.place >> step & 1 {
                0 => join(&node, other),
                _ => join(other, &node),
            };
        }
        in_group(group, &node)
    }

    /// The signature of the root.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether other digests may share it.
    pub fn is_shared(&self) -> bool {
        !self.path.is_empty()
    }

    /// Checks it for a digest.
    ///
    /// # Errors
    /// As [`PublicKey::verify`].
    pub fn verify(
        &self,
        key: &PublicKey,
        group: &Digest,
        digest: &Digest,
    ) -> Result<(), AuthError> {
        key.verify(&self.root(group, digest), &self.signature)
    }

    /// How many bytes it takes up.
    pub fn weight(&self) -> usize {
        size_of::<SharedSignature>() + size_of_val(&self.path[..])
    }
}

/// What is signed for a digest in a group: who has one key in several groups has said nothing in the others.
pub fn in_group(group: &Digest, digest: &Digest) -> Digest {
    Digest::of_parts(Content::InGroup, &[&group.0, &digest.0])
}

/// A signature over a digest alone: see [`KeyPair::sign_in`].
impl From<Signature> for SharedSignature {
    fn from(signature: Signature) -> SharedSignature {
        SharedSignature {
            signature,
            place: 0,
            path: Vec::new(),
        }
    }
}

impl From<Signature> for Box<SharedSignature> {
    fn from(signature: Signature) -> Box<SharedSignature> {
        Box::new(signature.into())
    }
}

impl KeyPair {
    /// Signs a digest for a group.
    pub fn sign_in(&self, group: &Digest, digest: &Digest) -> Signature {
        self.sign(&in_group(group, digest))
    }

    /// Signs digests for a group, [`MAX_SHARERS`] at a time; their signatures in their order.
    pub fn sign_together(&self, group: &Digest, digests: &[Digest]) -> Vec<SharedSignature> {
        let trees = digests.chunks(MAX_SHARERS);
        trees
            .flat_map(|leaves| self.sign_tree(group, leaves))
            .collect()
    }

    fn sign_tree(&self, group: &Digest, leaves: &[Digest]) -> Vec<SharedSignature> {
        let mut shares: Vec<(u8, Vec<Digest>)> = alloc::vec![(0, Vec::new()); leaves.len()];
        let mut level = leaves.to_vec();
        let mut height = 0;
        while level.len() > 1 {
            for (leaf, (place, path)) in shares.iter_mut().enumerate() {
                let at = leaf >> height;
                // Who has no other side rises as it is.
                if let Some(other) = level.get(at ^ 1) {
                    *place |= ((at & 1) as u8) << path.len();
                    path.push(*other);
                }
            }
            let pairs = level.chunks(2).map(|pair| match pair {
                [left, right] => join(left, right),
                alone => alone[0],
            });
            level = pairs.collect();
            height += 1;
        }
        let Some(signature) = level.first().map(|root| self.sign_in(group, root)) else {
            return Vec::new();
        };
        let shares = shares.into_iter();
        let shares = shares.map(|(place, path)| SharedSignature {
            signature,
            place,
            path,
        });
        shares.collect()
    }
}

fn join(left: &Digest, right: &Digest) -> Digest {
    let mut both = [0; 64];
    both[..32].copy_from_slice(&left.0);
    both[32..].copy_from_slice(&right.0);
    Digest::of(Content::SignedTogether, &both)
}

impl Encode for SharedSignature {
    fn encode(&self, out: &mut Vec<u8>) {
        self.signature.encode(out);
        self.place.encode(out);
        self.path.encode(out);
    }
}

impl Decode for SharedSignature {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let signature = Signature::decode(r)?;
        let place = u8::decode(r)?;
        let path: Vec<Digest> = bounded(r, MAX_PATH, "digests beside a signature")?;
        match place >> path.len() {
            0 => Ok(SharedSignature {
                signature,
                place,
                path,
            }),
            _ => Err(DecodeError::Invalid("place under a signature")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Digest = Digest([9; 32]);

    fn digests(count: u8) -> Vec<Digest> {
        let digest = |i| Digest::of(Content::Request, &[i]);
        (0..count).map(digest).collect()
    }

    /// However many digests are signed together, each signature holds by itself for its own digest, and for no other.
    #[test]
    fn each_holds_for_its_own() {
        let key = KeyPair::from_seed(&[1; 32]);
        for count in [1, 2, 3, 5, 8, 13, 63, 64, 65, 130] {
            let digests = digests(count);
            let signed = key.sign_together(&GROUP, &digests);
            assert_eq!(signed.len(), digests.len());
            for (i, (digest, share)) in digests.iter().zip(&signed).enumerate() {
                let again = SharedSignature::from_slice(&share.to_bytes()).expect("its encoding");
                assert_eq!(again, *share);
                let first = i / MAX_SHARERS * MAX_SHARERS;
                assert_eq!(
                    share.root(&GROUP, digest),
                    signed[first].root(&GROUP, &digests[first])
                );
                let other = &digests[(i + 1) % digests.len()];
                assert!(digest == other || share.root(&GROUP, other) != share.root(&GROUP, digest));
            }
            let (digest, share) = (&digests[digests.len() - 1], &signed[signed.len() - 1]);
            assert_eq!(share.verify(&key.public(), &GROUP, digest), Ok(()));
            assert!(share.verify(&key.public(), &GROUP, &Digest::ZERO).is_err());
        }
        assert!(key.sign_together(&GROUP, &[]).is_empty());
        let alone = key.sign_together(&GROUP, &digests(1));
        assert_eq!(alone[0], key.sign_in(&GROUP, &digests(1)[0]).into());
        assert!(!alone[0].is_shared());
    }

    /// A place that the path does not reach to, and a path that no tree has, are refused.
    #[test]
    fn one_form_alone() {
        let key = KeyPair::from_seed(&[1; 32]);
        let good = key.sign_together(&GROUP, &digests(64)).remove(63);
        assert_eq!((good.place, good.path.len()), (63, 6));
        let far = SharedSignature {
            place: 64,
            ..good.clone()
        };
        assert!(SharedSignature::from_slice(&far.to_bytes()).is_err());
        let mut long = good;
        long.path.push(Digest::ZERO);
        assert!(SharedSignature::from_slice(&long.to_bytes()).is_err());
    }
}
