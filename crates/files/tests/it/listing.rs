//! Listing a directory page by page while it changes.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::World;
use bytes::Bytes;
use proptest::prelude::*;
use quorate_files::Ino;
use quorate_files::op::*;

fn change(world: &mut World, kind: u8, a: u8, b: u8) {
    let text = |n: u8| Bytes::from(format!("n{}", n % 30));
    let (name, new_name) = (text(a), text(b));
    let (parent, new_parent) = (Ino::ROOT, Ino::ROOT);
    let mode = if kind == 3 {
        RenameMode::Exchange
    } else {
        RenameMode::Replace
    };
    let action = match kind {
        0 => Action::Create(Create {
            parent,
            name,
            mode: 0o644,
            umask: 0,
            flags: 0,
        }),
        1 => Action::Unlink(Unlink { parent, name }),
        _ => Action::Rename(Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        }),
    };
    // Whether it can be done is not the question here.
    let _ = world.run(1, &Who::root(), action);
}

/// The names, with their cookies.
fn names(world: &mut World) -> BTreeMap<Bytes, u64> {
    let (entries, end) = world.list(Ino::ROOT, 0, 2000).unwrap();
    assert!(end);
    entries
        .into_iter()
        .map(|entry| (entry.name, entry.cookie))
        .collect()
}

proptest! {
    #![proptest_config(crate::cases::cases(256))]

    /// A name that stays is listed exactly once, whatever is made, removed and renamed around it; cookies rise, a
    /// name keeps its own, and none is given twice.
    #[test]
    fn no_name_is_omitted_or_repeated(
        before in prop::collection::vec((0..1u8, any::<u8>(), any::<u8>()), 0..40),
        pages in prop::collection::vec((1..5u32, any::<(u8, u8)>(), 0..4u8, any::<bool>()), 1..60),
    ) {
        let mut world = World::new();
        for (kind, a, b) in before {
            change(&mut world, kind, a, b);
        }
        let mut stayed = names(&mut world);
        let mut given: BTreeMap<u64, Bytes> = stayed.iter().map(|(n, c)| (*c, n.clone())).collect();
        let mut seen = Vec::new();
        let (mut cookie, mut ended) = (0, false);
        for (count, (a, b), kind, freeze) in pages {
            if ended {
                break;
            }
            let (entries, end) = world.list(Ino::ROOT, cookie, count).unwrap();
            prop_assert!(entries.len() <= count as usize);
            prop_assert!(end || !entries.is_empty());
            for entry in entries {
                prop_assert!(entry.cookie > cookie);
                prop_assert_eq!(entry.attr.map(|attr| attr.ino), Some(entry.ino));
                cookie = entry.cookie;
                seen.push(entry.name);
            }
            ended = end;
            change(&mut world, kind, a, b);
            if freeze {
                world.freeze();
            }
            world.check();
            let now = names(&mut world);
            for (name, cookie) in &now {
                // One cookie never stands for two names.
                prop_assert_eq!(given.entry(*cookie).or_insert(name.clone()), name);
            }
            stayed.retain(|name, cookie| now.get(name) == Some(cookie));
        }
        let unique: BTreeSet<_> = seen.iter().collect();
        for name in stayed.keys().filter(|name| ended || stayed[*name] <= cookie) {
            prop_assert_eq!(seen.iter().filter(|other| *other == name).count(), 1);
        }
        // Made up, and first.
        prop_assert!(unique.contains(&Bytes::from_static(b".")));
        prop_assert_eq!(&seen[0][..], b".");
    }
}

/// An empty directory, an entry at a time: `..` is not the price of a short page.
#[test]
fn short_pages_lose_nothing() {
    let mut world = World::new();
    let names: Vec<_> = (0..2)
        .map(|cookie| {
            let (entries, end) = world.list(Ino::ROOT, cookie, 1).unwrap();
            (entries[0].name.to_vec(), end)
        })
        .collect();
    assert_eq!(names, [(b".".to_vec(), false), (b"..".to_vec(), true)]);
}
