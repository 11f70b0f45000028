//! The same random operations over NFS and as operations of the file service: each ends alike, and the trees are the same.

use std::collections::BTreeMap;

use bytes::Bytes;
use nfs3_types::nfs3::*;
use quorate_client::{CallError, Volume};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Attr, Errno, Ino, Kind, Target, Who};
use quorate_nfs::status::Status;
use tokio::runtime::Runtime;

use crate::client::{Client, Server, mode, ok, option, place, size, volume};
use crate::group::{Group, noise};

const STEPS: usize = 150;

/// The two sides, and the objects that were made on both in the same step.
struct Pair<'a> {
    client: Client,
    volume: &'a Volume,
    runtime: &'a Runtime,
    objects: Vec<(nfs_fh3, Ino)>,
}

impl Pair<'_> {
    fn direct(&self, who: &Who, action: Action) -> Result<Answer, Errno> {
        match self.runtime.block_on(self.volume.once(who, action)) {
            Ok(answer) => Ok(answer),
            Err(CallError::Refused(errno)) => Err(errno),
            Err(other) => panic!("{other}"),
        }
    }

    fn pick(&self, byte: u8) -> (nfs_fh3, Ino) {
        // The base and what came last, mostly.
        let recent = self.objects.len().saturating_sub(6);
        let index = match byte % 4 {
            0 => 0,
            1 => usize::from(byte / 4) % self.objects.len(),
            _ => recent + usize::from(byte / 4) % (self.objects.len() - recent),
        };
        self.objects[index].clone()
    }

    fn step(&mut self, raw: &[u8]) {
        let who = match raw[0] % 4 {
            0 | 1 => Who::root(),
            2 => Who::new(1000, 100),
            _ => Who {
                groups: vec![100],
                ..Who::new(1001, 101)
            },
        };
        (self.client.auth.uid, self.client.auth.gid) = (who.uid, who.gid);
        self.client.auth.gids = who.groups.clone();
        let (dir, parent) = self.pick(raw[1]);
        let (object, ino) = self.pick(raw[2]);
        let name =
            |byte: u8| Bytes::from_static([&b"a"[..], b"b", b"c", b"d"][usize::from(byte) % 4]);
        let (new, bits) = (
            name(raw[3]),
            [0o644, 0o755, 0o777, 0o4711, 0][usize::from(raw[4]) % 5],
        );
        let offset = u64::from(raw[5]) * 300;
        let (client, new_name) = (&mut self.client, new.clone());
        let (over_nfs, action): (Result<Option<nfs_fh3>, nfsstat3>, Action) = match raw[6] % 18 {
            0 | 1 => {
                let made = client.create(&dir, &new, createhow3::GUARDED(mode(bits)));
                let kind = Kind::Regular;
                (
                    made.map(|m| Some(m.obj.unwrap())),
                    Action::Mknod(Mknod {
                        parent,
                        name: new,
                        kind,
                        mode: bits,
                        umask: 0,
                        rdev: 0,
                    }),
                )
            }
            2..5 => {
                let verifier = [None, Some(7)][usize::from(raw[5]) % 2];
                let how = match verifier {
                    None => createhow3::UNCHECKED(mode(bits)),
                    Some(n) => createhow3::EXCLUSIVE(createverf3(u64::to_be_bytes(n))),
                };
                let bits = if verifier.is_some() { 0o600 } else { bits };
                let made = client.create(&dir, &new, how);
                (
                    made.map(|m| Some(m.obj.unwrap())),
                    Action::Make(Make {
                        parent,
                        name: new,
                        mode: bits,
                        umask: 0,
                        verifier,
                    }),
                )
            }
            5 | 6 => {
                let args = MKDIR3args {
                    where_: place(&dir, &new),
                    attributes: mode(bits),
                };
                let res: MKDIR3res = client.nfs(NFS_PROGRAM::NFSPROC3_MKDIR, &args);
                (
                    ok(res).map(|m| Some(m.obj.unwrap())),
                    Action::Mkdir(Mkdir {
                        parent,
                        name: new,
                        mode: bits,
                        umask: 0,
                    }),
                )
            }
            7 => {
                let made = client.symlink(&dir, &new, b"to/there");
                let target = Bytes::from_static(b"to/there");
                (
                    made.map(Some),
                    Action::Symlink(Symlink {
                        parent,
                        name: new,
                        target,
                    }),
                )
            }
            8 => {
                let linked = client.link(&object, (&dir, &new));
                (
                    linked.map(|_| None),
                    Action::Link(Link {
                        ino,
                        parent,
                        name: new,
                    }),
                )
            }
            9 => (
                client.remove(&dir, &new).map(|_| None),
                Action::Unlink(Unlink { parent, name: new }),
            ),
            10 => (
                client.rmdir(&dir, &new).map(|_| None),
                Action::Rmdir(Rmdir { parent, name: new }),
            ),
            11 | 12 => {
                let (to, new_parent) = (object, ino);
                let other = name(raw[5]);
                let moved = client.rename((&dir, &new), (&to, &other));
                let mode = RenameMode::Replace;
                (
                    moved.map(|_| None),
                    Action::Rename(Rename {
                        parent,
                        name: new,
                        new_parent,
                        new_name: other,
                        mode,
                    }),
                )
            }
            13 => {
                let data = noise(raw[4].into(), usize::from(raw[7]) * 20);
                let written = client.write(&object, offset, &data);
                let (target, place) = (Target::Unopened(ino), Place::At(offset));
                (
                    written.map(|_| None),
                    Action::Write(Write {
                        target,
                        place,
                        data: data.into(),
                    }),
                )
            }
            14 | 15 => {
                let mut new = match raw[7] % 3 {
                    0 => mode(bits),
                    1 => size(offset),
                    _ => sattr3 {
                        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 {
                            seconds: 5,
                            nseconds: 6,
                        }),
                        ..sattr3::default()
                    },
                };
                let mut op = SetAttr {
                    target: Target::Unopened(ino),
                    mode: None,
                    uid: None,
                    gid: None,
                    size: None,
                    atime: None,
                    mtime: None,
                };
                match raw[7] % 3 {
                    0 => op.mode = Some(bits),
                    1 => op.size = Some(offset),
                    _ => op.mtime = Some(SetTime::At(quorate_files::Stamp { secs: 5, nanos: 6 })),
                }
                if raw[8].is_multiple_of(3) {
                    new.gid = option(Some(100));
                    op.gid = Some(100);
                }
                (
                    client.setattr(&object, new, None).map(|_| None),
                    Action::SetAttr(op),
                )
            }
            16 => {
                let read = client.read_file(&object, offset, 3000);
                (
                    read.map(|_| None),
                    Action::Read(Read {
                        target: Target::Unopened(ino),
                        offset,
                        len: 3000,
                    }),
                )
            }
            _ => (
                client.lookup(&dir, &new).map(|_| None),
                Action::Lookup(Lookup { parent, name: new }),
            ),
        };
        let made = matches!(
            action,
            Action::Mknod(_) | Action::Make(_) | Action::Mkdir(_) | Action::Symlink(_)
        );
        let unchecked = matches!(action, Action::Make(Make { verifier: None, .. }));
        let text = format!("{who:?} {action:?}");
        let mut direct = self.direct(&who, action);
        // The front refuses what is there already and is no file.
        if let Ok(Answer::Made(found)) = &direct
            && unchecked
            && found.attr.kind != Kind::Regular
        {
            direct = Err(Errno::EEXIST);
        }
        match (&over_nfs, &direct) {
            (Err(status), Err(errno)) => {
                assert_eq!(*status as u32, Status::from(*errno) as u32, "{text}")
            }
            (Ok(_), Ok(_)) => {}
            other => panic!("{text}: {other:?}"),
        }
        let attr: Attr = match direct {
            Ok(Answer::Attr(attr)) if made => attr,
            Ok(Answer::Made(made)) => made.attr,
            _ => return,
        };
        let handle = over_nfs.unwrap().unwrap();
        assert!(
            self.objects
                .iter()
                .all(|known| (known.0 == handle) == (known.1 == attr.ino)),
            "{text} {new_name:?}"
        );
        self.objects.push((handle, attr.ino));
    }

    /// All that lies below a directory, by the operations of the file service.
    fn tree(&self, dir: Ino, path: &str, found: &mut BTreeMap<String, String>) {
        let op = ReadDir {
            target: Target::Ino(dir),
            cookie: 2,
            count: 1000,
            plus: true,
        };
        let Ok(Answer::Entries(entries)) = self.direct(&Who::root(), Action::ReadDir(op)) else {
            panic!("no listing");
        };
        for entry in entries.entries {
            let attr = entry.attr.unwrap();
            let target = Target::Ino(attr.ino);
            let content = match attr.kind {
                Kind::Regular => Action::Read(Read {
                    target,
                    offset: 0,
                    len: 1 << 20,
                }),
                Kind::Symlink => Action::Readlink(attr.ino),
                _ => Action::GetAttr(target),
            };
            let content = match self.direct(&Who::root(), content) {
                Ok(Answer::Data(data)) => data.data,
                Ok(Answer::Bytes(bytes)) => bytes,
                _ => Bytes::new(),
            };
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let own_time = attr.mtime.secs == 5;
            let Attr {
                kind,
                mode,
                nlink,
                uid,
                gid,
                size,
                blocks,
                ..
            } = attr;
            found.insert(
                path.clone(),
                format!(
                    "{kind:?} {mode:o} {nlink} {uid} {gid} {size} {blocks} {own_time} {content:?}"
                ),
            );
            if kind == Kind::Directory {
                self.tree(attr.ino, &path, found);
            }
        }
    }
}

#[test]
fn both_ways_lead_to_the_same_tree() {
    let group = Group::start();
    let server = Server::open(&group);
    let volume = volume(&group);
    let mut made = 0;
    for seed in 0..12 {
        let mut client = Client::connect(server.address, 0, 0);
        let root = client.mount("/").unwrap();
        let bases = [format!("n{seed}"), format!("d{seed}")].map(|name| {
            let base = client.mkdir(&root, name.as_bytes()).unwrap();
            client.setattr(&base, mode(0o777), None).unwrap();
            (Ino(client.getattr(&base).unwrap().fileid), base)
        });
        let [(over_nfs, handle), (direct, _)] = bases;
        let mut pair = Pair {
            client,
            volume: &volume,
            runtime: &group.runtime,
            objects: vec![(handle, direct)],
        };
        let raw = noise(seed + 100, STEPS * 9);
        for (n, raw) in raw.chunks_exact(9).enumerate() {
            pair.step(raw);
            if n % 25 == 0 || n == STEPS - 1 {
                let (mut one, mut two) = (BTreeMap::new(), BTreeMap::new());
                pair.tree(over_nfs, "", &mut one);
                pair.tree(direct, "", &mut two);
                assert_eq!(one, two, "seed {seed}, after step {n}");
            }
        }
        made += pair.objects.len() - 1;
    }
    assert!(made > 100, "only {made} objects were made");
}
