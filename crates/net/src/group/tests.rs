use super::*;
use quorate_wire::{Authentication, Certifies, KeyPair, P256Pair};

fn key(seed: u8) -> PublicKey {
    KeyPair::from_seed(&[seed; 32]).public()
}

fn replicas(n: u8) -> Vec<(String, PublicKey)> {
    (0..n)
        .map(|i| (format!("10.0.0.{i}:7000"), key(i)))
        .collect()
}

fn sample() -> Group {
    let clients = vec![
        ("laptop".to_string(), key(100)),
        ("phone@home".into(), key(101)),
    ];
    Group::new(
        "office",
        replicas(4),
        clients,
        Files::default(),
        Purpose::Service,
    )
    .unwrap()
}

fn parse(text: &str) -> Result<Group, GroupError> {
    text::parse(Path::new("group.toml"), text)
}

/// The problem and line that `text` is refused for.
fn refusal(text: &str) -> (Problem, usize) {
    match parse(text) {
        Err(GroupError::Invalid { problem, line, .. }) => (problem, line),
        other => panic!("{other:?}"),
    }
}

/// A group comes back from its file, and members are found by their keys.
#[test]
fn a_saved_group_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("group.toml");
    let group = sample();
    group.save(&path).unwrap();
    assert_eq!(Group::load(&path).unwrap(), group);
    assert_eq!(group.quorum().f(), 1);
    assert_eq!(group.replica_of_key(&key(2)), Some(ReplicaId(2)));
    assert_eq!(group.replica_of_key(&key(100)), None);
    assert_eq!(group.client_of_key(&key(101)).unwrap().name, "phone@home");
    assert_eq!(group.member(&key(50)), None);
    assert!(matches!(
        Group::load(&directory.path().join("other")),
        Err(GroupError::Missing(_))
    ));
}

/// Sizes and the demonstration mark survive the file, and count for the id.
#[test]
fn everything_counts_for_the_id() {
    let files = Files {
        capacity_bytes: 3 << 29,
        inodes: 1000,
    };
    let demo = Group::new("g", replicas(1), vec![], files, Purpose::Demonstration).unwrap();
    assert_eq!(parse(&demo.to_string()).unwrap(), demo);
    assert!(demo.is_demonstration() && demo.to_string().contains("1536 MiB"));
    let plain = Group::new("g", replicas(1), vec![], files, Purpose::Service).unwrap();
    assert_ne!(plain.id(), demo.id());
    let routers = Group::new("g", replicas(1), vec![], files, Purpose::Coordinator).unwrap();
    assert_eq!(parse(&routers.to_string()).unwrap(), routers);
    assert!(routers.is_coordinator() && !plain.is_coordinator());
    assert_ne!(routers.id(), plain.id());
    assert_ne!(routers.id(), demo.id());
    let larger = Files {
        inodes: 1001,
        ..files
    };
    let larger = Group::new("g", replicas(1), vec![], larger, Purpose::Service).unwrap();
    assert_ne!(plain.id(), larger.id());
}

/// Another way to a replica is this process's own affair: the group is the same one.
#[test]
fn a_route_is_no_part_of_the_group() {
    let routed = sample().with_route(ReplicaId(2), "tunnel:7001").unwrap();
    assert_eq!(routed.id(), sample().id());
    assert_eq!(routed.to_string(), sample().to_string());
    let entry = routed.replica(ReplicaId(2)).unwrap();
    assert_eq!(entry.dialed_at(), "tunnel:7001");
    assert_eq!(entry.address, "10.0.0.2:7000");
    assert_eq!(routed.replicas()[1].dialed_at(), "10.0.0.1:7000");
    let refused = |id, address| sample().with_route(ReplicaId(id), address).unwrap_err();
    assert_eq!(refused(4, "a:1"), Problem::NoSuchReplica(ReplicaId(4)));
    assert_eq!(refused(0, "a"), Problem::BadAddress("a".into()));
}

/// An edit by hand is noticed; layout and comments are free.
#[test]
fn an_edited_file_is_refused() {
    let text = sample().to_string();
    for (from, to) in [
        ("10.0.0.2:7000", "10.0.0.9:7000"),
        ("1 TiB", "2 TiB"),
        ("name = \"laptop\"", "name = \"laptop2\""),
        ("\n[files]", "purpose = \"demonstration\"\n[files]"),
    ] {
        let edited = text.replace(from, to);
        assert_ne!(edited, text);
        let error = parse(&edited).unwrap_err();
        assert!(matches!(error, GroupError::Changed { .. }), "{error}");
        assert!(error.to_string().contains("line 4"), "{error}");
    }
    let commented = format!("# hello\n{}", text.replace(" = ", "   =   "));
    assert_eq!(parse(&commented).unwrap(), sample());
}

/// Each kind of mistake is told with its line.
#[test]
fn mistakes_are_told_with_their_line() {
    let text = sample().to_string();
    let line_of = |needle: &str| 1 + text.lines().position(|l| l.contains(needle)).unwrap();
    let entry_of = |needle: &str| line_of(needle) - 2;

    let (problem, line) = refusal(&text.replace("10.0.0.2:7000", "10.0.0.2"));
    assert_eq!(problem, Problem::BadAddress("10.0.0.2".into()));
    assert_eq!(line, entry_of("10.0.0.2:7000"));

    let (problem, line) = refusal(&text.replace("10.0.0.2:7000", "10.0.0.1:7000"));
    assert_eq!(problem, Problem::AddressTwice("10.0.0.1:7000".into()));
    assert_eq!(line, entry_of("10.0.0.2:7000"));

    let hex = key(3).to_string();
    let (problem, line) = refusal(&text.replace(&hex, &hex[1..]));
    assert_eq!(problem, Problem::BadKey(hex[1..].into()));
    assert_eq!(line, line_of(&hex));

    let (problem, _) = refusal(&text.replace(&hex, &key(100).to_string()));
    assert_eq!(problem, Problem::KeyTwice);

    let (problem, line) = refusal(&text.replace("id = 3", "id = 4"));
    assert_eq!(
        problem,
        Problem::OutOfOrder {
            expected: 3,
            found: 4
        }
    );
    assert_eq!(line, line_of("id = 3"));

    let (problem, _) = refusal(&text.replace("phone@home", "laptop"));
    assert_eq!(problem, Problem::NameTwice("laptop".into()));
    let (problem, _) = refusal(&text.replace("phone@home", "pho ne"));
    assert_eq!(problem, Problem::BadName("pho ne".into()));
    let (problem, line) = refusal(&text.replace("1 TiB", "1 Tib"));
    assert_eq!(problem, Problem::BadCapacity("1 Tib".into()));
    assert_eq!(line, line_of("1 TiB"));

    let unknown = parse(&text.replace("capacity =", "capacities =")).unwrap_err();
    assert!(unknown.to_string().contains("capacities"), "{unknown}");
}

/// A group file that has lost something is told from a file that never was one, and what to do is said of each.
#[test]
fn a_part_of_a_group_file_and_another_file() {
    let text = sample().to_string();
    let id = text.lines().find(|l| l.starts_with("id = ")).unwrap();
    let without_id = text.replace(&format!("{id}\n"), "");
    let half = &text[..text.len() / 2];
    for part in [&without_id, half, &text[..60], "[[replica]]\nid = 0"] {
        let error = parse(part).unwrap_err();
        assert!(matches!(error, GroupError::Syntax { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains("not a whole group file"), "{words}");
        assert!(words.contains("quorate init"), "{words}");
    }
    let missing = parse(&without_id).unwrap_err().to_string();
    assert!(missing.contains("`id`"), "{missing}");

    for other in ["", "root:x:0:0:secret", "[package]\nname = \"secret\"\n"] {
        let error = parse(other).unwrap_err();
        assert!(matches!(error, GroupError::NotAGroup(_)), "{error}");
        let words = error.to_string();
        assert!(words.contains("is no group file") && !words.contains("secret"));
    }
    let directory = tempfile::tempdir().unwrap();
    let error = Group::load(directory.path()).unwrap_err();
    assert!(matches!(error, GroupError::NotAGroup(_)), "{error}");
    let binary = directory.path().join("binary");
    std::fs::write(&binary, [0xff; 9]).unwrap();
    let error = Group::load(&binary).unwrap_err();
    assert!(matches!(error, GroupError::NotAGroup(_)), "{error}");
}

/// Only 3f+1 replicas make a group, and only points of the curve are keys.
#[test]
fn sizes_and_keys_are_checked() {
    let make = |replicas| Group::new("g", replicas, vec![], Files::default(), Purpose::Service);
    for n in [0, 2, 3, 5, 6] {
        assert_eq!(make(replicas(n)), Err(Problem::NotAQuorum(usize::from(n))));
    }
    let not_a_point = (0..=255)
        .map(|b| PublicKey([b; 32]))
        .find(|k| k.verify(&Digest::ZERO, &Signature([0; 64])) == Err(AuthError::BadKey))
        .unwrap();
    let refused = make(vec![("a:1".into(), not_a_point)]);
    assert_eq!(refused, Err(Problem::BadKey(not_a_point.to_string())));
}

/// Addresses are a name, an IPv4 address or a bracketed IPv6 address, and a port.
#[test]
fn addresses() {
    for good in [
        "a:1",
        "fs-1.example.org:65535",
        "192.0.2.1:7000",
        "[::1]:7000",
    ] {
        assert!(is_address(good), "{good}");
    }
    for bad in [
        "", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "::1:7", "[x]:7", "a b:7", "a\":7",
    ] {
        assert!(!is_address(bad), "{bad}");
    }
}

/// Capacities are whole numbers with a binary unit.
#[test]
fn capacities() {
    assert_eq!(text::parse_capacity("500 GiB"), Some(500 << 30));
    assert_eq!(text::parse_capacity("7B"), Some(7));
    for bad in ["", "GiB", "1", "-1 GiB", "1.5 GiB", "99999999 PiB", "1 GB"] {
        assert_eq!(text::parse_capacity(bad), None, "{bad}");
    }
}

/// How members deal with each other survives the file, and counts for the id; nothing stands there by default.
#[test]
fn the_protocol_is_part_of_the_group() {
    assert!(!sample().to_string().contains("[protocol]"));
    let memory = Protocol {
        durability: Durability::Memory,
        ..Protocol::default()
    };
    let ordered = Protocol {
        unordered_reads: false,
        ..Protocol::default()
    };
    let signed = Protocol {
        authentication: Authentication::Signature,
        ..Protocol::default()
    };
    for protocol in [memory, ordered, signed] {
        let group = sample().with_protocol(protocol);
        assert_ne!(group.id(), sample().id());
        assert_eq!(parse(&group.to_string()).unwrap(), group);
    }
    let text = sample().with_protocol(memory).to_string();
    let text = text.replace("\"memory\"", "\"tape\"");
    assert_eq!(refusal(&text).0, Problem::BadDurability("tape".into()));
}

/// How often keys are renewed survives the file and counts for the id; only replicas with key holders renew them.
#[test]
fn a_period_of_keys_is_part_of_the_group() {
    let identities: Vec<PublicKey> = (50..54).map(key).collect();
    let renewing = |ms| {
        sample().with_protocol(Protocol {
            key_refresh: Some(Duration::from_millis(ms)),
            ..Protocol::default()
        })
    };
    let plain = sample().with_identities(&identities).unwrap();
    let group = renewing(15_000).with_identities(&identities).unwrap();
    let other = renewing(15_001).with_identities(&identities).unwrap();
    assert!(group.id() != plain.id() && group.id() != other.id());
    for group in [group.clone(), group.with_owner(key(9)).unwrap()] {
        assert_eq!(parse(&group.to_string()).unwrap(), group);
    }
    let bad = renewing(999).with_identities(&identities).unwrap_err();
    assert_eq!(bad, Problem::BadKeyRefresh(999));
    let text = renewing(15_000).to_string();
    assert_eq!(refusal(&text).0, Problem::RefreshWithoutHolders);
}

/// A TPM's key survives the file among others, and is one that a TPM can have.
#[test]
fn an_identity_may_be_a_tpms() {
    let chip = |seed| P256Pair::from_secret(&[seed; 32]).unwrap().identity();
    let mut identities: Vec<IdentityKey> = (50..54).map(|seed| key(seed).into()).collect();
    let plain = sample().with_identities(&identities).unwrap();
    identities[1] = chip(51);
    let group = sample().with_identities(&identities).unwrap();
    assert_ne!(group.id(), plain.id());
    let text = group.to_string();
    assert_eq!(parse(&text).unwrap(), group);
    assert_eq!(text.matches("identity = \"p256:").count(), 1, "{text}");
    identities[2] = chip(51);
    let twice = sample().with_identities(&identities).unwrap_err();
    assert_eq!(twice, Problem::KeyTwice);
    // One bit of it, and it is no point of the curve or another group's.
    let at = text.find("p256:").unwrap() + 5;
    for place in [at, at + 1, at + 30, at + 65] {
        let mut bad = text.clone().into_bytes();
        bad[place] = if bad[place] == b'5' { b'6' } else { b'5' };
        assert!(parse(std::str::from_utf8(&bad).unwrap()).is_err());
    }
    identities[2] = PublicKey([0xff; 32]).into();
    let none = sample().with_identities(&identities).unwrap_err();
    assert!(matches!(none, Problem::BadKey(_)));
}

/// Key holders' keys survive the file and count for the id; all replicas have one or none, and each has its own.
#[test]
fn identities_are_for_all_or_none() {
    let plain = sample();
    let identities: Vec<PublicKey> = (50..54).map(key).collect();
    let group = sample().with_identities(&identities).unwrap();
    assert_eq!(plain.identities(), None);
    let as_given: Vec<IdentityKey> = identities.iter().map(|&key| key.into()).collect();
    assert_eq!(group.identities(), Some(&as_given[..]));
    assert_ne!(group.id(), plain.id());
    assert_eq!(parse(&group.to_string()).unwrap(), group);
    assert_eq!(group.member(&key(50)), None, "it opens no link by itself");
    let with = |list: &[PublicKey]| sample().with_identities(list).unwrap_err();
    assert_eq!(with(&identities[..3]), Problem::SomeIdentities);
    let twice = [key(50), key(51), key(52), key(51)];
    assert_eq!(with(&twice), Problem::KeyTwice);
    let a_members = [key(50), key(51), key(52), key(100)];
    assert_eq!(with(&a_members), Problem::KeyTwice);
    let signed = sample().with_protocol(Protocol {
        authentication: Authentication::Signature,
        ..Protocol::default()
    });
    let both = signed.with_identities(&identities);
    assert_eq!(both.unwrap_err(), Problem::SignedWithHolders);
    let text = group.to_string();
    let line = text.lines().position(|l| l.contains("identity")).unwrap();
    let without: Vec<&str> = text
        .lines()
        .enumerate()
        .filter(|(at, _)| *at != line)
        .map(|(_, l)| l)
        .collect();
    let problem = refusal(&without.join("\n")).0;
    assert_eq!(problem, Problem::SomeIdentities);
}

/// An owner comes back from the file and counts for the id; a group without one is what it always was.
#[test]
fn an_owner_is_a_client_of_its_own() {
    let plain = sample();
    assert!(!plain.to_string().contains("owner") && plain.owner().is_none());
    let owned = sample().with_owner(key(90)).unwrap();
    assert_ne!(owned.id(), plain.id());
    assert_eq!(parse(&owned.to_string()).unwrap(), owned);
    assert_eq!(owned.member(&key(90)), Some(Member::Owner));
    assert!(owned.is_client(&key(90)) && !owned.is_client(&key(0)));
    assert_eq!(owned.client_of_key(&key(90)), None);
    let keys: Vec<PublicKey> = owned.client_keys().collect();
    assert_eq!(keys, [key(100), key(101), key(90)]);

    let also_client = sample().with_owner(key(100)).unwrap();
    assert_eq!(also_client.member(&key(100)), Some(Member::Client(0)));
    assert_eq!(also_client.client_keys().count(), 2);
    assert_ne!(also_client.id(), owned.id());

    let identities: Vec<PublicKey> = (50..54).map(key).collect();
    let held = plain.with_identities(&identities).unwrap();
    let both = owned.with_identities(&identities).unwrap();
    assert_ne!(both.id(), held.id());
    assert_eq!(parse(&both.to_string()).unwrap(), both);
    let refused = held.with_owner(key(51)).unwrap_err();
    assert_eq!(refused, Problem::OwnerIsReplica);
    let refused = sample().with_owner(key(2)).unwrap_err();
    assert_eq!(refused, Problem::OwnerIsReplica);

    let text = both.to_string();
    let (problem, line) = refusal(&text.replace(&key(90).to_string(), &key(3).to_string()));
    assert_eq!(problem, Problem::OwnerIsReplica);
    let owner_line = text.lines().position(|l| l.starts_with("owner = "));
    assert_eq!(Some(line), owner_line.map(|at| at + 1));
    let without: String = text
        .split_inclusive('\n')
        .filter(|l| !l.starts_with("owner = "))
        .collect();
    assert!(matches!(parse(&without), Err(GroupError::Changed { .. })));
}
