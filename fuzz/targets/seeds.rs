//! Writes first inputs for each target into `work/`: the property tests' random messages, and samples of the rest.

use std::fs;
use std::path::Path;

use bytes::Bytes;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use quorate_agreement::Record;
use quorate_agreement::durable::{CommittedRecord, Content, Entered, PrePrepared, StableRecord};
use quorate_credential::{Chain, armour};
use quorate_files::op::{Lookup, Place, SetAttr, Target, Write};
use quorate_files::{Action, Answer, Ino, Nothing, Op, Who};
use quorate_fuzz::credential::support::{Raw, assemble};
use quorate_net::fuzzing::{self as talk, Wanted, Whose};
use quorate_net::group::{Files, Group, Purpose};
use quorate_state::tree::{Child, DEPTH, Entry, Node, place};
use quorate_wire::evidence::{Evidence, Kept, TwoMessages, TwoNewViews, TwoViewChanges};
use quorate_wire::frame;
use quorate_wire::message::{
    NewView, PeerMessage, Prepare, SignedMessage, SignedNewView, SignedViewChange, ViewChange,
};
use quorate_wire::{
    Digest, Encode, EpochCertificate, KeyPair, LogIndex, RecoveryStatement, ReplicaId, Seq, Signer,
    Time, View,
};

mod ledgers;
mod routers;
mod small;
#[path = "../../crates/wire/tests/it/support/mod.rs"]
mod support;

/// The group's id in what is signed.
const GROUP: Digest = Digest([7; 32]);
/// Seeds of each target.
const EACH: usize = 64;
/// Of messages more, so that there are some of each kind.
const MESSAGES: usize = 256;

fn main() -> std::io::Result<()> {
    messages("peer_message", support::peer_message())?;
    messages("client_message", support::client_message())?;
    messages("replica_message", support::replica_message())?;
    messages("outcome", support::outcome())?;
    let answers = [
        Answer::Done(Nothing),
        Answer::Bytes(Bytes::from_static(b"x")),
    ];
    for (i, answer) in answers.into_iter().enumerate() {
        let outcome = quorate_files::Outcome(Ok(answer));
        write("outcome", EACH + i, &outcome.to_bytes())?;
    }
    let parts = (
        (support::vote(), support::batch(), support::request()),
        (support::view_change(), support::new_view()),
    );
    samples(
        EACH,
        parts,
        |i, ((vote, batch, request), (change, new_view))| {
            let content = Some(Content {
                batch,
                requests: vec![request],
            });
            let (seq, digest) = (vote.seq, vote.digest);
            let record = match i % 10 {
                0 => Record::PrePrepared(PrePrepared { vote, content }),
                1 => Record::Prepared(vote),
                2 => Record::Committed(CommittedRecord {
                    seq,
                    digest,
                    content,
                }),
                3 => Record::Stable(StableRecord { seq, root: digest }),
                4 => Record::Changing(change),
                5 => Record::Checkpoint(StableRecord { seq, root: digest }),
                6 => Record::Recovering(Time(seq.0)),
                7 => Record::Epochs(vec![1, seq.0]),
                8 => Record::Fetching(StableRecord { seq, root: digest }),
                _ => {
                    let proofs = vec![change];
                    Record::Entered(Entered { new_view, proofs }.into())
                }
            };
            write("record", i, &record.to_bytes())?;
            let mut segment = Vec::new();
            frame::write(&mut segment, LogIndex(i as u64), &record.to_bytes());
            frame::write(&mut segment, LogIndex(i as u64 + 1), b"next");
            segment.resize(segment.len() + i, 0);
            write("frame", i, &segment)
        },
    )?;
    ops()?;
    nodes()?;
    holders()?;
    ledgers::all()?;
    routers::all()?;
    small::all()?;
    groups()?;
    machines()?;
    links()?;
    evidence()?;
    statements()?;
    credentials()?;
    disks()
}

/// Right chains with caveats of each kind in the first and the last link, one that widens, and a text.
fn credentials() -> std::io::Result<()> {
    let kinds = [
        (1, b"report-".to_vec()),
        (2, vec![9; 8]),
        (4, b"project 7".to_vec()),
        (5, vec![1; 8]),
    ];
    for n in [1_u8, 2, 3, 5, 16] {
        let mut links: Vec<Raw> = (0..n).map(Raw::link).collect();
        let last = usize::from(n) - 1;
        links[0].caveats = kinds.to_vec();
        links[last].caveats = kinds.to_vec();
        write("credential", n.into(), &assemble(&links))?;
    }
    let mut wide = [Raw::link(0), Raw::link(1)];
    wide[0].rights &= !1;
    let bytes = assemble(&wide);
    write("credential", 20, &bytes)?;
    let chain = Chain::from_bytes(bytes.into()).expect("it has the form");
    write("credential", 21, armour::write(&chain).as_bytes())
}

/// Statements that are right.
fn statements() -> std::io::Result<()> {
    let (identity, epoch) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
    let (group, me) = (Digest([7; 32]), ReplicaId(0));
    for (i, counter) in [1, 2, u64::MAX].into_iter().enumerate() {
        let certificate = EpochCertificate::sign(&identity, group, me, counter, epoch.public());
        let recovery = RecoveryStatement::sign(&identity, group, me, counter);
        write(
            "statement",
            2 * i,
            &[&[0], &certificate.to_bytes()[..]].concat(),
        )?;
        write(
            "statement",
            2 * i + 1,
            &[&[1], &recovery.to_bytes()[..]].concat(),
        )?;
    }
    Ok(())
}

/// Genuine contradictions, and two that are none.
fn evidence() -> std::io::Result<()> {
    let key = |replica: u8| KeyPair::from_seed(&[replica + 1; 32]);
    let change = |view: u64, stable: u64| {
        let body = ViewChange {
            view: View(view),
            replica: ReplicaId(2),
            stable: Seq(stable),
            checkpoints: vec![(Seq(stable), Digest::ZERO)],
            prepared: vec![],
            preprepared: vec![],
        };
        SignedViewChange::sign(body, &Signer::standing(GROUP, key(2))).into_inner()
    };
    let start = |seq: u64| {
        let body = NewView {
            view: View(1),
            proofs: vec![],
            start: (Seq(seq), Digest::ZERO),
            selection: vec![],
        };
        SignedNewView::sign(body, &Signer::standing(GROUP, key(1))).into_inner()
    };
    let said = |seq: u64, digest: u8| {
        let (view, seq, digest) = (View(0), Seq(seq), Digest([digest; 32]));
        let content: Bytes = PeerMessage::Prepare(Prepare { view, seq, digest })
            .to_bytes()
            .into();
        let digest = SignedMessage::digest(ReplicaId(3), &content);
        let signature = key(3)
            .sign_together(&GROUP, &[digest, Digest::ZERO])
            .swap_remove(0);
        SignedMessage { content, signature }
    };
    let changes = |first, second| Evidence::ViewChanges(TwoViewChanges { first, second });
    let messages = |first, second| {
        let replica = ReplicaId(3);
        Evidence::Messages(TwoMessages {
            replica,
            first,
            second,
        })
    };
    let (first, second) = (start(0), start(1));
    let all = [
        changes(change(1, 0), change(1, 1)),
        changes(change(1, 0), change(2, 0)),
        Evidence::NewViews(TwoNewViews { first, second }),
        messages(said(1, 1), said(1, 2)),
        messages(said(1, 1), said(2, 1)),
    ];
    for (i, evidence) in all.into_iter().enumerate() {
        let group = GROUP;
        write("evidence", i, &Kept { group, evidence }.to_file())?;
    }
    Ok(())
}

/// Scripts of choices: any bytes are one.
fn machines() -> std::io::Result<()> {
    for target in ["replica", "group", "transfer", "ledger"] {
        for i in 0..EACH {
            let length = 40 + 4 * i;
            let script: Vec<u8> = (0..length).map(|at| noise(i * 1000 + at)).collect();
            write(target, i, &script)?;
        }
    }
    // A donor that tells the truth.
    write("transfer", EACH, &[3; 500])?;
    let mut runner = TestRunner::deterministic();
    let strategy = proptest::collection::vec(0..OPERATIONS, 20..40);
    for i in 0..EACH {
        let tree = strategy.new_tree(&mut runner).expect("numbers");
        let mut script = Vec::new();
        for (at, number) in tree.current().into_iter().enumerate() {
            let op = operation(number);
            script.extend([noise(i * 100 + at) & 0x3f, op.len() as u8]);
            script.extend(op);
        }
        write("service", i, &script)?;
    }
    Ok(())
}

fn noise(number: usize) -> u8 {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .to_be_bytes()[0]
}

const OPERATIONS: usize = 48;
/// The highest tag of an action.
const ACTIONS: u8 = 44;

/// Operations that have something to do on a small volume, one after the other.
fn operation(number: usize) -> Vec<u8> {
    let name = |n: usize| Bytes::from(vec![b'a' + (n % 3) as u8]);
    let target = Target::Ino(Ino(1 + number as u64 % 4));
    let action = match number % 8 {
        0 => Action::Lookup(Lookup {
            parent: Ino::ROOT,
            name: name(number / 8),
        }),
        1 => Action::Write(Write {
            target,
            place: Place::At(4096 * (number as u64 / 8)),
            data: vec![7; 100].into(),
        }),
        2 => Action::SetAttr(SetAttr {
            target,
            mode: Some(0o644),
            uid: None,
            gid: None,
            size: Some(number as u64 * 100),
            atime: None,
            mtime: None,
        }),
        n => {
            // The rest by their tags, with fields that often fit: a parent, a name, a mode.
            let mut bytes = Encode::to_bytes(&Who::root());
            bytes.push((3 + number + n) as u8 % ACTIONS + 1);
            bytes.extend(1_u64.to_le_bytes());
            name(number).encode(&mut bytes);
            bytes.extend(0o644_u32.to_le_bytes());
            bytes.extend([0; 8]);
            return bytes;
        }
    };
    Op::new(Who::root(), action).to_bytes().to_vec()
}

fn links() -> std::io::Result<()> {
    for i in 0..8_u8 {
        let mut stream = vec![i];
        if i & 1 == 1 {
            stream.extend([0; 4]);
        }
        for length in [1, 5, u32::from(i) * 10 + 1] {
            stream.extend(length.to_le_bytes());
            stream.extend(vec![i; length as usize]);
        }
        write("link", i.into(), &stream)?;
    }
    // What a guest says: a credential, shorter than the longest, and more.
    for (i, first) in [1_u32, 200, 256, 257].into_iter().enumerate() {
        let mut stream = vec![2];
        for length in [first, 3, 300] {
            stream.extend(length.to_le_bytes());
            stream.extend(vec![first as u8; length as usize]);
        }
        write("link", 8 + i, &stream)?;
    }
    for (i, said) in quorate_fuzz::links::dialogue().into_iter().enumerate() {
        for first in 0..4 {
            write(
                "handshake",
                4 * i + first,
                &[&[first as u8][..], &said].concat(),
            )?;
        }
    }
    Ok(())
}

fn disks() -> std::io::Result<()> {
    let (key, log) = quorate_fuzz::disk::samples();
    write("key_file", 0, &key)?;
    write("log", 0, &[&[0xff][..], &log].concat())?;
    write("log", 1, &[&[8][..], &log].concat())?;
    for i in 0..8_u8 {
        write(
            "store",
            i.into(),
            &[i * 31, i * 17, i, 7, 1, 32, i, 8, i, i][..usize::from(i) + 2],
        )?;
    }
    Ok(())
}

fn write(target: &str, number: usize, bytes: &[u8]) -> std::io::Result<()> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = home.join("work").join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("seed-{number:03}")), bytes)
}

fn samples<S: Strategy>(
    count: usize,
    strategy: S,
    mut each: impl FnMut(usize, S::Value) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut runner = TestRunner::deterministic();
    (0..count).try_for_each(|i| {
        let tree = strategy.new_tree(&mut runner);
        each(i, tree.expect("no value is filtered out").current())
    })
}

fn messages<T: Encode>(target: &str, strategy: impl Strategy<Value = T>) -> std::io::Result<()> {
    samples(MESSAGES, strategy, |i, message| {
        write(target, i, &message.to_bytes())
    })
}

fn ops() -> std::io::Result<()> {
    let name = Bytes::from_static(b"name");
    let target = Target::Ino(Ino(7));
    let actions = [
        Action::Ping(Nothing),
        Action::Lookup(Lookup {
            parent: Ino::ROOT,
            name: name.clone(),
        }),
        Action::Write(Write {
            target: target.clone(),
            place: Place::At(4096),
            data: name,
        }),
        Action::SetAttr(SetAttr {
            target,
            mode: Some(0o644),
            uid: None,
            gid: Some(7),
            size: Some(0),
            atime: None,
            mtime: None,
        }),
    ];
    for (i, action) in actions.into_iter().enumerate() {
        let mut who = Who::new(1000, 1000);
        who.groups = vec![4, 24];
        write("op", i, &Op::new(who, action).to_bytes())?;
    }
    // One of each tag, its fields left out: the fuzzer fills them in.
    for tag in 1..=ACTIONS {
        let who = Encode::to_bytes(&Who::root());
        write("op", 100 + usize::from(tag), &[&who[..], &[tag]].concat())?;
    }
    Ok(())
}

/// Nodes at paths of each length that there may be, and of one more.
fn nodes() -> std::io::Result<()> {
    let value = Digest::ZERO;
    let entry = |key: Bytes| Entry { key, value };
    let child = |byte| Child {
        byte,
        digest: value,
        count: 20,
    };
    let key = Bytes::from_static(b"k");
    let to = [&place(&key)[..], &[0]].concat();
    for length in 0..=DEPTH + 1 {
        let nodes = [
            Node::EMPTY,
            Node::Leaf(vec![entry(key.clone())]),
            Node::Inner((0..3).map(child).collect()),
        ];
        for (i, node) in nodes.iter().enumerate() {
            let input = [&[length as u8], &to[..length], &node.encode()].concat();
            write("tree_node", 3 * length + i, &input)?;
        }
    }
    let some = (0..5).map(|n| entry(Bytes::from(vec![n])));
    let input = [&[0][..], &Node::Leaf(some.collect()).encode()].concat();
    write("tree_node", 3 * (DEPTH + 2), &input)
}

/// What a replica and its key holder say to each other.
fn holders() -> std::io::Result<()> {
    let (identity, epoch) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
    let (group, replica) = (Digest([7; 32]), ReplicaId(2));
    let wanted = [Wanted::Certificate(epoch.public()), Wanted::Recovery(())];
    for (i, statement) in wanted.into_iter().enumerate() {
        let ask = talk::Ask {
            group,
            replica,
            statement,
        };
        write("key_holder", i, &ask.to_bytes())?;
    }
    let certificate = EpochCertificate::sign(&identity, group, replica, 3, epoch.public());
    let recovery = RecoveryStatement::sign(&identity, group, replica, 4);
    let answers = [
        talk::Answer::Certificate(certificate),
        talk::Answer::Recovery(recovery),
        talk::Answer::NotMine(Whose { group, replica }),
        talk::Answer::TooOften(1500),
    ];
    let mut all = answers.iter().enumerate();
    all.try_for_each(|(i, answer)| write("key_holder", 10 + i, &answer.to_bytes()))
}

fn groups() -> std::io::Result<()> {
    let key = |seed| KeyPair::from_seed(&[seed; 32]).public();
    for (i, n) in [1_u8, 4, 7].into_iter().enumerate() {
        let replicas = (0..n).map(|r| (format!("192.0.2.{r}:7000"), key(r)));
        let clients = vec![("laptop".to_string(), key(100))];
        let purpose = [Purpose::Service, Purpose::Demonstration][i % 2];
        let group = Group::new(
            "home",
            replicas.collect(),
            clients,
            Files::default(),
            purpose,
        );
        write(
            "group_file",
            i,
            group.expect("a group").to_string().as_bytes(),
        )?;
    }
    Ok(())
}
