//! Who gets what: subtrees, addresses, and ids.

use nfs3_types::mount::{dirpath, export_node};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{List, Opaque, Void};
use quorate_nfs::Exports;

use crate::client::{Client, MOUNT, Server, mode, place, settings};
use crate::group::Group;

const SUBTREES: &str = r#"
[[export]]
path = "/"
secure = false
squash = "no_root_squash"

[[export]]
path = "/open/inner"
secure = false

[[export]]
path = "/shown"
secure = false
read_only = true
squash = "all_squash"
anonuid = 500
anongid = 600

[[export]]
path = "/elsewhere"
secure = false
clients = ["192.0.2.0/24", "2001:db8::/32"]

[[export]]
path = "/low"
"#;

fn start() -> (Group, Server) {
    let group = Group::start();
    let server = Server::start(&group, settings(SUBTREES));
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    let open = client.mkdir(&root, b"open").unwrap();
    for name in [b"inner", b"other"] {
        let dir = client.mkdir(&open, name).unwrap();
        client.setattr(&dir, mode(0o777), None).unwrap();
    }
    for name in [&b"shown"[..], b"elsewhere", b"low"] {
        let dir = client.mkdir(&root, name).unwrap();
        client.setattr(&dir, mode(0o777), None).unwrap();
        client.file(&dir, b"f");
    }
    (group, server)
}

/// Paths are taken as they are offered; what is not offered to this client is refused, in all ways to ask for it.
#[test]
fn mounts() {
    let (_group, server) = start();
    let mut client = Client::connect(server.address, 1000, 100);
    for path in [
        "/",
        "",
        "//",
        "/open",
        "/open/inner/",
        "/open/other",
        "/shown",
    ] {
        assert!(client.mount(path).is_ok(), "{path:?}");
    }
    let (noent, acces, notdir, inval) = (2, 13, 20, 22);
    assert_eq!(client.mount("/no"), Err(noent));
    assert_eq!(client.mount("/elsewhere"), Err(acces));
    assert_eq!(client.mount("/elsewhere/f"), Err(acces));
    assert_eq!(client.mount("/shown/f"), Err(notdir));
    assert_eq!(client.mount("/open/../elsewhere"), Err(inval));
    // From a port that anybody can have.
    assert_eq!(client.mount("/low"), Err(acces));

    let exports: List<export_node<'_, '_>> = client.call(MOUNT, 5, &Void);
    let names: Vec<_> = exports.0.iter().map(|e| e.ex_dir.0.to_vec()).collect();
    assert_eq!(names, [&b"/"[..], b"/open/inner", b"/shown", b"/low"]);
    let path = dirpath(Opaque::borrowed(b"/shown"));
    let _: Void = client.call(MOUNT, 3, &path);
    let _: Void = client.call(MOUNT, 4, &Void);
}

/// A subtree has no way up, and no handle of it names what lies outside.
#[test]
fn subtrees_are_closed() {
    let (_group, server) = start();
    let mut client = Client::connect(server.address, 1000, 100);
    let all = client.mount("/").unwrap();
    let inner = client.mount("/open/inner").unwrap();
    assert_eq!(client.lookup(&inner, b"..").unwrap().object, inner);
    let deep = client.mkdir(&inner, b"deep").unwrap();
    assert_eq!(client.lookup(&deep, b"..").unwrap().object, inner);
    let own = client.getattr(&inner).unwrap().fileid;
    for (name, fileid) in client
        .readdirplus(&inner, 0, 4000)
        .unwrap()
        .0
        .iter()
        .map(|e| (e.name.0.to_vec(), e.fileid))
    {
        assert!(name != b".." || fileid == own);
    }

    // The same directory by way of the whole volume is another handle, and the two don't mix.
    let open = client.lookup(&all, b"open").unwrap().object;
    let same = client.lookup(&open, b"inner").unwrap().object;
    assert_eq!(client.getattr(&same).unwrap().fileid, own);
    assert_ne!(same, inner);
    let file = client.file(&inner, b"f");
    let xdev = Some(nfsstat3::NFS3ERR_XDEV);
    assert_eq!(client.link(&file, (&same, b"g")).err(), xdev);
    assert_eq!(client.rename((&inner, b"f"), (&same, b"g")).err(), xdev);

    // Another object's number, or the other export's, in a handle.
    for at in 4..20 {
        let mut forged = inner.data.to_vec();
        forged[at] ^= 1;
        let forged = nfs_fh3 {
            data: Opaque::owned(forged),
        };
        assert_eq!(client.getattr(&forged).err(), Some(nfsstat3::NFS3ERR_STALE));
    }
    for bad in [vec![], vec![0; 64], vec![0xff; 36]] {
        let bad = nfs_fh3 {
            data: Opaque::owned(bad),
        };
        assert_eq!(
            client.getattr(&bad).err(),
            Some(nfsstat3::NFS3ERR_BADHANDLE)
        );
    }
}

/// What can only be read can't be changed by any call.
#[test]
fn read_only_exports() {
    let (_group, server) = start();
    let mut client = Client::connect(server.address, 0, 0);
    let dir = client.mount("/shown").unwrap();
    let file = client.lookup(&dir, b"f").unwrap().object;
    let rofs = Some(nfsstat3::NFS3ERR_ROFS);
    assert_eq!(client.write(&file, 0, b"x").err(), rofs);
    assert_eq!(client.setattr(&file, mode(0), None).err(), rofs);
    assert_eq!(client.mkdir(&dir, b"d").err(), rofs);
    assert_eq!(client.symlink(&dir, b"s", b"t").err(), rofs);
    for how in [
        createhow3::UNCHECKED(mode(0)),
        createhow3::GUARDED(mode(0)),
        createhow3::EXCLUSIVE(createverf3([1; 8])),
    ] {
        assert_eq!(client.create(&dir, b"c", how).err(), rofs);
    }
    let mknod = MKNOD3args {
        where_: place(&dir, b"p"),
        what: mknoddata3::NF3FIFO(mode(0)),
    };
    let res: MKNOD3res = client.nfs(NFS_PROGRAM::NFSPROC3_MKNOD, &mknod);
    assert_eq!(crate::client::ok(res).err(), rofs);
    assert_eq!(client.remove(&dir, b"f").err(), rofs);
    assert_eq!(client.rmdir(&dir, b"f").err(), rofs);
    assert_eq!(client.rename((&dir, b"f"), (&dir, b"g")).err(), rofs);
    assert_eq!(client.link(&file, (&dir, b"g")).err(), rofs);
    assert_eq!(client.read_file(&file, 0, 10).unwrap().0, b"");
    let args = ACCESS3args {
        object: dir,
        access: 0x3f,
    };
    let res: ACCESS3res = client.nfs(NFS_PROGRAM::NFSPROC3_ACCESS, &args);
    let allowed = crate::client::ok(res).unwrap().access;
    assert_eq!(allowed, ACCESS3_READ | ACCESS3_LOOKUP);
}

/// Callers act as who the export says.
#[test]
fn ids_are_squashed() {
    let (_group, server) = start();
    let owner = |uid: u32, gid: u32, gids: &[u32], path: &str, name: &[u8]| {
        let mut client = Client::connect(server.address, uid, gid);
        client.auth.gids = gids.to_vec();
        let dir = client.mount(path).unwrap();
        let file = client.file(&dir, name);
        let attr = client.getattr(&file).unwrap();
        (attr.uid, attr.gid)
    };
    assert_eq!(owner(0, 0, &[], "/", b"1"), (0, 0));
    assert_eq!(owner(0, 0, &[], "/open/inner", b"1"), (65534, 65534));
    assert_eq!(owner(7, 0, &[], "/open/inner", b"2"), (7, 65534));
    assert_eq!(owner(7, 8, &[0, 9], "/open/inner", b"3"), (7, 8));

    // A directory of group 0 is closed to who says that group 0 is one of his.
    let mut root = Client::connect(server.address, 0, 0);
    let inner = root.mount("/open/inner").unwrap();
    let all = root.mount("/").unwrap();
    let open = root.lookup(&all, b"open").unwrap().object;
    let same = root.lookup(&open, b"inner").unwrap().object;
    let closed = root.mkdir(&same, b"closed").unwrap();
    root.setattr(&closed, mode(0o770), None).unwrap();
    for (path_root, allowed) in [(&inner, false), (&same, true)] {
        let mut client = Client::connect(server.address, 7, 8);
        client.auth.gids = vec![0];
        let dir = client.lookup(path_root, b"closed").unwrap().object;
        assert_eq!(client.mkdir(&dir, b"x").is_ok(), allowed);
    }
}

/// Files of exports are read strictly; networks as exports(5) has them.
#[test]
fn the_file_of_exports() {
    let both = Exports::parse("[[export]]\npath = \"/a\"\n[[export]]\npath = \"/a/b\"").unwrap();
    let path = |text: &str| {
        let found = both.of_path(text.as_bytes());
        found.map(|(export, rest)| (export.text(), rest.len()))
    };
    assert_eq!(path("/a"), Some((b"/a".to_vec(), 0)));
    assert_eq!(path("/a/b/c"), Some((b"/a/b".to_vec(), 1)));
    assert_eq!(path("/a/bc"), Some((b"/a".to_vec(), 1)));
    assert_eq!(path("/ab"), None);
    assert_eq!(path("/"), None);

    let local = "127.0.0.1".parse().unwrap();
    let mapped = "::ffff:127.0.0.1".parse().unwrap();
    let other = "192.0.2.1".parse().unwrap();
    assert!(both.admit(local) && both.admit(mapped) && !both.admit(other));
    assert!(Exports::default().admit(local) && !Exports::default().admit(other));
    let with =
        |clients: &str| Exports::parse(&format!("[[export]]\npath = \"/\"\nclients = {clients}"));
    assert!(with("[\"192.0.2.0/31\"]").unwrap().admit(other));
    assert!(!with("[\"192.0.2.2/31\"]").unwrap().admit(other));
    assert!(with("[\"0.0.0.0/0\"]").unwrap().admit(other));
    assert!(!with("[\"::/0\"]").unwrap().admit(other));
    assert!(!with("[]").unwrap().admit(local));
    for wrong in [
        "",
        "[[export]]",
        "[[export]]\npath = \"a\"",
        "[[export]]\npath = \"/a/../b\"",
        "[[export]]\npath = \"/\"\n[[export]]\npath = \"//\"",
        "[[export]]\npath = \"/\"\nro = true",
        "[[export]]\npath = \"/\"\nsquash = \"some\"",
        "[[export]]\npath = \"/\"\nclients = [\"example.org\"]",
        "[[export]]\npath = \"/\"\nclients = [\"10.0.0.0/33\"]",
    ] {
        assert!(Exports::parse(wrong).is_err(), "{wrong}");
    }
}
