use std::collections::BTreeSet;

use quorate_wire::{Digest, PublicKey, ReplicaId, Signature};

use super::*;

/// One of all there are; whether it is right is for the test to say.
fn signed(number: u64) -> Signed {
    let mut name = [0; 32];
    name[..8].copy_from_slice(&number.to_le_bytes());
    (PublicKey([1; 32]), Digest(name), Signature([7; 64]))
}

fn client(number: u8) -> Who {
    Who::Client(PublicKey([number; 32]))
}

fn of(threads: usize, from: usize) -> Staging<u64> {
    Staging::new(Verification { threads, from })
}

fn all_right(batch: Vec<Open>) -> Vec<Judged> {
    let judge = |open: Open| {
        let right = vec![true; open.signatures().len()];
        open.judged(right)
    };
    batch.into_iter().map(judge).collect()
}

/// A generator that needs no more than to be different for each seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Whatever comes from whom, and in whatever order verifiers are done: everything goes on once, in the order of its sender, with what came
/// of its own signatures or not checked at all; and nothing is kept in the end.
#[test]
fn each_sender_keeps_its_order() {
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut staging = of(1 + dice.below(3) as usize, 1 + dice.below(12) as usize);
        let senders: Vec<Who> = (0..3)
            .map(|id| Who::Peer(ReplicaId(id)))
            .chain((0..6).map(client))
            .collect();
        let mut out: Vec<Vec<Open>> = Vec::new();
        let mut signatures = BTreeMap::new();
        let mut came: Vec<(Who, u64)> = Vec::new();
        let mut went = came.clone();
        let whose = |came: &Vec<(Who, u64)>, event: u64| came[event as usize].0;
        for step in 0..400 {
            match dice.below(10) {
                0..=6 if step < 300 => {
                    let who = senders[dice.below(senders.len() as u64) as usize];
                    let event = came.len() as u64;
                    let open = [0, 0, 1, 1, 1, 20][dice.below(6) as usize];
                    let open: Vec<Signed> = (0..open).map(|n| signed(event * 100 + n)).collect();
                    signatures.insert(event, open.clone());
                    came.push((who, event));
                    let is_behind = came.len() - 1 > went.len()
                        && came
                            .iter()
                            .any(|c| c.0 == who && c.1 != event && !went.contains(c));
                    match staging.take(who, event, 10, open.clone()) {
                        Some(back) => {
                            assert!(back == event && open.is_empty() && !is_behind);
                            went.push((who, event));
                        }
                        None => assert!(!open.is_empty() || is_behind),
                    }
                }
                7 | 8 if !out.is_empty() => {
                    let batch = out.remove(dice.below(out.len() as u64) as usize);
                    let judge = |open: Open| {
                        let odd = |s: &Signed| s.1.0[0].is_multiple_of(2);
                        let right: Vec<bool> = open.signatures().iter().map(odd).collect();
                        open.judged(right)
                    };
                    let judged = batch.into_iter().map(judge).collect();
                    for (event, verdicts) in staging.judged(judged) {
                        let own: Vec<Signed> = verdicts.iter().map(|(s, _)| *s).collect();
                        assert_eq!(own, signatures[&event]);
                        assert!(
                            verdicts
                                .iter()
                                .all(|(s, right)| *right == (s.1.0[0] % 2 == 0))
                        );
                        went.push((whose(&came, event), event));
                    }
                }
                _ => {
                    while let Some(batch) = staging.next_batch() {
                        assert!(!batch.is_empty());
                        out.push(batch);
                    }
                    let few = staging.take_few();
                    assert!(few.is_empty() || out.is_empty());
                    went.extend(few.into_iter().map(|event| (whose(&came, event), event)));
                    assert!(!out.is_empty() || went.len() == came.len(), "stuck");
                }
            }
        }
        while !out.is_empty() {
            for batch in std::mem::take(&mut out) {
                let judged = staging.judged(all_right(batch));
                went.extend(
                    judged
                        .into_iter()
                        .map(|(event, _)| (whose(&came, event), event)),
                );
            }
            out.extend(std::iter::from_fn(|| staging.next_batch()));
            let few = staging.take_few();
            went.extend(few.into_iter().map(|event| (whose(&came, event), event)));
        }
        let once: BTreeSet<u64> = went.iter().map(|(_, event)| *event).collect();
        assert_eq!((once.len(), went.len()), (came.len(), came.len()));
        for who in senders {
            let of = |all: &[(Who, u64)]| {
                let own = all.iter().filter(|(w, _)| *w == who);
                own.map(|(_, event)| *event).collect::<Vec<_>>()
            };
            assert_eq!(of(&went), of(&came), "seed {seed}");
        }
        assert!(staging.lines.is_empty() && staging.unchecked_signatures == 0);
        assert_eq!(staging.load, [Load::default(); 2]);
    }
}

/// Few signatures go on as they are, many are handed over; what comes meanwhile gathers, however little it is.
#[test]
fn few_are_not_handed_over() {
    let mut staging = of(1, 8);
    for event in 0..7 {
        assert_eq!(staging.take(client(1), event, 1, vec![signed(event)]), None);
    }
    assert!(staging.next_batch().is_none());
    assert_eq!(staging.take_few(), [0, 1, 2, 3, 4, 5, 6]);
    for event in 0..8 {
        let who = client(event as u8);
        assert_eq!(staging.take(who, event, 1, vec![signed(event)]), None);
    }
    let batch = staging.next_batch().expect("enough");
    assert_eq!(batch.len(), 8);
    assert_eq!(staging.take(client(9), 8, 1, vec![signed(8)]), None);
    assert!(staging.next_batch().is_none() && staging.take_few().is_empty());
    assert_eq!(staging.take(client(10), 9, 1, Vec::new()), Some(9));
    assert_eq!(staging.take(client(0), 10, 1, Vec::new()), None, "behind");
    let judged = staging.judged(all_right(batch));
    let events: Vec<u64> = judged.into_iter().map(|(event, _)| event).collect();
    assert_eq!(events, [0, 1, 2, 3, 4, 5, 6, 7, 10]);
    assert_eq!(staging.take_few(), [8]);
}

/// What shares a signature is one check: it is not handed over for being many, and goes along where something else is.
#[test]
fn a_shared_signature_counts_once() {
    let mut staging = of(1, 8);
    for event in 0..64 {
        let open = vec![signed(event / 32)];
        assert_eq!(staging.take(client(1), event, 1, open), None);
    }
    assert!(staging.next_batch().is_none());
    assert_eq!(staging.take_few().len(), 64);
    for event in 0..64 {
        let open = vec![signed(event / 8)];
        assert_eq!(staging.take(client(1), event, 1, open), None);
    }
    let batch = staging.next_batch().expect("eight signatures");
    assert_eq!(batch.len(), 64);
    let open = vec![signed(7)];
    assert_eq!(staging.take(client(1), 64, 1, open), None, "in its turn");
    assert_eq!(staging.judged(all_right(batch)).len(), 64);
    assert_eq!(staging.take_few(), [64]);
    assert_eq!(staging.load, [Load::default(); 2]);
}

/// Replicas' signatures are checked before those of clients that came earlier; batches are bounded, and all verifiers have one.
#[test]
fn replicas_go_first() {
    let mut staging = of(2, 8);
    for event in 0..300 {
        let who = client((event % 100) as u8);
        assert_eq!(staging.take(who, event, 1, vec![signed(event)]), None);
    }
    let peer = Who::Peer(ReplicaId(1));
    assert_eq!(staging.take(peer, 300, 1, vec![signed(300)]), None);
    let (first, second) = (staging.next_batch().unwrap(), staging.next_batch().unwrap());
    assert_eq!(first[0].who, peer);
    assert_eq!((first.len(), second.len()), (MOST, MOST));
    assert!(staging.next_batch().is_none());
}

/// When enough waits of clients nothing more is to be taken from them, for whichever bound; of replicas it is. When that has gone on there
/// is room again.
#[test]
fn what_waits_is_bounded() {
    let fill = |bytes: usize, behind: bool| {
        let mut staging = of(1, 1);
        let mut taken = 0;
        while !staging.is_full()[1] {
            assert!(taken < 100_000);
            let open = match behind && taken > 0 {
                true => Vec::new(),
                false => vec![signed(taken)],
            };
            assert_eq!(staging.take(client(1), taken, bytes, open), None);
            taken += 1;
        }
        assert!(!staging.is_full()[0]);
        let mut back = 0;
        while let Some(batch) = staging.next_batch() {
            back += staging.judged(all_right(batch)).len();
        }
        assert_eq!(back as u64, taken);
        assert_eq!(staging.is_full(), [false; 2]);
        taken as usize
    };
    assert_eq!(fill(100, false), SIGNATURES[1]);
    assert_eq!(fill(1 << 20, false), BYTES[1] >> 20);
    assert_eq!(fill(100, true), EVENTS[1]);
}

/// Who has sent a wrong signature is kept apart until it has sent many right ones; others are not.
#[test]
fn who_was_wrong_is_kept_apart() {
    let mut staging = of(1, 1);
    let mut send = |event: u64, right: bool| {
        assert!(
            staging
                .take(client(1), event, 1, vec![signed(event)])
                .is_none()
        );
        assert!(
            staging
                .take(client(2), event, 1, vec![signed(event)])
                .is_none()
        );
        let batch = staging.next_batch().expect("something");
        let apart: Vec<bool> = batch.iter().map(|open| open.is_apart).collect();
        let judge = |(open, right): (Open, bool)| open.judged([right]);
        let judged = batch.into_iter().zip([right, true]).map(judge).collect();
        assert_eq!(staging.judged(judged).len(), 2);
        apart
    };
    assert_eq!(send(0, false), [false, false]);
    for event in 1..=REPENTANCE as u64 {
        assert_eq!(send(event, true), [true, false]);
    }
    assert_eq!(send(0, true), [false, false]);
    let mut many = of(1, 1);
    for key in 0..MOST_APART as u64 + 10 {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&key.to_le_bytes());
        many.note(Who::Client(PublicKey(name)), &[(signed(key), false)]);
    }
    assert_eq!(many.apart.len(), MOST_APART);
}
