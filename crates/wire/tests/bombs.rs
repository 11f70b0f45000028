//! A hostile count costs no memory. Apart from the other tests, since it looks at the memory of its whole process.
#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

use bytes::Bytes;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use quorate_wire::message::*;
use quorate_wire::*;

/// The most address space that the process ever had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says how a process is");
    let line = status.lines().find(|l| l.starts_with("VmPeak:"));
    let words = line.expect("VmPeak").split_whitespace();
    words.filter_map(|w| w.parse().ok()).next().expect("KiB")
}

fn defuse<T: Encode + Decode + PartialEq + std::fmt::Debug>(strategy: &impl Strategy<Value = T>) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..200 {
        let value = strategy.new_tree(&mut runner).expect("a value").current();
        support::codec::<T>().giant_counts(&value);
    }
}

/// With every four bytes of many messages replaced by counts in the millions and billions, the process does not grow:
/// one item of the smallest kind for each would take gigabytes.
#[test]
fn hostile_counts_take_no_memory() {
    let before = peak_kib();
    defuse(&support::peer_message());
    defuse(&support::client_message());
    defuse(&support::replica_message());
    for count in [1 << 20, u32::MAX] {
        let bytes = Bytes::from(count.to_bytes());
        assert!(Vec::<Digest>::from_bytes(bytes.clone()).is_err());
        assert!(Vec::<(Bytes, Bytes)>::from_bytes(bytes.clone()).is_err());
        assert!(Vec::<SignedViewChange>::from_bytes(bytes).is_err());
    }
    let grown = peak_kib() - before;
    assert!(grown < 64 << 10, "grew by {grown} KiB");
}
