//! Identity keys in a TPM 2.0: the key that signs a replica's statements never leaves the chip, and the numbers of statements are counted there.
//!
//! A file says which key and which counter of the chip they are (`tpm/file.rs`), with the secret that they ask for. It is worth nothing
//! without the chip. Without the feature `tpm` of this crate all of it is refused in words.

use std::path::Path;

use anyhow::Result;
use quorate_wire::IdentityKey;

#[cfg(feature = "tpm")]
mod chip;
#[cfg(feature = "tpm")]
mod file;

/// Makes a key and a counter in the chip at `tcti`, and the file that names them. What it returns goes into the group file.
#[cfg(feature = "tpm")]
pub fn enroll(tcti: &str, path: &Path) -> Result<IdentityKey> {
    chip::enroll(tcti, path)
}

/// Opens the key and the counter that the file names.
#[cfg(feature = "tpm")]
pub fn open(tcti: &str, path: &Path) -> Result<chip::Chip> {
    chip::Chip::open(tcti, path)
}

#[cfg(not(feature = "tpm"))]
pub use without::{enroll, open};

#[cfg(not(feature = "tpm"))]
mod without {
    use super::*;
    use anyhow::bail;
    use quorate_net::holder::{Vault, VaultError};
    use quorate_wire::{Digest, Signature};

    const WHY: &str = "this quorate was built without the feature `tpm`: build it with `cargo build --release -p quorate \
                       --features tpm`, on a machine that has Debian's libtss2-dev";

    /// No chip.
    #[derive(Debug)]
    pub enum Chip {}

    impl Chip {
        pub fn last(&self) -> u64 {
            match *self {}
        }
    }

    impl Vault for Chip {
        fn identity(&self) -> IdentityKey {
            match *self {}
        }

        fn advance(&mut self) -> Result<u64, VaultError> {
            match *self {}
        }

        fn sign(&mut self, _: &Digest) -> Result<Signature, VaultError> {
            match *self {}
        }
    }

    pub fn enroll(_: &str, _: &Path) -> Result<IdentityKey> {
        bail!(WHY)
    }

    pub fn open(_: &str, _: &Path) -> Result<Chip> {
        bail!(WHY)
    }
}
