//! A client with another hand's encoding of the protocol, and fronts of a group in this process.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;

use nfs3_types::mount::{dirpath, mountres3};
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{
    accept_stat_data, auth_unix, call_body, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use quorate_client::Volume;
use quorate_files::Ino;
use quorate_nfs::{Answers, Carried, Exports, Front, Parsed, Peer, Secrets, Settings, serve};
use quorate_wire::Digest;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::group::Group;

pub const NFS: (u32, u32) = (100_003, 3);
pub const MOUNT: (u32, u32) = (100_005, 3);

/// Everything, to whoever asks on this machine, with all rights.
pub const OPEN: &str = "[[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"";

/// A front that ends with the value.
pub struct Server {
    pub address: SocketAddr,
    /// From where clients were that have left.
    pub left: mpsc::Receiver<SocketAddr>,
    task: AbortHandle,
}

/// A front that tells which clients have left.
struct Watched {
    front: Arc<Front>,
    left: mpsc::Sender<SocketAddr>,
}

impl Answers for Watched {
    type Call = Parsed;

    fn admits(&self, address: IpAddr) -> bool {
        self.front.admits(address)
    }

    async fn carry(self: &Arc<Self>, stream: tokio::net::TcpStream, peer: SocketAddr) -> Carried {
        self.front.carry(stream, peer).await
    }

    fn left(&self, peer: Peer) {
        self.front.left(peer);
        let _ = self.left.send(peer.address);
    }

    fn parse(&self, record: Bytes) -> Option<Parsed> {
        self.front.parse(record)
    }

    fn reply_bytes(&self, call: &Parsed) -> usize {
        call.reply_bytes()
    }

    async fn answer(self: &Arc<Self>, peer: Peer, call: Parsed) -> Vec<u8> {
        self.front.answer(peer, call).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn settings(exports: &str) -> Settings {
    Settings {
        exports: Exports::parse(exports).unwrap(),
        root: Ino::ROOT,
        secrets: Secrets::new(&[1; 32], &Digest([2; 32])),
        patience: Duration::from_secs(20),
    }
}

pub fn volume(group: &Group) -> Volume {
    Volume::new(group.session(1))
}

impl Server {
    pub fn start(group: &Group, settings: Settings) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0");
        let listener = group.runtime.block_on(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, left) = mpsc::channel();
        let front = Watched {
            front: Arc::new(Front::new(volume(group), settings)),
            left: sender,
        };
        let task = group.runtime.spawn(serve(listener, front)).abort_handle();
        Server {
            address,
            left,
            task,
        }
    }

    pub fn open(group: &Group) -> Server {
        Server::start(group, settings(OPEN))
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub xid: u32,
    pub auth: auth_unix,
}

/// What is sent again is the same to the byte.
pub fn record(
    xid: u32,
    (prog, vers): (u32, u32),
    proc: u32,
    auth: &auth_unix,
    args: &impl Pack,
) -> Vec<u8> {
    let call = rpc_msg {
        xid,
        body: msg_body::CALL(call_body {
            rpcvers: 2,
            prog,
            vers,
            proc,
            cred: opaque_auth::auth_unix(auth),
            verf: opaque_auth::default(),
        }),
    };
    let mut out = vec![0; 4];
    call.pack(&mut out).unwrap();
    args.pack(&mut out).unwrap();
    let head = 1 << 31 | (out.len() as u32 - 4);
    out[..4].copy_from_slice(&head.to_be_bytes());
    out
}

impl Client {
    pub fn connect(address: SocketAddr, uid: u32, gid: u32) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            stream,
            xid: 1,
            auth: auth_unix {
                uid,
                gid,
                machinename: Opaque::borrowed(b"test"),
                ..auth_unix::default()
            },
        }
    }

    pub fn send(&mut self, program: (u32, u32), proc: u32, args: &impl Pack) -> u32 {
        self.xid += 1;
        let record = record(self.xid, program, proc, &self.auth, args);
        self.stream.write_all(&record).unwrap();
        self.xid
    }

    /// The next reply, whose call had this number.
    pub fn receive(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).unwrap();
        let head = u32::from_be_bytes(head);
        assert!(head >> 31 == 1, "replies are one fragment");
        let mut reply = vec![0; (head & !(1 << 31)) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        let xid = u32::from_be_bytes([reply[0], reply[1], reply[2], reply[3]]);
        (xid, reply)
    }

    pub fn results(reply: &[u8]) -> (accept_stat_data, &[u8]) {
        let mut rest = reply;
        let (message, _) = rpc_msg::unpack(&mut rest).unwrap();
        match message.body {
            msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) => (accepted.reply_data, rest),
            other => panic!("{other:?}"),
        }
    }

    pub fn read<T: Unpack>(reply: &[u8]) -> T {
        let (stat, mut rest) = Client::results(reply);
        assert!(matches!(stat, accept_stat_data::SUCCESS), "{stat:?}");
        let (value, _) = T::unpack(&mut rest).unwrap();
        assert!(rest.is_empty(), "{} bytes too many", rest.len());
        value
    }

    pub fn call<T: Unpack>(&mut self, program: (u32, u32), proc: u32, args: &impl Pack) -> T {
        let xid = self.send(program, proc, args);
        let (answered, reply) = self.receive();
        assert_eq!(answered, xid);
        Client::read(&reply)
    }

    pub fn nfs<T: Unpack>(&mut self, proc: NFS_PROGRAM, args: &impl Pack) -> T {
        self.call(NFS, proc as u32, args)
    }

    pub fn mount(&mut self, path: &str) -> Result<nfs_fh3, u32> {
        let path = dirpath(Opaque::borrowed(path.as_bytes()));
        match self.call::<mountres3<'_>>(MOUNT, 1, &path) {
            mountres3::Ok(ok) => Ok(nfs_fh3 {
                data: Opaque::owned(ok.fhandle.0.to_vec()),
            }),
            mountres3::Err(status) => Err(status as u32),
        }
    }

    // What tests ask for most.

    pub fn getattr(&mut self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let args = GETATTR3args {
            object: object.clone(),
        };
        let res: GETATTR3res = self.nfs(NFS_PROGRAM::NFSPROC3_GETATTR, &args);
        ok(res).map(|ok| ok.obj_attributes)
    }

    pub fn lookup(&mut self, dir: &nfs_fh3, name: &[u8]) -> Result<LOOKUP3resok, nfsstat3> {
        let what = place(dir, name);
        let res: LOOKUP3res = self.nfs(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what });
        ok(res)
    }

    pub fn create(
        &mut self,
        dir: &nfs_fh3,
        name: &[u8],
        how: createhow3,
    ) -> Result<CREATE3resok, nfsstat3> {
        let args = CREATE3args {
            where_: place(dir, name),
            how,
        };
        let res: CREATE3res = self.nfs(NFS_PROGRAM::NFSPROC3_CREATE, &args);
        ok(res)
    }

    pub fn file(&mut self, dir: &nfs_fh3, name: &[u8]) -> nfs_fh3 {
        let how = createhow3::GUARDED(mode(0o644));
        self.create(dir, name, how).unwrap().obj.unwrap()
    }

    pub fn mkdir(&mut self, dir: &nfs_fh3, name: &[u8]) -> Result<nfs_fh3, nfsstat3> {
        let args = MKDIR3args {
            where_: place(dir, name),
            attributes: mode(0o755),
        };
        let res: MKDIR3res = self.nfs(NFS_PROGRAM::NFSPROC3_MKDIR, &args);
        ok(res).map(|ok| ok.obj.unwrap())
    }

    pub fn write(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
    ) -> Result<WRITE3resok, nfsstat3> {
        let res: WRITE3res = self.nfs(NFS_PROGRAM::NFSPROC3_WRITE, &write(file, offset, data));
        ok(res)
    }

    pub fn read_file(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        let args = READ3args {
            file: file.clone(),
            offset,
            count,
        };
        let res: READ3res<'_> = self.nfs(NFS_PROGRAM::NFSPROC3_READ, &args);
        ok(res).map(|ok| (ok.data.into_owned(), ok.eof))
    }

    pub fn setattr(
        &mut self,
        object: &nfs_fh3,
        new: sattr3,
        guard: Option<nfstime3>,
    ) -> Result<wcc_data, nfsstat3> {
        let args = SETATTR3args {
            object: object.clone(),
            new_attributes: new,
            guard: option(guard),
        };
        let res: SETATTR3res = self.nfs(NFS_PROGRAM::NFSPROC3_SETATTR, &args);
        ok(res).map(|ok| ok.obj_wcc)
    }

    pub fn remove(&mut self, dir: &nfs_fh3, name: &[u8]) -> Result<wcc_data, nfsstat3> {
        let args = REMOVE3args {
            object: place(dir, name),
        };
        let res: REMOVE3res = self.nfs(NFS_PROGRAM::NFSPROC3_REMOVE, &args);
        ok(res).map(|ok| ok.dir_wcc)
    }

    pub fn rmdir(&mut self, dir: &nfs_fh3, name: &[u8]) -> Result<wcc_data, nfsstat3> {
        let args = RMDIR3args {
            object: place(dir, name),
        };
        let res: RMDIR3res = self.nfs(NFS_PROGRAM::NFSPROC3_RMDIR, &args);
        ok(res).map(|ok| ok.dir_wcc)
    }

    pub fn rename(
        &mut self,
        from: (&nfs_fh3, &[u8]),
        to: (&nfs_fh3, &[u8]),
    ) -> Result<RENAME3resok, nfsstat3> {
        let args = RENAME3args {
            from: place(from.0, from.1),
            to: place(to.0, to.1),
        };
        let res: RENAME3res = self.nfs(NFS_PROGRAM::NFSPROC3_RENAME, &args);
        ok(res)
    }

    pub fn link(&mut self, file: &nfs_fh3, to: (&nfs_fh3, &[u8])) -> Result<LINK3resok, nfsstat3> {
        let args = LINK3args {
            file: file.clone(),
            link: place(to.0, to.1),
        };
        let res: LINK3res = self.nfs(NFS_PROGRAM::NFSPROC3_LINK, &args);
        ok(res)
    }

    pub fn symlink(
        &mut self,
        dir: &nfs_fh3,
        name: &[u8],
        target: &[u8],
    ) -> Result<nfs_fh3, nfsstat3> {
        let args = SYMLINK3args {
            where_: place(dir, name),
            symlink: symlinkdata3 {
                symlink_attributes: sattr3::default(),
                symlink_data: nfspath3(Opaque::borrowed(target)),
            },
        };
        let res: SYMLINK3res = self.nfs(NFS_PROGRAM::NFSPROC3_SYMLINK, &args);
        ok(res).map(|ok| ok.obj.unwrap())
    }

    pub fn readdirplus(
        &mut self,
        dir: &nfs_fh3,
        cookie: u64,
        maxcount: u32,
    ) -> Result<(Vec<entryplus3<'static>>, bool), nfsstat3> {
        let args = READDIRPLUS3args {
            dir: dir.clone(),
            cookie,
            cookieverf: cookieverf3::default(),
            dircount: maxcount,
            maxcount,
        };
        let res: READDIRPLUS3res<'static> = self.nfs(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &args);
        ok(res).map(|ok| (ok.reply.entries.0, ok.reply.eof))
    }

    pub fn readdir(
        &mut self,
        dir: &nfs_fh3,
        cookie: u64,
        count: u32,
    ) -> Result<(Vec<entry3<'static>>, bool), nfsstat3> {
        let args = READDIR3args {
            dir: dir.clone(),
            cookie,
            cookieverf: cookieverf3::default(),
            count,
        };
        let res: READDIR3res<'static> = self.nfs(NFS_PROGRAM::NFSPROC3_READDIR, &args);
        ok(res).map(|ok| (ok.reply.entries.0, ok.reply.eof))
    }
}

pub fn ok<T, E>(res: Nfs3Result<T, E>) -> Result<T, nfsstat3> {
    match res {
        Nfs3Result::Ok(value) => Ok(value),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub fn option<T: Pack + Unpack>(value: Option<T>) -> Nfs3Option<T> {
    match value {
        Some(value) => Nfs3Option::Some(value),
        None => Nfs3Option::None,
    }
}

pub fn place(dir: &nfs_fh3, name: &[u8]) -> diropargs3<'static> {
    diropargs3 {
        dir: dir.clone(),
        name: name.to_vec().into(),
    }
}

pub fn write(file: &nfs_fh3, offset: u64, data: &[u8]) -> WRITE3args<'static> {
    WRITE3args {
        file: file.clone(),
        offset,
        count: data.len() as u32,
        stable: stable_how::UNSTABLE,
        data: Opaque::owned(data.to_vec()),
    }
}

pub fn mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

pub fn size(size: u64) -> sattr3 {
    sattr3 {
        size: Nfs3Option::Some(size),
        ..sattr3::default()
    }
}
