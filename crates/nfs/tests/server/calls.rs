//! What each procedure does, by its reply.

use std::collections::BTreeSet;

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Void;

use crate::client::{Client, MOUNT, NFS, Server, mode, ok, option, place, size, write};
use crate::group::{CAPACITY, Group, noise};

fn start() -> (Group, Server, Client, nfs_fh3) {
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    (group, server, client, root)
}

/// The version of before is that of after, one change ago.
fn assert_changed(wcc: &wcc_data, before: &fattr3) {
    let (Nfs3Option::Some(pre), Nfs3Option::Some(post)) = (&wcc.before, &wcc.after) else {
        panic!("{wcc:?}");
    };
    assert_eq!((pre.size, pre.ctime), (before.size, before.ctime));
    assert_eq!(pre.mtime, before.mtime);
    assert_ne!(post.ctime, before.ctime);
}

/// The life of files: made, written, read, cut, moved, linked, removed; and each change tells what was before it.
#[test]
fn files_live() {
    let (_group, _server, mut client, root) = start();
    let before = client.getattr(&root).unwrap();
    let made = client
        .create(&root, b"a", createhow3::GUARDED(mode(0o640)))
        .unwrap();
    assert_changed(&made.dir_wcc, &before);
    let file = made.obj.unwrap();
    let attr = client.getattr(&file).unwrap();
    assert_eq!(
        (attr.type_, attr.mode, attr.nlink),
        (ftype3::NF3REG, 0o640, 1)
    );
    assert_eq!(
        client
            .create(&root, b"a", createhow3::GUARDED(mode(0o640)))
            .err(),
        Some(nfsstat3::NFS3ERR_EXIST)
    );

    let data = noise(1, 300_000);
    let written = client.write(&file, 5, &data).unwrap();
    assert_eq!(
        (written.count, written.committed),
        (300_000, stable_how::FILE_SYNC)
    );
    assert_changed(&written.file_wcc, &attr);
    let args = COMMIT3args {
        file: file.clone(),
        offset: 0,
        count: 0,
    };
    let committed: COMMIT3res = client.nfs(NFS_PROGRAM::NFSPROC3_COMMIT, &args);
    assert_eq!(ok(committed).unwrap().verf, written.verf);
    let (read, eof) = client.read_file(&file, 0, 1 << 20).unwrap();
    assert!(eof && read[..5] == [0; 5] && read[5..] == data);
    assert_eq!(
        client.read_file(&file, 7, 10).unwrap(),
        (data[2..12].to_vec(), false)
    );
    assert_eq!(
        client.read_file(&file, 1 << 40, 10).unwrap(),
        (vec![], true)
    );

    client.setattr(&file, size(10), None).unwrap();
    assert_eq!(client.getattr(&file).unwrap().size, 10);
    // Unchecked: what is there is taken, and cut if that is asked for.
    let found = client.create(&root, b"a", createhow3::UNCHECKED(size(0)));
    assert_eq!(found.unwrap().obj.unwrap(), file);
    assert_eq!(client.getattr(&file).unwrap().size, 0);
    let made = client.create(&root, b"b", createhow3::UNCHECKED(mode(0o604)));
    let Nfs3Option::Some(attr) = made.unwrap().obj_attributes else {
        panic!("no attributes");
    };
    assert_eq!(attr.mode, 0o604);

    let dir = client.mkdir(&root, b"d").unwrap();
    let before = [
        client.getattr(&root).unwrap(),
        client.getattr(&dir).unwrap(),
    ];
    let moved = client.rename((&root, b"a"), (&dir, b"c")).unwrap();
    assert_changed(&moved.fromdir_wcc, &before[0]);
    assert_changed(&moved.todir_wcc, &before[1]);
    let before = client.getattr(&root).unwrap();
    let linked = client.link(&file, (&root, b"e")).unwrap();
    assert_changed(&linked.linkdir_wcc, &before);
    assert_eq!(client.lookup(&root, b"e").unwrap().object, file);
    assert_eq!(client.getattr(&file).unwrap().nlink, 2);
    assert_eq!(
        client.rmdir(&root, b"d").err(),
        Some(nfsstat3::NFS3ERR_NOTEMPTY)
    );
    assert_eq!(
        client.remove(&root, b"d").err(),
        Some(nfsstat3::NFS3ERR_ISDIR)
    );
    let before = client.getattr(&dir).unwrap();
    assert_changed(&client.remove(&dir, b"c").unwrap(), &before);
    client.remove(&root, b"e").unwrap();
    assert_eq!(client.getattr(&file).err(), Some(nfsstat3::NFS3ERR_STALE));
    client.rmdir(&root, b"d").unwrap();
    assert_eq!(
        client.lookup(&root, b"d").err(),
        Some(nfsstat3::NFS3ERR_NOENT)
    );
}

/// Objects that are not files; and names that can't be.
#[test]
fn other_objects_and_names() {
    let (_group, _server, mut client, root) = start();
    let link = client.symlink(&root, b"s", b"x/\xff\x01y").unwrap();
    let args = READLINK3args { symlink: link };
    let res: READLINK3res<'_> = client.nfs(NFS_PROGRAM::NFSPROC3_READLINK, &args);
    assert_eq!(ok(res).unwrap().data.as_ref(), b"x/\xff\x01y");

    let mut mknod = |name: &[u8], what| {
        let args = MKNOD3args {
            where_: place(&root, name),
            what,
        };
        let res: MKNOD3res = client.nfs(NFS_PROGRAM::NFSPROC3_MKNOD, &args);
        ok(res).map(|ok| ok.obj_attributes.unwrap())
    };
    let spec = specdata3 {
        specdata1: 259,
        specdata2: 70_000,
    };
    let device = devicedata3 {
        dev_attributes: mode(0o600),
        spec: spec.clone(),
    };
    let made = mknod(b"c", mknoddata3::NF3CHR(device)).unwrap();
    assert_eq!((made.type_, made.rdev), (ftype3::NF3CHR, spec));
    let made = mknod(b"p", mknoddata3::NF3FIFO(mode(0o600))).unwrap();
    assert_eq!(made.type_, ftype3::NF3FIFO);

    // Any bytes but two; and the names of a directory itself are taken.
    client.file(&root, b"\xff\x80 \n");
    assert!(client.lookup(&root, b"\xff\x80 \n").is_ok());
    for (name, expected) in [
        (&b""[..], nfsstat3::NFS3ERR_INVAL),
        (b"a/b", nfsstat3::NFS3ERR_INVAL),
        (b"a\0", nfsstat3::NFS3ERR_INVAL),
        (b".", nfsstat3::NFS3ERR_EXIST),
        (b"..", nfsstat3::NFS3ERR_EXIST),
        (&[b'x'; 256], nfsstat3::NFS3ERR_NAMETOOLONG),
        (&[b'x'; 60_000], nfsstat3::NFS3ERR_NAMETOOLONG),
    ] {
        assert_eq!(client.mkdir(&root, name).err(), Some(expected), "{name:?}");
    }
    client.mkdir(&root, &[b'x'; 255]).unwrap();
    assert_eq!(client.lookup(&root, b".").unwrap().object, root);
    assert_eq!(client.lookup(&root, b"..").unwrap().object, root);
}

/// An exclusive creation that is asked for again succeeds, by its verifier; another one does not, nor the same once the
/// client has gone on to set attributes.
#[test]
fn exclusive_creation() {
    let (_group, _server, mut client, root) = start();
    let exclusive = |n| createhow3::EXCLUSIVE(createverf3([n; 8]));
    let exists = Some(nfsstat3::NFS3ERR_EXIST);
    for n in [0, 7] {
        let name = [b'f', b'0' + n];
        let made = client.create(&root, &name, exclusive(n)).unwrap().obj;
        let again = client.create(&root, &name, exclusive(n)).unwrap().obj;
        assert_eq!(made, again);
        assert_eq!(client.create(&root, &name, exclusive(9)).err(), exists);
        let file = made.unwrap();
        client.setattr(&file, mode(0o644), None).unwrap();
        assert_eq!(client.create(&root, &name, exclusive(n)).err(), exists);
        let attr = client.getattr(&file).unwrap();
        assert_eq!((attr.mode, attr.rdev), (0o644, specdata3::default()));
    }
    client.mkdir(&root, b"d").unwrap();
    assert_eq!(client.create(&root, b"d", exclusive(1)).err(), exists);
}

/// Attributes: who may set them, to what, and only if nobody else has.
#[test]
fn attributes_are_set() {
    let (_group, server, mut root_user, root) = start();
    root_user.setattr(&root, mode(0o1777), None).unwrap();
    let mut client = Client::connect(server.address, 1000, 100);
    let file = client.file(&root, b"f");
    let attr = client.getattr(&file).unwrap();
    assert_eq!((attr.uid, attr.gid), (1000, 100));
    let guard = Some(attr.ctime);
    client.setattr(&file, mode(0o400), guard).unwrap();
    let stale = client.setattr(&file, mode(0o777), guard);
    assert_eq!(stale.err(), Some(nfsstat3::NFS3ERR_NOT_SYNC));
    assert_eq!(client.getattr(&file).unwrap().mode, 0o400);

    // The owner has had it open, for all that is known; ACCESS says what the bits say.
    client.write(&file, 0, b"mine").unwrap();
    client.setattr(&file, size(2), None).unwrap();
    let access = |client: &mut Client, object: &nfs_fh3| {
        let args = ACCESS3args {
            object: object.clone(),
            access: 0x3f,
        };
        let res: ACCESS3res = client.nfs(NFS_PROGRAM::NFSPROC3_ACCESS, &args);
        ok(res).unwrap().access
    };
    assert_eq!(access(&mut client, &file), ACCESS3_READ);
    let own_dir = client.mkdir(&root, b"d").unwrap();
    let all = ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE;
    assert_eq!(access(&mut client, &own_dir), all);

    let mut other = Client::connect(server.address, 1001, 101);
    assert_eq!(access(&mut other, &file), 0);
    let acces = Some(nfsstat3::NFS3ERR_ACCES);
    assert_eq!(other.write(&file, 0, b"not").err(), acces);
    assert_eq!(other.read_file(&file, 0, 10).err(), acces);
    assert_eq!(other.setattr(&file, size(0), None).err(), acces);
    let perm = Some(nfsstat3::NFS3ERR_PERM);
    assert_eq!(other.setattr(&file, mode(0o777), None).err(), perm);
    assert_eq!(other.remove(&root, b"f").err(), perm);
    // Who may execute a file has it read to him.
    client.setattr(&file, mode(0o711), None).unwrap();
    assert_eq!(other.read_file(&file, 0, 10).unwrap().0, b"mi");
    assert_eq!(access(&mut other, &file), ACCESS3_EXECUTE);

    let time = nfstime3 {
        seconds: 4_000_000_000,
        nseconds: 999_999_999,
    };
    let times = sattr3 {
        atime: set_atime::SET_TO_CLIENT_TIME(time),
        mtime: set_mtime::SET_TO_SERVER_TIME,
        ..sattr3::default()
    };
    client.setattr(&file, times, None).unwrap();
    let attr = client.getattr(&file).unwrap();
    assert_eq!((attr.atime, attr.mtime), (time, attr.ctime));
    let gone = sattr3 {
        uid: option(Some(1001)),
        ..sattr3::default()
    };
    assert_eq!(client.setattr(&file, gone.clone(), None).err(), perm);
    root_user.setattr(&file, gone, None).unwrap();
    assert_eq!(client.getattr(&file).unwrap().uid, 1001);
}

/// The first read after a change moves the time of access, and a listing that of a directory, a moment later; nothing else changes.
#[test]
fn reads_are_told() {
    let (_group, _server, mut client, root) = start();
    let file = client.file(&root, b"f");
    client.write(&file, 0, b"text").unwrap();
    let modified = client.getattr(&file).unwrap();
    let listed = client.getattr(&root).unwrap();
    client.read_file(&file, 0, 100).unwrap();
    client.readdir(&root, 0, 4096).unwrap();
    for (object, before) in [(&file, modified), (&root, listed)] {
        let mut attr = client.getattr(object).unwrap();
        for _ in 0..200 {
            if attr.atime != before.atime {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            attr = client.getattr(object).unwrap();
        }
        let time = |t: &nfstime3| (t.seconds, t.nseconds);
        assert!(time(&attr.atime) > time(&before.ctime));
        assert_eq!((attr.mtime, attr.ctime), (before.mtime, before.ctime));
    }
}

/// More is cut off than one operation may: the call is done when all is.
#[test]
fn large_files_are_cut() {
    let (_group, _server, mut client, root) = start();
    let file = client.file(&root, b"f");
    for n in 0..40 {
        client.write(&file, n << 20, &noise(n, 1 << 20)).unwrap();
    }
    let wcc = client.setattr(&file, size(1000), None).unwrap();
    let (Nfs3Option::Some(before), Nfs3Option::Some(after)) = (wcc.before, wcc.after) else {
        panic!("no attributes");
    };
    assert_eq!(
        (before.size, after.size, after.used),
        (40 << 20, 1000, 4096)
    );
    assert_eq!(
        client.read_file(&file, 0, 2000).unwrap(),
        (noise(0, 1000), true)
    );
}

/// Each name comes once, however small the parts are and whatever changes meanwhile; every part is as small as asked for.
#[test]
fn listings() {
    let (_group, _server, mut client, root) = start();
    let dir = client.mkdir(&root, b"d").unwrap();
    let name = |n: u32| format!("{n:0width$}", width = 1 + n as usize % 60);
    for n in 0..200 {
        client.file(&dir, name(n).as_bytes());
    }
    for plus in [false, true] {
        let (mut cookie, mut names, mut steps) = (0, Vec::new(), 0);
        loop {
            let part: Vec<(Vec<u8>, u64, u64)>;
            let end;
            if plus {
                let (entries, eof) = client.readdirplus(&dir, cookie, 1000).unwrap();
                for entry in &entries {
                    let Nfs3Option::Some(attr) = &entry.name_attributes else {
                        panic!("no attributes");
                    };
                    assert_eq!(attr.fileid, entry.fileid);
                    let Nfs3Option::Some(fh) = &entry.name_handle else {
                        panic!("no handle");
                    };
                    assert_eq!(client.getattr(fh).unwrap().fileid, entry.fileid);
                }
                part = entries
                    .iter()
                    .map(|e| (e.name.0.to_vec(), e.fileid, e.cookie))
                    .collect();
                end = eof;
            } else {
                let (entries, eof) = client.readdir(&dir, cookie, 512).unwrap();
                part = entries
                    .iter()
                    .map(|e| (e.name.0.to_vec(), e.fileid, e.cookie))
                    .collect();
                end = eof;
            }
            steps += 1;
            for (name, _, next) in part {
                assert!(next > cookie);
                cookie = next;
                names.push(name);
            }
            // Others come and go; those are not asked about.
            client.file(&dir, format!("new {plus} {steps}").as_bytes());
            if end || steps > 500 {
                break;
            }
            if steps % 2 == 0 {
                client
                    .remove(&dir, format!("new {plus} {}", steps - 1).as_bytes())
                    .unwrap();
            }
        }
        assert!(steps > 20, "{steps} parts");
        let all: BTreeSet<_> = names.iter().collect();
        assert_eq!(all.len(), names.len(), "a name came twice");
        for n in 0..200 {
            assert!(all.contains(&name(n).into_bytes()), "{n}");
        }
        assert_eq!((&names[0][..], &names[1][..]), (&b"."[..], &b".."[..]));
    }
    let small = Some(nfsstat3::NFS3ERR_TOOSMALL);
    assert_eq!(client.readdir(&dir, 0, 100).err(), small);
    assert_eq!(client.readdirplus(&dir, 0, 100).err(), small);
    assert_eq!(client.readdir(&dir, u64::MAX, 1000).unwrap().0.len(), 0);
}

/// The size of a reply is within what was asked for, to the byte.
#[test]
fn listings_fit() {
    let (_group, _server, mut client, root) = start();
    for n in 0..100 {
        let name = format!("{}{n}", "x".repeat(1 + n % 50));
        client.file(&root, name.as_bytes());
    }
    for count in [600, 1111, 4096] {
        let args = READDIRPLUS3args {
            dir: root.clone(),
            cookie: 0,
            cookieverf: cookieverf3::default(),
            dircount: count,
            maxcount: count,
        };
        client.send(NFS, 17, &args);
        let (_, reply) = client.receive();
        let (_, results) = Client::results(&reply);
        // Without the status.
        assert!(
            results.len() - 4 <= count as usize,
            "{} of {count}",
            results.len()
        );
        assert!(
            results.len() + 400 > count as usize,
            "{} of {count}",
            results.len()
        );
    }
}

/// The volume's numbers, and what the server can do.
#[test]
fn numbers_are_true() {
    let (_group, _server, mut client, root) = start();
    let args = FSSTAT3args {
        fsroot: root.clone(),
    };
    let stat = |client: &mut Client| {
        let res: FSSTAT3res = client.nfs(NFS_PROGRAM::NFSPROC3_FSSTAT, &args);
        ok(res).unwrap()
    };
    let before = stat(&mut client);
    assert_eq!((before.tbytes, before.fbytes), (CAPACITY, CAPACITY));
    let file = client.file(&root, b"f");
    client.write(&file, 0, &[1; 10_000]).unwrap();
    let after = stat(&mut client);
    assert_eq!(before.fbytes - after.fbytes, 3 * 4096 + 256);
    assert_eq!(before.ffiles - after.ffiles, 1);
    assert_eq!(client.getattr(&file).unwrap().used, 3 * 4096);

    let args = FSINFO3args {
        fsroot: root.clone(),
    };
    let res: FSINFO3res = client.nfs(NFS_PROGRAM::NFSPROC3_FSINFO, &args);
    let info = ok(res).unwrap();
    assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
    let all = FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME;
    assert_eq!(info.properties, all);
    // The most that it says it takes, it takes; of more it takes so much.
    let written = client.write(&file, 0, &vec![2; info.wtmax as usize + 1000]);
    assert_eq!(written.unwrap().count, info.wtmax);
    assert_eq!(
        client.read_file(&file, 0, info.rtmax).unwrap().0.len(),
        1 << 20
    );
    let args = PATHCONF3args { object: root };
    let res: PATHCONF3res = client.nfs(NFS_PROGRAM::NFSPROC3_PATHCONF, &args);
    let conf = ok(res).unwrap();
    assert_eq!(
        (conf.linkmax, conf.name_max, conf.no_trunc),
        (65_000, 255, true)
    );
    assert_eq!((conf.case_insensitive, conf.case_preserving), (false, true));
}

/// Many calls of one connection are at work at a time, and each reply says whose it is.
#[test]
fn calls_are_answered_beside_each_other() {
    let (_group, _server, mut client, root) = start();
    let file = client.file(&root, b"f");
    let data = |n: u64| noise(n, 50_000);
    let mut sent = BTreeSet::new();
    for n in 0..200 {
        let args = write(&file, n * 50_000, &data(n));
        assert!(sent.insert(client.send(NFS, 7, &args)));
    }
    for _ in 0..200 {
        let (xid, reply) = client.receive();
        assert!(sent.remove(&xid));
        assert_eq!(ok(Client::read::<WRITE3res>(&reply)).unwrap().count, 50_000);
    }
    for n in 0..200 {
        let (read, _) = client.read_file(&file, n * 50_000, 50_000).unwrap();
        assert!(read == data(n));
    }
    let _: Void = client.call(NFS, 0, &Void);
    let _: Void = client.call(MOUNT, 0, &Void);
}
