//! The behaviours, seen from those who hear them.

use std::sync::Arc;

use bytes::Bytes;
use quorate_fault::{Fault, Faulty};
use quorate_wire::digest::Content;
use quorate_wire::message::transfer::{Nodes, StateMessage};
use quorate_wire::message::{
    AuthRequest, Batch, Checkpoint, Commit, Estimate, PeerMessage, PrePrepare, Prepare,
    ReplicaMessage, Reply, ReplyBody, Request, SignedViewChange, Status, ViewChange,
};
use quorate_wire::{
    Authenticator, Digest, KeyPair, Quorum, ReplicaId, ReplicaKeys, RequestNumber, Seq, SessionId,
    Signer, Time, View,
};

const ME: ReplicaId = ReplicaId(0);

fn faulty(fault: Fault) -> Faulty {
    let key = KeyPair::from_seed(&[1; 32]);
    let key = Signer::standing(GROUP, key);
    Faulty::new(fault, Quorum::new(4).unwrap(), ME, key, 7)
}

fn digest(name: &str) -> Digest {
    Digest::of(Content::Request, name.as_bytes())
}

/// Names are read back as what they were written for; others are refused with the list of names.
#[test]
fn names() {
    for fault in Fault::ALL {
        assert_eq!(fault.to_string().parse(), Ok(fault));
    }
    let refusal = "nap".parse::<Fault>().unwrap_err().to_string();
    assert!(refusal.contains("corrupt-state"), "{refusal}");
}

/// A liar's result and its digest are both wrong.
#[test]
fn a_liar_lies_to_clients() {
    let mut liar = faulty(Fault::Lie);
    let result = bytes::Bytes::from_static(b"\x01\x01\0\0\0x");
    for body in [
        ReplyBody::Full(result.clone()),
        ReplyBody::Digest(digest("x")),
    ] {
        let reply = ReplicaMessage::Reply(Reply {
            session: SessionId(1),
            number: RequestNumber(1),
            view: View(0),
            tentative: false,
            body,
        });
        let sent = liar.for_client(reply.clone());
        assert_eq!(sent.len(), 1);
        assert_ne!(sent[0].0, reply);
    }
}

/// An equivocator tells two stories, and its later votes keep to the story that each listener heard.
#[test]
fn an_equivocator_keeps_its_stories_apart() {
    let mut it = faulty(Fault::Equivocate);
    let batch = Batch {
        time: Time(10),
        requests: vec![digest("a"), digest("b")],
    };
    let honest = batch.digest();
    let (view, seq) = (View(0), Seq(1));
    let m = PeerMessage::PrePrepare(PrePrepare {
        view,
        seq,
        batch,
        bodies: Vec::new(),
    });
    let mut heard = |to: u8, m: &PeerMessage| it.for_peer(ReplicaId(to), m.clone()).remove(0).0;
    assert_eq!(heard(2, &m), m);
    let PeerMessage::PrePrepare(second) = heard(1, &m) else {
        panic!("another message")
    };
    assert_ne!(second.batch.digest(), honest);
    let commit = |digest| PeerMessage::Commit(Commit { view, seq, digest });
    assert_eq!(heard(2, &commit(honest)), commit(honest));
    assert_eq!(heard(1, &commit(honest)), commit(second.batch.digest()));
}

/// At each third place everyone hears both votes, also where another replica leads: who signs them is convicted there,
/// whoever is primary by then.
#[test]
fn an_equivocator_is_found_out_in_any_view() {
    let mut it = faulty(Fault::Equivocate);
    let mut heard = |to: u8, seq: u64| {
        let m = PeerMessage::Prepare(Prepare {
            view: View(1),
            seq: Seq(seq),
            digest: digest("a"),
        });
        let sent = it.for_peer(ReplicaId(to), m);
        let votes = sent.into_iter().map(|(m, _)| match m {
            PeerMessage::Prepare(m) => m.digest,
            _ => panic!("another message"),
        });
        votes.collect::<Vec<_>>()
    };
    for to in [1, 2] {
        assert_eq!(heard(to, 1).len(), 1);
        let votes = heard(to, 3);
        assert!(votes.len() == 2 && votes[0] != votes[1]);
    }
    assert_eq!(heard(1, 3)[0], heard(2, 3)[1]);
}

/// What an equivocator signs twice is rightly signed both times.
#[test]
fn an_equivocator_signs_both_stories() {
    let mut it = faulty(Fault::Equivocate);
    let key = KeyPair::from_seed(&[1; 32]);
    let body = ViewChange {
        view: View(1),
        replica: ME,
        stable: Seq(0),
        checkpoints: vec![(Seq(0), Digest::ZERO)],
        prepared: vec![quorate_wire::message::Vote {
            seq: Seq(1),
            view: View(0),
            digest: digest("a"),
        }],
        preprepared: Vec::new(),
    };
    let m = SignedViewChange::sign(body, &Signer::standing(GROUP, key.clone())).into_inner();
    let sent = it.for_peer(ReplicaId(3), PeerMessage::ViewChange(m.clone()));
    let PeerMessage::ViewChange(second) = sent[0].0.clone() else {
        panic!("another message")
    };
    assert_ne!(second, m);
    let keys = ReplicaKeys::Standing {
        group: GROUP,
        keys: vec![key.public()],
    };
    assert!(second.verify(&keys).is_ok());
}

/// Silence is silence, and slowness stays within its bounds.
#[test]
fn silent_and_slow() {
    let m = PeerMessage::Commit(Commit {
        view: View(0),
        seq: Seq(1),
        digest: digest("a"),
    });
    assert!(
        faulty(Fault::Silent)
            .for_peer(ReplicaId(1), m.clone())
            .is_empty()
    );
    let mut slow = faulty(Fault::Slow);
    for _ in 0..100 {
        let sent = slow.for_peer(ReplicaId(1), m.clone());
        assert!(sent.len() == 1 && (300..900).contains(&sent[0].1));
    }
}

fn status() -> Status {
    Status {
        view: View(3),
        active: true,
        stable: Seq(0),
        committed: Seq(2),
        executed: Seq(2),
        primary_lost: false,
        recovering: None,
    }
}

const GROUP: Digest = Digest([7; 32]);

fn keys() -> ReplicaKeys {
    let keys = (0..4u8).map(|r| KeyPair::from_seed(&[r + 1; 32]).public());
    ReplicaKeys::Standing {
        group: GROUP,
        keys: keys.collect(),
    }
}

/// Who is restless says where it stands, and asks for the view after that, signed; all else it does as it should.
#[test]
fn a_restless_one_asks_for_the_next_view() {
    let status = PeerMessage::Status(status());
    let sent = faulty(Fault::Restless).for_peer(ReplicaId(1), status.clone());
    assert_eq!(sent[0], (status, 0));
    let PeerMessage::ViewChange(change) = &sent[1].0 else {
        panic!("no VIEW-CHANGE: {sent:?}")
    };
    assert_eq!((change.body.view, change.body.replica), (View(4), ME));
    assert!(change.clone().verify(&keys()).is_ok());
}

/// Who misleads answers that all is far ahead, or nothing is there, or what could be true, to the same question; and asks for views as if it
/// recovered, with a VIEW-CHANGE of its own for each.
#[test]
fn who_misleads_lies_about_how_far_it_is() {
    let mut it = faulty(Fault::Mislead);
    let truth = Estimate {
        nonce: 5,
        checkpoint: Seq(128),
        prepared: Seq(200),
        view: View(3),
    };
    let (mut far, mut nothing, mut near) = (0, 0, 0);
    for _ in 0..100 {
        let sent = it.for_peer(ReplicaId(1), PeerMessage::Estimate(truth.clone()));
        let [(PeerMessage::Estimate(said), 0)] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(said.nonce, 5);
        far += usize::from(said.checkpoint > Seq(1 << 30));
        nothing += usize::from(said.prepared == Seq(0) && said.view == View(0));
        near += usize::from(said.view > truth.view && said.view < View(1 << 30));
    }
    assert!(far > 0 && nothing > 0 && near > 0);
    let mut recovers = 0;
    for _ in 0..20 {
        let sent = it.for_peer(ReplicaId(1), PeerMessage::Status(status()));
        let [
            (PeerMessage::Status(said), 0),
            (PeerMessage::ViewChange(change), 0),
        ] = &sent[..]
        else {
            panic!("{sent:?}")
        };
        assert!(change.body.view > View(3) && change.clone().verify(&keys()).is_ok());
        if let Some(up_to) = said.recovering {
            recovers += 1;
            assert!(!said.active && said.view == change.body.view && up_to > Seq(0));
        }
    }
    assert!((1..20).contains(&recovers));
}

/// Who shirks has views begin and says where it stands; it neither proposes nor votes.
#[test]
fn who_shirks_votes_for_nothing() {
    let mut it = faulty(Fault::Shirk);
    let (view, seq, digest) = (View(0), Seq(1), digest("a"));
    for vote in [
        PeerMessage::Prepare(Prepare { view, seq, digest }),
        PeerMessage::Commit(Commit { view, seq, digest }),
        PeerMessage::Checkpoint(Checkpoint { seq, root: digest }),
    ] {
        assert_eq!(it.for_peer(ReplicaId(1), vote), []);
    }
    let status = PeerMessage::Status(status());
    assert_eq!(it.for_peer(ReplicaId(1), status.clone()), [(status, 0)]);
}

/// One that starves a client proposes what the others ask and nothing of that one, tells all the same, and votes for what it has told. As backup it
/// changes nothing.
#[test]
fn who_starves_serves_the_others() {
    let (a, b) = (KeyPair::from_seed(&[7; 32]), KeyPair::from_seed(&[8; 32]));
    let (starved, served) = match a.public() < b.public() {
        true => (a, b),
        false => (b, a),
    };
    let body = |of: &KeyPair, number: u64| {
        let number = RequestNumber(number);
        let request = Request::new(of.public(), SessionId(1), number, bytes::Bytes::new());
        Arc::new(AuthRequest {
            request,
            auth: Authenticator::Macs(Vec::new()),
            replier: ME,
        })
    };
    let named = |bodies: &[Arc<AuthRequest>]| -> Vec<Digest> {
        bodies.iter().map(|b| b.request.digest()).collect()
    };
    let proposal = |view: u64, seq: u64, bodies: &[Arc<AuthRequest>]| PrePrepare {
        view: View(view),
        seq: Seq(seq),
        batch: Batch {
            time: Time(seq),
            requests: named(bodies),
        },
        bodies: bodies.to_vec(),
    };
    let mut it = faulty(Fault::Starve);
    let mut told = |to: u8, m: &PrePrepare| {
        let sent = it.for_peer(ReplicaId(to), PeerMessage::PrePrepare(m.clone()));
        let [(PeerMessage::PrePrepare(told), 0)] = &sent[..] else {
            panic!("{sent:?}")
        };
        let commit = |digest| {
            PeerMessage::Commit(Commit {
                view: m.view,
                seq: m.seq,
                digest,
            })
        };
        let vote = it.for_peer(ReplicaId(to), commit(m.batch.digest()));
        assert_eq!(vote, [(commit(told.batch.digest()), 0)]);
        assert_eq!(named(&told.bodies), told.batch.requests);
        told.clone()
    };
    // Alone it is served.
    let alone = proposal(0, 1, &[body(&starved, 1)]);
    assert_eq!(told(1, &alone), alone);
    let others = body(&served, 1);
    let both = proposal(0, 2, &[body(&starved, 2), others.clone()]);
    for to in [1, 2, 1] {
        assert_eq!(
            told(to, &both).batch.requests,
            named(std::slice::from_ref(&others))
        );
    }
    let nothing_else = proposal(0, 3, &[body(&starved, 3)]);
    assert_eq!(told(1, &nothing_else).bodies, [others]);
    let of_another = proposal(1, 4, &[body(&starved, 4)]);
    assert_eq!(told(1, &of_another), of_another);
}

/// Who withholds votes, and shows the root of its state and nothing else that is asked for.
#[test]
fn who_withholds_gives_the_root_alone() {
    let mut it = faulty(Fault::Withhold);
    let nodes = |path: &'static [u8]| {
        let piece = (Bytes::from_static(path), Bytes::from_static(b"node"));
        PeerMessage::State(StateMessage::Nodes(Nodes {
            checkpoint: Seq(1),
            nodes: vec![piece],
        }))
    };
    let root = nodes(&[]);
    assert_eq!(it.for_peer(ReplicaId(1), root.clone()), [(root, 0)]);
    assert_eq!(it.for_peer(ReplicaId(1), nodes(&[3])), []);
    let status = PeerMessage::Status(status());
    assert_eq!(it.for_peer(ReplicaId(1), status.clone()), [(status, 0)]);
}

/// One that dawdles or lingers proposes late, and does all else in time.
#[test]
fn a_dawdler_proposes_late() {
    for (fault, late) in [(Fault::Dawdle, 15), (Fault::Linger, 4)] {
        let mut it = faulty(fault);
        let proposal = PeerMessage::PrePrepare(PrePrepare {
            view: View(0),
            seq: Seq(1),
            batch: Batch {
                time: Time(1),
                requests: vec![digest("a")],
            },
            bodies: vec![],
        });
        let sent = it.for_peer(ReplicaId(1), proposal.clone());
        assert_eq!(sent, [(proposal, late)]);
        let status = PeerMessage::Status(status());
        assert_eq!(it.for_peer(ReplicaId(1), status.clone()), [(status, 0)]);
    }
}

/// One that is bare proposes without content, which comes late when somebody asks for it; all else is in time.
#[test]
fn a_bare_one_keeps_content_back() {
    let mut it = faulty(Fault::Bare);
    let key = KeyPair::from_seed(&[9; 32]).public();
    let request = Request::new(
        key,
        SessionId(1),
        RequestNumber(1),
        Bytes::from_static(b"x"),
    );
    let body = AuthRequest::bare(request);
    let proposal = |bodies| {
        PeerMessage::PrePrepare(PrePrepare {
            view: View(0),
            seq: Seq(1),
            batch: Batch {
                time: Time(1),
                requests: vec![body.request.digest()],
            },
            bodies,
        })
    };
    let sent = it.for_peer(ReplicaId(1), proposal(vec![body.clone().into()]));
    assert_eq!(sent, [(proposal(vec![]), 0)]);
    let body = PeerMessage::Body(body);
    assert_eq!(it.for_peer(ReplicaId(1), body.clone()), [(body, 65)]);
    let status = PeerMessage::Status(status());
    assert_eq!(it.for_peer(ReplicaId(1), status.clone()), [(status, 0)]);
}

/// One that leaps names a far place at once and the next one late, to each; its votes are in time.
#[test]
fn a_leaper_goes_far_ahead() {
    let mut it = faulty(Fault::Leap);
    for to in [1, 2] {
        for seq in 1..=3 {
            let batch = Batch {
                time: Time(1),
                requests: vec![digest("a")],
            };
            let m = PrePrepare {
                view: View(0),
                seq: Seq(seq),
                batch,
                bodies: vec![],
            };
            let sent = it.for_peer(ReplicaId(to), PeerMessage::PrePrepare(m.clone()));
            let places: Vec<(u64, u64)> = sent
                .iter()
                .map(|(m, late)| match m {
                    PeerMessage::PrePrepare(m) => (m.seq.0, *late),
                    other => panic!("{other:?}"),
                })
                .collect();
            let far = (seq == 1).then_some((129, 0));
            let wanted: Vec<(u64, u64)> = far.into_iter().chain([(seq, 200)]).collect();
            assert_eq!(places, wanted);
        }
    }
    let vote = PeerMessage::Prepare(Prepare {
        view: View(0),
        seq: Seq(1),
        digest: digest("a"),
    });
    assert_eq!(it.for_peer(ReplicaId(1), vote.clone()), [(vote, 0)]);
}

/// A flooder says all that it should, and with it much that was said before or asks for nothing.
#[test]
fn a_flooder_says_what_it_should_and_more() {
    let mut it = faulty(Fault::Flood);
    let commit = |seq: u64| {
        PeerMessage::Commit(Commit {
            view: View(0),
            seq: Seq(seq),
            digest: digest("a"),
        })
    };
    for seq in 1..50 {
        let sent = it.for_peer(ReplicaId(1), commit(seq));
        assert_eq!(sent[0], (commit(seq), 0));
        assert!(sent.len() > 10 && sent.iter().all(|(_, delay)| *delay == 0));
        let said = |m: &PeerMessage| (1..=seq).any(|seq| *m == commit(seq));
        let known = |m: &PeerMessage| said(m) || matches!(m, PeerMessage::Fetch(_));
        assert!(sent.iter().all(|(m, _)| known(m)));
    }
}
