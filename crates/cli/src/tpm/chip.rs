//! The key and the counter in the chip. TCG, TPM 2.0 Library, parts 1 and 3.
//!
//! The key is a primary key of the owner hierarchy: the chip makes it anew at each start, from its own secret and a label, so nothing of it is
//! ever outside, not even encrypted. Who clears the chip has destroyed it.
//!
//! The counter is an NV index that can only be incremented; one that is made again starts above all that the chip ever had. It is an
//! orderly one: counted in the chip's memory and written down each few hundred times, since the cells bear some 100,000 writes, which is three
//! weeks of a new key every 15 s. After a loss of power it goes on above what may have been said, with a gap.

use std::fs::File;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use quorate_net::holder::{Vault, VaultError};
use quorate_wire::identity::{P256Key, p256_signature};
use quorate_wire::{Digest, IdentityKey, Signature};
use tss_esapi::attributes::{NvIndexAttributes, NvIndexAttributesBuilder, ObjectAttributesBuilder};
use tss_esapi::constants::NvIndexType;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::constants::tss::{TPM2_RH_NULL, TPM2_ST_HASHCHECK};
use tss_esapi::handles::{KeyHandle, NvIndexHandle, NvIndexTpmHandle, TpmHandle};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Auth, EccParameter, EccPoint, EccScheme, HashScheme, HashcheckTicket,
    KeyDerivationFunctionScheme, NvPublicBuilder, Public, PublicBuilder,
    PublicEccParametersBuilder, Signature as ChipSignature, SignatureScheme,
};
use tss_esapi::tss2_esys::TPMT_TK_HASHCHECK;
use tss_esapi::{Context, TctiNameConf};

use super::file::Named;

/// Where counters are: indices that are the owner's to give (TCG, Registry of Reserved TPM 2.0 Handles, 2.2.2), from an arbitrary one on.
const FIRST_INDEX: u32 = 0x0180_5100;
const INDICES: u32 = 256;
const COUNTER_BYTES: u16 = 8;

/// A key and its counter in a TPM that is open.
#[derive(Debug)]
pub struct Chip {
    context: Context,
    key: KeyHandle,
    counter: NvIndexHandle,
    identity: IdentityKey,
    last: u64,
    /// Held as long as this is.
    _lock: File,
}

/// Makes a key and a counter, and the file that names them.
pub fn enroll(tcti: &str, path: &Path) -> Result<IdentityKey> {
    if path.exists() {
        bail!(
            "{} is there already, and a key is not overwritten",
            path.display()
        );
    }
    let (mut label, mut secret) = ([0; 32], [0; 32]);
    for random in [&mut label, &mut secret] {
        getrandom::fill(random)
            .map_err(|e| anyhow!("the operating system gives no randomness: {e}"))?;
    }
    let mut context = connect(tcti)?;
    let (_, key) = make_key(&mut context, &label, &secret)?;
    let (index, counter) = make_counter(&mut context, &secret)?;
    // One that was never incremented has no value.
    let started = increment(&mut context, counter).context("can't count in the TPM");
    let named = Named {
        key,
        index,
        label,
        secret,
    };
    let done = started.and_then(|()| named.save(path));
    if done.is_err() {
        // What nobody can name would keep its place for ever.
        let _ = with_password(&mut context, |c| {
            c.nv_undefine_space(Provision::Owner, counter)
        });
    }
    done.map(|()| key)
}

impl Chip {
    /// Opens what the file names, in the chip at `tcti`.
    pub fn open(tcti: &str, path: &Path) -> Result<Chip> {
        let (named, lock) = Named::load(path)?;
        let shown = path.display();
        let mut context = connect(tcti)?;
        let (key, identity) = make_key(&mut context, &named.label, &named.secret)?;
        if identity != named.key {
            bail!(
                "the TPM at {tcti} does not have the key that {shown} names: it is another TPM, or was cleared. A key that was cleared \
                 is lost, and its replica needs another one, in a new group file"
            );
        }
        let counter = find_counter(&mut context, named.index, &named.secret).with_context(|| {
            format!(
                "the TPM at {tcti} does not have the counter that {shown} names, at 0x{:08x}: nothing is signed without it",
                named.index
            )
        })?;
        let last = read(&mut context, counter).context("can't read the counter in the TPM")?;
        Ok(Chip {
            context,
            key,
            counter,
            identity,
            last,
            _lock: lock,
        })
    }

    /// The number of the newest statement, or above it.
    pub fn last(&self) -> u64 {
        self.last
    }

    fn count(&mut self) -> Result<u64> {
        increment(&mut self.context, self.counter).context("can't count in the TPM")?;
        let found = read(&mut self.context, self.counter);
        let found = found.context("can't read the counter in the TPM")?;
        // Not a number twice, and none that somebody else may have.
        if self.last.checked_add(1) != Some(found) {
            bail!(
                "the counter in the TPM says {found} where this process has counted to {}: somebody else counts with it, or the \
                 TPM was set back. Nothing is signed any more",
                self.last
            );
        }
        self.last = found;
        Ok(found)
    }

    fn signed(&mut self, digest: &Digest) -> Result<Signature> {
        let key = self.key;
        let said = tss_esapi::structures::Digest::try_from(&digest.0[..])?;
        let ticket = HashcheckTicket::try_from(TPMT_TK_HASHCHECK {
            tag: TPM2_ST_HASHCHECK,
            hierarchy: TPM2_RH_NULL,
            digest: Default::default(),
        })?;
        let made = with_password(&mut self.context, |c| c.sign(key, said, scheme(), ticket));
        let ChipSignature::EcDsa(made) = made.context("the TPM does not sign")? else {
            bail!("the TPM signs in another way than it was asked to");
        };
        let (r, s) = (made.signature_r().value(), made.signature_s().value());
        let signature = p256_signature(r, s);
        // A chip can err, and then nobody would take the replica's word.
        signature
            .filter(|signature| self.identity.verify(digest, signature).is_ok())
            .context("the TPM's signature is not its key's")
    }
}

impl Vault for Chip {
    fn identity(&self) -> IdentityKey {
        self.identity
    }

    fn advance(&mut self) -> Result<u64, VaultError> {
        self.count().map_err(|e| VaultError::Device(e.into()))
    }

    fn sign(&mut self, digest: &Digest) -> Result<Signature, VaultError> {
        self.signed(digest)
            .map_err(|e| VaultError::Device(e.into()))
    }
}

fn connect(tcti: &str) -> Result<Context> {
    let name = TctiNameConf::from_str(tcti).map_err(|_| {
        anyhow!("--tpm {tcti:?}: write it as device:/dev/tpmrm0, or swtpm:host=127.0.0.1,port=2321")
    })?;
    Context::new(name).with_context(|| {
        format!(
            "no TPM answers at {tcti}: is it there, and may this user open it (the group `tss`)?"
        )
    })
}

fn with_password<T>(
    context: &mut Context,
    run: impl FnOnce(&mut Context) -> tss_esapi::Result<T>,
) -> tss_esapi::Result<T> {
    context.execute_with_session(Some(AuthSession::Password), run)
}

fn scheme() -> SignatureScheme {
    SignatureScheme::EcDsa {
        hash_scheme: HashScheme::new(HashingAlgorithm::Sha256),
    }
}

/// A key for signatures that this chip alone can have, which asks for the secret.
fn template(label: &[u8; 32]) -> tss_esapi::Result<Public> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
        .with_user_with_auth(true)
        // The secret can't be guessed; and who tries must not lock this key holder out.
        .with_no_da(true)
        .with_sign_encrypt(true)
        .build()?;
    let parameters = PublicEccParametersBuilder::new()
        .with_ecc_scheme(EccScheme::EcDsa(HashScheme::new(HashingAlgorithm::Sha256)))
        .with_curve(EccCurve::NistP256)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .with_is_signing_key(true)
        .with_is_decryption_key(false)
        .with_restricted(false)
        .build()?;
    let unique = EccPoint::new(EccParameter::try_from(&label[..])?, EccParameter::default());
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_ecc_parameters(parameters)
        .with_ecc_unique_identifier(unique)
        .build()
}

fn make_key(
    context: &mut Context,
    label: &[u8; 32],
    secret: &[u8; 32],
) -> Result<(KeyHandle, IdentityKey)> {
    let template = template(label)?;
    let auth = Auth::try_from(&secret[..])?;
    let made = with_password(context, |c| {
        c.create_primary(Hierarchy::Owner, template, Some(auth), None, None, None)
    });
    let made = made.context(
        "the TPM makes no key: its owner hierarchy must be enabled, and have no password of its own",
    )?;
    let Public::Ecc { unique, .. } = &made.out_public else {
        bail!("the TPM makes another kind of key than it was asked for");
    };
    let key = P256Key::from_coordinates(unique.x().value(), unique.y().value())
        .map_err(|_| anyhow!("the TPM's key is no point of the curve P-256"))?;
    Ok((made.key_handle, IdentityKey::P256(key)))
}

/// What a counter is: whoever has the secret may count and read, and nobody may write.
fn attributes() -> tss_esapi::Result<NvIndexAttributes> {
    NvIndexAttributesBuilder::new()
        .with_nv_index_type(NvIndexType::Counter)
        .with_auth_write(true)
        .with_auth_read(true)
        .with_no_da(true)
        .with_orderly(true)
        .build()
}

fn make_counter(context: &mut Context, secret: &[u8; 32]) -> Result<(u32, NvIndexHandle)> {
    for index in FIRST_INDEX..FIRST_INDEX + INDICES {
        let public = NvPublicBuilder::new()
            .with_nv_index(NvIndexTpmHandle::new(index)?)
            .with_index_name_algorithm(HashingAlgorithm::Sha256)
            .with_index_attributes(attributes()?)
            .with_data_area_size(usize::from(COUNTER_BYTES))
            .build()?;
        let auth = Auth::try_from(&secret[..])?;
        let made = with_password(context, |c| {
            c.nv_define_space(Provision::Owner, Some(auth), public)
        });
        match made {
            Ok(handle) => return Ok((index, handle)),
            Err(tss_esapi::Error::Tss2Error(code))
                if code.kind() == Some(Tss2ResponseCodeKind::NvDefined) => {}
            Err(e) => return Err(e).context("the TPM has no room for a counter"),
        }
    }
    bail!(
        "the TPM has {INDICES} counters of key holders already: see `tpm2_getcap handles-nv-index`"
    )
}

/// The counter at an index, if that is one that nobody can write.
fn find_counter(context: &mut Context, index: u32, secret: &[u8; 32]) -> Result<NvIndexHandle> {
    let index = TpmHandle::NvIndex(NvIndexTpmHandle::new(index)?);
    let object = context.execute_without_session(|c| c.tr_from_tpm_public(index))?;
    let counter = NvIndexHandle::from(object);
    let (public, _) = context.execute_without_session(|c| c.nv_read_public(counter))?;
    // It has been written since it was made.
    let written = NvIndexAttributesBuilder::with_attributes(attributes()?).with_written(true);
    let written = written.build()?;
    if public.attributes() != written || public.data_size() != usize::from(COUNTER_BYTES) {
        bail!("what is there is another kind of index");
    }
    context.tr_set_auth(object, Auth::try_from(&secret[..])?)?;
    Ok(counter)
}

fn increment(context: &mut Context, counter: NvIndexHandle) -> Result<()> {
    let counted = with_password(context, |c| {
        c.nv_increment(NvAuth::NvIndex(counter), counter)
    });
    Ok(counted?)
}

fn read(context: &mut Context, counter: NvIndexHandle) -> Result<u64> {
    let read = with_password(context, |c| {
        c.nv_read(NvAuth::NvIndex(counter), counter, COUNTER_BYTES, 0)
    });
    let bytes = <[u8; 8]>::try_from(read?.value()).context("a counter has eight bytes")?;
    Ok(u64::from_be_bytes(bytes))
}
