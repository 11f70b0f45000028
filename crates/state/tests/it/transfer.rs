//! A replica that catches up gets to the certified state, whatever some donors do.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_state::transfer::{
    self, CHUNK_BYTES, Fetcher, Lie, MAX_KEYS, REPLY_BYTES, Silences, Target,
};
use quorate_state::{Layer, MemorySnapshot, Snapshot, tree};
use quorate_wire::evidence::{Certificate, Evidence, Kind, WrongPiece};
use quorate_wire::message::transfer::{GetNodes, GetValues, Nodes, StateMessage, Values};
use quorate_wire::message::{Checkpoint, MAX_FRAME_BYTES, PeerMessage, SignedMessage};
use quorate_wire::{Decode, Digest, Encode, KeyPair, Quorum, ReplicaId, ReplicaKeys, Seq};

const CHECKPOINT: Seq = Seq(256);

/// What a donor makes of its honest answer.
type Behaviour = Box<dyn FnMut(StateMessage) -> Option<StateMessage>>;

fn honest() -> Behaviour {
    Box::new(Some)
}

fn state(entries: impl IntoIterator<Item = (Bytes, Bytes)>) -> MemorySnapshot {
    let layer = entries.into_iter().map(|(k, v)| (k, Some(v))).collect();
    MemorySnapshot::default().apply(&layer).unwrap().0
}

const GROUP: Digest = Digest([7; 32]);

fn key(k: u32) -> Bytes {
    Bytes::from(format!("key {k}"))
}

/// A transfer in virtual time, with its counts.
struct Run {
    target: MemorySnapshot,
    /// What the store holds: the base, and the layers taken so far.
    store: MemorySnapshot,
    fetcher: Fetcher,
    donors: BTreeMap<ReplicaId, Behaviour>,
    now: u64,
    messages: usize,
    bytes: usize,
    layers: usize,
}

impl Run {
    fn new(base: &MemorySnapshot, target: &MemorySnapshot, donors: Vec<Behaviour>) -> Run {
        let donors: BTreeMap<_, _> = (0..).map(ReplicaId).zip(donors).collect();
        Run {
            fetcher: fetcher(base, target, donors.len() as u8),
            store: base.clone(),
            target: target.clone(),
            donors,
            now: 1_000,
            messages: 0,
            bytes: 0,
            layers: 0,
        }
    }

    /// One round of questions and answers; otherwise time passes.
    fn step(&mut self) {
        let asks = self.fetcher.poll(self.now).unwrap();
        self.fetcher.invariants();
        if asks.is_empty()
            && let Some(next) = self.fetcher.next_timeout()
        {
            assert!(next > self.now, "a timer that is over and does nothing");
            self.now = next;
        }
        for (donor, ask) in asks {
            let ask = self.pass(ask);
            let answer = transfer::serve(&self.target, CHECKPOINT, &ask).unwrap();
            let behave = self.donors.get_mut(&donor).unwrap();
            let Some(answer) = answer.and_then(behave) else {
                continue;
            };
            let answer = self.pass(answer);
            self.fetcher.handle(self.now, donor, answer).unwrap();
            self.fetcher.invariants();
        }
        while let Some(layer) = self.fetcher.take_chunk().unwrap() {
            let sizes = layer
                .iter()
                .map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len));
            assert!(!layer.is_empty() && sizes.sum::<usize>() <= CHUNK_BYTES);
            self.store = self.store.apply(&layer).unwrap().0;
            self.layers += 1;
            self.fetcher.invariants();
        }
    }

    /// Over the wire and counted.
    fn pass(&mut self, message: StateMessage) -> StateMessage {
        let bytes = Bytes::from(message.to_bytes());
        assert!(bytes.len() <= MAX_FRAME_BYTES);
        self.messages += 1;
        self.bytes += bytes.len();
        StateMessage::from_bytes(bytes).unwrap()
    }

    fn finish(mut self) -> Run {
        for _ in 0..20_000 {
            if self.fetcher.is_done() {
                assert!(self.store == self.target, "not the target's contents");
                assert_eq!(self.fetcher.next_timeout(), None);
                return self;
            }
            self.step();
        }
        panic!("the transfer does not end: {:?}", self.fetcher);
    }

    fn liars(&self) -> Vec<ReplicaId> {
        self.fetcher.liars().map(|(id, _)| id).collect()
    }
}

fn fetcher(base: &MemorySnapshot, target: &MemorySnapshot, donors: u8) -> Fetcher {
    let target = Target {
        checkpoint: CHECKPOINT,
        root: tree::root(target).unwrap(),
    };
    Fetcher::new(target, Arc::new(base.clone()), (0..donors).map(ReplicaId)).unwrap()
}

fn entries(keys: u32, most: usize) -> impl Strategy<Value = BTreeMap<Bytes, Bytes>> {
    prop::collection::btree_map(
        (0..keys).prop_map(key),
        (0..3_u8, 0..40_usize).prop_map(|(b, n)| Bytes::from(vec![b; n])),
        0..most,
    )
}

/// A base and a target that share most, some or nothing, of different depths.
fn pair() -> impl Strategy<Value = (MemorySnapshot, MemorySnapshot)> {
    let size = || prop_oneof![Just(2_usize), Just(20), Just(300), Just(6_000)];
    (size(), size(), size()).prop_flat_map(|(a, b, shared)| {
        (entries(8_000, a), entries(8_000, b), entries(8_000, shared)).prop_map(|(a, b, shared)| {
            let a = state(shared.clone().into_iter().chain(a));
            (a, state(shared.into_iter().chain(b)))
        })
    })
}

proptest! {
    #![proptest_config(crate::cases::cases(64))]

    /// From any state to any other, byte for byte, tree and all.
    #[test]
    fn any_state_becomes_any_other((base, target) in pair(), donors in 1..5_usize) {
        let run = Run::new(&base, &target, (0..donors).map(|_| honest()).collect()).finish();
        prop_assert!(run.liars().is_empty());
    }

    /// One donor that does something else with each answer costs time, and the others are not blamed.
    #[test]
    fn one_erratic_donor_costs_only_retries((base, target) in pair(), choices in prop::collection::vec(any::<(u8, u8, u16)>(), 64)) {
        let mut choices = choices.into_iter().cycle();
        let erratic: Behaviour = Box::new(move |answer| {
            let (what, byte, at) = choices.next().unwrap();
            damage(answer, what, byte, at as usize)
        });
        let run = Run::new(&base, &target, vec![honest(), erratic, honest()]).finish();
        prop_assert!(run.liars().iter().all(|id| *id == ReplicaId(1)));
    }

    /// Replies of any kind that nobody asked for change nothing and cost nobody their standing.
    #[test]
    fn unsolicited_replies_are_ignored((base, target) in pair(), junk in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut run = Run::new(&base, &target, vec![honest(), honest()]);
        let mut messages = vec![
            StateMessage::NotHere(CHECKPOINT),
            StateMessage::Nodes(Nodes { checkpoint: CHECKPOINT, nodes: vec![(Bytes::new(), Bytes::from(junk.clone()))] }),
            StateMessage::Nodes(Nodes { checkpoint: CHECKPOINT, nodes: vec![] }),
            StateMessage::Values(Values { checkpoint: CHECKPOINT, values: vec![(key(1), key(1))] }),
            StateMessage::GetNodes(GetNodes { checkpoint: CHECKPOINT, paths: vec![] }),
        ];
        messages.extend(StateMessage::from_slice(&junk));
        // From a donor that was not asked yet, and from strangers.
        for message in messages.iter().cloned() {
            run.fetcher.handle(0, ReplicaId(0), message).unwrap();
        }
        for _ in 0..3 {
            for message in messages.iter().cloned() {
                run.fetcher.handle(0, ReplicaId(9), message).unwrap();
            }
            run.step();
        }
        prop_assert!(run.finish().liars().is_empty());
    }
}

/// One of the ways in which an answer can be wrong.
fn damage(answer: StateMessage, what: u8, byte: u8, at: usize) -> Option<StateMessage> {
    let pieces = |mut pieces: Vec<(Bytes, Bytes)>| {
        let at = at % pieces.len().max(1);
        match what % 7 {
            0 => pieces.truncate(at),
            1 => pieces.insert(0, (Bytes::from(vec![byte; 2]), Bytes::from(vec![byte; 9]))),
            2 => pieces.push((Bytes::from(vec![byte; 5]), Bytes::new())),
            3 => pieces.reverse(),
            4 => pieces.push(pieces[at].clone()),
            5 => {
                let mut bytes = pieces[at].1.to_vec();
                bytes.push(byte);
                pieces[at].1 = bytes.into();
            }
            _ => {
                let mut bytes = pieces[at].1.to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= byte;
                }
                pieces[at].1 = bytes.into();
            }
        }
        pieces
    };
    Some(match (what % 10, answer) {
        (7, _) => return None,
        (8, _) => StateMessage::NotHere(CHECKPOINT),
        (9, StateMessage::Nodes(nodes)) => StateMessage::Nodes(Nodes {
            checkpoint: Seq(1),
            ..nodes
        }),
        (_, StateMessage::Nodes(reply)) => StateMessage::Nodes(Nodes {
            nodes: pieces(reply.nodes),
            ..reply
        }),
        (_, StateMessage::Values(reply)) => StateMessage::Values(Values {
            values: pieces(reply.values),
            ..reply
        }),
        (_, other) => other,
    })
}

/// Each of the given ways of answering, by one of three donors all the time.
fn with_bad_donor(behave: fn(StateMessage) -> Option<StateMessage>) -> Run {
    let base = state((0..3_000).map(|k| (key(k), key(k))));
    let target = state((1_000..5_000).map(|k| (key(k), key(k % 1_500))));
    Run::new(&base, &target, vec![Box::new(behave), honest(), honest()]).finish()
}

/// A corrupt node and a corrupt value are found at once, who sent them is put aside, and what comes with it proves it to others.
#[test]
fn liars_are_named() {
    let corrupt_node = with_bad_donor(|answer| match answer {
        StateMessage::Nodes(_) => damage(answer, 6, 1, 0),
        other => Some(other),
    });
    let corrupt_value = with_bad_donor(|answer| match answer {
        StateMessage::Values(_) => damage(answer, 5, 1, 0),
        other => Some(other),
    });
    for mut run in [corrupt_node, corrupt_value] {
        let liars: Vec<_> = run.fetcher.liars().collect();
        assert_eq!(liars, [(ReplicaId(0), 1)]);
        let lies = run.fetcher.take_lies();
        assert_eq!(lies.len(), 1);
        let proof = proof(&lies[0], tree::root(&run.target).unwrap());
        let subject = proof.verify(Quorum::new(4).unwrap(), &keys()).unwrap();
        assert_eq!((subject.replica, subject.kind), (ReplicaId(0), Kind::State));
        // Others did its work at once; nobody waited for a time-out.
        assert_eq!(run.now, 1_000);
    }
}

fn key_pair(replica: u8) -> KeyPair {
    KeyPair::from_seed(&[replica + 1; 32])
}

fn keys() -> ReplicaKeys {
    ReplicaKeys::Standing {
        group: GROUP,
        keys: (0..4).map(|r| key_pair(r).public()).collect(),
    }
}

fn signed(replica: u8, message: &PeerMessage) -> SignedMessage {
    let content = Bytes::from(message.to_bytes());
    let digest = SignedMessage::digest(ReplicaId(replica), &content);
    let signature = key_pair(replica).sign_in(&GROUP, &digest);
    SignedMessage {
        content,
        signature: signature.into(),
    }
}

/// The lie in an answer of its own, signed, against a root that two others have signed.
fn proof(lie: &Lie, root: Digest) -> Evidence {
    let checkpoint = lie.checkpoint;
    let piece = vec![(lie.name.clone(), lie.piece.clone())];
    let answer = match lie.name.starts_with(b"key") {
        true => StateMessage::Values(Values {
            checkpoint,
            values: piece,
        }),
        false => StateMessage::Nodes(Nodes {
            checkpoint,
            nodes: piece,
        }),
    };
    let certified = PeerMessage::Checkpoint(Checkpoint {
        seq: checkpoint,
        root,
    });
    let vouchers = [1, 2].map(|r| (ReplicaId(r), signed(r, &certified)));
    Evidence::Piece(WrongPiece {
        replica: lie.donor,
        said: signed(lie.donor.0, &PeerMessage::State(answer)),
        at: 0,
        certificate: Certificate {
            signed: vouchers.to_vec(),
        },
        nodes: lie.nodes.clone(),
    })
}

/// Missing keys, extra keys, the wrong checkpoint and silence cost time, and no honest donor is blamed.
#[test]
fn evasive_donors_cost_time() {
    let evasions: [fn(StateMessage) -> Option<StateMessage>; 6] = [
        |answer| damage(answer, 10, 0, 1),
        |answer| damage(answer, 1, 77, 0),
        |answer| damage(answer, 2, 77, 0),
        |answer| damage(answer, 9, 0, 0),
        |_| None,
        |_| Some(StateMessage::NotHere(CHECKPOINT)),
    ];
    for evade in evasions {
        let run = with_bad_donor(evade);
        assert!(run.liars().is_empty());
        assert!(run.now < 60_000, "{} ms", run.now);
    }
}

/// When all donors lie now and then, the transfer starts over with all of them, and ends.
#[test]
fn all_donors_lying_at_first_is_overcome() {
    let base = MemorySnapshot::default();
    let target = state((0..3_000).map(|k| (key(k), key(k))));
    let donor = || -> Behaviour {
        let mut answers = 0_u8;
        Box::new(move |answer| {
            answers += 1;
            match answers % 3 {
                1 => damage(answer, 6, 1, 0),
                _ => Some(answer),
            }
        })
    };
    let run = Run::new(&base, &target, vec![donor(), donor(), donor()]).finish();
    assert_eq!(run.liars().len(), 3);
}

/// A donor that never answers does not keep the fetcher from saying that the others have moved on. One that says so alone does.
#[test]
fn a_silent_donor_hides_nothing() {
    let base = MemorySnapshot::default();
    let target = state((0..100).map(|k| (key(k), key(k))));
    let gone = || -> Behaviour { Box::new(|_| Some(StateMessage::NotHere(CHECKPOINT))) };
    let silent = || -> Behaviour { Box::new(|_| None) };
    for (donors, unavailable) in [
        (vec![gone(), silent(), gone()], true),
        (vec![silent(), silent(), gone()], false),
    ] {
        let mut run = Run::new(&base, &target, donors);
        for _ in 0..200 {
            run.step();
        }
        assert_eq!(run.fetcher.is_unavailable(), unavailable);
    }
}

/// A donor that never answers is not waited for, whichever it is. One that answers with the root and with nothing else is waited for once, and not in the transfers
/// that follow either: checkpoints may come faster than such a wait ends.
#[test]
fn nobody_waits_for_a_silent_donor() {
    let base = MemorySnapshot::default();
    let target = state((0..3_000).map(|k| (key(k), key(k))));
    let silent: fn(StateMessage) -> Option<StateMessage> = |_| None;
    let all_but_the_root: fn(StateMessage) -> Option<StateMessage> = |answer| match &answer {
        StateMessage::Nodes(nodes) if nodes.nodes[0].0.is_empty() => Some(answer),
        _ => None,
    };
    for at in 0..3 {
        let donors = |behave: fn(StateMessage) -> Option<StateMessage>| {
            let mut donors = vec![honest(), honest()];
            donors.insert(at, Box::new(behave));
            donors
        };
        let run = Run::new(&base, &target, donors(silent)).finish();
        assert_eq!(run.now, 1_000, "donor {at}");

        let (mut silences, mut now, mut waited) = (Silences::default(), 0, Vec::new());
        for _ in 0..10 {
            let mut run = Run::new(&base, &target, donors(all_but_the_root));
            run.fetcher.mistrust(&silences);
            run.now = now;
            let run = run.finish();
            silences = run.fetcher.silences();
            waited.push(run.now - now);
            // The pause is over.
            now = run.now + 100_000;
        }
        assert!(waited[0] <= 1_000, "{waited:?}");
        assert!(waited[1..].iter().all(|ms| *ms == 0), "{waited:?}");
    }
}

/// A donor that answers with the root at once, and with all else just before its time is over, is waited for no longer than is usual for the others.
#[test]
fn nobody_waits_for_a_slow_donor() {
    let target = state((0..3_000).map(|k| (key(k), key(k))));
    let mut fetcher = fetcher(&MemorySnapshot::default(), &target, 3);
    let (mut now, mut late) = (0, Vec::new());
    while !fetcher.is_done() {
        assert!(now < 500, "{fetcher:?}");
        let asks = fetcher.poll(now).unwrap();
        fetcher.invariants();
        let is_idle = asks.is_empty();
        for (donor, ask) in asks {
            let is_root = matches!(&ask, StateMessage::GetNodes(ask) if ask.paths[0].is_empty());
            let answer = transfer::serve(&target, CHECKPOINT, &ask).unwrap().unwrap();
            match donor == ReplicaId(0) && !is_root {
                true => late.push((now + 990, answer)),
                false => fetcher.handle(now, donor, answer).unwrap(),
            }
        }
        let chunk = fetcher.take_chunk().unwrap();
        if is_idle && chunk.is_none() {
            let next = fetcher.next_timeout().into_iter();
            let next = next.chain(late.iter().map(|(at, _)| *at)).min().unwrap();
            assert!(next > now);
            now = next;
        }
    }
    assert!(!late.is_empty(), "it was asked");
}

/// Where none of the donors have answered, it may have been the link: all of them are asked at once when there is another target.
#[test]
fn a_broken_link_is_no_donors_fault() {
    let base = MemorySnapshot::default();
    let target = state((0..100).map(|k| (key(k), key(k))));
    let silent = || -> Behaviour { Box::new(|_| None) };
    let mut run = Run::new(&base, &target, vec![silent(), silent(), silent()]);
    for _ in 0..20 {
        run.step();
    }
    let (silences, now) = (run.fetcher.silences(), run.now);
    let mut run = Run::new(&base, &target, vec![honest(), honest(), honest()]);
    run.fetcher.mistrust(&silences);
    run.now = now;
    assert_eq!(run.finish().now, now);
}

/// What was gathered for a target that is gone is not fetched again for the next.
#[test]
fn what_was_gathered_serves_the_next_target() {
    let value = |k: u32| Bytes::from(vec![k as u8; 100_000]);
    let before = state((0..100).map(|k| (key(k), value(k))));
    let next = state((1..101).map(|k| (key(k), value(k))));
    let mut run = Run::new(
        &MemorySnapshot::default(),
        &before,
        vec![honest(), honest()],
    );
    while run.fetcher.fetched_bytes() < 5_000_000 {
        run.step();
    }
    assert_eq!(run.layers, 0);
    let fetched = run.fetcher.fetched_bytes();
    let layer = run.fetcher.leave().unwrap();
    let store = run.store.apply(&layer).unwrap().0;
    let run = Run::new(&store, &next, vec![honest(), honest()]).finish();
    let again = run.fetcher.fetched_bytes();
    assert!(fetched + again < 10_500_000, "{fetched} and {again}");
}

/// Donors that all have moved on: the fetcher says so, asks less and less, and gets there if one comes back.
#[test]
fn a_checkpoint_that_is_gone_everywhere_is_reported() {
    let base = MemorySnapshot::default();
    let target = state((0..100).map(|k| (key(k), key(k))));
    let gone = |from: u32| -> Behaviour {
        let mut asked = 0;
        Box::new(move |answer| {
            asked += 1;
            match asked < from {
                true => Some(StateMessage::NotHere(CHECKPOINT)),
                false => Some(answer),
            }
        })
    };
    let mut run = Run::new(&base, &target, vec![gone(8), gone(u32::MAX)]);
    for _ in 0..10 {
        run.step();
    }
    assert!(run.fetcher.is_unavailable());
    let run = run.finish();
    assert!(!run.fetcher.is_unavailable());
    assert!(run.messages < 200);
}

/// One key differs among a hundred thousand: one path of nodes and one value are fetched.
#[test]
fn only_what_differs_is_fetched() {
    let base = state((0..100_000).map(|k| (key(k), key(k))));
    let change: Layer = [(key(77_777), Some(Bytes::from_static(b"changed")))].into();
    let target = base.apply(&change).unwrap().0;
    let run = Run::new(&base, &target, vec![honest(), honest(), honest()]).finish();
    // The root from all three, and the way down from one.
    assert!(run.messages <= 2 * 7, "{} messages", run.messages);
    assert!(run.bytes < 50_000, "{} bytes", run.bytes);

    let run = Run::new(&target, &target, vec![honest()]).finish();
    assert_eq!((run.messages, run.layers), (0, 0));
    // Deletes cost the way to them alone, and an empty target nothing.
    let run = Run::new(
        &base,
        &MemorySnapshot::default().apply(&Layer::new()).unwrap().0,
        vec![],
    );
    assert_eq!(run.finish().messages, 0);
}

/// A lot of long values: layers come in bounded pieces, all donors share the work, and after a restart in the middle
/// only the rest is fetched.
#[test]
fn long_values_come_in_pieces_and_survive_a_restart() {
    let value = |k: u32| Bytes::from(vec![k as u8; (1 << 20) + (k as usize % 100) * 1024]);
    let target = state((0..60).map(|k| (key(k), value(k))));
    let counting = |count: &Arc<std::sync::Mutex<[usize; 3]>>, id: usize| -> Behaviour {
        let count = count.clone();
        Box::new(move |answer| {
            if let StateMessage::Values(values) = &answer {
                count.lock().unwrap()[id] += values.values.len();
            }
            Some(answer)
        })
    };
    let count = Arc::default();
    let donors = || (0..3).map(|id| counting(&count, id)).collect();
    let mut run = Run::new(&MemorySnapshot::default(), &target, donors());
    while run.layers == 0 {
        run.step();
    }
    assert!(run.store.entries.len() < 40);
    let done = run.store.entries.len();

    let run = Run::new(&run.store, &target, donors()).finish();
    assert!(run.layers >= 2);
    let fetched = run.fetcher.fetched_bytes() as usize;
    assert!(fetched < (60 - done) * 1_160_000 + 10_000, "{fetched}");
    let count = *count.lock().unwrap();
    assert!(count.iter().all(|c| *c >= 10), "{count:?}");
}

/// While the driver takes nothing, what is held stays bounded.
#[test]
fn a_driver_that_takes_nothing_is_not_flooded() {
    let target = state((0..80).map(|k| (key(k), Bytes::from(vec![k as u8; 1 << 20]))));
    let mut fetcher = fetcher(&MemorySnapshot::default(), &target, 3);
    let mut got = 0;
    for round in 0..100 {
        for (donor, ask) in fetcher.poll(round).unwrap() {
            let answer = transfer::serve(&target, CHECKPOINT, &ask).unwrap().unwrap();
            got += answer.to_bytes().len();
            fetcher.handle(round, donor, answer).unwrap();
        }
    }
    assert!(got < CHUNK_BYTES + 8 * REPLY_BYTES, "{got}");
    assert!(!fetcher.is_done());
    assert!(fetcher.take_chunk().unwrap().is_some());
}

/// Whatever is asked, a donor's answer fits a frame and its work is bounded.
#[test]
fn a_donor_answers_within_bounds() {
    let snapshot = state((0..20).map(|k| (key(k), Bytes::from(vec![0; 1 << 20]))));
    let ask = |checkpoint, keys| StateMessage::GetValues(GetValues { checkpoint, keys });
    let greedy = ask(CHECKPOINT, vec![key(3); 100_000]);
    match transfer::serve(&snapshot, CHECKPOINT, &greedy).unwrap() {
        Some(StateMessage::Values(reply)) => assert_eq!(reply.values.len(), 1),
        other => panic!("{other:?}"),
    }
    let late = ask(Seq(1), vec![key(3)]);
    let here_not = transfer::serve(&snapshot, CHECKPOINT, &late).unwrap();
    assert_eq!(here_not, Some(StateMessage::NotHere(Seq(1))));
    let absent = ask(CHECKPOINT, vec![key(99); MAX_KEYS]);
    assert_eq!(
        transfer::serve(&snapshot, CHECKPOINT, &absent).unwrap(),
        None
    );
    let paths = vec![Bytes::from(vec![0; 1_000]), Bytes::new()];
    let nodes = StateMessage::GetNodes(GetNodes {
        checkpoint: CHECKPOINT,
        paths,
    });
    match transfer::serve(&snapshot, CHECKPOINT, &nodes).unwrap() {
        Some(StateMessage::Nodes(reply)) => assert_eq!(reply.nodes[0].0, Bytes::new()),
        other => panic!("{other:?}"),
    }
    let reply = StateMessage::NotHere(CHECKPOINT);
    assert_eq!(
        transfer::serve(&snapshot, CHECKPOINT, &reply).unwrap(),
        None
    );
}

/// A root that no donor can show, as for a certificate that was forged, is never reached and never believed.
#[test]
fn a_root_that_nobody_has_is_not_reached() {
    let target = state((0..100).map(|k| (key(k), key(k))));
    let mut run = Run::new(
        &MemorySnapshot::default(),
        &target,
        vec![honest(), honest()],
    );
    run.fetcher = Fetcher::new(
        Target {
            checkpoint: CHECKPOINT,
            root: Digest([7; 32]),
        },
        Arc::new(MemorySnapshot::default()),
        [ReplicaId(0), ReplicaId(1)],
    )
    .unwrap();
    for _ in 0..200 {
        run.step();
    }
    assert!(!run.fetcher.is_done() && run.layers == 0);
    // Pauses grow: it does not ask as fast as it is answered.
    assert!(
        run.now > 100_000 && run.messages < 500,
        "{} {}",
        run.now,
        run.messages
    );
    assert_eq!(run.store.get(&key(1)).unwrap(), None);
}
