//! Rows: content with its tag, and a snapshot that reads them.

use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use blake3::hazmat::HasherExt;
use bytes::Bytes;
use quorate_state::{Fault, Snapshot, Summary};
use quorate_wire::digest::Content;
use quorate_wire::{Decode, Digest, Encode};
use redb::{ReadOnlyTable, TableDefinition};

use crate::blobs::{Blobs, Place};
use crate::error::StoreError;

pub(crate) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
pub(crate) type ReadTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(crate) const ENTRIES: Definition = TableDefinition::new("entries");
pub(crate) const NODES: Definition = TableDefinition::new("nodes");
pub(crate) const META: Definition = TableDefinition::new("meta");
pub(crate) const REFS: Definition = TableDefinition::new("refs");
pub(crate) const SEGMENTS: Definition = TableDefinition::new("segments");

const TAG_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// The byte after the tag: the content follows.
const INLINE: u8 = 0;
/// The byte after the tag: the content's digest follows, and a [`Place`], where the content is.
const ELSEWHERE: u8 = 3;
/// The same without the digest, as stores had it once.
const ELSEWHERE_BARE: u8 = 2;
/// Added to the table's byte in the tag of a row whose content is elsewhere.
const OF_DIGEST: u8 = 16;

/// Which table a row is in, as its tag says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Entry = 1,
    Node = 2,
    Meta = 3,
}

/// The row for some content.
pub(crate) fn seal(kind: Kind, key: &[u8], content: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(TAG_BYTES + 1 + content.len());
    row.extend_from_slice(&tag(kind as u8, key, content));
    row.push(INLINE);
    row.extend_from_slice(content);
    row
}

/// The row for content that is elsewhere. Its tag is over the content's digest, which the partition tree has already: so a large value
/// is not hashed once more.
pub(crate) fn seal_elsewhere(kind: Kind, key: &[u8], digest: Digest, place: Place) -> Vec<u8> {
    let mut row = tag(kind as u8 + OF_DIGEST, key, &digest.0).to_vec();
    row.push(ELSEWHERE);
    digest.encode(&mut row);
    place.encode(&mut row);
    row
}

/// The content of a row that has it, if it is what was put there.
pub(crate) fn open<'a>(kind: Kind, key: &[u8], row: &'a [u8]) -> Result<&'a [u8], Fault> {
    match row.split_at_checked(TAG_BYTES) {
        Some((found, [INLINE, content @ ..])) if found == tag(kind as u8, key, content) => {
            Ok(content)
        }
        _ => Err(mismatch(kind, key)),
    }
}

/// Where a row's content is, if it is elsewhere.
pub(crate) fn place(row: &[u8]) -> Option<Place> {
    let place = match row.get(TAG_BYTES..)? {
        [ELSEWHERE, rest @ ..] => rest.get(DIGEST_BYTES..)?,
        [ELSEWHERE_BARE, place @ ..] => place,
        _ => return None,
    };
    Place::from_slice(place).ok()
}

/// The digest of a row's content that is elsewhere, if the row has it and it is what was put there.
fn digest(kind: Kind, key: &[u8], row: &[u8]) -> Option<Digest> {
    let (found, rest) = row.split_at_checked(TAG_BYTES)?;
    let [ELSEWHERE, rest @ ..] = rest else {
        return None;
    };
    let digest = rest.get(..DIGEST_BYTES)?;
    (found == tag(kind as u8 + OF_DIGEST, key, digest)).then(|| Digest::from_slice(digest).ok())?
}

/// The content of a row that has it elsewhere, if it is what was put there, and its digest.
pub(crate) fn read_elsewhere(
    kind: Kind,
    key: &[u8],
    row: &[u8],
    place: Place,
    blobs: &Blobs,
) -> Result<(Bytes, Digest), StoreError> {
    let content = blobs.read(place).map_err(StoreError::blob)?;
    let digest = Digest::of(Content::StateValue, &content);
    if row.get(..TAG_BYTES) != Some(&tag(kind as u8 + OF_DIGEST, key, &digest.0)[..]) {
        let at = place.offset;
        return Err(StoreError::Corrupt {
            path: blobs.segment_path(place.segment),
            what: format!("the bytes at {at} do not match the tag of the row {kind:?} {key:?}"),
        });
    }
    Ok((content, digest))
}

fn mismatch(kind: Kind, key: &[u8]) -> Fault {
    Fault::Store(format!("the row {kind:?} {key:?} does not match its tag"))
}

/// Derived once: most rows are short, and for those deriving it again would double the cost.
static TAG_KEY: LazyLock<[u8; 32]> =
    LazyLock::new(|| blake3::hazmat::hash_derive_key_context("quorate v1 store row"));

fn tag(table: u8, key: &[u8], content: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_from_context_key(&TAG_KEY);
    hasher.update(&[table]);
    hasher.update(&(key.len() as u32).to_le_bytes());
    hasher.update(key);
    hasher.update(content);
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

/// The store's contents at one checkpoint: a read transaction, which redb keeps apart from later writes. The segments that its
/// rows refer to stay as long as it does.
pub(crate) struct StoreSnapshot {
    pub(crate) entries: ReadTable,
    pub(crate) nodes: ReadTable,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) path: PathBuf,
    pub(crate) damage: Damage,
    /// Whether large values that are read are about to be written to another store with the same segments.
    pub(crate) offers: bool,
}

/// Whether reads of a store have found damage: what every snapshot of it tells whoever opened it.
#[derive(Clone, Debug, Default)]
pub struct Damage(Arc<Failures>);

#[derive(Debug, Default)]
struct Failures {
    damaged: AtomicBool,
    /// Something else has failed.
    failed: AtomicBool,
}

impl Damage {
    /// Whether some content is not what was written. Other failures, of the disk or the system, do not count.
    pub fn is_found(&self) -> bool {
        self.0.damaged.load(Ordering::Relaxed)
    }

    /// Whether the disk or the system has refused a read.
    pub fn has_failed(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, error: StoreError) -> Fault {
        let which = match error.is_damage() {
            true => &self.0.damaged,
            false => &self.0.failed,
        };
        which.store(true, Ordering::Relaxed);
        error.into()
    }

    /// What a fault is that came by way of others: damage, unless the disk has refused a read.
    pub(crate) fn judge(&self, path: &Path, fault: Fault) -> StoreError {
        if self.0.failed.load(Ordering::Relaxed) {
            return StoreError::Io {
                path: path.to_owned(),
                source: std::io::Error::other(fault.to_string()),
            };
        }
        self.0.damaged.store(true, Ordering::Relaxed);
        StoreError::fault(path, fault)
    }
}

impl fmt::Debug for StoreSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSnapshot")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl StoreSnapshot {
    fn row(&self, table: &ReadTable, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        match table.get(key).map_err(|e| self.fault(e))? {
            Some(row) => Ok(Some(self.read(kind, key, row.value())?)),
            None => Ok(None),
        }
    }

    fn read(&self, kind: Kind, key: &[u8], row: &[u8]) -> Result<Bytes, Fault> {
        let (content, _) = self.read_hashed(kind, key, row)?;
        Ok(content)
    }

    /// The content of a row, and its digest where that had to be taken.
    fn read_hashed(
        &self,
        kind: Kind,
        key: &[u8],
        row: &[u8],
    ) -> Result<(Bytes, Option<Digest>), Fault> {
        let Some(place) = place(row) else {
            let content = open(kind, key, row);
            let content =
                content.map_err(|fault| self.damage.note(StoreError::fault(&self.path, fault)))?;
            return Ok((Bytes::copy_from_slice(content), None));
        };
        let found = read_elsewhere(kind, key, row, place, &self.blobs);
        let (content, digest) = found.map_err(|e| self.damage.note(e))?;
        if self.offers {
            self.blobs.offer(content.clone(), digest, place);
        }
        Ok((content, Some(digest)))
    }

    fn fault(&self, error: redb::StorageError) -> Fault {
        self.damage.note(StoreError::redb(&self.path, error))
    }
}

impl Snapshot for StoreSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.row(&self.entries, Kind::Entry, key)
    }

    fn get_hashed(&self, key: &[u8]) -> Result<Option<(Bytes, Digest)>, Fault> {
        let Some(row) = self.entries.get(key).map_err(|e| self.fault(e))? else {
            return Ok(None);
        };
        let (content, digest) = self.read_hashed(Kind::Entry, key, row.value())?;
        let digest = digest.unwrap_or_else(|| Digest::of(Content::StateValue, &content));
        Ok(Some((content, digest)))
    }

    fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        let Some(row) = self.entries.get(key).map_err(|e| self.fault(e))? else {
            return Ok(None);
        };
        let row = row.value();
        if let (Some(digest), Some(place)) = (digest(Kind::Entry, key, row), place(row)) {
            let length = place.length;
            return Ok(Some(Summary { length, digest }));
        }
        let content = self.read(Kind::Entry, key, row)?;
        Ok(Some(Summary::of(&content)))
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let rows = self
            .entries
            .range::<&[u8]>((from, to))
            .map_err(|e| self.fault(e))?;
        let mut out = Vec::new();
        for row in rows.take(limit) {
            let (key, row) = row.map_err(|e| self.fault(e))?;
            let content = self.read(Kind::Entry, key.value(), row.value())?;
            out.push((Bytes::copy_from_slice(key.value()), content));
        }
        Ok(out)
    }

    fn keys(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        let rows = self
            .entries
            .range::<&[u8]>((from, to))
            .map_err(|e| self.fault(e))?;
        let mut out = Vec::new();
        for row in rows.take(limit) {
            let (key, row) = row.map_err(|e| self.fault(e))?;
            let (key, row) = (key.value(), row.value());
            // A row that has its content's digest is checked without the content.
            if digest(Kind::Entry, key, row).is_none() {
                self.read(Kind::Entry, key, row)?;
            }
            out.push(Bytes::copy_from_slice(key));
        }
        Ok(out)
    }

    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.row(&self.nodes, Kind::Node, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content that changed or went is damage, and can be mended by fetching the state. A disk that refuses a read is not: that takes
    /// the replica out.
    #[test]
    fn a_refused_read_is_no_damage() {
        let path = Path::new("/data/segment");
        let error = |kind: std::io::ErrorKind| {
            StoreError::blob(crate::blobs::BlobError {
                path: path.to_owned(),
                source: kind.into(),
            })
        };
        let refused = || StoreError::io(path, std::io::Error::from_raw_os_error(5));
        let damage = Damage::default();
        damage.note(refused());
        assert!(!damage.is_found());
        let judged = damage.judge(path, Fault::Tree("the tree's node is missing".into()));
        assert!(!judged.is_damage() && !damage.is_found());
        for kind in [
            std::io::ErrorKind::NotFound,
            std::io::ErrorKind::UnexpectedEof,
        ] {
            let damage = Damage::default();
            damage.note(error(kind));
            assert!(damage.is_found());
        }
        let damage = Damage::default();
        let judged = damage.judge(path, Fault::Tree("the tree's node is missing".into()));
        assert!(judged.is_damage() && damage.is_found());
    }

    /// A row is believed only with its own content, under its own key, in its own table.
    #[test]
    fn a_row_is_bound_to_its_place() {
        let row = seal(Kind::Entry, b"key", b"content");
        assert_eq!(open(Kind::Entry, b"key", &row), Ok(&b"content"[..]));
        assert!(open(Kind::Node, b"key", &row).is_err());
        assert!(open(Kind::Entry, b"kez", &row).is_err());
        assert!(open(Kind::Entry, b"ke", &seal(Kind::Entry, b"k", b"econtent")).is_err());
        for at in 0..row.len() {
            let mut damaged = row.clone();
            damaged[at] ^= 4;
            assert!(open(Kind::Entry, b"key", &damaged).is_err());
            assert!(open(Kind::Entry, b"key", &row[..at]).is_err());
        }
    }

    /// A row has its content's digest beside its place, bound as content is; a row without one has its place all the same.
    #[test]
    fn digests_are_beside_places() {
        let (segment, offset, length) = (7, 4096, 65_536);
        let (content, at) = (
            Digest([9; 32]),
            Place {
                segment,
                offset,
                length,
            },
        );
        let row = seal_elsewhere(Kind::Entry, b"key", content, at);
        assert_eq!(place(&row), Some(at));
        assert_eq!(digest(Kind::Entry, b"key", &row), Some(content));
        assert_eq!(digest(Kind::Entry, b"kez", &row), None);
        for bit in 0..8 * (TAG_BYTES + 1 + DIGEST_BYTES) {
            let mut damaged = row.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(digest(Kind::Entry, b"key", &damaged), None);
        }
        let mut bare = row[..TAG_BYTES].to_vec();
        bare.push(ELSEWHERE_BARE);
        at.encode(&mut bare);
        assert_eq!(place(&bare), Some(at));
        assert_eq!(digest(Kind::Entry, b"key", &bare), None);
    }
}
