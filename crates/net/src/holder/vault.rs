//! What has an identity key and counts what it signs.

use std::error::Error;

use quorate_wire::{Certifies, Digest, IdentityKey, KeyPair, Signature};

use super::{CounterError, CounterFile};

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// See [`CounterError`].
    #[error(transparent)]
    Counter(#[from] CounterError),
    /// What the device says that has the key.
    #[error(transparent)]
    Device(Box<dyn Error + Send + Sync>),
}

impl VaultError {
    /// Whether the next statement may come, such as when a disk is not full any more: nothing was signed, and no number can be signed twice. After
    /// all else nothing is signed any more.
    pub fn may_pass(&self) -> bool {
        matches!(self, VaultError::Counter(CounterError::Io { .. }))
    }
}

/// An identity key and its counter: files, or a device.
pub trait Vault {
    /// The key's public half.
    fn identity(&self) -> IdentityKey;

    /// The number for the next statement, above all before. When this returns it is where it can't be lost or taken back.
    ///
    /// # Errors
    /// What keeps it from being that; then nothing is to be signed.
    fn advance(&mut self) -> Result<u64, VaultError>;

    /// Signs the digest of a statement.
    ///
    /// # Errors
    /// [`VaultError::Device`].
    fn sign(&mut self, digest: &Digest) -> Result<Signature, VaultError>;
}

/// A key in this process's memory, with its counter on disk.
#[derive(Debug)]
pub struct FileVault {
    key: KeyPair,
    counter: CounterFile,
}

impl FileVault {
    /// Of this key and its counter.
    pub fn new(key: KeyPair, counter: CounterFile) -> FileVault {
        FileVault { key, counter }
    }
}

impl Vault for FileVault {
    fn identity(&self) -> IdentityKey {
        self.key.identity()
    }

    fn advance(&mut self) -> Result<u64, VaultError> {
        Ok(self.counter.advance()?)
    }

    fn sign(&mut self, digest: &Digest) -> Result<Signature, VaultError> {
        Ok(self.key.sign(digest))
    }
}
