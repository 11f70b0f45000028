//! What a guest's credentials give with an object: as it was decided before, by what its directory gives, or by its ways up to the root.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::Rights;
use quorate_wire::mutants::{Mutant, is_on};

use super::{ANY, Guest};
use crate::decisions::{Decision, Decisions, Given, prefixes_of};
use crate::fs::{Done, Fs, Stop};
use crate::layout::Inode;
use crate::types::{Ino, Kind};
use crate::walk::{Walk, below, object};

impl Guest {
    /// What the credentials come to with an object that has these ways.
    fn decide(&self, ino: Ino, inode: &Inode, walks: &[Walk]) -> Decision {
        let here = self
            .reaches()
            .filter(|reach| reach.scope.object == object(ino));
        let mut prefixes: Vec<Bytes> = here.filter_map(|reach| reach.prefix.clone()).collect();
        prefixes.sort();
        prefixes.dedup();
        let below = match inode.kind {
            Kind::Directory => self.parts(&below(ANY, b"", walks), Rights::ALL, None),
            _ => Vec::new(),
        };
        let unnamed = Given {
            here: self.parts(walks, Rights::ALL, None).into(),
            below: below.into(),
        };
        let place = inode.place();
        let reached = unnamed.content().or_else(|| self.reached(walks));
        let steps = match walks {
            [way] => {
                let top = way.last().map(|(top, _)| *top);
                (top == Some(object(Ino::ROOT))).then_some(way.len())
            }
            _ => None,
        };
        Decision::new(place, steps, reached, prefixes.into(), unnamed)
    }

    /// What the credentials give with a directory where a name in it is used, and with what has that name there.
    fn decide_named(&self, walks: &[Walk], name: &[u8]) -> Given {
        let below = below(ANY, name, walks);
        Given {
            here: self.parts(walks, Rights::ALL, Some(name)).into(),
            below: self.parts(&below, Rights::ALL, None).into(),
        }
    }
}

impl Fs<'_, '_> {
    /// What the guest's credentials give with an object, as it was decided before or is now. `ESTALE` where it is gone.
    pub fn decided<T>(&self, guest: &Guest, ino: Ino, ask: impl FnOnce(&Decision) -> T) -> Done<T> {
        let mut decisions = guest.decisions.borrow_mut();
        let has_changed = guest.has_changed.get();
        if let Some((decision, is_held)) = decisions.about(ino, guest.operation) {
            let holds = (is_held && !has_changed) || self.is_in_place(ino, decision)?;
            if holds {
                return Ok(ask(decision));
            }
            decisions.forget(ino);
        }
        let inode = self.any_inode(ino)?;
        let inherited = match has_changed {
            true => None,
            false => self.inherited(guest, &mut decisions, ino, &inode)?,
        };
        let decision = match inherited {
            Some(decision) => decision,
            None => guest.decide(ino, &inode, &self.walks_of(guest, ino)?),
        };
        let asked = ask(&decision);
        if !has_changed && inode.nlink > 0 {
            decisions.keep(ino, guest.operation, decision);
        }
        Ok(asked)
    }

    /// Whether an object is where it was when something was decided about it.
    fn is_in_place(&self, ino: Ino, decision: &Decision) -> Done<bool> {
        match self.place_of(ino) {
            // Without a name it may be in another place for its names' sake.
            Ok((nlink, place)) => {
                Ok(nlink > 0 && (place == decision.place || is_on(Mutant::RenamesRemembered)))
            }
            // It is gone. To be forgotten, or the operation would take it for held when it asks again.
            Err(Stop::Refused(_)) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// What the guest's credentials give with an object by what was decided about the directory that it is in: whoever searches a tree asks about
    /// many objects once, and the way up to the root need not be gone for each. It is what [`Guest::decide`] comes to.
    fn inherited(
        &self,
        guest: &Guest,
        decisions: &mut Decisions,
        ino: Ino,
        inode: &Inode,
    ) -> Done<Option<Decision>> {
        let is_directory = inode.kind == Kind::Directory;
        let has_one_name = inode.nlink == 1 || (is_directory && inode.nlink > 0);
        // What is given below the directory was asked with a number that stands for any object. A link that names it names none that there is.
        let own = [object(ino), ANY];
        let mut reaches = guest.reaches();
        if !has_one_name || ino == Ino::ROOT || reaches.any(|r| own.contains(&r.scope.object)) {
            return Ok(None);
        }
        let place = inode.place();
        if let Some((above, is_held)) = decisions.about(place.dir, guest.operation) {
            if is_held || self.is_in_place(place.dir, above)? {
                return Ok(above.inherited(place, is_directory));
            }
            decisions.forget(place.dir);
        }
        let dir = match self.any_inode(place.dir) {
            Ok(dir) if dir.nlink > 0 => dir,
            Ok(_) | Err(Stop::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        // Others in it may be asked about next.
        let above = guest.decide(place.dir, &dir, &self.walks_of(guest, place.dir)?);
        let inherited = above.inherited(place, is_directory);
        decisions.keep(place.dir, guest.operation, above);
        Ok(inherited)
    }

    /// What the guest's credentials give with an object, where a name in it is used or none.
    pub(super) fn decided_for<T>(
        &self,
        guest: &Guest,
        ino: Ino,
        name: Option<&[u8]>,
        ask: impl Fn(&Given) -> T,
    ) -> Done<T> {
        let known = |decision: &Decision| match name {
            Some(name) if !decision.prefixes.is_empty() => {
                let prefixes = prefixes_of(&decision.prefixes, name);
                let given = decision.named(prefixes).map(&ask);
                given.ok_or((name, prefixes))
            }
            _ => Ok(ask(&decision.unnamed)),
        };
        let (name, prefixes) = match self.decided(guest, ino, known)? {
            Ok(answer) => return Ok(answer),
            Err(unknown) => unknown,
        };
        let given = guest.decide_named(&self.walks_of(guest, ino)?, name);
        let answer = ask(&given);
        if !guest.has_changed.get() {
            let mut decisions = guest.decisions.borrow_mut();
            decisions.keep_named(ino, guest.operation, prefixes, given);
        }
        Ok(answer)
    }
}
