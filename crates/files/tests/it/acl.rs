//! ACLs: against a model that is written naively from acl(5), and what is special about them.

use crate::common::World;
use bytes::Bytes;
use proptest::prelude::*;
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Attr, Errno, Ino, Kind};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// An entry: tag, permissions, and whom it names (as `setfacl` writes them: `u:7:rw-`).
type Entry = (&'static str, u16, u32);

const NOBODY: u32 = u32::MAX;

fn user() -> Who {
    Who::new(1000, 100)
}

fn friend() -> Who {
    Who::new(1001, 101)
}

fn value(entries: &[Entry]) -> Bytes {
    let mut out = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        let tag: u16 = match *tag {
            "owner" => 1,
            "user" => 2,
            "owning group" => 4,
            "group" => 8,
            "mask" => 16,
            "other" => 32,
            other => panic!("{other}"),
        };
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out.into()
}

/// An ACL with the three entries that mode bits have.
fn minimal(owner: u16, group: u16, other: u16) -> Vec<Entry> {
    vec![
        ("owner", owner, NOBODY),
        ("owning group", group, NOBODY),
        ("other", other, NOBODY),
    ]
}

/// One with an entry for the friend, too.
fn for_friend(friend: u16, mask: u16) -> Vec<Entry> {
    vec![
        ("owner", 7, NOBODY),
        ("user", friend, 1001),
        ("owning group", 4, NOBODY),
        ("mask", mask, NOBODY),
        ("other", 0, NOBODY),
    ]
}

fn set(
    world: &mut World,
    who: &Who,
    ino: Ino,
    name: &str,
    value: Bytes,
) -> crate::common::Result<()> {
    let set = SetXattr {
        ino,
        name: Bytes::from(name.to_owned()),
        value,
        mode: XattrMode::Set,
    };
    world.run(1, who, Action::SetXattr(set)).map(drop)
}

fn get(world: &mut World, ino: Ino, name: &str) -> crate::common::Result<Bytes> {
    let get = GetXattr {
        ino,
        name: Bytes::from(name.to_owned()),
        size: 65_536,
    };
    match world.run(1, &friend(), Action::GetXattr(get))? {
        Answer::Bytes(bytes) => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

fn remove(world: &mut World, who: &Who, ino: Ino, name: &str) -> crate::common::Result<()> {
    let name = Bytes::from(name.to_owned());
    world
        .run(1, who, Action::RemoveXattr(RemoveXattr { ino, name }))
        .map(drop)
}

fn mode(world: &mut World, ino: Ino) -> u32 {
    world.attr(ino).unwrap().mode
}

/// Makes an object and gives its attributes.
fn make(world: &mut World, who: &Who, action: Action) -> Attr {
    match world.run(1, who, action).unwrap() {
        Answer::Attr(attr) => attr,
        Answer::Opened(opened) => opened.attr,
        Answer::Made(made) => made.attr,
        other => panic!("{other:?}"),
    }
}

/// What is no ACL is refused, and so is one that is too long for mounts to read.
#[test]
fn what_is_no_acl_is_refused() {
    let mut world = World::new();
    let (ino, _) = world.create_as(&user(), Ino::ROOT, b"f", 0o640).unwrap();
    let good = value(&for_friend(6, 6));
    set(&mut world, &user(), ino, ACCESS, good.clone()).unwrap();
    let mut bad = Vec::new();
    for cut in 1..good.len() {
        if cut != 4 {
            bad.push(good.slice(..cut));
        }
    }
    bad.push([&good[..], &[0; 8]].concat().into());
    bad.push([&good[..], &good[4..]].concat().into());
    // Without a mask; in another order; with an unknown tag; with other bits; with nobody named.
    for entries in [
        vec![
            ("owner", 7, NOBODY),
            ("user", 7, 1001),
            ("owning group", 4, NOBODY),
            ("other", 0, NOBODY),
        ],
        vec![
            ("owner", 7, NOBODY),
            ("owning group", 4, NOBODY),
            ("user", 7, 1001),
            ("mask", 7, NOBODY),
            ("other", 0, NOBODY),
        ],
        vec![
            ("owner", 8, NOBODY),
            ("owning group", 4, NOBODY),
            ("other", 0, NOBODY),
        ],
        vec![
            ("owner", 7, NOBODY),
            ("user", 7, NOBODY),
            ("owning group", 4, NOBODY),
            ("mask", 7, NOBODY),
            ("other", 0, NOBODY),
        ],
        vec![("owner", 7, NOBODY), ("other", 0, NOBODY)],
        vec![("owning group", 7, NOBODY), ("other", 0, NOBODY)],
    ] {
        bad.push(value(&entries));
    }
    let mut unknown = good.to_vec();
    unknown[4] = 3;
    bad.push(unknown.into());
    for value in bad {
        assert_eq!(
            set(&mut world, &user(), ino, ACCESS, value.clone()),
            Err(Errno::EINVAL),
            "{value:?}"
        );
    }
    let mut other_version = good.to_vec();
    other_version[0] = 3;
    let other_version = set(&mut world, &user(), ino, ACCESS, other_version.into());
    assert_eq!(other_version, Err(Errno::ENOTSUP));

    let many = |users: u32| {
        let mut entries = for_friend(6, 6);
        entries.splice(1..2, (0..users).map(|id| ("user", 6, id)));
        value(&entries)
    };
    assert_eq!(many(507).len(), 4092);
    set(&mut world, &user(), ino, ACCESS, many(507)).unwrap();
    assert_eq!(get(&mut world, ino, ACCESS), Ok(many(507)));
    let too_many = set(&mut world, &user(), ino, ACCESS, many(508));
    assert_eq!(too_many, Err(Errno::E2BIG));
    assert_eq!(get(&mut world, ino, ACCESS), Ok(many(507)));
    world.check();
}

/// Who may set them, on what; and that symbolic links have none.
#[test]
fn owners_set_acls() {
    let mut world = World::new();
    let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o755).unwrap();
    let (file, _) = world.create_as(&user(), Ino::ROOT, b"f", 0o640).unwrap();
    let symlink = Action::Symlink(Symlink {
        parent: Ino::ROOT,
        name: Bytes::from_static(b"l"),
        target: Bytes::from_static(b"f"),
    });
    let link = make(&mut world, &user(), symlink).ino;
    let acl = || value(&for_friend(6, 6));
    for (who, ino, name, expected) in [
        (friend(), file, ACCESS, Err(Errno::EPERM)),
        (friend(), dir, DEFAULT, Err(Errno::EPERM)),
        (user(), file, DEFAULT, Err(Errno::EACCES)),
        (user(), link, ACCESS, Err(Errno::ENOTSUP)),
        (Who::root(), link, DEFAULT, Err(Errno::ENOTSUP)),
        (user(), file, ACCESS, Ok(())),
        (Who::root(), file, ACCESS, Ok(())),
        (user(), dir, DEFAULT, Ok(())),
        (user(), Ino(99), ACCESS, Err(Errno::ESTALE)),
    ] {
        let found = set(&mut world, &who, ino, name, acl());
        assert_eq!(found, expected, "{who:?} {ino:?} {name}");
        world.check();
    }
    assert_eq!(get(&mut world, link, ACCESS), Err(Errno::ENOTSUP));
    assert_eq!(get(&mut world, dir, ACCESS), Err(Errno::ENODATA));
    assert_eq!(get(&mut world, file, DEFAULT), Err(Errno::ENODATA));
    let list = Action::ListXattr(ListXattr {
        ino: file,
        size: 100,
    });
    let names = world.run(1, &user(), list);
    let expected = Bytes::from_static(b"system.posix_acl_access\0");
    assert_eq!(names, Ok(Answer::Bytes(expected)));
    assert_eq!(
        remove(&mut world, &friend(), file, ACCESS),
        Err(Errno::EPERM)
    );
    remove(&mut world, &user(), dir, DEFAULT).unwrap();
    assert_eq!(get(&mut world, dir, DEFAULT), Err(Errno::ENODATA));
    // What is not there can be removed, and that changes nothing.
    let before = world.attr(dir).unwrap();
    remove(&mut world, &user(), dir, DEFAULT).unwrap();
    remove(&mut world, &user(), file, DEFAULT).unwrap();
    assert_eq!(world.attr(dir).unwrap(), before);
    world.check();
}

/// Mode bits and ACL are two views of one thing: either follows the other.
#[test]
fn mode_and_acl_follow_each_other() {
    let mut world = World::new();
    let (ino, _) = world.create_as(&user(), Ino::ROOT, b"f", 0o640).unwrap();
    let before = world.attr(ino).unwrap();
    set(&mut world, &user(), ino, ACCESS, value(&for_friend(7, 6))).unwrap();
    let after = world.attr(ino).unwrap();
    assert_eq!(after.mode, 0o760);
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    assert_eq!(after.change, before.change + 1);

    // The group bits are the mask; the owning group's own entry stays.
    world.chmod(&user(), ino, 0o4515).unwrap();
    assert_eq!(mode(&mut world, ino), 0o4515);
    let mut expected = for_friend(7, 1);
    expected[0].1 = 5;
    expected[4].1 = 5;
    assert_eq!(get(&mut world, ino, ACCESS), Ok(value(&expected)));

    // The bits that are no permissions stay.
    set(&mut world, &user(), ino, ACCESS, value(&for_friend(7, 6))).unwrap();
    assert_eq!(mode(&mut world, ino), 0o4760);
    // One that the mode bits can say is said by them alone, and by those of the owning group.
    set(&mut world, &user(), ino, ACCESS, value(&minimal(6, 4, 0))).unwrap();
    assert_eq!(mode(&mut world, ino), 0o4640);
    assert_eq!(get(&mut world, ino, ACCESS), Err(Errno::ENODATA));
    // Without the ACL the mask stays as the group's bits.
    set(&mut world, &user(), ino, ACCESS, value(&for_friend(7, 6))).unwrap();
    remove(&mut world, &user(), ino, ACCESS).unwrap();
    assert_eq!(mode(&mut world, ino), 0o4760);
    assert_eq!(get(&mut world, ino, ACCESS), Err(Errno::ENODATA));
    // One without entries is none.
    for none in [value(&[]), Bytes::new()] {
        set(&mut world, &user(), ino, ACCESS, value(&for_friend(7, 6))).unwrap();
        set(&mut world, &user(), ino, ACCESS, none).unwrap();
        assert_eq!(get(&mut world, ino, ACCESS), Err(Errno::ENODATA));
    }
    // Who is not in the group takes its bit away.
    let mut op = crate::common::set_attr(Target::Ino(ino));
    (op.gid, op.mode) = (Some(77), Some(0o2770));
    world.run(1, &Who::root(), Action::SetAttr(op)).unwrap();
    set(&mut world, &user(), ino, ACCESS, value(&for_friend(7, 7))).unwrap();
    assert_eq!(mode(&mut world, ino), 0o770);
    world.check();
}

/// A default ACL goes on to what is made in the directory, in each way of making; then the umask counts for nothing.
#[test]
fn default_acls_are_inherited() {
    let mut world = World::new();
    let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o755).unwrap();
    let default = for_friend(7, 7);
    let umask = 0o077;
    let name = |n: &str| Bytes::from(n.to_owned());
    let file = |n: &str| {
        Action::Create(Create {
            parent: dir,
            name: name(n),
            mode: 0o666,
            umask,
            flags: flags::READ,
        })
    };
    let unlike = make(&mut world, &user(), file("before"));
    assert_eq!(unlike.mode, 0o600);
    set(&mut world, &user(), dir, DEFAULT, value(&default)).unwrap();
    assert_eq!(mode(&mut world, dir), 0o755);

    let inherited = value(&[
        ("owner", 6, NOBODY),
        ("user", 7, 1001),
        ("owning group", 4, NOBODY),
        ("mask", 6, NOBODY),
        ("other", 0, NOBODY),
    ]);
    let ways = [
        file("create"),
        Action::Mknod(Mknod {
            parent: dir,
            name: name("mknod"),
            kind: Kind::Fifo,
            mode: 0o666,
            umask,
            rdev: 0,
        }),
        Action::Make(Make {
            parent: dir,
            name: name("make"),
            mode: 0o666,
            umask,
            verifier: None,
        }),
    ];
    for way in ways {
        let attr = make(&mut world, &user(), way.clone());
        assert_eq!(attr.mode, 0o660, "{way:?}");
        assert_eq!(get(&mut world, attr.ino, ACCESS), Ok(inherited.clone()));
        assert_eq!(get(&mut world, attr.ino, DEFAULT), Err(Errno::ENODATA));
        world.check();
    }
    let mkdir = Action::Mkdir(Mkdir {
        parent: dir,
        name: name("mkdir"),
        mode: 0o777,
        umask,
    });
    let below = make(&mut world, &user(), mkdir);
    assert_eq!(below.mode, 0o770);
    for which in [ACCESS, DEFAULT] {
        assert_eq!(get(&mut world, below.ino, which), Ok(value(&default)));
    }
    let symlink = Action::Symlink(Symlink {
        parent: dir,
        name: name("symlink"),
        target: name("to"),
    });
    assert_eq!(make(&mut world, &user(), symlink).mode, 0o777);

    // One that says no more than mode bits do leaves nothing behind but those.
    set(&mut world, &user(), dir, DEFAULT, value(&minimal(7, 5, 5))).unwrap();
    let plain = make(&mut world, &user(), file("plain"));
    assert_eq!(plain.mode, 0o644);
    assert_eq!(get(&mut world, plain.ino, ACCESS), Err(Errno::ENODATA));
    // Attributes take space, which a removal frees.
    for n in ["before", "create", "mknod", "make", "symlink", "plain"] {
        world.unlink(&Who::root(), dir, n.as_bytes()).unwrap();
    }
    world.end_session(1);
    world.check();
}

/// An ACL that does not fit the volume leaves no object behind.
#[test]
fn inheriting_takes_space() {
    let mut genesis = crate::common::GENESIS;
    // Two entries and two ACLs; for a third entry there is room, but for no ACL.
    genesis.capacity_bytes = (256 + 24 + 44) + (256 + 23 + 44) + 300;
    let mut world = World::with(genesis);
    let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o755).unwrap();
    set(&mut world, &user(), dir, DEFAULT, value(&for_friend(7, 7))).unwrap();
    world.create_as(&user(), dir, b"one", 0o666).unwrap();
    let used = world.statfs();
    assert_eq!(
        world.create_as(&user(), dir, b"two", 0o666),
        Err(Errno::ENOSPC)
    );
    assert_eq!(world.statfs(), used);
    world.check();
}

/// Two groups that have half of it each are not one that has all; each access by itself they have.
#[test]
fn one_entry_has_to_allow_all() {
    let mut world = World::new();
    let (ino, _) = world.create_as(&user(), Ino::ROOT, b"f", 0o600).unwrap();
    let acl = value(&[
        ("owner", 6, NOBODY),
        ("owning group", 0, NOBODY),
        ("group", 4, 7),
        ("group", 2, 8),
        ("mask", 7, NOBODY),
        ("other", 7, NOBODY),
    ]);
    set(&mut world, &user(), ino, ACCESS, acl).unwrap();
    let mut who = Who::new(5, 7);
    who.groups = vec![8];
    world.open(&who, ino, flags::READ).unwrap();
    world.open(&who, ino, flags::WRITE).unwrap();
    let both = world.open(&who, ino, flags::READ | flags::WRITE);
    assert_eq!(both, Err(Errno::EACCES));
    let access = Action::Access(Access { ino, mask: 7 });
    assert_eq!(world.run(1, &who, access), Ok(Answer::Allowed(6)));
    // Who is in no group that is named is one of the others.
    world
        .open(&Who::new(5, 9), ino, flags::READ | flags::WRITE)
        .unwrap();
}

/// acl(5), "ACCESS CHECK ALGORITHM", line by line; but Linux looks at no ACL whose mask is empty.
fn manual(entries: &[Entry], owner: &Who, who: &Who, wanted: u32) -> bool {
    let of = |tag: &'static str| entries.iter().filter(move |e| e.0 == tag);
    let has = |perm: u16| u32::from(perm) & wanted == wanted;
    let perm = |tag| of(tag).next().map(|e| e.1);
    let mask = perm("mask").unwrap_or(7);
    let group_class = perm("mask").or(perm("owning group")).unwrap();
    if who.uid == 0 {
        let executable = (perm("owner").unwrap() | group_class | perm("other").unwrap()) & 1 == 1;
        return wanted & access::EXEC == 0 || executable;
    }
    if who.uid == owner.uid {
        return has(perm("owner").unwrap());
    }
    if group_class == 0 {
        return has(if who.in_group(owner.gid) {
            0
        } else {
            perm("other").unwrap()
        });
    }
    if let Some(named) = of("user").find(|e| e.2 == who.uid) {
        return has(named.1 & mask);
    }
    let own = of("owning group").filter(|_| who.in_group(owner.gid));
    let groups: Vec<_> = own
        .chain(of("group").filter(|e| who.in_group(e.2)))
        .collect();
    if !groups.is_empty() {
        return groups.iter().any(|e| has(e.1 & mask));
    }
    has(perm("other").unwrap())
}

fn acls() -> impl Strategy<Value = Vec<Entry>> {
    let perm = || 0..8_u16;
    let users = prop::collection::btree_map(1000..1004_u32, perm(), 0..3);
    let groups = prop::collection::btree_map(100..104_u32, perm(), 0..3);
    let mask = prop::option::of(perm());
    let three = (perm(), perm(), perm());
    (three, users, groups, mask).prop_map(|((owner, group, other), users, groups, mask)| {
        let mut entries = vec![("owner", owner, NOBODY)];
        entries.extend(users.iter().map(|(id, perm)| ("user", *perm, *id)));
        entries.push(("owning group", group, NOBODY));
        entries.extend(groups.iter().map(|(id, perm)| ("group", *perm, *id)));
        if let Some(mask) = mask.or((users.len() + groups.len() > 0).then_some(7)) {
            entries.push(("mask", mask, NOBODY));
        }
        entries.push(("other", other, NOBODY));
        entries
    })
}

/// chmod(1) and inheritance, in terms of entries: those that the mode bits stand for.
fn with_bits(entries: &[Entry], bits: impl Fn(u16, u32) -> u16) -> Vec<Entry> {
    let has_mask = entries.iter().any(|e| e.0 == "mask");
    let change = |e: &Entry| match (e.0, has_mask) {
        ("owner", _) => (e.0, bits(e.1, 6), e.2),
        ("mask", _) | ("owning group", false) => (e.0, bits(e.1, 3), e.2),
        ("other", _) => (e.0, bits(e.1, 0), e.2),
        _ => *e,
    };
    entries.iter().map(change).collect()
}

fn mode_of(entries: &[Entry]) -> u32 {
    let perm = |tag: &str| entries.iter().find(|e| e.0 == tag).map(|e| u32::from(e.1));
    let group = perm("mask").or(perm("owning group")).unwrap();
    perm("owner").unwrap() << 6 | group << 3 | perm("other").unwrap()
}

fn callers() -> Vec<Who> {
    let mut callers = vec![Who::root()];
    for uid in 1000..1005 {
        for gid in 100..105 {
            let mut who = Who::new(uid, gid);
            who.groups = (100..105).filter(|g| (g + uid) % 3 == 0).collect();
            callers.push(who);
        }
    }
    callers
}

/// All ways of asking agree with the manual, for every caller.
fn assert_as_manual(world: &mut World, ino: Ino, entries: &[Entry]) {
    for who in callers() {
        for wanted in 1..8 {
            let expected = manual(entries, &user(), &who, wanted);
            let mut flag = 0;
            for (bit, f) in [(4, flags::READ), (2, flags::WRITE)] {
                if wanted & bit != 0 {
                    flag |= f;
                }
            }
            if wanted & 1 == 0 {
                let opened = world.open(&who, ino, flag);
                assert_eq!(opened.is_ok(), expected, "{who:?} {wanted} {entries:?}");
            }
            let access = Action::Access(Access { ino, mask: wanted });
            let each = [1, 2, 4].map(|bit| match manual(entries, &user(), &who, bit) {
                true => bit & wanted,
                false => 0,
            });
            let allowed = Ok(Answer::Allowed(each.iter().sum()));
            assert_eq!(world.run(1, &who, access), allowed, "{who:?} {entries:?}");
        }
    }
}

fn assert_kept(world: &mut World, ino: Ino, entries: &[Entry]) {
    assert_eq!(mode(world, ino) & 0o777, mode_of(entries));
    let expected = match entries.len() {
        3 => Err(Errno::ENODATA),
        _ => Ok(value(entries)),
    };
    assert_eq!(get(world, ino, ACCESS), expected);
    world.check();
}

proptest! {
    #![proptest_config(crate::cases::cases(100))]

    /// Setting, chmod and inheritance give the ACL that the manual has, and everybody may do what that says.
    #[test]
    fn the_manual_is_kept(acl in acls(), chmod in 0..0o1000_u32, made in 0..0o1000_u32) {
        let mut world = World::new();
        let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o777).unwrap();
        let (ino, _) = world.create_as(&user(), dir, b"f", 0o640).unwrap();
        set(&mut world, &user(), ino, ACCESS, value(&acl)).unwrap();
        assert_kept(&mut world, ino, &acl);
        assert_as_manual(&mut world, ino, &acl);

        world.chmod(&user(), ino, chmod).unwrap();
        let changed = with_bits(&acl, |_, shift| (chmod >> shift) as u16 & 7);
        assert_kept(&mut world, ino, &changed);
        assert_as_manual(&mut world, ino, &changed);

        set(&mut world, &user(), dir, DEFAULT, value(&acl)).unwrap();
        let (ino, _) = world.create_as(&user(), dir, b"g", made).unwrap();
        let inherited = with_bits(&acl, |perm, shift| perm & (made >> shift) as u16);
        assert_kept(&mut world, ino, &inherited);
        assert_as_manual(&mut world, ino, &inherited);
        prop_assert_eq!(get(&mut world, dir, DEFAULT), Ok(value(&acl)));
    }

    /// Whatever bytes are set as an ACL: they are refused, or the state holds.
    #[test]
    fn hostile_acls_do_no_harm(
        acl in acls(),
        hits in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        default in any::<bool>(),
    ) {
        let mut world = World::new();
        let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o755).unwrap();
        let mut bytes = value(&acl).to_vec();
        for (at, byte) in hits {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        let name = if default { DEFAULT } else { ACCESS };
        let done = set(&mut world, &user(), dir, name, bytes.into());
        world.check();
        let mkdir = Mkdir { parent: dir, name: Bytes::from_static(b"x"), mode: 0o777, umask: 0o22 };
        if world.run(1, &Who::root(), Action::Mkdir(mkdir)).is_ok() {
            world.check();
        }
        prop_assert!(matches!(done, Ok(()) | Err(Errno::EINVAL | Errno::ENOTSUP)));
    }
}

/// Names, too, are found, made and removed by the ACL of their directory.
#[test]
fn directories_are_searched_by_acl() {
    let mut world = World::new();
    let dir = world.mkdir(&user(), Ino::ROOT, b"d", 0o700).unwrap();
    world.create_as(&user(), dir, b"f", 0o666).unwrap();
    let lookup = || {
        Action::Lookup(Lookup {
            parent: dir,
            name: Bytes::from_static(b"f"),
        })
    };
    let denied = Err(Errno::EACCES);
    assert_eq!(world.run(1, &friend(), lookup()), denied);
    set(&mut world, &user(), dir, ACCESS, value(&for_friend(1, 7))).unwrap();
    assert!(world.run(1, &friend(), lookup()).is_ok());
    assert_eq!(world.run(1, &Who::new(1002, 101), lookup()), denied);
    let unlinked = |world: &mut World| world.unlink(&friend(), dir, b"f");
    assert_eq!(unlinked(&mut world), Err(Errno::EACCES));
    set(&mut world, &user(), dir, ACCESS, value(&for_friend(3, 7))).unwrap();
    assert_eq!(unlinked(&mut world), Ok(()));
}
