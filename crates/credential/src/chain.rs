//! Chains of links, and their one encoding.
//!
//! What can be derived is not carried: a link's issuer is the subject before it, its parent is the link before it. So links that
//! were left out, put in another order or taken from another chain have no form of their own: their signatures do not hold.

use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use quorate_wire::codec::{Decode, DecodeError, Encode, Reader};
use quorate_wire::digest::Content;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, KeyPair, PublicKey, Signature};

use crate::caveat::BadCaveat;
use crate::verify::{self, Refusal};
use crate::{Caveat, ObjectId, Rights, Scope, Terms, VolumeId, Window};

/// The version of the format, its first byte.
const VERSION: u8 = 1;
/// The most links of a chain.
pub const MAX_LINKS: usize = 16;
/// The most bytes of a chain.
pub const MAX_BYTES: usize = 8192;
/// The most caveats of a link.
pub const MAX_CAVEATS: usize = 8;

/// Why bytes, or what a program put together, are no chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end before the chain does.
    Truncated,
    /// Bytes are left after it.
    TrailingBytes,
    /// More than [`MAX_BYTES`].
    TooManyBytes,
    /// A version that is not known here.
    Version(u8),
    /// No link, or more than [`MAX_LINKS`].
    Links(usize),
    /// A flag that is neither 0 nor 1.
    Flag(u8),
    /// Bits that stand for no right; all of them.
    UnknownRights(u16),
    /// A time that ends before it begins.
    NoTime,
    /// More links may follow than a chain can have.
    Depth(u8),
    /// More than [`MAX_CAVEATS`].
    Caveats(u8),
    /// Caveats twice or in another order than that of their kinds.
    CaveatOrder,
    /// A kind of caveat that is not known here.
    UnknownCaveat(u8),
    /// A caveat of this kind can't say that.
    CaveatBody(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Truncated => write!(f, "the credential is cut off"),
            Malformed::TrailingBytes => write!(f, "there are bytes after the credential"),
            Malformed::TooManyBytes => write!(f, "the credential is longer than {MAX_BYTES} bytes"),
            Malformed::Version(v) => write!(f, "version {v} of the format is not known here"),
            Malformed::Links(n) => write!(f, "{n} links: a chain has 1 to {MAX_LINKS}"),
            Malformed::Flag(b) => write!(f, "{b} stands where only 0 and 1 can"),
            Malformed::UnknownRights(bits) => write!(f, "rights {bits:#06x} are not known here"),
            Malformed::NoTime => write!(f, "a link's time ends before it begins"),
            Malformed::Depth(n) => write!(f, "{n} more links are allowed than a chain can have"),
            Malformed::Caveats(n) => write!(f, "{n} caveats: a link has at most {MAX_CAVEATS}"),
            Malformed::CaveatOrder => write!(f, "a link's caveats are not in order of their kinds"),
            Malformed::UnknownCaveat(kind) => {
                write!(
                    f,
                    "a caveat of kind {kind} is not known here, so nothing is allowed"
                )
            }
            Malformed::CaveatBody(kind) => write!(f, "a caveat of kind {kind} can't say that"),
        }
    }
}

impl core::error::Error for Malformed {}

impl From<BadCaveat> for Malformed {
    fn from(bad: BadCaveat) -> Malformed {
        match bad {
            BadCaveat::Unknown(kind) => Malformed::UnknownCaveat(kind),
            BadCaveat::Body(kind) => Malformed::CaveatBody(kind),
        }
    }
}

/// Terms, and their issuer's signature over them, the volume and all links before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What it says.
    pub terms: Terms,
    /// The signature of the subject before; the first link's is the owner's.
    pub signature: Signature,
}

/// A credential: links from a volume's owner to the last subject. It has the right form; whether it holds,
/// [`Chain::verify`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    volume: VolumeId,
    owner: PublicKey,
    links: Vec<Link>,
}

impl Chain {
    /// A first link, signed by a volume's owner.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], if the terms can't be said.
    pub fn issue(volume: VolumeId, owner: &KeyPair, terms: Terms) -> Result<Chain, Refusal> {
        let chain = Chain {
            volume,
            owner: owner.public(),
            links: Vec::new(),
        };
        chain.extended(owner, terms)
    }

    /// This chain and one more link, signed by its last subject. The signatures in it are not looked at again.
    ///
    /// # Errors
    /// What keeps the terms from being a part of what the chain allows, or [`Refusal::WrongSubject`] if the chain is another key's.
    pub fn delegate(&self, holder: &KeyPair, terms: Terms) -> Result<Chain, Refusal> {
        if holder.public() != self.subject() {
            return Err(Refusal::WrongSubject);
        }
        self.extended(holder, terms)
    }

    fn extended(&self, issuer: &KeyPair, terms: Terms) -> Result<Chain, Refusal> {
        let body = body(&terms);
        let signed = signed(&self.volume, &self.subject(), &self.id(), &body);
        let mut longer = self.clone();
        longer.links.push(Link {
            terms,
            signature: issuer.sign(&signed),
        });
        verify::narrows(&longer)?;
        // A value that a program made is held to the same rules as bytes that came, by the same code.
        Chain::from_bytes(longer.to_bytes().into())?;
        Ok(longer)
    }

    /// The volume that it is for.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The key that issued the first link.
    pub fn owner(&self) -> PublicKey {
        self.owner
    }

    /// The links, the owner's first.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Who may use it, and sign the next link: the last link's subject.
    pub fn subject(&self) -> PublicKey {
        self.links
            .last()
            .map_or(self.owner, |link| link.terms.subject)
    }

    /// Who signed the link at `at`.
    pub fn issuer(&self, at: usize) -> PublicKey {
        match at.checked_sub(1).and_then(|before| self.links.get(before)) {
            Some(link) => link.terms.subject,
            None => self.owner,
        }
    }

    /// The digest that the last link's signature is over: names this chain and no other. It does not cover signatures.
    pub fn id(&self) -> Digest {
        self.digests().last().unwrap_or(Digest::ZERO)
    }

    /// What each link's signature is over, which is also how the next link names its parent.
    pub(crate) fn digests(&self) -> impl Iterator<Item = Digest> + '_ {
        let mut parent = Digest::ZERO;
        self.links.iter().enumerate().map(move |(at, link)| {
            parent = signed(&self.volume, &self.issuer(at), &parent, &body(&link.terms));
            parent
        })
    }

    /// The encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(66 + 160 * self.links.len());
        out.push(VERSION);
        self.volume.0.encode(&mut out);
        self.owner.encode(&mut out);
        out.push(self.links.len() as u8);
        for link in &self.links {
            out.extend(body(&link.terms));
            link.signature.encode(&mut out);
        }
        out
    }

    /// Reads the encoding.
    ///
    /// # Errors
    /// [`Malformed`], also for whatever is not the one form of a chain.
    pub fn from_bytes(bytes: Bytes) -> Result<Chain, Malformed> {
        if bytes.len() > MAX_BYTES {
            return Err(Malformed::TooManyBytes);
        }
        let mut r = Reader::new(bytes);
        let version: u8 = read(&mut r)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let volume = VolumeId(read(&mut r)?);
        let owner = read(&mut r)?;
        let count = usize::from(read::<u8>(&mut r)?);
        if !(1..=MAX_LINKS).contains(&count) {
            return Err(Malformed::Links(count));
        }
        let links = (0..count).map(|_| {
            Ok(Link {
                terms: terms(&mut r)?,
                signature: read(&mut r)?,
            })
        });
        let links = links.collect::<Result<_, Malformed>>()?;
        r.finish().map_err(|_| Malformed::TrailingBytes)?;
        Ok(Chain {
            volume,
            owner,
            links,
        })
    }
}

/// What a link's issuer signs.
fn signed(volume: &VolumeId, issuer: &PublicKey, parent: &Digest, body: &[u8]) -> Digest {
    let parent = match is_on(Mutant::ParentUnbound) {
        true => &Digest::ZERO,
        false => parent,
    };
    let parts = [&[VERSION][..], &volume.0.0, &issuer.0, &parent.0, body];
    Digest::of_parts(Content::CredentialLink, &parts)
}

/// A link without its signature.
fn body(terms: &Terms) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    terms.subject.encode(&mut out);
    out.extend(terms.scope.object.0.to_le_bytes());
    terms.scope.subtree.encode(&mut out);
    terms.rights.bits().encode(&mut out);
    terms.window.not_before.encode(&mut out);
    terms.window.not_after.encode(&mut out);
    terms.depth.encode(&mut out);
    terms.serial.encode(&mut out);
    // Longer ones are refused when what was made is read again.
    out.push(u8::try_from(terms.caveats.len()).unwrap_or(u8::MAX));
    for caveat in &terms.caveats {
        let body = caveat.body();
        out.push(caveat.kind());
        out.push(u8::try_from(body.len()).unwrap_or(0));
        out.extend(body);
    }
    out
}

fn terms(r: &mut Reader) -> Result<Terms, Malformed> {
    let subject = read(r)?;
    let object = ObjectId(u128::from_le_bytes(read(r)?));
    let subtree = match read(r)? {
        0 => false,
        1 => true,
        other => return Err(Malformed::Flag(other)),
    };
    let bits = read(r)?;
    let rights = Rights::from_bits(bits).ok_or(Malformed::UnknownRights(bits))?;
    let window = Window {
        not_before: read(r)?,
        not_after: read(r)?,
    };
    if window.not_before > window.not_after {
        return Err(Malformed::NoTime);
    }
    let depth = read(r)?;
    if usize::from(depth) >= MAX_LINKS {
        return Err(Malformed::Depth(depth));
    }
    Ok(Terms {
        subject,
        scope: Scope { object, subtree },
        rights,
        window,
        depth,
        serial: read(r)?,
        caveats: caveats(r)?,
    })
}

fn caveats(r: &mut Reader) -> Result<Vec<Caveat>, Malformed> {
    let count: u8 = read(r)?;
    if usize::from(count) > MAX_CAVEATS {
        return Err(Malformed::Caveats(count));
    }
    let mut caveats: Vec<Caveat> = Vec::new();
    for _ in 0..count {
        let (kind, length): (u8, u8) = (read(r)?, read(r)?);
        let body = r.take(length.into()).map_err(|_| Malformed::Truncated)?;
        let caveat = match Caveat::parse(kind, &body) {
            Err(BadCaveat::Unknown(_)) if is_on(Mutant::UnknownSkipped) => continue,
            caveat => caveat?,
        };
        if caveats.last().is_some_and(|last| last.kind() >= kind) {
            return Err(Malformed::CaveatOrder);
        }
        caveats.push(caveat);
    }
    Ok(caveats)
}

/// Reads a value of fixed length, of which all bytes are values.
fn read<T: Decode>(r: &mut Reader) -> Result<T, Malformed> {
    T::decode(r).map_err(|_: DecodeError| Malformed::Truncated)
}
