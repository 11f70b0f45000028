//! Signatures that were made in this thread, so that they need not be checked, nor made again: a simulator is all members of a
//! group at once, and half of its time went into checks of what it had signed itself.
//!
//! Only what [`sign`] has made is known here. All else, above all what an adversary has changed, is checked as ever; so each
//! outcome is what it would be without, and each run of a seed the same.

extern crate std;

use alloc::collections::BTreeMap;
use core::cell::RefCell;

use super::{AuthError, PublicKey, Signature};
use crate::digest::Digest;

#[cfg(not(debug_assertions))]
compile_error!("signatures are remembered in the simulator alone: never in a release build");

/// More are forgotten, all at once; a run has some hundreds.
const MOST: usize = 1 << 14;

std::thread_local! {
    static MADE: RefCell<BTreeMap<(Digest, PublicKey), Signature>> = const { RefCell::new(BTreeMap::new()) };
}

/// The signature of a digest: as it was made before, or as `make` makes it now.
pub fn sign(key: &PublicKey, digest: &Digest, make: impl FnOnce() -> Signature) -> Signature {
    let name = (*digest, *key);
    MADE.with_borrow_mut(|made| {
        if made.len() >= MOST {
            made.clear();
        }
        *made.entry(name).or_insert_with(make)
    })
}

/// Whether a signature holds; asks `check` about those that are not known.
pub fn verify(
    key: &PublicKey,
    digest: &Digest,
    signature: &Signature,
    check: impl FnOnce() -> Result<(), AuthError>,
) -> Result<(), AuthError> {
    match is_known(key, digest, signature) {
        true => Ok(()),
        false => check(),
    }
}

/// Whether all hold; asks `check` about all if one is not known.
pub fn verify_all(
    signatures: &[(PublicKey, Digest, Signature)],
    check: impl FnOnce() -> bool,
) -> bool {
    let mut all = signatures.iter();
    all.all(|(key, digest, signature)| is_known(key, digest, signature)) || check()
}

fn is_known(key: &PublicKey, digest: &Digest, signature: &Signature) -> bool {
    MADE.with_borrow(|made| made.get(&(*digest, *key)) == Some(signature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::KeyPair;
    use crate::digest::Content;

    /// A known signature is the one that is made without; a changed one is checked, and does not hold.
    #[test]
    fn only_what_was_made_is_known() {
        let (key, other) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let digest = Digest::of(Content::Request, b"x");
        let signature = key.sign(&digest);
        assert_eq!(key.make(&digest), signature);
        assert_eq!(key.sign(&digest), signature);
        assert!(is_known(&key.public(), &digest, &signature));
        let mut changed = signature;
        changed.0[40] ^= 1;
        assert!(!is_known(&key.public(), &digest, &changed));
        assert!(!is_known(&other.public(), &digest, &signature));
        assert!(key.public().verify(&digest, &changed).is_err());
        assert!(other.public().verify(&digest, &signature).is_err());
        let all = |s| super::super::verify_all(&[(key.public(), digest, s)]);
        assert!(all(signature) && !all(changed));
    }
}
