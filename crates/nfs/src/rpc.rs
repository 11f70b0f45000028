//! ONC RPC version 2 (RFC 5531): heads of calls, heads of replies, and the records that carry them over TCP.

use bytes::Bytes;

use crate::xdr::{Malformed, Read, Reader, Writer};

/// The longest record: a call that writes as much as one may, with room for its head.
pub const MAX_RECORD_BYTES: usize = quorate_files::op::MAX_IO_BYTES + 4096;
/// The most bytes of a credential or verifier (RFC 5531, 8.2).
pub const MAX_AUTH_BYTES: usize = 400;
/// The longest name of a machine in a credential (RFC 5531, appendix A).
pub const MAX_MACHINE_BYTES: usize = 255;
/// The most groups in a credential.
pub const MAX_GROUPS: usize = 16;

/// Who calls, as he says himself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// He does not say.
    None,
    /// `AUTH_SYS`: whatever his machine asserts.
    Sys {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Further groups, at most 16.
        groups: Vec<u32>,
    },
}

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What the reply is to be marked with.
    pub xid: u32,
    /// Which program.
    pub program: u32,
    /// Which version of it.
    pub version: u32,
    /// Which procedure.
    pub procedure: u32,
    /// On whose behalf.
    pub credential: Credential,
}

/// Why a call is refused before its program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This is no call; nothing can be answered.
    NoCall,
    /// Another version of RPC.
    Version {
        /// Of the call.
        xid: u32,
    },
    /// A credential that is not one, or of a kind that is not taken.
    Credential {
        /// Of the call.
        xid: u32,
        /// `auth_stat`.
        why: u32,
    },
}

/// `auth_stat`: the credential is not one.
const AUTH_BADCRED: u32 = 1;
/// `auth_stat`: credentials of this kind are not taken.
const AUTH_TOOWEAK: u32 = 5;

/// Reads the head of a call; what is left are its arguments.
///
/// # Errors
/// [`Refused`].
pub fn read_head(r: &mut Reader) -> Result<Head, Refused> {
    const CALL: u32 = 0;
    let (xid, kind) = pair(r).map_err(|_| Refused::NoCall)?;
    if kind != CALL {
        return Err(Refused::NoCall);
    }
    let version = r.u32().map_err(|_| Refused::NoCall)?;
    if version != 2 {
        return Err(Refused::Version { xid });
    }
    let (program, version) = pair(r).map_err(|_| Refused::NoCall)?;
    let procedure = r.u32().map_err(|_| Refused::NoCall)?;
    let bad = |why| Refused::Credential { xid, why };
    let (flavor, body) = auth(r).map_err(|_| bad(AUTH_BADCRED))?;
    let credential = match flavor {
        0 => Credential::None,
        1 => sys(body).map_err(|_| bad(AUTH_BADCRED))?,
        _ => return Err(bad(AUTH_TOOWEAK)),
    };
    // The verifier: there is nothing to verify in either kind.
    auth(r).map_err(|_| bad(AUTH_BADCRED))?;
    Ok(Head {
        xid,
        program,
        version,
        procedure,
        credential,
    })
}

fn pair(r: &mut Reader) -> Read<(u32, u32)> {
    Ok((r.u32()?, r.u32()?))
}

fn auth(r: &mut Reader) -> Read<(u32, Bytes)> {
    Ok((r.u32()?, r.opaque(MAX_AUTH_BYTES, "credential")?))
}

fn sys(body: Bytes) -> Read<Credential> {
    let r = &mut Reader::new(body);
    let _stamp = r.u32()?;
    let _machine = r.opaque(MAX_MACHINE_BYTES, "machine name")?;
    let (uid, gid) = pair(r)?;
    let count = r.u32()? as usize;
    if count > MAX_GROUPS {
        return Err(Malformed::TooLong("groups"));
    }
    let groups = (0..count).map(|_| r.u32()).collect::<Read<_>>()?;
    Ok(Credential::Sys { uid, gid, groups })
}

/// What is said of a call that came to its program, or did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Results follow.
    Success,
    /// There is no such program.
    NoProgram,
    /// There is only this version of it.
    OtherVersion(u32),
    /// There is no such procedure.
    NoProcedure,
    /// The arguments are not its arguments.
    Garbage,
}

/// The head of a reply, in a writer that goes on with the results.
pub fn accepted(xid: u32, accepted: Accepted, room: usize) -> Writer {
    let mut w = Writer::with_capacity(24 + room);
    write_accepted(&mut w, xid, accepted);
    w
}

/// The same, after what was written already.
pub fn write_accepted(w: &mut Writer, xid: u32, accepted: Accepted) {
    w.u32(xid);
    // A reply, accepted, with no verifier.
    [1, 0, 0, 0].into_iter().for_each(|word| w.u32(word));
    match accepted {
        Accepted::Success => w.u32(0),
        Accepted::NoProgram => w.u32(1),
        Accepted::OtherVersion(version) => [2, version, version].into_iter().for_each(|n| w.u32(n)),
        Accepted::NoProcedure => w.u32(3),
        Accepted::Garbage => w.u32(4),
    }
}

/// The reply to a refused call; nothing for what is no call.
pub fn denied(refused: Refused) -> Option<Writer> {
    let mut w = Writer::default();
    let words: &[u32] = match refused {
        Refused::NoCall => return None,
        Refused::Version { xid } => &[xid, 1, 1, 0, 2, 2],
        Refused::Credential { xid, why } => &[xid, 1, 1, 1, why],
    };
    words.iter().for_each(|&word| w.u32(word));
    Some(w)
}

/// Set in the head of the last fragment of a record; the rest is the fragment's length.
pub const LAST: u32 = 1 << 31;

/// The head of a record that is one fragment.
pub fn record_head(len: usize) -> [u8; 4] {
    (LAST | len as u32).to_be_bytes()
}
