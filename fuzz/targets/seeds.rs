//! Writes a small corpus for each target into `corpus/`: the property tests' random messages, and samples of the rest.

use std::fs;
use std::path::Path;

use bytes::Bytes;
// For what the coverage flags call.
use libfuzzer_sys as _;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use quorate_agreement::Record;
use quorate_agreement::durable::{CommittedRecord, Content, Entered, PrePrepared, StableRecord};
use quorate_files::op::{Lookup, Place, SetAttr, Target, Write};
use quorate_files::{Action, Answer, Ino, Nothing, Op, Who};
use quorate_net::group::{Files, Group, Purpose};
use quorate_state::tree::{Child, Entry, Node};
use quorate_wire::frame;
use quorate_wire::{Digest, Encode, KeyPair, LogIndex};

#[path = "../../crates/wire/tests/support/mod.rs"]
mod support;

/// Seeds of each target.
const EACH: usize = 64;

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
    samples(parts, |i, ((vote, batch, request), (change, new_view))| {
        let content = Some(Content {
            batch,
            requests: vec![request],
        });
        let (seq, digest) = (vote.seq, vote.digest);
        let record = match i % 6 {
            0 => Record::PrePrepared(PrePrepared { vote, content }),
            1 => Record::Prepared(vote),
            2 => Record::Committed(CommittedRecord {
                seq,
                digest,
                content,
            }),
            3 => Record::Stable(StableRecord { seq, root: digest }),
            4 => Record::Changing(change),
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
    })?;
    ops()?;
    nodes()?;
    groups()
}

fn write(target: &str, number: usize, bytes: &[u8]) -> std::io::Result<()> {
    let directory = Path::new("corpus").join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("seed-{number:03}")), bytes)
}

fn samples<S: Strategy>(
    strategy: S,
    mut each: impl FnMut(usize, S::Value) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut runner = TestRunner::deterministic();
    (0..EACH).try_for_each(|i| {
        let tree = strategy.new_tree(&mut runner);
        each(i, tree.expect("no value is filtered out").current())
    })
}

fn messages<T: Encode>(target: &str, strategy: impl Strategy<Value = T>) -> std::io::Result<()> {
    samples(strategy, |i, message| write(target, i, &message.to_bytes()))
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
    for tag in 1..=28_u8 {
        let who = Encode::to_bytes(&Who::root());
        write("op", 100 + usize::from(tag), &[&who[..], &[tag]].concat())?;
    }
    Ok(())
}

fn nodes() -> std::io::Result<()> {
    let entry = |byte| Entry {
        key: Bytes::copy_from_slice(&[byte]),
        value: Digest::ZERO,
    };
    let child = |byte| Child {
        byte,
        digest: Digest::ZERO,
        count: 20,
    };
    let nodes = [
        Node::EMPTY,
        Node::Leaf((0..5).map(entry).collect()),
        Node::Inner((0..5).map(child).collect()),
    ];
    for (i, node) in nodes.iter().enumerate() {
        write("tree_node", i, &[&[0][..], &node.encode()].concat())?;
        write("tree_node", 10 + i, &[&[1, 7][..], &node.encode()].concat())?;
    }
    Ok(())
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
