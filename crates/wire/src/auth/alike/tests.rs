//! Signatures that only whoever has the key can make, alone and in all kinds of company.

use curve25519_dalek::constants::EIGHT_TORSION;

use super::*;
use crate::auth::KeyPair;
use crate::digest::Content;

type Signed = (PublicKey, Digest, Signature);

/// The order of the base point, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

fn digest(number: u8) -> Digest {
    Digest::of(Content::Request, &[number])
}

fn honest(number: u8) -> Signed {
    let key = KeyPair::from_seed(&[number; 32]);
    (key.public(), digest(number), key.sign(&digest(number)))
}

fn k(point: &[u8; 32], key: &[u8; 32], text: &Digest) -> Scalar {
    let hashed = Sha512::new()
        .chain_update(point)
        .chain_update(key)
        .chain_update(text.0);
    Scalar::from_bytes_mod_order_wide(&hashed.finalize().into())
}

/// A signature that is right but for `of_key` in the key's point and `of_point` in its own.
fn odd(number: u8, of_key: EdwardsPoint, of_point: EdwardsPoint) -> Signed {
    let (secret, nonce) = (
        Scalar::from(1000 + u64::from(number)),
        Scalar::from(7000 + u64::from(number)),
    );
    let key = (EdwardsPoint::mul_base(&secret) + of_key).compress().0;
    let point = (EdwardsPoint::mul_base(&nonce) + of_point).compress().0;
    let s = nonce + k(&point, &key, &digest(number)) * secret;
    with(PublicKey(key), digest(number), point, s.to_bytes())
}

fn with(key: PublicKey, text: Digest, point: [u8; 32], s: [u8; 32]) -> Signed {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&point);
    bytes[32..].copy_from_slice(&s);
    (key, text, Signature(bytes))
}

/// One with every component of small order in the key and in the point: 64, of which the first is not odd.
fn all_odd() -> Vec<Signed> {
    let both = (0..64).map(|i: u8| (i, EIGHT_TORSION[usize::from(i / 8)]));
    both.map(|(i, of_key)| odd(i, of_key, EIGHT_TORSION[usize::from(i % 8)]))
        .collect()
}

fn alone((key, digest, signature): &Signed) -> Result<(), AuthError> {
    verify(key, digest, signature)
}

fn strictly((key, digest, signature): &Signed) -> bool {
    key.verify_strict(digest, signature).is_ok()
}

/// What is said of some together, which is what is said of them in any order and beside others.
fn together(signatures: &[Signed]) -> bool {
    let said = verify_all(signatures);
    let backwards: Vec<Signed> = signatures.iter().rev().copied().collect();
    let others: Vec<Signed> = (200..205).map(honest).collect();
    let before = [&others, signatures].concat();
    let among = [signatures, &others, signatures].concat();
    for company in [backwards, before, among] {
        assert_eq!(verify_all(&company), said);
    }
    said
}

/// Components of small order, in the key, the point or both, change nothing: alone, in pairs and all together such signatures
/// hold. The strict check refuses most of them, so they are what they should be.
#[test]
fn what_is_odd_is_judged_alike_alone_and_together() {
    let all = all_odd();
    assert!(all.iter().filter(|signed| strictly(signed)).count() < 16);
    for signed in &all {
        assert_eq!(alone(signed), Ok(()));
        assert!(together(&[*signed]));
        assert!(together(&[*signed, honest(201)]));
    }
    for pair in all.windows(2) {
        assert!(together(pair));
    }
    assert!(together(&all));
}

/// An odd signature of something else is as wrong as any, whoever is beside it.
#[test]
fn what_is_odd_binds_its_content() {
    let all = all_odd();
    for at in 0..all.len() {
        let mut changed = all.clone();
        changed[at].1 = digest(99);
        assert_eq!(alone(&changed[at]), Err(AuthError::BadSignature));
        assert!(!together(&changed[at..=at]));
        assert!(!verify_all(&changed));
    }
}

/// Two that are wrong by opposite errors are wrong together too. Errors of small order are none.
#[test]
fn errors_do_not_cancel() {
    let pair = |error: EdwardsPoint| {
        let none = EIGHT_TORSION[0];
        let pair = [odd(1, none, error), odd(2, none, -error)];
        let said = pair.map(|signed| alone(&signed).is_ok());
        assert_eq!(together(&pair), said[0] && said[1]);
        said
    };
    for error in EIGHT_TORSION {
        assert_eq!(pair(error), [true; 2]);
        assert_eq!(pair(error + ED25519_BASEPOINT_POINT), [false; 2]);
    }
    // Errors in s alone.
    let mut pair = [honest(1), honest(2)];
    shift(&mut pair, &Scalar::ONE, &-Scalar::ONE);
    assert!(!together(&pair) && alone(&pair[0]).is_err());
}

/// Adds to the s of two signatures.
fn shift(pair: &mut [Signed; 2], first: &Scalar, second: &Scalar) {
    for (signed, by) in pair.iter_mut().zip([first, second]) {
        let s: [u8; 32] = signed.2.0[32..].try_into().unwrap();
        let s = Scalar::from_canonical_bytes(s).unwrap() + by;
        signed.2.0[32..].copy_from_slice(s.as_bytes());
    }
}

/// Whoever knows the weights of what it would send has others once it has made errors that these would cancel.
#[test]
fn weights_can_not_be_chosen_first() {
    let mut pair = [honest(1), honest(2)];
    let known = weights(&pair);
    shift(&mut pair, &known[1], &-known[0]);
    assert!(!together(&pair));
    let none = EIGHT_TORSION[0];
    let known = weights(&[odd(1, none, none), odd(2, none, none)]);
    let (by_first, by_second) = (
        EdwardsPoint::mul_base(&known[1]),
        EdwardsPoint::mul_base(&-known[0]),
    );
    assert!(!together(&[
        odd(1, none, by_first),
        odd(2, none, by_second)
    ]));
    for at in 0..3 {
        let mut other = [honest(1), honest(2)];
        let before = weights(&other);
        match at {
            0 => other[1].0.0[0] ^= 1,
            1 => other[1].1.0[0] ^= 1,
            _ => other[1].2.0[0] ^= 1,
        }
        let after = weights(&other);
        assert!(after[0] != before[0] && after[1] != before[1] && after[0] != after[1]);
    }
}

/// A key of small order has signatures of everything, and a point of small order tells the key: neither holds.
#[test]
fn small_order_is_refused() {
    let nonce = Scalar::from(5u64);
    let point = EdwardsPoint::mul_base(&nonce).compress().0;
    for small in EIGHT_TORSION {
        let key = PublicKey(small.compress().0);
        let signed = with(key, digest(1), point, nonce.to_bytes());
        assert_eq!(alone(&signed), Err(AuthError::BadSignature));
        assert!(!together(&[signed]) && !together(&[signed, honest(1)]));
        let secret = Scalar::from(9u64);
        let (key, point) = (
            EdwardsPoint::mul_base(&secret).compress().0,
            small.compress().0,
        );
        let s = k(&point, &key, &digest(1)) * secret;
        let signed = with(PublicKey(key), digest(1), point, s.to_bytes());
        assert_eq!(alone(&signed), Err(AuthError::BadSignature));
        assert!(!together(&[signed]) && !together(&[signed, honest(1)]));
    }
}

/// Second encodings of a key, a point or s are refused, alone and together.
#[test]
fn second_encodings_are_refused() {
    // y = p + i, with either sign: as many as fit into 255 bits.
    let mut points = 0;
    for (i, sign) in (0..19u8).flat_map(|i| [(i, 0), (i, 0x80)]) {
        let mut bytes = [0xff; 32];
        (bytes[0], bytes[31]) = (0xed + i, 0x7f | sign);
        points += usize::from(CompressedEdwardsY(bytes).decompress().is_some());
        assert!(decompress(&bytes).is_none());
        let (_, text, signature) = honest(1);
        let signed = (PublicKey(bytes), text, signature);
        assert_eq!(alone(&signed), Err(AuthError::BadKey));
        assert!(!together(&[signed, honest(2)]));
    }
    assert!(points > 10, "a library that refuses them by itself");
    // The largest that is reduced is p - 1, the point of order 2.
    let mut largest = [0xff; 32];
    (largest[0], largest[31]) = (0xec, 0x7f);
    assert!(decompress(&largest).is_some());

    // s + the order is the same scalar.
    let (key, text, mut signature) = honest(1);
    let mut carry = 0;
    for (byte, order) in signature.0[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        (*byte, carry) = (sum as u8, sum >> 8);
    }
    assert_eq!(carry, 0);
    let signed = (key, text, signature);
    assert_eq!(alone(&signed), Err(AuthError::BadSignature));
    assert!(!together(&[signed]) && !together(&[signed, honest(2)]));
}

/// What the strict check takes is taken; and of any mixture it is said together what is said of each.
#[test]
fn mixtures_are_judged_like_their_parts() {
    let mut pool: Vec<Signed> = (0..16).map(honest).collect();
    pool.extend(all_odd());
    for signed in &pool {
        assert!(alone(signed).is_ok() || !strictly(signed));
    }
    let wrong = pool
        .clone()
        .into_iter()
        .map(|(key, _, s)| (key, digest(250), s));
    pool.extend(wrong.step_by(5));
    // A sequence that visits all, with few wrong ones in most.
    let mut at = 7;
    let (mut right, mut refused) = (0, 0);
    for length in 1..=40 {
        let mixture: Vec<Signed> = core::iter::repeat_with(|| {
            at = (at * 37 + 11) % 1009;
            pool[at % (81 + length % 16)]
        })
        .take(length)
        .collect();
        let each = mixture.iter().all(|signed| alone(signed).is_ok());
        assert_eq!(verify_all(&mixture), each);
        *(if each { &mut right } else { &mut refused }) += 1;
    }
    assert!(right > 5 && refused > 5, "{right} and {refused}");
}

/// What a signature costs. Run with `--release -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn cost_of_a_signature() {
    extern crate std;
    use std::{println, time::Instant};

    const ROUNDS: u32 = 50;
    let all: Vec<Signed> = (0..64).map(honest).collect();
    let show = |what: &str, work: &dyn Fn() -> bool| {
        let start = Instant::now();
        assert!((0..ROUNDS).all(|_| work()));
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS * 64);
        println!("{what}: {each:.1} us");
    };
    for _ in 0..3 {
        show("strictly, alone", &|| all.iter().all(strictly));
        show("alone", &|| all.iter().all(|signed| alone(signed).is_ok()));
        for together in [2, 8, 64] {
            show(&std::format!("{together} together"), &|| {
                all.chunks(together).all(verify_all)
            });
        }
    }
}
