//! Operations as clients send them, executed one after the other on a small volume.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use quorate_credential::{Caveat, Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::Executor;
use quorate_files::op::PutCredential;
use quorate_files::{Action, Admission, FileService, Genesis, Ino, Op, Who, check};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::message::{Control, Request};
use quorate_wire::{Digest, Encode, KeyPair, PublicKey, RequestNumber, Seq, SessionId, Time};

use crate::choices::Choices;

/// The most operations of one input: each check reads the whole volume.
const STEPS: usize = 64;

fn small() -> Genesis {
    Genesis {
        capacity_bytes: 1 << 20,
        capacity_inodes: 32,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o777,
    }
}

/// The operation by which a guest brings a credential for all that begins with an `a`.
fn brought(owner: &KeyPair, subject: PublicKey) -> Vec<u8> {
    let terms = Terms {
        subject,
        scope: Scope {
            object: ObjectId(Ino::ROOT.0.into()),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: 1_000,
        },
        depth: 0,
        serial: 1,
        caveats: vec![
            Caveat::NamePrefix(Bytes::from_static(b"a")),
            Caveat::ByteQuota(100_000),
        ],
    };
    let chain = Chain::issue(VolumeId(Digest::ZERO), owner, terms);
    let chain = chain.expect("terms that can be said").to_bytes().into();
    let action = Action::PutCredential(PutCredential { chain });
    Op::new(Who::root(), action).to_bytes().to_vec()
}

/// Each operation is a byte that says who asks and in which session, a length, and the operation. The volume is whole after
/// each, and the results are those of an executor that undoes and repeats what it does.
pub fn service(data: &[u8]) {
    let mut choices = Choices::new(data);
    let [owner, guest] = [1, 2].map(|seed| KeyPair::from_seed(&[seed; 32]));
    let clients = [owner.public(), guest.public()];
    let admission = Admission {
        volume: Digest::ZERO,
        owner: Some(owner.public()),
        members: BTreeSet::new(),
    };
    let executor = || Executor::new(FileService::new(small(), admission.clone()));
    let state = || State::new(Arc::new(MemorySnapshot::default()));
    let (mut one, mut state_one) = (executor(), state());
    let (mut two, mut state_two) = (executor(), state());
    one.genesis(&mut state_one).expect("memory");
    two.genesis(&mut state_two).expect("memory");
    let mut now = Time(1_000_000_000);
    for step in 0..STEPS as u64 + 3 {
        // Both clients open a session first: numbers 1 and 2. One is the volume's owner, the other brings a credential by it.
        let (head, op): (u8, Vec<u8>) = match step {
            0 | 1 => (step as u8, Control::Open(()).to_bytes()),
            2 => (1, brought(&owner, guest.public())),
            _ if choices.is_empty() => break,
            _ => {
                let head = choices.byte();
                let length = choices.below(256);
                (head, choices.take(length).to_vec())
            }
        };
        let client = clients[usize::from(head & 1)];
        let session = match step {
            0 | 1 => SessionId(0),
            _ => SessionId([u64::from(head & 1) + 1, 0, 1, 3][usize::from(head >> 1 & 3)]),
        };
        // Some numbers come again, and some time passes between.
        let number = RequestNumber(step + 1 - u64::from(head >> 3 & 1) * step.min(1));
        now.0 += [1, 1_000_000, 1_000_000_000, 50_000_000_000][usize::from(head >> 6)];
        let request = Request::new(client, session, number, Bytes::from(op));
        let done = one.execute(&mut state_one, now, [&request]);
        let done = done.expect("memory does not fail");
        if head >> 4 & 1 == 1 {
            two.begin_tentative(&mut state_two).expect("memory");
            let tried = two.execute(&mut state_two, now, [&request]);
            assert_eq!(tried.as_ref(), Ok(&done), "the result of one try");
            if head >> 5 & 1 == 1 {
                two.keep_tentative(&mut state_two);
            } else {
                two.drop_tentative(&mut state_two);
                let again = two.execute(&mut state_two, now, [&request]);
                assert_eq!(again, Ok(done), "the result after it was undone");
            }
        } else {
            let alike = two.execute(&mut state_two, now, [&request]);
            assert_eq!(alike, Ok(done), "the result of another replica");
        }
        check::invariants(&state_one.begin()).unwrap_or_else(|what| panic!("{what}"));
    }
    one.flush(&mut state_one);
    two.flush(&mut state_two);
    let (one, two) = (state_one.freeze(Seq(1)), state_two.freeze(Seq(1)));
    assert_eq!(one, two, "the states of two replicas");
}
