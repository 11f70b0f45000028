//! What an attacker would try, one test for each, with the reason that is given.

use crate::support::{Raw, VOLUME, assemble, key, public};
use bytes::Bytes;
use quorate_credential::{
    Caveat, Chain, Grant, Malformed, ObjectId, Refusal, Rights, Scope, Step, Terms, Trust, Use,
    VolumeId, Window,
};
use quorate_wire::Digest;

fn terms(to: u8) -> Terms {
    Terms {
        subject: public(to),
        scope: Scope {
            object: ObjectId(10),
            subtree: true,
        },
        rights: Rights::READING | Rights::WRITING | Rights::DELEGATE,
        window: Window {
            not_before: 100,
            not_after: 200,
        },
        depth: 4,
        serial: 1,
        caveats: Vec::new(),
    }
}

fn issue(terms: Terms) -> Chain {
    Chain::issue(VOLUME, &key(0), terms).unwrap()
}

fn verify(chain: &Chain) -> Result<Grant, Refusal> {
    chain.verify(&Trust {
        volume: VOLUME,
        owners: &[public(0)],
    })
}

/// What the verifier says of links that are rightly signed, whatever they say.
fn raw(links: &[Raw]) -> Result<Grant, Refusal> {
    verify(&Chain::from_bytes(assemble(links).into())?)
}

/// Two links of which the second is changed.
fn second(change: impl Fn(&mut Raw)) -> Result<Grant, Refusal> {
    let mut links = [Raw::link(0), Raw::link(1)];
    change(&mut links[1]);
    raw(&links)
}

/// 30 is in 20, that is in 10, and that in the root.
const WALK: [Step; 4] = [
    Step {
        object: ObjectId(30),
        name: b"song.mp3",
    },
    Step {
        object: ObjectId(20),
        name: b"music",
    },
    Step {
        object: ObjectId(10),
        name: b"shared",
    },
    Step {
        object: ObjectId(1),
        name: b"",
    },
];

fn reading(walk: &[Step<'static>], now: u64) -> Use<'static> {
    let walk: Vec<Step> = walk.to_vec();
    Use {
        subject: public(1),
        now,
        rights: Rights::READ,
        walk: walk.leak(),
        name: None,
    }
}

/// What is issued, passed on and read again holds, and comes to what the last link says.
#[test]
fn a_right_chain_holds() {
    let bob = issue(terms(1));
    let carol = Terms {
        rights: Rights::READING,
        scope: Scope {
            object: ObjectId(20),
            subtree: true,
        },
        depth: 0,
        ..terms(2)
    };
    let chain = bob.delegate(&key(1), carol).unwrap();
    let read = Chain::from_bytes(chain.to_bytes().into()).unwrap();
    assert_eq!(read, chain);
    let grant = verify(&read).unwrap();
    assert_eq!((grant.subject, grant.rights), (public(2), Rights::READING));
    assert_eq!(grant.reaches.len(), 2);
    assert_eq!(grant.id, chain.id());
    assert_eq!(chain.to_bytes().len(), 66 + 2 * 141);
}

/// A file that somebody copied is worth nothing without the key, neither to use nor to pass on.
#[test]
fn theft() {
    let bob = issue(terms(1));
    let grant = verify(&bob).unwrap();
    assert_eq!(grant.covers(&reading(&WALK, 150)), Ok(()));
    let thief = Use {
        subject: public(9),
        ..reading(&WALK, 150)
    };
    assert_eq!(grant.covers(&thief), Err(Refusal::WrongSubject));
    // The owner is somebody else than the subject, too.
    let owner = Use {
        subject: public(0),
        ..reading(&WALK, 150)
    };
    assert_eq!(grant.covers(&owner), Err(Refusal::WrongSubject));
    assert_eq!(bob.delegate(&key(9), terms(9)), Err(Refusal::WrongSubject));
    let forged = second(|link| link.issuer = 9);
    assert_eq!(forged, Err(Refusal::BrokenChain(1)));
}

/// Nobody gains by signing for themselves, alone or by way of others.
#[test]
fn self_delegation_and_loops() {
    assert_eq!(
        second(|link| link.subject = 1),
        Err(Refusal::RepeatedKey(1))
    );
    assert_eq!(
        second(|link| link.subject = 0),
        Err(Refusal::RepeatedKey(1))
    );
    let to_owner = [Raw {
        subject: 0,
        ..Raw::link(0)
    }];
    assert_eq!(raw(&to_owner), Err(Refusal::RepeatedKey(0)));
    let mut back = [Raw::link(0), Raw::link(1), Raw::link(2)];
    back[2].subject = 1;
    assert_eq!(raw(&back), Err(Refusal::RepeatedKey(2)));
    // A first link that its subject has signed is the owner's only in name.
    let own = [Raw {
        issuer: 1,
        ..Raw::link(0)
    }];
    assert_eq!(raw(&own), Err(Refusal::BrokenChain(0)));
}

/// No right, object, second or user is gained by passing on; the crate does not even make such a link.
#[test]
fn widening() {
    let mut narrow = [Raw::link(0), Raw::link(1)];
    narrow[0].rights = (Rights::READING | Rights::DELEGATE).bits();
    assert_eq!(raw(&narrow), Err(Refusal::WidenedRights(1)));
    for bit in 0..13 {
        narrow[0].rights = Rights::ALL.bits() & !(1 << bit);
        let expected = match Rights::from_bits(1 << bit) {
            Some(Rights::DELEGATE) => Refusal::NotDelegable(1),
            _ => Refusal::WidenedRights(1),
        };
        assert_eq!(raw(&narrow), Err(expected));
    }
    assert_eq!(second(|link| link.from = 99), Err(Refusal::WidenedTime(1)));
    assert_eq!(
        second(|link| link.until = 201),
        Err(Refusal::WidenedTime(1))
    );
    let bob = issue(terms(1));
    let more = Terms {
        rights: Rights::ALL,
        depth: 1,
        ..terms(2)
    };
    assert_eq!(bob.delegate(&key(1), more), Err(Refusal::WidenedRights(1)));

    let file = Scope {
        object: ObjectId(10),
        subtree: false,
    };
    let alone = issue(Terms {
        scope: file,
        ..terms(1)
    });
    for scope in [
        Scope {
            subtree: true,
            ..file
        },
        Scope {
            object: ObjectId(11),
            ..file
        },
    ] {
        let more = Terms {
            scope,
            depth: 1,
            ..terms(2)
        };
        assert_eq!(alone.delegate(&key(1), more), Err(Refusal::WidenedScope(1)));
    }

    let ids = |uid| Caveat::Ids { uid, gid: 5 };
    let fixed = issue(Terms {
        caveats: vec![ids(1000)],
        ..terms(1)
    });
    let root = Terms {
        caveats: vec![ids(0)],
        depth: 1,
        ..terms(2)
    };
    assert_eq!(
        fixed.delegate(&key(1), root.clone()),
        Err(Refusal::OtherIds(1))
    );
    // Nor by who has none himself.
    let any = issue(terms(1));
    assert_eq!(any.delegate(&key(1), root), Err(Refusal::OtherIds(1)));
    let again = Terms {
        caveats: vec![ids(1000)],
        depth: 1,
        ..terms(2)
    };
    let again = fixed.delegate(&key(1), again).unwrap();
    assert_eq!(verify(&again).unwrap().ids, Some((1000, 5)));
    let silent = fixed
        .delegate(
            &key(1),
            Terms {
                depth: 1,
                ..terms(2)
            },
        )
        .unwrap();
    assert_eq!(verify(&silent).unwrap().ids, Some((1000, 5)));
}

/// As many links as were allowed, and one fewer at each step.
#[test]
fn depth() {
    assert_eq!(
        second(|link| link.depth = 15),
        Err(Refusal::DepthExceeded(1))
    );
    let mut chain = issue(Terms {
        depth: 2,
        ..terms(1)
    });
    chain = chain
        .delegate(
            &key(1),
            Terms {
                depth: 1,
                ..terms(2)
            },
        )
        .unwrap();
    chain = chain
        .delegate(
            &key(2),
            Terms {
                depth: 0,
                ..terms(3)
            },
        )
        .unwrap();
    let one_more = chain.delegate(
        &key(3),
        Terms {
            depth: 0,
            ..terms(4)
        },
    );
    assert_eq!(one_more, Err(Refusal::DepthExceeded(3)));
    assert!(verify(&chain).is_ok());
    let longest: Vec<Raw> = (0..16).map(Raw::link).collect();
    assert!(raw(&longest).is_ok());
    let longer: Vec<Raw> = (0..17).map(Raw::link).collect();
    assert_eq!(raw(&longer), Err(Malformed::Links(17).into()));
    assert_eq!(raw(&[]), Err(Malformed::Links(0).into()));
}

/// It holds in its first and in its last second, and not in the ones beside them.
#[test]
fn expiry_to_the_second() {
    let grant = verify(&issue(terms(1))).unwrap();
    let at = |now| grant.covers(&reading(&WALK, now));
    assert_eq!((at(100), at(200)), (Ok(()), Ok(())));
    assert_eq!(at(99), Err(Refusal::NotYet(100)));
    assert_eq!(at(201), Err(Refusal::Expired(200)));
    assert_eq!(
        second(|link| (link.from, link.until) = (150, 149)),
        Err(Malformed::NoTime.into())
    );
}

/// An object is in scope by where it is, now; names play no part in it.
#[test]
fn scope_is_where_the_object_is() {
    let grant = verify(&issue(terms(1))).unwrap();
    assert_eq!(grant.covers(&reading(&WALK, 150)), Ok(()));
    assert_eq!(grant.covers(&reading(&WALK[2..], 150)), Ok(()));
    assert_eq!(
        grant.covers(&reading(&WALK[3..], 150)),
        Err(Refusal::OutOfScope(0))
    );
    // Moved out from below 10: at once out of scope, under whatever name.
    let moved = [
        WALK[0],
        Step {
            object: ObjectId(1),
            name: b"",
        },
    ];
    assert_eq!(
        grant.covers(&reading(&moved, 150)),
        Err(Refusal::OutOfScope(0))
    );
    // Where nothing is known of what it is in, it is in nothing.
    assert_eq!(
        grant.covers(&reading(&[], 150)),
        Err(Refusal::OutOfScope(0))
    );

    let alone = Scope {
        object: ObjectId(10),
        subtree: false,
    };
    let grant = verify(&issue(Terms {
        scope: alone,
        ..terms(1)
    }))
    .unwrap();
    assert_eq!(grant.covers(&reading(&WALK[2..], 150)), Ok(()));
    assert_eq!(
        grant.covers(&reading(&WALK, 150)),
        Err(Refusal::OutOfScope(0))
    );
}

/// A link may name any object, but it must be in the scopes of all links before, at the time of use.
#[test]
fn every_link_bounds_the_scope() {
    let chain = issue(terms(1));
    let elsewhere = Scope {
        object: ObjectId(40),
        subtree: true,
    };
    let chain = chain
        .delegate(
            &key(1),
            Terms {
                scope: elsewhere,
                depth: 0,
                ..terms(2)
            },
        )
        .unwrap();
    let grant = verify(&chain).unwrap();
    let root = Step {
        object: ObjectId(1),
        name: b"",
    };
    let outside = [
        Step {
            object: ObjectId(40),
            name: b"private",
        },
        root,
    ];
    let u = Use {
        subject: public(2),
        ..reading(&outside, 150)
    };
    assert_eq!(grant.covers(&u), Err(Refusal::OutOfScope(0)));
    let inside = [
        Step {
            object: ObjectId(40),
            name: b"x",
        },
        WALK[2],
        root,
    ];
    let u = Use {
        subject: public(2),
        ..reading(&inside, 150)
    };
    assert_eq!(grant.covers(&u), Ok(()));
}

/// The number of a deleted file is not given to a new one, so what was said about `song.mp3` is not about `tax_return.dat`,
/// even under the same name.
#[test]
fn numbers_are_not_names() {
    let file = Scope {
        object: ObjectId(30),
        subtree: false,
    };
    let grant = verify(&issue(Terms {
        scope: file,
        ..terms(1)
    }))
    .unwrap();
    assert_eq!(grant.covers(&reading(&WALK, 150)), Ok(()));
    let mut later = WALK;
    later[0].object = ObjectId(31);
    assert_eq!(
        grant.covers(&reading(&later, 150)),
        Err(Refusal::OutOfScope(0))
    );
    // Numbers that agree in their lower 64 bits are two.
    later[0].object = ObjectId(30 | 1 << 64);
    assert_eq!(
        grant.covers(&reading(&later, 150)),
        Err(Refusal::OutOfScope(0))
    );
}

/// Names directly in the object must begin as the link says; deeper names are free, and the object itself may only be looked at.
#[test]
fn prefixes() {
    let caveats = vec![Caveat::NamePrefix(Bytes::from_static(b"mus"))];
    let grant = verify(&issue(Terms {
        caveats,
        ..terms(1)
    }))
    .unwrap();
    assert_eq!(grant.covers(&reading(&WALK, 150)), Ok(()));
    let named = |name: &'static [u8]| {
        let mut walk = WALK;
        walk[1].name = name;
        grant.covers(&reading(&walk, 150))
    };
    assert_eq!(named(b"mus"), Ok(()));
    for name in [&b"mu"[..], b"Music", b"xmusic", b"", b"../music"] {
        assert_eq!(named(name), Err(Refusal::WrongName(0)));
    }
    let itself = |rights, name| {
        grant.covers(&Use {
            rights,
            name,
            ..reading(&WALK[2..], 150)
        })
    };
    assert_eq!(itself(Rights::CREATE, Some(&b"museum"[..])), Ok(()));
    assert_eq!(
        itself(Rights::CREATE, Some(b"mine")),
        Err(Refusal::WrongName(0))
    );
    assert_eq!(itself(Rights::LOOKUP | Rights::READDIR, None), Ok(()));
    for rights in [
        Rights::SETATTR,
        Rights::READ | Rights::LOOKUP,
        Rights::UNLINK,
    ] {
        assert_eq!(itself(rights, None), Err(Refusal::WrongName(0)));
    }
}

/// All rights that an operation needs, not one of them.
#[test]
fn missing_rights() {
    let grant = verify(&issue(Terms {
        rights: Rights::READING,
        ..terms(1)
    }))
    .unwrap();
    let both = Use {
        rights: Rights::READ | Rights::WRITE,
        ..reading(&WALK, 150)
    };
    assert_eq!(
        grant.covers(&both),
        Err(Refusal::MissingRights(Rights::WRITE))
    );
}

/// Another volume's credentials, other owners' and two volumes of one owner.
#[test]
fn volumes_and_owners_are_not_mixed_up() {
    let chain = issue(terms(1));
    let owners = &[public(0)];
    let volume = VolumeId(Digest([8; 32]));
    assert_eq!(
        chain.verify(&Trust { volume, owners }),
        Err(Refusal::WrongVolume)
    );
    let owners = &[public(5)];
    assert_eq!(
        chain.verify(&Trust {
            volume: VOLUME,
            owners
        }),
        Err(Refusal::WrongOwner)
    );
    // With the volume's name changed in the bytes.
    let mut bytes = chain.to_bytes();
    bytes[1..33].fill(8);
    let moved = Chain::from_bytes(bytes.into()).unwrap();
    let owners = &[public(0)];
    assert_eq!(
        moved.verify(&Trust { volume, owners }),
        Err(Refusal::BrokenChain(0))
    );
}

/// Two links under one serial are two chains with two names, which are taken back together.
#[test]
fn one_serial_twice() {
    let (one, other) = (
        issue(terms(1)),
        issue(Terms {
            rights: Rights::READ,
            ..terms(1)
        }),
    );
    assert_ne!(one.id(), other.id());
    let serial = |chain| {
        verify(chain)
            .unwrap()
            .reaches
            .pop()
            .map(|r| (r.issuer, r.serial))
    };
    assert_eq!(serial(&one), serial(&other));
}

/// What is not understood denies, though its signature is right.
#[test]
fn unknown_words() {
    let with = |kind, body: &[u8]| second(|link| link.caveats = vec![(kind, body.to_vec())]);
    for kind in [0, 3, 6, 7, 255] {
        assert_eq!(with(kind, b""), Err(Malformed::UnknownCaveat(kind).into()));
    }
    for (kind, body) in [
        (1, &b""[..]),
        (1, b"a/b"),
        (1, b"a\0"),
        (2, b"1234567"),
        (4, b""),
        (4, b"\n"),
        (4, &[b'x'; 65]),
        (5, b"1234567"),
    ] {
        assert_eq!(with(kind, body), Err(Malformed::CaveatBody(kind).into()));
    }
    let twice = second(|link| link.caveats = vec![(4, vec![b'a']), (4, vec![b'b'])]);
    assert_eq!(twice, Err(Malformed::CaveatOrder.into()));
    let nine = second(|link| link.caveats = vec![(4, vec![b'a']); 9]);
    assert_eq!(nine, Err(Malformed::Caveats(9).into()));
    assert_eq!(
        second(|link| link.rights = 1 << 13),
        Err(Malformed::UnknownRights(1 << 13).into())
    );
    assert_eq!(
        second(|link| link.subtree = 2),
        Err(Malformed::Flag(2).into())
    );
    assert_eq!(
        second(|link| link.depth = 16),
        Err(Malformed::Depth(16).into())
    );
    let mut bytes = issue(terms(1)).to_bytes();
    bytes[0] = 2;
    assert_eq!(Chain::from_bytes(bytes.into()), Err(Malformed::Version(2)));
}

/// Longer than 8 KiB is refused, when it is read and when it is made.
#[test]
fn long_chains() {
    let prefix = Caveat::NamePrefix(vec![b'x'; 255].into());
    let tag = Caveat::AuditTag("t".repeat(64));
    let of = |to: u8| Terms {
        caveats: vec![prefix.clone(), tag.clone()],
        depth: 16 - to,
        ..terms(to)
    };
    let mut chain = issue(of(1));
    let refused = (2..=16).find_map(|to| match chain.delegate(&key(to - 1), of(to)) {
        Ok(longer) => {
            chain = longer;
            None
        }
        Err(why) => Some(why),
    });
    // 66 bytes, and 141 + 2 + 255 + 2 + 64 for each link.
    assert_eq!(refused, None);
    assert_eq!(chain.to_bytes().len(), 66 + 16 * 464);
    assert!(verify(&chain).is_ok());
    let long = vec![1; 8193];
    assert_eq!(Chain::from_bytes(long.into()), Err(Malformed::TooManyBytes));
    let wrong = Caveat::NamePrefix(vec![b'x'; 256].into());
    assert!(
        Chain::issue(
            VOLUME,
            &key(0),
            Terms {
                caveats: vec![wrong],
                ..terms(1)
            }
        )
        .is_err()
    );
    let wrong = Caveat::AuditTag("ü".into());
    let refused = Chain::issue(
        VOLUME,
        &key(0),
        Terms {
            caveats: vec![wrong],
            ..terms(1)
        },
    );
    assert_eq!(refused, Err(Malformed::CaveatBody(4).into()));
}
