//! Whose files are, as a guest's mount shows it.
//!
//! Everybody who uses such a mount acts in the volume as its credentials say, as a user whom this machine knows under another number or not at
//! all. So what belongs to that user is shown as belonging to who has mounted, and what is given to him here is meant for that user. Nothing
//! else is shown as his: a number of the volume that by chance is his here is shown as nobody's.
//!
//! The numbers decide nothing here: the kernel checks no modes on such a mount ([`super::mount`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_files::Attr;
use quorate_files::op::SetAttr;
use rustix::process::{getegid, geteuid, getgroups};

/// Whom Linux shows for whoever is not known.
const NOBODY: u32 = 65_534;

/// As which users and groups of the volume a guest acts, by the credentials that the mount has: first those of the first. Clones are one; it can change
/// while it is mounted.
#[derive(Clone, Debug, Default)]
pub struct Acting(Arc<Mutex<Vec<(u32, u32)>>>);

impl Acting {
    /// These are all from now on. `None` stands for credentials that fix no ids.
    pub fn set(&self, ids: impl IntoIterator<Item = Option<(u32, u32)>>) {
        let ids = ids.into_iter().map(|ids| ids.unwrap_or((NOBODY, NOBODY)));
        *self.lock() = ids.collect();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u32, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of two ids: of the user, or of the group.
type Of = fn(&(u32, u32)) -> u32;
const USER: Of = |ids| ids.0;
const GROUP: Of = |ids| ids.1;

/// Users and groups of the volume, as who has mounted sees them.
#[derive(Debug)]
pub(super) struct Owners {
    acting: Acting,
    user: u32,
    /// The first is the one that his files are shown with.
    groups: Vec<u32>,
}

impl Owners {
    /// For the user of this process.
    pub fn of_this_user(acting: Acting) -> Owners {
        let own = getegid().as_raw();
        let others = getgroups().unwrap_or_default();
        let others = others.into_iter().map(|gid| gid.as_raw());
        Owners {
            acting,
            user: geteuid().as_raw(),
            groups: [own].into_iter().chain(others).collect(),
        }
    }

    /// Who has mounted: user and group of this machine.
    pub fn own(&self) -> (u32, u32) {
        (self.user, self.groups[0])
    }

    /// The user and group of this machine that an object is shown with.
    pub fn shown(&self, attr: &Attr) -> (u32, u32) {
        let acting = self.acting.lock();
        let show = |of: Of, id: u32, own: &[u32]| match id {
            id if acting.iter().any(|ids| of(ids) == id) => own[0],
            id if own.contains(&id) => NOBODY,
            id => id,
        };
        (
            show(USER, attr.uid, &[self.user]),
            show(GROUP, attr.gid, &self.groups),
        )
    }

    /// Whether it depends on whose an object is by now what is meant by the owner that it is given.
    pub fn depends(&self, op: &SetAttr) -> bool {
        let gives_own = op.uid == Some(self.user) || op.gid == Some(self.groups[0]);
        gives_own && self.acting.lock().len() > 1
    }

    /// A change of attributes as it is meant in the volume: who is given an object that is his already leaves it as it is. Those whose it is by
    /// now are told where that [`Owners::depends`] on them.
    pub fn meant(&self, op: &mut SetAttr, now: Option<(u32, u32)>) {
        let acting = self.acting.lock();
        let mean = |of: Of, id: u32, own: u32| {
            let is_acting = |id: &u32| acting.iter().any(|ids| of(ids) == *id);
            let first = acting.first().map(of).unwrap_or(id);
            match id == own {
                true => now.as_ref().map(of).filter(is_acting).unwrap_or(first),
                false => id,
            }
        };
        op.uid = op.uid.map(|uid| mean(USER, uid, self.user));
        op.gid = op.gid.map(|gid| mean(GROUP, gid, self.groups[0]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use quorate_files::{Ino, Target};

    fn owners(acting: &[Option<(u32, u32)>]) -> Owners {
        let all = Acting::default();
        all.set(acting.iter().copied());
        Owners {
            acting: all,
            user: 501,
            groups: vec![502, 27],
        }
    }

    fn shown(owners: &Owners, uid: u32, gid: u32) -> (u32, u32) {
        owners.shown(&Attr {
            uid,
            gid,
            ..sample::attr(Ino(7))
        })
    }

    fn meant(
        owners: &Owners,
        uid: Option<u32>,
        gid: Option<u32>,
        now: Option<(u32, u32)>,
    ) -> (Option<u32>, Option<u32>) {
        let mut op = SetAttr {
            target: Target::Ino(Ino(7)),
            mode: None,
            uid,
            gid,
            size: None,
            atime: None,
            mtime: None,
        };
        owners.meant(&mut op, now);
        (op.uid, op.gid)
    }

    /// What the guest acts as is shown as who has mounted, and nothing else is.
    #[test]
    fn what_is_shown_as_ones_own_is() {
        let pinned = owners(&[Some((1000, 100))]);
        assert_eq!(shown(&pinned, 1000, 100), (501, 502));
        // Others of the volume, who by chance have the numbers of the user here or of his groups.
        assert_eq!(shown(&pinned, 501, 502), (NOBODY, NOBODY));
        assert_eq!(shown(&pinned, 1001, 27), (1001, NOBODY));
        assert_eq!(shown(&pinned, NOBODY, NOBODY), (NOBODY, NOBODY));
        let nobody = owners(&[None]);
        assert_eq!(shown(&nobody, NOBODY, NOBODY), (501, 502));
        assert_eq!(shown(&nobody, 1000, 0), (1000, 0));
        // Who has the same number everywhere sees what there is.
        let same = owners(&[Some((501, 502))]);
        assert_eq!(shown(&same, 501, 502), (501, 502));
        let two = owners(&[Some((1000, 100)), None]);
        assert_eq!(shown(&two, 1000, NOBODY), (501, 502));
        // Of whom nothing is known nothing is his.
        assert_eq!(shown(&owners(&[]), 501, 5), (NOBODY, 5));
    }

    /// What is given to who has mounted is given to whom he acts as; of several, to the one whose it is.
    #[test]
    fn who_is_meant_is_whom_one_acts_as() {
        let one = owners(&[Some((1000, 100))]);
        assert_eq!(meant(&one, Some(501), None, None), (Some(1000), None));
        assert_eq!(meant(&one, Some(7), Some(502), None), (Some(7), Some(100)));
        let two = owners(&[Some((1000, 100)), Some((2000, 200))]);
        let both = |now| meant(&two, Some(501), Some(502), now);
        assert_eq!(both(Some((2000, 100))), (Some(2000), Some(100)));
        // Somebody else's: the service says whether it may be had.
        assert_eq!(both(Some((5, 5))), (Some(1000), Some(100)));
        let gives = |owners: &Owners, uid| {
            let op = SetAttr {
                target: Target::Ino(Ino(7)),
                mode: Some(0o600),
                uid,
                gid: None,
                size: None,
                atime: None,
                mtime: None,
            };
            owners.depends(&op)
        };
        assert!(gives(&two, Some(501)) && !gives(&two, Some(1000)));
        assert!(!gives(&two, None) && !gives(&one, Some(501)));
    }
}
