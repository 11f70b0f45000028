//! A client of NFS version 3 (RFC 1813), for servers that are compared with each other: what they are asked is the same to the byte, and nothing
//! is cached here. Large reads and writes are several at a time, as a kernel has them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use quorate_nfs::call;
use quorate_nfs::rpc::LAST;
use quorate_nfs::xdr::{Reader, Writer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use crate::rpc::{MNT, MOUNT, read_reply, write_call};

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is moved by one call at most, as Linux has it; less where the server says so.
const IO_BYTES: u32 = 1 << 20;
/// Calls under way.
const WINDOW: usize = 8;
/// The longest reply: what is read by one call, and some words around.
const MAX_REPLY_BYTES: usize = IO_BYTES as usize + 4096;
/// The longest file handle (`NFS3_FHSIZE`).
const MAX_HANDLE_BYTES: usize = 64;
/// Bytes of a `fattr3`, and of a `wcc_attr`.
const ATTR_BYTES: usize = 84;
const VERSION_BYTES: usize = 24;

/// Where a server is, and what of it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// NFS.
    pub nfs: SocketAddr,
    /// MOUNT.
    pub mount: SocketAddr,
    /// The export.
    pub path: String,
}

/// A file or a directory, by its handle.
pub type Handle = Bytes;

/// A mounted export.
#[derive(Debug)]
pub struct Nfs {
    calls: Calls,
    /// The directory that was mounted.
    pub root: Handle,
    io_bytes: u32,
}

impl Nfs {
    /// Mounts an export.
    ///
    /// # Errors
    /// Where the server can't be reached or refuses.
    pub fn mount(at: &Endpoint) -> Result<Nfs> {
        let mut w = Writer::default();
        w.opaque(at.path.as_bytes());
        let mut reply = Calls::connect(at.mount)?.call((MOUNT, MNT), &w.out)?;
        let status = reply.u32()?;
        ensure!(status == 0, "MOUNT of {} is refused: {status}", at.path);
        let root = handle(&mut reply)?;
        let mut nfs = Nfs {
            calls: Calls::connect(at.nfs)?,
            root: root.clone(),
            io_bytes: IO_BYTES,
        };
        let mut info = nfs.call(Procedure::FsInfo, &object(&root))?;
        attributes(&mut info)?;
        let [_, read, _, _, write] = [(); 5].map(|()| info.u32());
        nfs.io_bytes = read?.min(write?).clamp(4096, IO_BYTES);
        Ok(nfs)
    }

    /// Makes a file, which must not be there.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn create(&mut self, directory: &Handle, name: &str) -> Result<Handle> {
        const GUARDED: u32 = 1;
        const MODE: u32 = 0o644;
        let mut w = place(directory, name);
        [GUARDED, 1, MODE].into_iter().for_each(|word| w.u32(word));
        // No owner, group, size or times.
        w.fixed(&[0; 20]);
        let mut made = self.call(Procedure::Create, &w.out)?;
        ensure!(made.bool()?, "CREATE gave no handle");
        handle(&mut made)
    }

    /// Takes a file's name away.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn remove(&mut self, directory: &Handle, name: &str) -> Result<()> {
        let w = place(directory, name);
        self.call(Procedure::Remove, &w.out).map(drop)
    }

    /// A file's length.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn len(&mut self, file: &Handle) -> Result<u64> {
        let mut attr = self.call(Procedure::GetAttr, &object(file))?;
        // Type, mode, links, user and group come before it.
        attr.array::<20>()?;
        Ok(attr.u64()?)
    }

    /// How many bytes one call moves.
    pub fn io_bytes(&self) -> usize {
        self.io_bytes as usize
    }

    /// Reads from several places, as much as one call moves from each but for the end of the file; `take` gets them as they come.
    ///
    /// # Errors
    /// Where the server refuses or gives less, and those of `take`.
    pub fn read(
        &mut self,
        file: &Handle,
        places: impl Iterator<Item = (u64, usize)>,
        mut take: impl FnMut(u64, Bytes) -> Result<()>,
    ) -> Result<()> {
        let calls = places.map(|(offset, len)| {
            let mut w = Writer::default();
            w.opaque(file);
            w.u64(offset);
            w.u32(len as u32);
            ((offset, len), w.out)
        });
        self.several(Procedure::Read, calls, |(offset, len), mut reply| {
            attributes(&mut reply)?;
            let (count, _end) = (reply.u32()?, reply.bool()?);
            let data = reply.opaque(MAX_REPLY_BYTES, "data")?;
            ensure!(
                count as usize == len && data.len() == len,
                "READ gave {} bytes in place of {len}",
                data.len()
            );
            take(offset, data)
        })
    }

    /// Writes at several places, as much as one call moves at most at each. It is durable after [`Nfs::commit`].
    ///
    /// # Errors
    /// Where the server refuses or takes less.
    pub fn write(
        &mut self,
        file: &Handle,
        blocks: impl Iterator<Item = (u64, Vec<u8>)>,
    ) -> Result<()> {
        const UNSTABLE: u32 = 0;
        let calls = blocks.map(|(offset, data)| {
            let mut w = Writer::with_capacity(data.len() + 128);
            w.opaque(file);
            w.u64(offset);
            w.u32(data.len() as u32);
            w.u32(UNSTABLE);
            w.opaque(&data);
            (data.len(), w.out)
        });
        self.several(Procedure::Write, calls, |len, mut reply| {
            changes(&mut reply)?;
            let count = reply.u32()?;
            ensure!(
                count as usize == len,
                "WRITE took {count} bytes in place of {len}"
            );
            Ok(())
        })
    }

    /// Has the server make durable what was written.
    ///
    /// # Errors
    /// Where it refuses.
    pub fn commit(&mut self, file: &Handle) -> Result<()> {
        let mut w = Writer::default();
        w.opaque(file);
        // From the beginning, all of it.
        w.u64(0);
        w.u32(0);
        self.call(Procedure::Commit, &w.out).map(drop)
    }

    fn call(&mut self, procedure: Procedure, arguments: &[u8]) -> Result<Reader> {
        let whole = (call::PROGRAM, procedure as u32);
        let reply = self.calls.call(whole, arguments)?;
        succeeded(procedure, reply)
    }

    /// Makes calls, some at a time, and gives each reply with what its call was said to be.
    fn several<T>(
        &mut self,
        procedure: Procedure,
        calls: impl Iterator<Item = (T, Vec<u8>)>,
        mut take: impl FnMut(T, Reader) -> Result<()>,
    ) -> Result<()> {
        let mut calls = calls;
        let mut open = BTreeMap::new();
        loop {
            while open.len() < WINDOW {
                let Some((what, arguments)) = calls.next() else {
                    break;
                };
                let whole = (call::PROGRAM, procedure as u32);
                open.insert(self.calls.send(whole, &arguments)?, what);
            }
            if open.is_empty() {
                return Ok(());
            }
            let (xid, reply) = self.calls.receive()?;
            let what = open.remove(&xid).context("a reply to no call")?;
            take(what, succeeded(procedure, reply)?)?;
        }
    }
}

/// NFS procedures, by their numbers.
#[derive(Clone, Copy, Debug)]
enum Procedure {
    GetAttr = 1,
    Read = 6,
    Write = 7,
    Create = 8,
    Remove = 12,
    FsInfo = 19,
    Commit = 21,
}

/// A connection that carries calls of RPC version 2 (RFC 5531).
#[derive(Debug)]
struct Calls {
    stream: TcpStream,
    last: u32,
}

/// From a port that is root's alone, if this is root: servers that believe whom we say we are need not believe others.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    if !rustix::process::geteuid().is_root() {
        return TcpStream::connect(address);
    }
    let cloexec = SocketFlags::CLOEXEC;
    for port in (512..1024).rev() {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, cloexec, None)?;
        let own = SocketAddr::from(([127, 0, 0, 1], port));
        match bind(&socket, &own).and_then(|()| rustix::net::connect(&socket, &address)) {
            Ok(()) => return Ok(socket.into()),
            // Another's, or of a connection that ended a moment ago.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(std::io::ErrorKind::AddrInUse.into())
}

impl Calls {
    fn connect(address: SocketAddr) -> Result<Calls> {
        let stream = connect(address).with_context(|| address.to_string())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Calls { stream, last: 0 })
    }

    fn call(&mut self, whole: (u32, u32), arguments: &[u8]) -> Result<Reader> {
        let asked = self.send(whole, arguments)?;
        let (xid, reply) = self.receive()?;
        ensure!(xid == asked, "a reply to no call");
        Ok(reply)
    }

    /// Sends a call of a program's procedure.
    fn send(&mut self, whole: (u32, u32), arguments: &[u8]) -> Result<u32> {
        self.last += 1;
        let mut call = Vec::new();
        write_call(&mut call, self.last, whole, arguments);
        self.stream.write_all(&call).context("sending a call")?;
        Ok(self.last)
    }

    /// The next reply and the number of its call.
    fn receive(&mut self) -> Result<(u32, Reader)> {
        let mut record = Vec::new();
        loop {
            let mut head = [0; 4];
            self.stream.read_exact(&mut head).context("no reply")?;
            let head = u32::from_be_bytes(head);
            let (from, len) = (record.len(), (head & !LAST) as usize);
            ensure!(from + len <= MAX_REPLY_BYTES, "a reply that is too long");
            record.resize(from + len, 0);
            self.stream
                .read_exact(&mut record[from..])
                .context("half a reply")?;
            if head & LAST != 0 {
                break;
            }
        }
        read_reply(record.into())
    }
}

fn succeeded(procedure: Procedure, mut reply: Reader) -> Result<Reader> {
    match reply.u32()? {
        0 => Ok(reply),
        status => bail!("{procedure:?} failed: {status} (RFC 1813, 2.6)"),
    }
}

fn object(handle: &Handle) -> Vec<u8> {
    let mut w = Writer::default();
    w.opaque(handle);
    w.out
}

fn place(directory: &Handle, name: &str) -> Writer {
    let mut w = Writer::default();
    w.opaque(directory);
    w.opaque(name.as_bytes());
    w
}

fn handle(r: &mut Reader) -> Result<Handle> {
    let handle = r.opaque(MAX_HANDLE_BYTES, "handle")?;
    // A copy, so that not the whole reply is kept.
    Ok(Bytes::copy_from_slice(&handle))
}

/// `post_op_attr`.
fn attributes(r: &mut Reader) -> Result<()> {
    if r.bool()? {
        r.array::<ATTR_BYTES>()?;
    }
    Ok(())
}

/// `wcc_data`.
fn changes(r: &mut Reader) -> Result<()> {
    if r.bool()? {
        r.array::<VERSION_BYTES>()?;
    }
    attributes(r)
}
