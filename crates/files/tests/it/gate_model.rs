//! The gate against one that is written from the other end: all ways from the root down to an object are listed, as a member sees
//! them, and each right is looked for along each of them. Trees, credentials, revocations and operations are random.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use crate::sharing::{MEMBER, Volume, key, public, terms};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use quorate_credential::{Caveat, Chain, Rights, VolumeId, chain};
use quorate_files::answer::Decision;
use quorate_files::op::*;
use quorate_files::{Action, Errno, Ino, Kind};
use quorate_wire::Digest;

type Raw = [u8; 10];

const NAMES: [&[u8]; 5] = [b"a", b"ab", b"b", b"abc", b"c"];
const GUESTS: u8 = 3;

fn name(byte: u8) -> Bytes {
    Bytes::from_static(NAMES[usize::from(byte) % NAMES.len()])
}

/// From the root to an object: numbers, each with its name in the one before.
type Path = Vec<(u64, Vec<u8>)>;

struct Model {
    v: Volume,
    chains: Vec<Chain>,
    /// Those that were brought.
    brought: BTreeSet<Digest>,
    /// What was taken back, below which link, and until when.
    revoked: Vec<(Revoked, Option<Digest>)>,
    kinds: BTreeMap<u64, Kind>,
    paths: BTreeMap<u64, Vec<Path>>,
}

/// Whether a credential gives one right at the end of a path, for a name there or for the object itself.
fn gives(chain: &Chain, path: &Path, right: Rights, name: Option<&[u8]>) -> bool {
    links_give(chain.links(), path, right, name)
}

/// Whether some of a credential's links, the last of them among these, do.
fn links_give(links: &[chain::Link], path: &Path, right: Rights, name: Option<&[u8]>) -> bool {
    let looks = right == Rights::LOOKUP || right == Rights::READDIR;
    let rights = links.last().unwrap().terms.rights;
    let enough =
        rights.contains(right) || (right == Rights::APPEND && rights.contains(Rights::WRITE));
    enough
        && links.iter().all(|link| {
            let scope = link.terms.scope;
            let on_path = |at: &usize| u128::from(path[*at].0) == scope.object.0;
            let Some(at) = (0..path.len()).find(on_path) else {
                return false;
            };
            let is_end = at + 1 == path.len();
            let next = match is_end {
                true => name,
                false => Some(&path[at + 1].1[..]),
            };
            let fits = link.terms.caveats.iter().all(|caveat| match caveat {
                Caveat::NamePrefix(prefix) => match next {
                    Some(next) => next.starts_with(prefix),
                    None => looks,
                },
                _ => true,
            });
            (is_end || scope.subtree) && fits
        })
}

impl Model {
    fn new() -> Model {
        let mut model = Model {
            v: Volume::new(),
            chains: Vec::new(),
            brought: BTreeSet::new(),
            revoked: Vec::new(),
            kinds: BTreeMap::new(),
            paths: BTreeMap::new(),
        };
        model.look();
        model
    }

    /// Walks the tree from the root down.
    fn look(&mut self) {
        self.kinds = BTreeMap::from([(1, Kind::Directory)]);
        self.paths = BTreeMap::new();
        let mut todo = vec![vec![(1, Vec::new())]];
        while let Some(path) = todo.pop() {
            let ino = path.last().unwrap().0;
            self.paths.entry(ino).or_default().push(path.clone());
            if self.kinds[&ino] != Kind::Directory {
                continue;
            }
            for entry in self.v.list(MEMBER, Ino(ino), 100, false).unwrap() {
                if entry.cookie > 2 {
                    self.kinds.insert(entry.ino.0, entry.kind);
                    let mut longer = path.clone();
                    longer.push((entry.ino.0, entry.name.to_vec()));
                    todo.push(longer);
                }
            }
        }
    }

    fn any(&self, byte: u8) -> Ino {
        let all: Vec<_> = self.kinds.keys().collect();
        Ino(*all[usize::from(byte) % all.len()])
    }

    fn dir(&self, byte: u8) -> Ino {
        let all = self
            .kinds
            .iter()
            .filter(|(_, kind)| **kind == Kind::Directory);
        let all: Vec<_> = all.map(|(ino, _)| ino).collect();
        Ino(*all[usize::from(byte) % all.len()])
    }

    fn child(&self, dir: Ino, name: &[u8]) -> Option<u64> {
        let of = |path: &&Path| {
            let [.., above, last] = &path[..] else {
                return false;
            };
            above.0 == dir.0 && last.1 == name
        };
        let found = self
            .paths
            .iter()
            .find(|(_, paths)| paths.iter().any(|p| of(&p)));
        found.map(|(ino, _)| *ino)
    }

    fn is_revoked(&self, chain: &Chain) -> bool {
        let ids: Vec<Digest> = (1..=chain.links().len())
            .map(|n| prefix_of(chain, n).id())
            .collect();
        self.revoked.iter().any(|(what, by)| {
            let first = match by {
                None => Some(0),
                Some(by) => ids.iter().position(|id| id == by).map(|at| at + 1),
            };
            let Some(first) = first else { return false };
            (first..chain.links().len()).any(|at| {
                let terms = &chain.links()[at].terms;
                match what {
                    Revoked::Key(key) => terms.subject == *key,
                    Revoked::Serial(of) => {
                        chain.issuer(at) == of.issuer && terms.serial == of.serial
                    }
                    Revoked::Epoch(of) => chain.issuer(at) == of.issuer && terms.serial < of.serial,
                }
            })
        })
    }

    /// The credentials that a guest can use now, or could if nothing happened but that time goes on.
    fn usable_some_time(&self, guest: u8) -> Vec<&Chain> {
        let now = self.v.second();
        let usable = self.chains.iter().filter(|chain| {
            let window = chain.links().last().unwrap().terms.window;
            chain.subject() == public(guest)
                && self.brought.contains(&chain.id())
                && now <= window.not_after
                && !self.is_revoked(chain)
        });
        usable.collect()
    }

    /// The credentials that a guest can use now.
    fn usable(&self, guest: u8) -> Vec<&Chain> {
        let now = self.v.second();
        let begun = |chain: &&Chain| chain.links().last().unwrap().terms.window.not_before <= now;
        let mut usable = self.usable_some_time(guest);
        usable.retain(begun);
        usable
    }

    /// Whether a guest has one right at the end of a path, for a name there or for the object itself.
    fn has(&self, guest: u8, path: &Path, right: Rights, name: Option<&[u8]>) -> bool {
        let usable = self.usable(guest);
        usable.iter().any(|chain| gives(chain, path, right, name))
    }

    fn may(&self, guest: u8, ino: Ino, rights: Rights, name: Option<&[u8]>) -> bool {
        let paths = &self.paths[&ino.0];
        each(rights).all(|right| paths.iter().any(|path| self.has(guest, path, right, name)))
    }

    fn may_new(&self, guest: u8, dir: Ino, new: &[u8], rights: Rights) -> bool {
        let mut paths = self.paths[&dir.0].clone();
        paths
            .iter_mut()
            .for_each(|path| path.push((u64::MAX, new.to_vec())));
        each(rights).all(|right| paths.iter().any(|path| self.has(guest, path, right, None)))
    }

    /// Whether an object, or anything below it, would be more to a guest in another place than where it is, by any of its credentials; also
    /// where other links of the credential are about what is not there now.
    fn widens(&self, guest: u8, ino: u64, dir: Ino, new: &[u8]) -> bool {
        let there: Vec<Path> = self.paths[&dir.0]
            .iter()
            .map(|path| [&path[..], &[(ino, new.to_vec())]].concat())
            .collect();
        // Each object of the tree: its paths, and those that it would have.
        let mut tree = Vec::new();
        for old in self.paths.values() {
            let moved = |path: &Path| {
                let at = path.iter().position(|(step, _)| *step == ino)?;
                let moved = there.iter().map(|way| [way, &path[at + 1..]].concat());
                Some(moved.collect::<Vec<Path>>())
            };
            let new: Vec<Path> = old.iter().filter_map(moved).flatten().collect();
            tree.push((old.clone(), new));
        }
        let below = |paths: &[Path]| -> Vec<Path> {
            let deeper = |path: &Path| [&path[..], &[(u64::MAX, Vec::new())]].concat();
            paths.iter().map(deeper).collect()
        };
        let in_it = (below(&self.paths[&ino]), below(&there));
        self.usable_some_time(guest).iter().any(|chain| {
            let any = |links: &[chain::Link], paths: &[Path], right| {
                let mut paths = paths.iter();
                paths.any(|path| links_give(links, path, right, None))
            };
            let comes = |links: &[chain::Link], (old, new): &(Vec<Path>, Vec<Path>), right| {
                any(links, new, right) && !any(links, old, right)
            };
            let mut ways = tree.iter().chain([&in_it]);
            let more = ways.any(|ways| {
                let mut rights = each(Rights::ALL);
                rights.any(|right| comes(chain.links(), ways, right))
            });
            let mut links = chain.links().iter();
            more || links.any(|link| comes(slice::from_ref(link), &in_it, Rights::NONE))
        })
    }

    /// Some steps that are then undone, as where a view changes; and what there is afterwards.
    fn in_vain(&mut self, steps: &[Raw]) {
        let (chains, brought) = (self.chains.clone(), self.brought.clone());
        let revoked = self.revoked.clone();
        self.v.state.begin_tentative();
        steps.iter().for_each(|raw| self.step(raw));
        self.v.state.drop_tentative();
        (self.chains, self.brought, self.revoked) = (chains, brought, revoked);
        self.look();
    }

    fn step(&mut self, raw: &Raw) {
        let [kind, a, b, c, d, e, f, g, h, i] = *raw;
        let (dir, other, ino) = (self.dir(a), self.dir(b), self.any(c));
        let (one, two) = (name(d), name(e));
        let guest = f % GUESTS + 1;
        match kind % 20 {
            0 => drop(self.v.mkdir(MEMBER, dir, &one)),
            1 => drop(self.v.create(MEMBER, dir, &one)),
            2 => drop(self.v.link(MEMBER, ino, dir, &one)),
            3 | 4 => drop(self.v.rename(MEMBER, (dir, &one), (other, &two))),
            5 => drop(self.v.unlink(MEMBER, dir, &one)),
            6..=8 => self.issue(raw),
            9 => self.revoke(guest, g, h, i),
            10 => self.v.wait(u64::from(g % 8)),
            _ => self.ask(guest, raw),
        }
        self.look();
    }

    /// A credential by the owner, or below one that there is; brought to the volume, mostly.
    fn issue(&mut self, raw: &Raw) {
        let [_, a, b, c, d, e, f, g, h, i] = *raw;
        let subject = a % GUESTS + 1;
        let mut terms = terms(subject, self.any(b).0);
        terms.scope.subtree = c % 4 > 0;
        terms.rights = Rights::from_bits(u16::from_le_bytes([d, e]) & Rights::ALL.bits()).unwrap();
        if f % 2 == 0 {
            terms.rights = Rights::ALL;
        }
        terms.serial = u64::from(g % 4);
        terms.depth = 3;
        if h % 3 == 0 {
            terms.caveats.push(Caveat::NamePrefix(name(h / 3)));
        }
        if i % 8 == 0 {
            terms.window.not_after = self.v.second() + 5;
        }
        if i % 8 == 3 {
            terms.window.not_before = self.v.second() + 4;
        }
        let parent = self
            .chains
            .get(usize::from(i / 2) % (self.chains.len() + 2));
        let chain = match parent {
            None => Chain::issue(VolumeId(crate::sharing::VOLUME), &key(0), terms),
            Some(parent) => {
                let last = &parent.links().last().unwrap().terms;
                terms.rights = terms.rights & last.rights;
                terms.window.not_after = terms.window.not_after.min(last.window.not_after);
                terms.window.not_before = terms.window.not_before.max(last.window.not_before);
                terms.depth = last.depth.saturating_sub(1);
                let holder = (1..=GUESTS)
                    .find(|n| public(*n) == parent.subject())
                    .unwrap();
                parent.delegate(&key(holder), terms)
            }
        };
        let Ok(chain) = chain else { return };
        let dead = self.is_revoked(&chain)
            || chain.links().last().unwrap().terms.window.not_after < self.v.second();
        let put = self.v.put(subject, &chain);
        let expected = if dead {
            Err(Errno::EACCES)
        } else {
            Ok(chain.id())
        };
        assert_eq!(put, expected);
        if !dead {
            self.brought.insert(chain.id());
            self.chains.push(chain);
        }
    }

    /// Takes something back, as the owner or by a credential; and later as if nothing had been brought before.
    fn revoke(&mut self, guest: u8, g: u8, h: u8, i: u8) {
        let issuer = public(g % (GUESTS + 1));
        let of = Serial {
            issuer,
            serial: u64::from(h % 5),
        };
        let what = match h / 5 % 3 {
            0 => Revoked::Serial(of),
            1 => Revoked::Key(public(guest)),
            _ => Revoked::Epoch(of),
        };
        let own = self
            .chains
            .get(usize::from(i) % (self.chains.len() + 1))
            .cloned();
        let (who, by) = match &own {
            None => (0, None),
            Some(chain) => (
                (1..=GUESTS)
                    .find(|n| public(*n) == chain.subject())
                    .unwrap(),
                Some(chain.id()),
            ),
        };
        let allowed = own.as_ref().is_none_or(|own| {
            let rights = own.links().last().unwrap().terms.rights;
            let usable = self.usable(who).iter().any(|chain| chain.id() == own.id());
            usable && rights.contains(Rights::REVOKE)
        });
        let done = self.v.revoke(who, what.clone(), by, None);
        assert_eq!(done.is_ok(), allowed, "{what:?} by {who}");
        if allowed {
            self.revoked.push((what, by));
        }
    }

    /// A guest's operation, and whether it is allowed.
    fn ask(&mut self, guest: u8, raw: &Raw) {
        let [_, a, b, c, d, e, _, g, h, _] = *raw;
        let (dir, other, ino) = (self.dir(a), self.dir(b), self.any(c));
        let (one, two) = (name(d), name(e));
        let is_dir = self.kinds[&ino.0] == Kind::Directory;
        let target = Target::Ino(ino);
        let (action, allowed) = match g % 10 {
            0 => (
                Action::GetAttr(target),
                self.may(guest, ino, Rights::LOOKUP, None),
            ),
            1 => {
                let Some(child) = self.child(dir, &one) else {
                    return;
                };
                let found = self.may(guest, dir, Rights::LOOKUP, Some(&one));
                (
                    Action::Lookup(Lookup {
                        parent: dir,
                        name: one,
                    }),
                    found && self.may(guest, Ino(child), Rights::LOOKUP, None),
                )
            }
            2 if !is_dir => (
                Action::Read(Read {
                    target,
                    offset: 0,
                    len: 9,
                }),
                self.may(guest, ino, Rights::READ, None),
            ),
            3 if !is_dir => {
                let data = Bytes::from_static(b"x");
                let size = self.v.attr(MEMBER, ino).unwrap().size;
                let offset = u64::from(h / 2 % 3);
                let (place, right) = match h % 2 {
                    0 if offset != size => (Place::At(offset), Rights::WRITE),
                    0 => (Place::At(offset), Rights::APPEND),
                    _ => (Place::End(quorate_files::Nothing), Rights::APPEND),
                };
                (
                    Action::Write(Write {
                        target,
                        place,
                        data,
                    }),
                    self.may(guest, ino, right, None),
                )
            }
            4 => {
                let op = Mkdir {
                    parent: dir,
                    name: one.clone(),
                    mode: 0o777,
                    umask: 0,
                };
                (
                    Action::Mkdir(op),
                    self.may(guest, dir, Rights::CREATE, Some(&one)),
                )
            }
            5 => {
                let op = Create {
                    parent: dir,
                    name: one.clone(),
                    mode: 0o666,
                    umask: 0,
                    flags: flags::READ | flags::WRITE,
                };
                // Where it writes only a write tells.
                let rights = Rights::READ | Rights::APPEND;
                let allowed = match self.child(dir, &one) {
                    Some(child) => {
                        let reads = match self.kinds[&child] {
                            Kind::Directory => Rights::READDIR | Rights::APPEND,
                            _ => rights,
                        };
                        self.may(guest, dir, Rights::LOOKUP, Some(&one))
                            && self.may(guest, Ino(child), reads, None)
                    }
                    None => {
                        self.may(guest, dir, Rights::CREATE, Some(&one))
                            && self.may_new(guest, dir, &one, rights)
                    }
                };
                (Action::Create(op), allowed)
            }
            6 => (
                Action::Unlink(Unlink {
                    parent: dir,
                    name: one.clone(),
                }),
                self.may(guest, dir, Rights::UNLINK, Some(&one)),
            ),
            7 if !is_dir => {
                let op = Link {
                    ino,
                    parent: dir,
                    name: one.clone(),
                };
                let allowed = self.may(guest, ino, Rights::LINK, None)
                    && self.may(guest, dir, Rights::LINK, Some(&one))
                    && !self.widens(guest, ino.0, dir, &one);
                (Action::Link(op), allowed)
            }
            8 => {
                // Into itself nothing moves: both ways would have it twice.
                let moved = [self.child(dir, &one), self.child(other, &two)];
                let way = |dir: Ino| self.paths[&dir.0].iter().flatten();
                let mut on_way = way(dir).chain(way(other)).map(|(ino, _)| Some(*ino));
                if on_way.any(|ino| moved.contains(&ino)) {
                    return;
                }
                self.rename(guest, (dir, one), (other, two), h)
            }
            _ => {
                self.list(guest, dir);
                return;
            }
        };
        let is_read = action.is_read_only();
        let what = format!("{action:?} by {guest}");
        let result = self.v.run(guest, action);
        let was_allowed = match is_read {
            true => !matches!(result, Err(Errno::EACCES | Errno::ESTALE | Errno::ENOENT)),
            false => {
                let log = self.v.last_row();
                assert_eq!(log.errno, result.as_ref().err().map_or(0, |e| e.code()));
                log.decision == Decision::Allowed
            }
        };
        assert_eq!(was_allowed, allowed, "{what}: {result:?}");
        if !allowed {
            assert!(result.is_err(), "{what}");
        }
    }

    fn rename(&self, guest: u8, old: (Ino, Bytes), new: (Ino, Bytes), h: u8) -> (Action, bool) {
        let (from, into) = (Rights::RENAME_FROM, Rights::RENAME_INTO);
        let mode = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ][usize::from(h % 3)];
        let (source, there) = (self.child(old.0, &old.1), self.child(new.0, &new.1));
        let mut at_old = from;
        let mut at_new = into;
        match (mode, there) {
            (RenameMode::Exchange, _) => (at_old, at_new) = (from | into, from | into),
            (RenameMode::Replace, Some(_)) => at_new = into | Rights::UNLINK,
            _ => {}
        }
        let mut allowed = self.may(guest, old.0, at_old, Some(&old.1))
            && self.may(guest, new.0, at_new, Some(&new.1));
        if let Some(source) = source {
            allowed &= !self.widens(guest, source, new.0, &new.1);
        }
        if let Some(there) = there.filter(|_| mode == RenameMode::Exchange) {
            allowed &= !self.widens(guest, there, old.0, &old.1);
        }
        let op = Rename {
            parent: old.0,
            name: old.1,
            new_parent: new.0,
            new_name: new.1,
            mode,
        };
        (Action::Rename(op), allowed)
    }

    /// What a guest finds in a directory: the names that it may list, and true attributes of those that it may look at.
    fn list(&mut self, guest: u8, dir: Ino) {
        let listed = self.v.list(guest, dir, 3, true);
        let allowed = self.may(guest, dir, Rights::READDIR, None);
        let Ok(listed) = listed else {
            assert!(!allowed, "{dir:?} by {guest}: {listed:?}");
            return;
        };
        assert!(allowed, "{dir:?} by {guest}");
        let all = self.v.list(MEMBER, dir, 100, true).unwrap();
        let all = all.iter().filter(|entry| entry.cookie > 2);
        let expected: Vec<_> = all
            .filter(|entry| self.may(guest, dir, Rights::READDIR, Some(&entry.name)))
            .collect();
        let found: Vec<_> = listed.iter().filter(|entry| entry.cookie > 2).collect();
        let names = |entries: &[&quorate_files::answer::Entry]| {
            entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&found), names(&expected));
        for entry in found {
            if let Some(attr) = &entry.attr {
                let alone = self.v.attr(guest, entry.ino).unwrap();
                assert_eq!(attr.mode & 0o222 != 0, alone.mode & 0o222 != 0);
            }
        }
    }
}

fn each(rights: Rights) -> impl Iterator<Item = Rights> {
    let all = Rights::NAMES.into_iter().map(|(right, _)| right);
    all.filter(move |right| rights.contains(*right))
}

/// The first so many links of a chain, whose digest is that of the last of them.
fn prefix_of(chain: &Chain, links: usize) -> Chain {
    let mut bytes = chain.to_bytes();
    bytes[65] = links as u8;
    for len in (66..=bytes.len()).rev() {
        if let Ok(chain) = Chain::from_bytes(Bytes::copy_from_slice(&bytes[..len])) {
            return chain;
        }
    }
    panic!("no chain of {links} links");
}

proptest! {
    #![proptest_config(crate::cases::cases(64))]

    /// The service decides as the model does, whatever was issued, moved, linked and taken back before; and state stays whole.
    #[test]
    fn the_gate_is_the_model(steps in prop::collection::vec(any::<Raw>(), 1..120)) {
        let mut model = Model::new();
        for raw in &steps {
            model.step(raw);
        }
        model.v.check();
    }

    /// So it does where operations are undone, others take their place, and numbers of objects, places and counters come again.
    #[test]
    fn what_was_undone_decides_nothing(
        parts in prop::collection::vec(
            (prop::collection::vec(any::<Raw>(), 0..12), prop::collection::vec(any::<Raw>(), 0..12)),
            1..10,
        ),
    ) {
        let mut model = Model::new();
        for (undone, steps) in &parts {
            let now = model.v.now;
            model.in_vain(undone);
            // What comes instead may come at the same times.
            model.v.now = now;
            steps.iter().for_each(|raw| model.step(raw));
        }
        model.v.check();
    }
}

/// Not everything is refused: of what random guests ask for, a part is allowed.
#[test]
fn some_of_it_is_allowed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(any::<Raw>(), 100..120);
    let (mut allowed, mut denied) = (0, 0);
    for _ in 0..20 {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        let mut model = Model::new();
        steps.iter().for_each(|raw| model.step(raw));
        for row in model.v.log_of(0).rows {
            match row.decision {
                Decision::Allowed if row.action < 32 => allowed += 1,
                Decision::Denied if row.action < 32 => denied += 1,
                _ => {}
            }
        }
    }
    assert!(
        allowed > 20 && denied > 20,
        "{allowed} allowed, {denied} denied"
    );
}
