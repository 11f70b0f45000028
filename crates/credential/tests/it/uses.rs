//! Whether a grant covers a use, compared with the other way round: from each link's object down, what is below it is gathered; the crate
//! goes from the object up.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use quorate_credential::verify::Reach;
use quorate_credential::{Grant, ObjectId, Rights, Scope, Step, Use, Window};
use quorate_wire::{Digest, PublicKey};

const NAMES: [&[u8]; 4] = [b"a", b"ab", b"b", b"abc"];
const KINDS: [Rights; 4] = [
    Rights::LOOKUP,
    Rights::READDIR,
    Rights::READ,
    Rights::CREATE,
];

const HOLDER: PublicKey = PublicKey([1; 32]);

/// Objects by number; each but the first is in one before it, under a name.
type Tree = Vec<(usize, &'static [u8])>;

fn tree() -> impl Strategy<Value = Tree> {
    vec((any::<usize>(), 0..NAMES.len()), 1..14).prop_map(|objects| {
        let placed = objects.into_iter().enumerate();
        let placed = placed.map(|(at, (parent, name))| (parent % at.max(1), NAMES[name]));
        placed.collect()
    })
}

fn reach() -> impl Strategy<Value = Reach> {
    let prefix = prop_oneof![2 => Just(None), 1 => (0..NAMES.len()).prop_map(Some)];
    (0..14_u128, prop::bool::weighted(0.8), prefix).prop_map(|(object, subtree, prefix)| Reach {
        id: Digest::ZERO,
        issuer: HOLDER,
        serial: 0,
        scope: Scope {
            object: ObjectId(object),
            subtree,
        },
        prefix: prefix.map(|at| NAMES[at].into()),
        quota: None,
    })
}

/// From the link's object down.
fn in_reach(
    tree: &Tree,
    reach: &Reach,
    object: usize,
    name: Option<&[u8]>,
    rights: Rights,
) -> bool {
    let top = reach.scope.object.0 as usize;
    let begins = |name: &[u8]| reach.prefix.as_ref().is_none_or(|p| name.starts_with(p));
    if object == top {
        let looks = rights == Rights::LOOKUP || rights == Rights::READDIR;
        return name.map_or(reach.prefix.is_none() || looks, begins);
    }
    if !reach.scope.subtree {
        return false;
    }
    let mut below = BTreeSet::new();
    // Parents come before what is in them.
    for (at, (parent, name)) in tree.iter().enumerate().skip(1) {
        if below.contains(parent) || *parent == top && begins(name) {
            below.insert(at);
        }
    }
    below.contains(&object)
}

/// From the object up, as the file service would say it.
fn walk(tree: &Tree, object: usize) -> Vec<Step<'static>> {
    let mut out = Vec::new();
    let mut at = object;
    loop {
        let root = at == 0;
        let name = if root { &b""[..] } else { tree[at].1 };
        let object = ObjectId(at as u128);
        out.push(Step { object, name });
        if root {
            return out;
        }
        at = tree[at].0;
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(20_000))]

    /// Each object of a tree, with and without a name in it, for one right.
    #[test]
    fn scopes_mean_what_is_below(
        tree in tree(),
        reaches in vec(reach(), 1..4),
        name in prop::option::of(0..NAMES.len()),
        kind in 0..KINDS.len(),
    ) {
        let grant = Grant {
            id: Digest::ZERO,
            subject: HOLDER,
            rights: Rights::ALL,
            window: Window { not_before: 0, not_after: 9 },
            ids: None,
            reaches,
        };
        let (name, rights) = (name.map(|at| NAMES[at]), KINDS[kind]);
        for object in 0..tree.len() {
            let walk = walk(&tree, object);
            let u = Use { subject: HOLDER, now: 5, rights, walk: &walk, name };
            let expected = grant.reaches.iter().all(|r| in_reach(&tree, r, object, name, rights));
            prop_assert_eq!(grant.covers(&u).is_ok(), expected, "{}: {:?}", object, grant);
        }
    }
}
