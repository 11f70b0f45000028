//! Random messages, and the laws of a canonical encoding. Other crates' tests include this file by its path.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::fmt::Debug;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use quorate_wire::message::transfer::{GetNodes, GetValues, Nodes, Values};
use quorate_wire::message::*;
use quorate_wire::*;

/// One way to turn bytes into values and back.
pub struct Codec<T> {
    pub encode: fn(&T) -> Vec<u8>,
    pub decode: fn(Bytes) -> Result<T, DecodeError>,
}

/// The way of a type that has one form wherever it stands.
pub fn codec<T: Encode + Decode>() -> Codec<T> {
    Codec {
        encode: encoded,
        decode: T::from_bytes,
    }
}

/// A value's bytes, which are the same where strings are shared with it.
fn encoded<T: Encode>(value: &T) -> Vec<u8> {
    let bytes = value.to_bytes();
    for shared_from in [1, 20] {
        let mut out = SegmentWriter::after(Vec::new()).sharing_from(shared_from);
        value.encode_shared(&mut out);
        let shared = Segments::from(out).joined();
        assert_eq!(shared, bytes, "from {shared_from} bytes on");
    }
    bytes
}

impl<T: PartialEq + Debug> Codec<T> {
    /// All laws for one value.
    pub fn laws(&self, value: &T) {
        let bytes = (self.encode)(value);
        let back = self.read(&bytes).expect("a value's own bytes");
        assert_eq!(&back, value);
        assert_eq!((self.encode)(&back), bytes);
        for cut in 0..bytes.len() {
            assert!(self.read(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for extra in [0, 1, 0xff] {
            let longer = [&bytes[..], &[extra]].concat();
            assert!(self.read(&longer).is_err(), "with {extra} at the end");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                if let Ok(read) = self.noise(&other) {
                    assert_ne!(&read, value, "byte {at} carries no meaning");
                }
            }
        }
    }

    /// What holds for any bytes: they are refused, or they are the one form of a value.
    pub fn noise(&self, bytes: &[u8]) -> Result<T, DecodeError> {
        let value = self.read(bytes)?;
        assert_eq!((self.encode)(&value), bytes, "another form of {value:?}");
        Ok(value)
    }

    /// Puts counts into a value's bytes that no input can hold, wherever a count could stand.
    pub fn giant_counts(&self, value: &T) {
        let bytes = (self.encode)(value);
        for count in [u32::MAX, i32::MAX as u32, 1 << 24] {
            for at in 0..bytes.len().saturating_sub(3) {
                let mut bomb = bytes.clone();
                bomb[at..at + 4].copy_from_slice(&count.to_le_bytes());
                let _ = self.noise(&bomb);
            }
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<T, DecodeError> {
        (self.decode)(Bytes::copy_from_slice(bytes))
    }
}

/// An edit of bytes that may leave them almost right.
#[derive(Clone, Debug)]
pub enum Edit {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Copy(usize, usize, usize),
}

pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<usize>;
    let edit = prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        at().prop_map(Edit::Remove),
        (at(), at(), 0..64_usize).prop_map(|(from, to, length)| Edit::Copy(from, to, length)),
    ];
    vec(edit, 1..6)
}

pub fn edited(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let places = bytes.len() + 1;
        match *edit {
            Edit::Insert(at, byte) => bytes.insert(at % places, byte),
            _ if bytes.is_empty() => {}
            Edit::Set(at, byte) => {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            Edit::Remove(at) => {
                bytes.remove(at % bytes.len());
            }
            Edit::Copy(from, to, length) => {
                let from = from % bytes.len();
                let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
                let to = to % places;
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

/// Numbers of all sizes: small ones, which meet each other, and those at the edges.
pub fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, any::<u64>(), u64::MAX - 2..=u64::MAX]
}

pub fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=most).prop_map(Bytes::from)
}

pub fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

pub fn view() -> impl Strategy<Value = View> {
    number().prop_map(View)
}

pub fn seq() -> impl Strategy<Value = Seq> {
    number().prop_map(Seq)
}

pub fn replica() -> impl Strategy<Value = ReplicaId> {
    any::<u8>().prop_map(ReplicaId)
}

pub fn session() -> impl Strategy<Value = SessionId> {
    number().prop_map(SessionId)
}

pub fn request_number() -> impl Strategy<Value = RequestNumber> {
    number().prop_map(RequestNumber)
}

pub fn signature() -> impl Strategy<Value = Signature> {
    (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(r, s)| {
        let mut both = [0; 64];
        both[..32].copy_from_slice(&r);
        both[32..].copy_from_slice(&s);
        Signature(both)
    })
}

pub fn certificate() -> impl Strategy<Value = EpochCertificate> {
    let parts = (digest(), replica(), number(), digest(), signature());
    parts.prop_map(
        |(group, replica, counter, epoch, signature)| EpochCertificate {
            group,
            replica,
            counter,
            epoch: PublicKey(epoch.0),
            signature,
        },
    )
}

pub fn recovery() -> impl Strategy<Value = RecoveryStatement> {
    let parts = (digest(), replica(), number(), signature());
    parts.prop_map(|(group, replica, counter, signature)| RecoveryStatement {
        group,
        replica,
        counter,
        signature,
    })
}

/// Alone, or as one of up to 64 that share it.
pub fn shared_signature() -> impl Strategy<Value = SharedSignature> {
    let seed = any::<[u8; 32]>();
    let digests = vec(digest(), 1..64);
    (seed, digest(), digests, any::<usize>()).prop_map(|(seed, group, digests, which)| {
        let mut all = KeyPair::from_seed(&seed).sign_together(&group, &digests);
        all.swap_remove(which % digests.len())
    })
}

pub fn request() -> impl Strategy<Value = Request> {
    let client = any::<[u8; 32]>().prop_map(PublicKey);
    (
        client,
        session(),
        request_number(),
        request_number(),
        bytes(40),
    )
        .prop_map(|(client, session, number, answered, op)| {
            Request::after(client, session, number, answered, op)
        })
}

pub fn auth_request() -> impl Strategy<Value = AuthRequest> {
    let macs = vec(any::<[u8; 16]>().prop_map(Mac), 0..5);
    let auth = prop_oneof![
        macs.prop_map(Authenticator::Macs),
        shared_signature().prop_map(|s| Authenticator::Signed(Box::new(s))),
    ];
    (request(), auth, replica()).prop_map(|(request, auth, replier)| AuthRequest {
        request,
        auth,
        replier,
    })
}

pub fn batch() -> impl Strategy<Value = Batch> {
    (number(), vec(digest(), 0..5)).prop_map(|(time, requests)| Batch {
        time: Time(time),
        requests,
    })
}

pub fn vote() -> impl Strategy<Value = Vote> {
    (seq(), view(), digest()).prop_map(|(seq, view, digest)| Vote { seq, view, digest })
}

pub fn replica_signature() -> impl Strategy<Value = ReplicaSignature> {
    prop_oneof![
        signature().prop_map(ReplicaSignature::Standing),
        (certificate(), signature()).prop_map(|(certificate, signature)| {
            ReplicaSignature::Epoch(Box::new(epoch::EpochSignature {
                certificate,
                signature,
            }))
        }),
    ]
}

pub fn view_change() -> impl Strategy<Value = SignedViewChange> {
    let checkpoints = vec((seq(), digest()), 0..3);
    let votes = (vec(vote(), 0..3), vec(vote(), 0..4));
    let signature = replica_signature();
    (view(), replica(), seq(), checkpoints, votes, signature).prop_map(
        |(view, replica, stable, checkpoints, (prepared, preprepared), signature)| {
            let body = ViewChange {
                view,
                replica,
                stable,
                checkpoints,
                prepared,
                preprepared,
            };
            SignedViewChange { body, signature }
        },
    )
}

pub fn new_view() -> impl Strategy<Value = SignedNewView> {
    let proofs = vec((replica(), digest()), 0..4);
    let start = (seq(), digest());
    let signature = replica_signature();
    (view(), proofs, start, vec(digest(), 0..4), signature).prop_map(
        |(view, proofs, start, selection, signature)| {
            let body = NewView {
                view,
                proofs,
                start,
                selection,
            };
            SignedNewView { body, signature }
        },
    )
}

pub fn state_message() -> impl Strategy<Value = StateMessage> {
    let names = || vec(bytes(6), 0..5);
    let pieces = || vec((bytes(6), bytes(20)), 0..4);
    prop_oneof![
        (seq(), names())
            .prop_map(|(checkpoint, paths)| StateMessage::GetNodes(GetNodes { checkpoint, paths })),
        (seq(), pieces())
            .prop_map(|(checkpoint, nodes)| StateMessage::Nodes(Nodes { checkpoint, nodes })),
        (seq(), names())
            .prop_map(|(checkpoint, keys)| StateMessage::GetValues(GetValues { checkpoint, keys })),
        (seq(), pieces())
            .prop_map(|(checkpoint, values)| StateMessage::Values(Values { checkpoint, values })),
        seq().prop_map(StateMessage::NotHere),
    ]
}

fn pre_prepare() -> impl Strategy<Value = PrePrepare> {
    (view(), seq(), batch(), vec(auth_request(), 0..3)).prop_map(|(view, seq, batch, bodies)| {
        PrePrepare {
            view,
            seq,
            batch,
            bodies: bodies.into_iter().map(std::sync::Arc::new).collect(),
        }
    })
}

fn status() -> impl Strategy<Value = Status> {
    let flags = any::<(bool, bool)>();
    let recovering = proptest::option::of(seq());
    (view(), flags, seq(), seq(), seq(), recovering).prop_map(
        |(view, (active, primary_lost), stable, committed, executed, recovering)| Status {
            view,
            active,
            stable,
            committed,
            executed,
            primary_lost,
            recovering,
        },
    )
}

fn fetch() -> impl Strategy<Value = Fetch> {
    prop_oneof![
        digest().prop_map(Fetch::Batch),
        digest().prop_map(Fetch::Request),
        digest().prop_map(Fetch::ViewChange),
        digest().prop_map(Fetch::Small),
    ]
}

/// The tag of a message between replicas. The match has no wild arm, so that a new variant can't be left out of
/// [`peer_message`] unnoticed.
pub fn peer_tag(message: &PeerMessage) -> u8 {
    match message {
        PeerMessage::Request(_) => 1,
        PeerMessage::PrePrepare(_) => 2,
        PeerMessage::Prepare(_) => 3,
        PeerMessage::Commit(_) => 4,
        PeerMessage::Checkpoint(_) => 5,
        PeerMessage::ViewChange(_) => 6,
        PeerMessage::NewView(_) => 7,
        PeerMessage::Status(_) => 8,
        PeerMessage::Committed(_) => 9,
        PeerMessage::Fetch(_) => 10,
        PeerMessage::Batch(_) => 11,
        PeerMessage::Body(_) => 12,
        PeerMessage::State(_) => 13,
        PeerMessage::Signed(_) => 14,
        PeerMessage::Vouchers(_) => 15,
        PeerMessage::EstimatePlease(_) => 16,
        PeerMessage::Estimate(_) => 17,
        PeerMessage::Epoch(_) => 18,
    }
}

pub fn peer_message() -> impl Strategy<Value = PeerMessage> {
    let vote = || (view(), seq(), digest());
    prop_oneof![
        auth_request().prop_map(PeerMessage::Request),
        pre_prepare().prop_map(PeerMessage::PrePrepare),
        vote().prop_map(|(view, seq, digest)| PeerMessage::Prepare(Prepare { view, seq, digest })),
        vote().prop_map(|(view, seq, digest)| PeerMessage::Commit(Commit { view, seq, digest })),
        (seq(), digest()).prop_map(|(seq, root)| PeerMessage::Checkpoint(Checkpoint { seq, root })),
        view_change().prop_map(PeerMessage::ViewChange),
        new_view().prop_map(PeerMessage::NewView),
        status().prop_map(PeerMessage::Status),
        (seq(), digest())
            .prop_map(|(seq, digest)| PeerMessage::Committed(Committed { seq, digest })),
        fetch().prop_map(PeerMessage::Fetch),
        batch().prop_map(|batch| PeerMessage::Batch(BatchBody { batch })),
        auth_request().prop_map(PeerMessage::Body),
        state_message().prop_map(PeerMessage::State),
        (bytes(40), shared_signature()).prop_map(|(content, signature)| PeerMessage::Signed(
            SignedMessage { content, signature }
        )),
        vouchers().prop_map(PeerMessage::Vouchers),
        any::<u64>().prop_map(PeerMessage::EstimatePlease),
        (certificate(), proptest::option::of((view(), digest()))).prop_map(
            |(certificate, began)| PeerMessage::Epoch(EpochStatus { certificate, began })
        ),
        (any::<u64>(), seq(), seq(), view()).prop_map(|(nonce, checkpoint, prepared, view)| {
            PeerMessage::Estimate(Estimate {
                nonce,
                checkpoint,
                prepared,
                view,
            })
        }),
    ]
}

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 16]>().prop_map(Mac)
}

fn vouchers() -> impl Strategy<Value = Vouchers> {
    let replied = (session(), request_number(), mac());
    let replied = replied.prop_map(|(session, number, mac)| RepliedTo {
        session,
        number,
        mac,
    });
    (seq(), view(), any::<bool>(), vec(replied, 0..4)).prop_map(
        |(seq, view, tentative, replies)| Vouchers {
            seq,
            view,
            tentative,
            replies,
        },
    )
}

pub fn client_message() -> impl Strategy<Value = ClientMessage> {
    prop_oneof![
        auth_request().prop_map(ClientMessage::Request),
        number().prop_map(ClientMessage::ReportPlease),
        auth_request().prop_map(ClientMessage::Repeat),
        auth_request().prop_map(ClientMessage::Watch),
        session().prop_map(ClientMessage::Attach),
        (
            session(),
            request_number(),
            replica(),
            any::<bool>(),
            bytes(40)
        )
            .prop_map(
                |(session, number, replier, early, op)| ClientMessage::Read(Read {
                    session,
                    number,
                    replier,
                    early,
                    op,
                })
            ),
    ]
}

fn report() -> impl Strategy<Value = Report> {
    let link = (replica(), any::<bool>(), number(), number());
    let link = link.prop_map(|(peer, up, dropped, put_aside)| LinkReport {
        peer,
        up,
        dropped,
        put_aside,
    });
    let who = (number(), replica(), view(), any::<bool>());
    let places = (seq(), seq(), seq(), digest(), any::<bool>());
    let recovering = proptest::option::of(seq());
    let pieces = (number(), number(), number(), number());
    let check = (any::<bool>(), number(), pieces).prop_map(
        |(done, took_ms, (right, right_bytes, differing, damaged))| StateCheck {
            done,
            took_ms,
            right,
            right_bytes,
            differing,
            damaged,
        },
    );
    let keys = (number(), number()).prop_map(|(every_ms, age_ms)| KeyRenewal { every_ms, age_ms });
    let own = (
        recovering,
        proptest::option::of(check),
        vec(number(), 0..7),
        proptest::option::of(keys),
        proptest::option::of(number()),
        any::<bool>(),
        vec(number(), 0..5),
        any::<bool>(),
    );
    let rest = (any::<u32>(), number(), number(), number(), bytes(8), own);
    (who, places, vec(link, 0..4), rest).prop_map(
        |(
            (nonce, replica, view, active),
            (committed, executed, stable, root, fetching),
            links,
            (clients, clients_put_aside, view_changes, uptime_ms, fault, own),
        )| Report {
            nonce,
            replica,
            view,
            active,
            committed,
            executed,
            stable,
            root,
            fetching,
            links,
            clients,
            clients_put_aside,
            view_changes,
            uptime_ms,
            fault,
            recovering: own.0,
            check: own.1,
            steps: own.2,
            ordered: own.4,
            went_back: own.5,
            recoveries: own.6,
            recovery_intended: own.7,
            keys: own.3,
        },
    )
}

fn parted() -> impl Strategy<Value = Parted> {
    let parts = prop::collection::vec((0..3_u32, 1..4_u32), 1..4);
    parts.prop_map(|parts| {
        let mut end = 0;
        let spans = parts.into_iter().map(|(gap, length)| {
            let offset = end + gap;
            end = offset + length;
            Span { offset, length }
        });
        let spans: Vec<Span> = spans.collect();
        // In two places, wherever values are.
        let mut result = SegmentWriter::after(vec![7; end as usize / 2]).sharing_from(1);
        result.put(&vec![8; end as usize + 1 - end as usize / 2].into());
        Parted::new(result, spans).unwrap()
    })
}

pub fn replica_message() -> impl Strategy<Value = ReplicaMessage> {
    let body = prop_oneof![
        bytes(40).prop_map(ReplyBody::Full),
        digest().prop_map(ReplyBody::Digest),
        parted().prop_map(ReplyBody::Parted),
    ];
    let reply = (session(), request_number(), view(), any::<bool>(), body);
    let reply = reply.prop_map(|(session, number, view, tentative, body)| Reply {
        session,
        number,
        view,
        tentative,
        body,
    });
    let voucher = (replica(), view(), any::<bool>(), mac());
    let voucher = voucher.prop_map(|(replica, view, tentative, mac)| Voucher {
        replica,
        view,
        tentative,
        mac,
    });
    let reply = (0..3, reply, vec(voucher, 0..4), seq());
    let reply = reply.prop_map(|(kind, reply, vouchers, at)| match kind {
        0 => ReplicaMessage::Reply(reply),
        1 => ReplicaMessage::Read(ReadReply { reply, at }),
        _ => ReplicaMessage::Vouched(Vouched { reply, vouchers }),
    });
    prop_oneof![
        reply,
        report().prop_map(Box::new).prop_map(ReplicaMessage::Report),
        certificate()
            .prop_map(Box::new)
            .prop_map(ReplicaMessage::Certificate),
        (session(), request_number()).prop_map(|(session, number)| {
            ReplicaMessage::Unsigned(Unsigned { session, number })
        }),
    ]
}

pub fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        bytes(40).prop_map(Outcome::Done),
        Just(Outcome::NoSession(())),
        Just(Outcome::TooOld(())),
        Just(Outcome::Malformed(())),
        Just(Outcome::TooLong(())),
        Just(Outcome::Gone(())),
    ]
}

pub fn control() -> impl Strategy<Value = Control> {
    prop_oneof![Just(Control::Open(())), session().prop_map(Control::Close),]
}

/// The tests of all laws for one type, given the path of its codec and a strategy for it.
#[macro_export]
macro_rules! canonical {
    ($($name:ident: $codec:expr, $strategy:expr;)*) => { $(
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config($crate::cases::cases(64))]

                /// One form a value: cut, longer and flipped bytes are refused or mean something else.
                #[test]
                fn has_one_form(value in $strategy) {
                    $codec.laws(&value);
                }

                /// Counts that the input can't hold are refused, wherever they stand.
                #[test]
                fn giant_counts(value in $strategy) {
                    $codec.giant_counts(&value);
                }
            }

            proptest! {
                #![proptest_config($crate::cases::cases(2000))]

                /// Almost right bytes never panic, and what is read has those bytes.
                #[test]
                fn edited_bytes(value in $strategy, edits in support::edits()) {
                    let codec = $codec;
                    let _ = codec.noise(&support::edited((codec.encode)(&value), &edits));
                }

                /// Neither do any others.
                #[test]
                fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
                    let _ = $codec.noise(&bytes);
                }
            }
        }
    )* };
}
