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
    let mut out = Vec::new();
    if limit == 0 || is_empty_range(from, to) {
        return Ok(out);
    }
    let mut layers: Vec<_> = layers
        .map(|layer| layer.range::<[u8], _>((from, to)).peekable())
        .collect();
    let mut base = Pages::new(base, from, to, limit);
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
                value = value.or(Some(found.clone()));
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
struct Pages<'a> {
    base: &'a dyn Snapshot,
    next: Bound<Bytes>,
    to: Bound<&'a [u8]>,
    size: usize,
    page: VecDeque<(Bytes, Bytes)>,
    is_last: bool,
}

impl<'a> Pages<'a> {
    /// The longest page; a caller may say "no limit".
    const MAX_PAGE: usize = 1024;

    fn new(
        base: &'a dyn Snapshot,
        from: Bound<&[u8]>,
        to: Bound<&'a [u8]>,
        limit: usize,
    ) -> Pages<'a> {
        let (next, size) = (own(from), limit.min(Pages::MAX_PAGE));
        Pages {
            base,
            next,
            to,
            size,
            page: VecDeque::new(),
            is_last: false,
        }
    }

    fn peek(&mut self) -> Result<Option<&(Bytes, Bytes)>, Fault> {
        if self.page.is_empty() && !self.is_last {
            let page = self.base.range(borrow(&self.next), self.to, self.size)?;
            self.is_last = page.len() < self.size;
            if let Some((last, _)) = page.last() {
                self.next = Bound::Excluded(last.clone());
            }
            self.page = page.into();
        }
        Ok(self.page.front())
    }

    fn next_if(&mut self, key: &Bytes) -> Result<Option<Bytes>, Fault> {
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
