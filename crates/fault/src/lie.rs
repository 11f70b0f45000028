//! Wrong statements, each in good form.

use alloc::boxed::Box;
use bytes::Bytes;
use quorate_wire::message::{
    Checkpoint, Committed, Outcome, Parted, PeerMessage, ReadReply, ReplicaMessage, Reply,
    ReplyBody, Report, Status, Vouched, Vouchers,
};
use quorate_wire::{Decode, Digest, Encode, Seq, View};

/// Another digest; always the same one, so that lies of one replica at different times agree.
pub(crate) fn other_digest(digest: Digest) -> Digest {
    let mut bytes = digest.0;
    bytes[0] ^= 0xff;
    Digest(bytes)
}

/// Other bytes.
pub(crate) fn other_bytes(bytes: &Bytes) -> Bytes {
    let mut out = bytes.to_vec();
    match out.last_mut() {
        Some(last) => *last ^= 1,
        None => out.push(1),
    }
    out.into()
}

/// A result of the same form that says something else.
fn other_result(result: Bytes) -> Bytes {
    match Outcome::from_bytes(result.clone()) {
        Ok(Outcome::Done(answer)) => Outcome::Done(other_bytes(&answer)).to_bytes().into(),
        Ok(_) | Err(_) => Outcome::Done(result).to_bytes().into(),
    }
}

/// The same values at the same places, one of which is another.
fn other_parted(parted: &Parted) -> ReplyBody {
    let mut result = parted.result().joined().to_vec();
    let changed = parted.values().first().map(|span| span.offset as usize);
    if let Some(byte) = changed.and_then(|at| result.get_mut(at)) {
        *byte ^= 1;
    }
    let result = Bytes::from(result);
    match Parted::new(result.clone(), parted.values().to_vec()) {
        Some(other) => ReplyBody::Parted(other),
        None => ReplyBody::Full(result),
    }
}

fn other_reply(reply: Reply) -> Reply {
    let body = match reply.body {
        ReplyBody::Full(result) => ReplyBody::Full(other_result(result)),
        ReplyBody::Digest(digest) => ReplyBody::Digest(other_digest(digest)),
        ReplyBody::Parted(parted) => other_parted(&parted),
    };
    // What has only prepared here is said to have committed.
    let tentative = false;
    Reply {
        body,
        tentative,
        ..reply
    }
}

pub(crate) fn for_client(message: ReplicaMessage) -> ReplicaMessage {
    match message {
        ReplicaMessage::Reply(reply) => ReplicaMessage::Reply(other_reply(reply)),
        ReplicaMessage::Read(ReadReply { reply, at }) => ReplicaMessage::Read(ReadReply {
            reply: other_reply(reply),
            at,
        }),
        // As if the others said the same.
        ReplicaMessage::Vouched(m) => ReplicaMessage::Vouched(Vouched {
            reply: other_reply(m.reply),
            ..m
        }),
        ReplicaMessage::Report(report) => ReplicaMessage::Report(Box::new(Report {
            root: other_digest(report.root),
            ..*report
        })),
        // Another's word, which nobody else can make; and what says nothing of a result.
        other @ (ReplicaMessage::Certificate(_) | ReplicaMessage::Unsigned(_)) => other,
    }
}

pub(crate) fn for_peer(message: PeerMessage, chance: u64) -> PeerMessage {
    match message {
        PeerMessage::Committed(m) => PeerMessage::Committed(Committed {
            digest: other_digest(m.digest),
            ..m
        }),
        PeerMessage::Checkpoint(m) => PeerMessage::Checkpoint(Checkpoint {
            root: other_digest(m.root),
            ..m
        }),
        PeerMessage::Status(m) => PeerMessage::Status(false_status(m, chance)),
        PeerMessage::Vouchers(m) => PeerMessage::Vouchers(forged(m)),
        other => other,
    }
}

/// Nobody but the clients can tell.
fn forged(mut m: Vouchers) -> Vouchers {
    m.replies.iter_mut().for_each(|reply| reply.mac.0[0] ^= 1);
    m
}

/// Ahead of the truth, far behind it, or in a view of its own.
fn false_status(m: Status, chance: u64) -> Status {
    let far = chance >> 8 & 0xfff;
    match chance % 6 {
        // As if it had forgotten all.
        5 => Status {
            active: false,
            view: View(m.view.0.saturating_add(far)),
            recovering: Some(Seq(m.stable.0.saturating_add(far))),
            ..m
        },
        0 => Status {
            stable: Seq(m.stable.0.saturating_add(far)),
            committed: Seq(m.committed.0.saturating_add(far)),
            executed: Seq(m.executed.0.saturating_add(far)),
            ..m
        },
        1 => Status {
            stable: Seq(0),
            committed: Seq(0),
            executed: Seq(0),
            ..m
        },
        2 => Status {
            view: View(u64::MAX),
            ..m
        },
        3 => Status {
            primary_lost: !m.primary_lost,
            ..m
        },
        _ => Status {
            active: !m.active,
            committed: Seq(u64::MAX),
            ..m
        },
    }
}
