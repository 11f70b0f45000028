//! The verifier and a second one, written from the format's description, say the same of every chain.

use std::cell::Cell;

use crate::support::{Raw, VOLUME, assemble, public, said};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quorate_credential::{Chain, Trust};

/// What the crate says, in the words of the other.
fn ours(bytes: &[u8]) -> Option<crate::naive::Authority> {
    let chain = Chain::from_bytes(bytes.to_vec().into()).ok()?;
    assert_eq!(chain.to_bytes(), bytes, "another form");
    let owners = &[public(0)];
    let trust = Trust {
        volume: VOLUME,
        owners,
    };
    chain.verify(&trust).ok().as_ref().map(said)
}

/// Both, which must agree; whether they take it.
fn taken(bytes: &[u8]) -> bool {
    let theirs = crate::naive::authority(bytes, &VOLUME.0.0, &public(0).0);
    assert_eq!(ours(bytes), theirs, "{bytes:02x?}");
    theirs.is_some()
}

fn caveats() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let right = prop_oneof![
        Just((1, b"report-".to_vec())),
        any::<u64>().prop_map(|n| (2, n.to_le_bytes().to_vec())),
        Just((4, b"project 7".to_vec())),
        (0..2_u8).prop_map(|n| (5, vec![n, 0, 0, 0, 0, 0, 0, n])),
    ];
    let any_kind = (0..8_u8, vec(any::<u8>(), 0..12));
    // Kinds that are kept for later, with a body that they could have.
    let kept = (prop_oneof![Just(3_u8), Just(6)], vec(any::<u8>(), 1));
    let one = prop_oneof![60 => right, 1 => any_kind, 1 => kept];
    let sorted = vec(one.clone(), 0..4).prop_map(|mut caveats| {
        caveats.sort_by_key(|c| c.0);
        caveats.dedup_by_key(|c| c.0);
        caveats
    });
    prop_oneof![4 => Just(Vec::new()), 10 => sorted, 1 => vec(one, 0..10)]
}

/// A change to one field of one link, made before it is signed: so that more than the signature is looked at.
fn change() -> impl Strategy<Value = (usize, u8, u64)> {
    (0..16_usize, 0..12_u8, any::<u64>())
}

fn apply(links: &mut [Raw], (at, field, to): (usize, u8, u64)) {
    let at = at % links.len();
    let link = &mut links[at];
    match field {
        0 => link.issuer = to as u8 % 20,
        1 => link.subject = to as u8 % 20,
        2 => link.object = u128::from(to % 3),
        3 => link.subtree = (to % 5) as u8,
        4 => link.rights = (to & 0x3fff) as u16,
        5 => link.from = 90 + to % 40,
        6 => link.until = 180 + to % 40,
        7 => link.depth = (to % 17) as u8,
        8 => link.rights &= to as u16 | 1 << 11,
        9 => link.serial = to,
        10 => link.until = link.from.wrapping_sub(to % 2),
        _ => link.subject = link.issuer,
    }
}

/// 1 to 16 links, most of them right, with a few changes.
fn links() -> impl Strategy<Value = Vec<Raw>> {
    let few = prop_oneof![20 => 1..8_usize, 1 => 8..17_usize];
    let parts = few.prop_flat_map(|n| (vec(caveats(), n), vec(change(), 0..3), any::<bool>()));
    parts.prop_map(|(caveats, changes, changed)| {
        let mut links: Vec<Raw> = (0..)
            .map(Raw::link)
            .zip(caveats)
            .map(|(mut link, caveats)| {
                link.caveats = caveats;
                link
            })
            .collect();
        let changes = changes.into_iter().filter(|_| changed);
        changes.for_each(|change| apply(&mut links, change));
        links
    })
}

/// Runs a property on so many cases, the same ones each time.
fn each<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let done = runner.run(strategy, |value| {
        property(value);
        Ok(())
    });
    done.unwrap();
}

/// Chains with right signatures, of right and wrong terms. Enough of both, or the test would say little.
#[test]
fn they_agree_on_signed_chains() {
    const CASES: u32 = 6000;
    let right = Cell::new(0);
    each(CASES, &links(), |links| {
        right.set(right.get() + u32::from(taken(&assemble(&links))))
    });
    let right = right.get();
    assert!(
        (CASES / 5..CASES * 4 / 5).contains(&right),
        "{right} of {CASES} hold"
    );
}

/// Chains whose bytes were changed after they were signed. None holds but where nothing was changed.
#[test]
fn they_agree_on_changed_bytes() {
    let bytes = (
        1..6_u8,
        vec((any::<prop::sample::Index>(), 0..5_u8, any::<u8>()), 1..4),
    );
    each(6000, &bytes, |(n, changes)| {
        let links: Vec<Raw> = (0..n).map(Raw::link).collect();
        let right = assemble(&links);
        let mut bytes = right.clone();
        for (at, how, byte) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.insert(at, byte),
                3 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        assert_eq!(taken(&bytes), bytes == right);
    });
}

/// Links left out, doubled, in another order, or of another chain, at each place.
#[test]
fn they_agree_on_reordered_links() {
    const LINK: usize = 141;
    let five: Vec<Raw> = (0..5).map(Raw::link).collect();
    let mut others = five.clone();
    others[0].serial = 99;
    let (bytes, other) = (assemble(&five), assemble(&others));
    assert!(taken(&bytes) && taken(&other));
    let (head, body) = bytes.split_at(66);
    let of = |bytes: &[u8], at: usize| bytes[LINK * at..][..LINK].to_vec();
    let build = |links: Vec<Vec<u8>>| {
        let mut out = head.to_vec();
        out[65] = links.len() as u8;
        out.extend(links.concat());
        out
    };
    let whole: Vec<Vec<u8>> = (0..5).map(|at| of(body, at)).collect();
    for a in 0..5 {
        for b in 0..5 {
            let mut swapped = whole.clone();
            swapped.swap(a, b);
            assert_eq!(taken(&build(swapped)), a == b);
            let mut doubled = whole.clone();
            doubled.insert(b, of(body, a));
            assert!(!taken(&build(doubled)));
        }
        let mut less = whole.clone();
        less.remove(a);
        // Without its last link it is what the one before held.
        assert_eq!(taken(&build(less)), a == 4);
        let mut mixed = whole.clone();
        mixed[a] = of(&other[66..], a);
        assert!(!taken(&build(mixed)));
    }
}
