//! Listings by guests: the names that they may list, with attributes as they see them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_credential::Rights;
use quorate_state::{Fault, Txn};

use super::{Allowed, refused};
use crate::answer::{Answer, Attr, Entries, Entry, Outcome};
use crate::decisions::{Prefixes, prefixes_of};
use crate::fs::{Caller, Done, Fs};
use crate::gate::Guest;
use crate::needs::object;
use crate::op::{Action, ReadDir};
use crate::service::run_read;
use crate::types::{Ino, Kind};
use crate::walk::MAX_NAMES;

/// How many names one listing looks at for those that a guest may see, before it has the guest ask again.
const NAMES_PER_LISTING: usize = 4_096;
/// As how many a page counts at least, however few the guest wants at once: there are rows to read for each.
const LEAST_OF_A_PAGE: usize = 32;
/// Where objects have several names, a page ends before it has looked at more ways than this: each name is one.
const WAYS_PER_LISTING: usize = 256;

/// Lists names that the guest may list, page after page until there are some.
pub(super) fn list(
    txn: &mut Txn<'_>,
    caller: &Caller<'_>,
    guest: &Guest,
    op: &ReadDir,
) -> Result<Outcome, Fault> {
    let (mut op, mut looked_at) = (op.clone(), 0);
    let mut by_name = ByName::default();
    loop {
        let outcome = run_read(txn, caller, &Action::ReadDir(op.clone()))?;
        let Outcome(Ok(Answer::Entries(page))) = outcome else {
            return Ok(outcome);
        };
        looked_at += page.entries.len().max(LEAST_OF_A_PAGE);
        let fs = Fs::new(txn, caller)?;
        let page = match fs.listed_to(guest, object(&op.target), page, &mut by_name) {
            Ok(page) => page,
            Err(stop) => return refused(stop),
        };
        if !page.entries.is_empty() || page.end || looked_at >= NAMES_PER_LISTING {
            return Ok(Outcome(Ok(Answer::Entries(page))));
        }
        op.cookie = page.next;
    }
}

/// What a guest may do with what has a name in the directory that is listed: by the prefixes that the name has, of those to which credentials limit
/// names in there. However many names there are, that differs no more often than there are prefixes. It is the listing's own: what is remembered of a
/// directory beyond the operation makes room for whatever else is looked at.
#[derive(Default)]
struct ByName {
    prefixes: Option<Box<[Bytes]>>,
    allowed: BTreeMap<Prefixes, Option<Allowed>>,
}

impl ByName {
    fn allowed(
        &mut self,
        fs: &Fs<'_, '_>,
        guest: &Guest,
        dir: Ino,
        name: &[u8],
    ) -> Done<Option<Allowed>> {
        let prefixes = match &mut self.prefixes {
            Some(prefixes) => prefixes,
            unknown => unknown.insert(fs.decided(guest, dir, |known| known.prefixes.clone())?),
        };
        let has = prefixes_of(prefixes, name);
        if let Some(known) = self.allowed.get(&has) {
            return Ok(known.clone());
        }
        let allowed = fs.listed_as(guest, dir, name)?;
        self.allowed.insert(has, allowed.clone());
        Ok(allowed)
    }
}

impl Fs<'_, '_> {
    /// The entries of a directory that the guest may list, with the attributes of those that it may look at.
    fn listed_to(
        &self,
        guest: &Guest,
        dir: Ino,
        mut page: Entries,
        by_name: &mut ByName,
    ) -> Done<Entries> {
        let mut own = self.attr(dir, &self.inode(dir)?);
        self.allowed_on(guest, dir)?.cut(&mut own);
        let mut entries = Vec::with_capacity(page.entries.len());
        let mut ways = 0;
        for mut entry in page.entries {
            match &entry.name[..] {
                b"." => entry.attr = entry.attr.map(|_| own.clone()),
                // For a guest, what it can't look at is not there: the directory is then the top, as the root is.
                b".." => {
                    let allowed = self.allowed_on(guest, entry.ino)?;
                    let may = allowed.rights.contains(Rights::LOOKUP);
                    match (may, &mut entry.attr) {
                        (true, Some(attr)) => allowed.cut(attr),
                        (true, None) => {}
                        (false, attr) => {
                            entry.ino = dir;
                            *attr = attr.as_ref().map(|_| own.clone());
                        }
                    }
                }
                name => {
                    let Some(mut allowed) = by_name.allowed(self, guest, dir, name)? else {
                        continue;
                    };
                    if let Some(mut attr) = entry.attr.take() {
                        // One credential alone gives all by the name that it lists.
                        if guest.grants.len() > 1 {
                            let own_ways = ways_beside(&attr);
                            ways += own_ways;
                            let last = entries.last().map(|last: &Entry| last.cookie);
                            if let Some(last) = last.filter(|_| ways > WAYS_PER_LISTING) {
                                (page.end, page.next) = (false, last);
                                break;
                            }
                            if own_ways > 0 || guest.is_about(entry.ino) {
                                allowed = allowed.and(&self.allowed_on(guest, entry.ino)?);
                            }
                        }
                        let may = allowed.rights.contains(Rights::LOOKUP);
                        allowed.cut(&mut attr);
                        entry.attr = may.then_some(attr);
                    }
                }
            }
            entries.push(entry);
        }
        page.entries = entries;
        Ok(page)
    }
}

/// How many ways an object has that its place in the listed directory does not tell; all, where there are any.
fn ways_beside(attr: &Attr) -> usize {
    match attr.kind {
        Kind::Directory => 0,
        _ if attr.nlink < 2 => 0,
        _ => usize::try_from(attr.nlink).map_or(MAX_NAMES, |names| names.min(MAX_NAMES)),
    }
}
