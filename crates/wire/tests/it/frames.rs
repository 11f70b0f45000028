//! Frames of the log against random bytes.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use quorate_wire::LogIndex;
use quorate_wire::frame;

fn written(frames: &[(LogIndex, Bytes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, payload) in frames {
        frame::write(&mut out, *index, payload);
    }
    out
}

fn frames() -> impl Strategy<Value = Vec<(LogIndex, Bytes)>> {
    let payload = vec(any::<u8>(), 1..40).prop_map(Bytes::from);
    vec((crate::support::number().prop_map(LogIndex), payload), 0..5)
}

proptest! {
    #![proptest_config(crate::cases::cases(2000))]

    /// What is read, written again, is how the segment begins; zeros after it end it.
    #[test]
    fn frames_have_one_form(frames in frames(), zeros in 0..40_usize) {
        let mut bytes = written(&frames);
        bytes.resize(bytes.len() + zeros, 0);
        let (read, end) = frame::read(&Bytes::from(bytes));
        prop_assert_eq!(read, frames);
        prop_assert_eq!(end, frame::End::Clean);
    }

    /// Damaged segments give whole frames up to the damage, and never a panic.
    #[test]
    fn damaged_segments(frames in frames(), edits in crate::support::edits()) {
        let bytes = crate::support::edited(written(&frames), &edits);
        let (read, _) = frame::read(&Bytes::from(bytes.clone()));
        prop_assert!(bytes.starts_with(&written(&read)));
    }

    /// Neither do any other bytes.
    #[test]
    fn random_segments(bytes in vec(any::<u8>(), 0..200)) {
        let (read, _) = frame::read(&Bytes::from(bytes.clone()));
        prop_assert!(bytes.starts_with(&written(&read)));
    }
}
