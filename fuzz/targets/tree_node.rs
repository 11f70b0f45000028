//! Nodes of the partition tree. The first byte says how many of the next ones are the path.
#![no_main]

use bytes::Bytes;
use quorate_state::tree::Node;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&length, rest)) = data.split_first() else {
        return;
    };
    let Some((path, node)) = rest.split_at_checked(usize::from(length % 6)) else {
        return;
    };
    if let Ok(read) = Node::decode(path, Bytes::copy_from_slice(node)) {
        assert_eq!(&read.encode()[..], node);
        let _ = read.count();
    }
});
