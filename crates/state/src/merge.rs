//! Layers and the snapshot below them, read as one map.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;

use crate::layers::Layer;
use crate::snapshot::{Fault, Snapshot};

/// Entries between two keys, of layers (newest first) over a snapshot. Looks at no more than it needs: a short listing of
/// a large range costs little.
pub(crate) fn range<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    base: &dyn Snapshot,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, Fault> {
    let page = |from: Bound<&[u8]>, limit| base.range(from, to, limit);
    let base = Pages::new(page, from, limit, false);
    merged(layers, base, Bytes::clone, (from, to), limit)
}

/// The keys of these entries; no value is read.
pub(crate) fn keys<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    base: &dyn Snapshot,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    limit: usize,
) -> Result<Vec<Bytes>, Fault> {
    let page = |from: Bound<&[u8]>, limit| {
        let keys = base.keys(from, to, limit)?;
        Ok(keys.into_iter().map(|key| (key, ())).collect())
    };
    let base = Pages::new(page, from, limit, true);
    let keys = merged(layers, base, |_| (), (from, to), limit)?;
    Ok(keys.into_iter().map(|(key, ())| key).collect())
}

/// `of` gives what is wanted of a layer's value.
fn merged<'a, V>(
    layers: impl Iterator<Item = &'a Layer>,
    mut base: Pages<V, impl Fn(Bound<&[u8]>, usize) -> Result<Vec<(Bytes, V)>, Fault>>,
    of: impl Fn(&Bytes) -> V,
    (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    limit: usize,
) -> Result<Vec<(Bytes, V)>, Fault> {
    let mut out = Vec::new();
    if limit == 0 || is_empty_range(from, to) {
        return Ok(out);
    }
    let mut layers: Vec<_> = layers
        .map(|layer| layer.range::<[u8], _>((from, to)).peekable())
        .collect();
    while out.len() < limit {
        let below = base.peek()?.map(|(key, _)| key.clone());
        let heads = layers
            .iter_mut()
            .filter_map(|l| l.peek().map(|(key, _)| (*key).clone()));
        let Some(key) = heads.chain(below).min() else {
            break;
        };
        let mut value = None;
        for layer in &mut layers {
            // The first layer that has the key is the newest; the older ones are passed over.
            if let Some((_, found)) = layer.next_if(|(k, _)| **k == key) {
                value = value.or_else(|| Some(found.as_ref().map(&of)));
            }
        }
        if let Some(found) = base.next_if(&key)? {
            value = value.or(Some(Some(found)));
        }
        out.extend(value.flatten().map(|value| (key, value)));
    }
    Ok(out)
}

/// The entries of a snapshot's range, read in pages.
struct Pages<V, F> {
    read: F,
    next: Bound<Bytes>,
    size: usize,
    /// Whether each page is longer than the one before: where layers have deleted much of what the snapshot has, few are read then. Of
    /// values as many as are wanted are read at once, since they may be long.
    grows: bool,
    page: VecDeque<(Bytes, V)>,
    is_last: bool,
}

/// The longest page; a caller may say "no limit".
const MAX_PAGE: usize = 1024;

impl<V, F: Fn(Bound<&[u8]>, usize) -> Result<Vec<(Bytes, V)>, Fault>> Pages<V, F> {
    fn new(read: F, from: Bound<&[u8]>, limit: usize, grows: bool) -> Pages<V, F> {
        Pages {
            read,
            next: own(from),
            size: limit.min(MAX_PAGE),
            grows,
            page: VecDeque::new(),
            is_last: false,
        }
    }

    fn peek(&mut self) -> Result<Option<&(Bytes, V)>, Fault> {
        if self.page.is_empty() && !self.is_last {
            let page = (self.read)(borrow(&self.next), self.size)?;
            self.is_last = page.len() < self.size;
            if let Some((last, _)) = page.last() {
                self.next = Bound::Excluded(last.clone());
            }
            self.page = page.into();
            if self.grows {
                self.size = (2 * self.size).min(MAX_PAGE);
            }
        }
        Ok(self.page.front())
    }

    fn next_if(&mut self, key: &Bytes) -> Result<Option<V>, Fault> {
        if self.peek()?.is_none_or(|(k, _)| k != key) {
            return Ok(None);
        }
        Ok(self.page.pop_front().map(|(_, value)| value))
    }
}

fn own(bound: Bound<&[u8]>) -> Bound<Bytes> {
    bound.map(Bytes::copy_from_slice)
}

fn borrow(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Whether no key lies between two bounds; `BTreeMap::range` panics on some of these.
pub(crate) fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}
