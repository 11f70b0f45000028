//! A snapshot that counts what is read of it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use quorate_state::{Fault, MemorySnapshot, Snapshot, Summary};

/// A chunk of a file is no shorter.
const LARGE_BYTES: usize = 64 << 10;

/// How often it was asked; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    all: Arc<AtomicUsize>,
    large: Arc<AtomicUsize>,
}

impl Reads {
    /// Since it was asked the last time.
    pub fn take(&self) -> usize {
        self.all.swap(0, Ordering::Relaxed)
    }

    /// Those of them that gave a large value.
    pub fn take_large(&self) -> usize {
        self.large.swap(0, Ordering::Relaxed)
    }
}

/// Entries that have digests beside them, as a store has.
#[derive(Debug)]
pub struct Counted {
    pub inner: MemorySnapshot,
    pub reads: Reads,
}

impl Snapshot for Counted {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let value = self.inner.get(key)?;
        let is_large = value.as_ref().is_some_and(|v| v.len() >= LARGE_BYTES);
        self.reads.all.fetch_add(1, Ordering::Relaxed);
        self.reads
            .large
            .fetch_add(is_large.into(), Ordering::Relaxed);
        Ok(value)
    }

    fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        self.inner.summary(key)
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let entries = self.inner.range(from, to, limit)?;
        let large = entries.iter().filter(|(_, v)| v.len() >= LARGE_BYTES);
        self.reads.all.fetch_add(1, Ordering::Relaxed);
        self.reads.large.fetch_add(large.count(), Ordering::Relaxed);
        Ok(entries)
    }

    fn keys(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        self.reads.all.fetch_add(1, Ordering::Relaxed);
        self.inner.keys(from, to, limit)
    }

    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.inner.node(path)
    }
}
