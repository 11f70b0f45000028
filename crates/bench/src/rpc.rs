//! Calls of RPC version 2 (RFC 5531) as the benchmarks' NFS clients send them, and the heads of replies.

use anyhow::{Result, ensure};
use bytes::Bytes;
use quorate_nfs::rpc::{MAX_RECORD_BYTES, record_head};
use quorate_nfs::xdr::{Reader, Writer};

/// The program that gives out the root's handle (RFC 1813, appendix I), and its procedure for that.
pub(crate) const MOUNT: u32 = 100_005;
pub(crate) const MNT: u32 = 1;
/// The version of all programs that are called here.
const VERSION: u32 = 3;

/// Writes a call of a program's procedure as a record, by this process's user and group.
pub(crate) fn write_call(
    out: &mut Vec<u8>,
    xid: u32,
    (program, procedure): (u32, u32),
    arguments: &[u8],
) {
    const CALL: u32 = 0;
    const RPC: u32 = 2;
    const AUTH_SYS: u32 = 1;
    /// Of the credential: a stamp, no name of a machine, user, group, no further groups.
    const CREDENTIAL_BYTES: u32 = 20;
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let mut w = Writer::with_capacity(68 + arguments.len());
    for word in [xid, CALL, RPC, program, VERSION, procedure] {
        w.u32(word);
    }
    for word in [AUTH_SYS, CREDENTIAL_BYTES, 0, 0, uid, gid, 0] {
        w.u32(word);
    }
    // Nothing verifies the caller.
    w.u64(0);
    w.fixed(arguments);
    out.extend_from_slice(&record_head(w.out.len()));
    out.extend_from_slice(&w.out);
}

/// The number and the results of a reply; it says that the procedure was called.
pub(crate) fn read_reply(record: Bytes) -> Result<(u32, Reader)> {
    const REPLY: u32 = 1;
    let mut reply = Reader::new(record);
    let xid = reply.u32()?;
    let [kind, denied, _flavor] = [reply.u32()?, reply.u32()?, reply.u32()?];
    ensure!((kind, denied) == (REPLY, 0), "the call is denied");
    reply.opaque(MAX_RECORD_BYTES, "verifier")?;
    let refused = reply.u32()?;
    ensure!(refused == 0, "the call is not served: {refused}");
    Ok((xid, reply))
}
