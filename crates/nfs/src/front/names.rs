//! Names: finding, making, moving and removing them.

use bytes::Bytes;
use quorate_files::op::{
    Link, Lookup, Make, Mkdir, Mknod, Rename, RenameMode, Rmdir, Symlink, Unlink,
};
use quorate_files::{Action, Answer, Attr, Ino, Kind, Target};

use super::{Caller, Done, Front, MAX_NAME_BYTES, Object, Seen, another_kind};
use crate::call::{How, NewAttrs, Place, Special};
use crate::reply::{Reply, device};
use crate::status::Status;

/// Mode bits of what is made without any: its owner alone.
const OWN_FILE: u32 = 0o600;
const OWN_DIRECTORY: u32 = 0o700;

impl Front {
    pub(super) async fn lookup(&self, caller: &Caller, place: Place) -> Done {
        let dir = self.object(caller, &place.dir)?;
        let up = &place.name[..] == b"..";
        let action = match &place.name {
            name if name.len() > MAX_NAME_BYTES => return Err(Status::NameTooLong),
            // Nothing lies above an export.
            _ if up && dir.ino == self.root(dir.export).await? => {
                Action::GetAttr(Target::Ino(dir.ino))
            }
            name => Action::Lookup(Lookup {
                parent: dir.ino,
                name: name.clone(),
            }),
        };
        let seen = self.seen(&dir.who, vec![dir.ino], action).await?;
        let mut reply = self.reply(seen.status());
        match &seen.outcome {
            Err(_) => {}
            Ok(Answer::Attr(attr)) => {
                reply.w.opaque(&self.handle(dir.export, attr.ino));
                reply.after(Some(attr));
            }
            Ok(_) => return another_kind(),
        }
        reply.after(seen.after(0));
        Ok(reply)
    }

    pub(super) async fn create(&self, caller: &Caller, place: Place, how: How) -> Done {
        let dir = self.new_place(caller, &place)?;
        let (parent, name) = (dir.ino, place.name);
        let (verifier, attrs) = match how {
            How::Guarded(attrs) => {
                let action = Action::Mknod(Mknod {
                    parent,
                    name,
                    kind: Kind::Regular,
                    mode: mode(&attrs, OWN_FILE),
                    umask: 0,
                    rdev: 0,
                });
                return self.make(&dir, action, attrs).await;
            }
            How::Unchecked(attrs) => (None, attrs),
            // The client sets attributes when it knows that the file is its own.
            How::Exclusive(verifier) => (Some(verifier), NewAttrs::default()),
        };
        let action = Action::Make(Make {
            parent,
            name,
            mode: mode(&attrs, OWN_FILE),
            umask: 0,
            verifier,
        });
        self.make(&dir, action, attrs).await
    }

    pub(super) async fn mkdir(&self, caller: &Caller, place: Place, attrs: NewAttrs) -> Done {
        let dir = self.new_place(caller, &place)?;
        let action = Action::Mkdir(Mkdir {
            parent: dir.ino,
            name: place.name,
            mode: mode(&attrs, OWN_DIRECTORY),
            umask: 0,
        });
        self.make(&dir, action, attrs).await
    }

    pub(super) async fn symlink(
        &self,
        caller: &Caller,
        place: Place,
        attrs: NewAttrs,
        target: Bytes,
    ) -> Done {
        let dir = self.new_place(caller, &place)?;
        let action = Action::Symlink(Symlink {
            parent: dir.ino,
            name: place.name,
            target,
        });
        self.make(&dir, action, attrs).await
    }

    pub(super) async fn mknod(&self, caller: &Caller, place: Place, special: Special) -> Done {
        let dir = self.new_place(caller, &place)?;
        let Some(kind) = special.kind else {
            return Err(Status::BadType);
        };
        let action = Action::Mknod(Mknod {
            parent: dir.ino,
            name: place.name,
            kind,
            mode: mode(&special.attrs, OWN_FILE),
            umask: 0,
            rdev: device(special.device).ok_or(Status::Inval)?,
        });
        self.make(&dir, action, special.attrs).await
    }

    /// Where something new is to be. The names that each directory has are taken.
    fn new_place(&self, caller: &Caller, place: &Place) -> Result<Object<'_>, Status> {
        let dir = self.place(caller, place)?;
        match &place.name[..] {
            b"." | b".." => Err(Status::Exist),
            _ => Ok(dir),
        }
    }

    /// Makes an object, and sets what is left of its attributes; answers with its handle.
    async fn make(&self, dir: &Object<'_>, action: Action, attrs: NewAttrs) -> Done {
        let seen = self.seen(&dir.who, vec![dir.ino], action).await?;
        let made = match &seen.outcome {
            Ok(Answer::Attr(attr)) => self.set_rest(&dir.who, attr.clone(), attrs).await,
            Ok(Answer::Made(made)) if made.created => {
                self.set_rest(&dir.who, made.attr.clone(), attrs).await
            }
            Ok(Answer::Made(made)) => self.found(dir, &made.attr, &attrs).await,
            Ok(_) => return another_kind(),
            Err(status) => Err(*status),
        };
        let mut reply = self.reply(made.as_ref().err().copied().unwrap_or(Status::Ok));
        if let Ok(attr) = &made {
            reply.handle(&self.handle(dir.export, attr.ino));
            reply.after(Some(attr));
        }
        reply.seen(&seen, 0);
        Ok(reply)
    }

    /// A file that was there already: of the attributes, only the size is set.
    async fn found(&self, dir: &Object<'_>, attr: &Attr, attrs: &NewAttrs) -> Result<Attr, Status> {
        if attr.kind != Kind::Regular {
            return Err(Status::Exist);
        }
        let size = NewAttrs {
            size: attrs.size,
            ..NewAttrs::default()
        };
        self.set_rest(&dir.who, attr.clone(), size).await
    }

    pub(super) async fn remove(&self, caller: &Caller, place: Place) -> Done {
        let dir = self.place(caller, &place)?;
        let action = Action::Unlink(Unlink {
            parent: dir.ino,
            name: place.name,
        });
        let seen = self.seen(&dir.who, vec![dir.ino], action).await?;
        Ok(self.done(&seen, 1))
    }

    pub(super) async fn rmdir(&self, caller: &Caller, place: Place) -> Done {
        let dir = self.place(caller, &place)?;
        if &place.name[..] == b".." {
            return Err(Status::Exist);
        }
        let action = Action::Rmdir(Rmdir {
            parent: dir.ino,
            name: place.name,
        });
        let seen = self.seen(&dir.who, vec![dir.ino], action).await?;
        Ok(self.done(&seen, 1))
    }

    pub(super) async fn rename(&self, caller: &Caller, from: Place, to: Place) -> Done {
        let (dir, new_dir) = (self.place(caller, &from)?, self.place(caller, &to)?);
        if dir.export.id != new_dir.export.id {
            return Err(Status::XDev);
        }
        let action = Action::Rename(Rename {
            parent: dir.ino,
            name: from.name,
            new_parent: new_dir.ino,
            new_name: to.name,
            mode: RenameMode::Replace,
        });
        let objects = vec![dir.ino, new_dir.ino];
        let seen = self.seen(&dir.who, objects, action).await?;
        Ok(self.done(&seen, 2))
    }

    pub(super) async fn link(&self, caller: &Caller, handle: &[u8], new: Place) -> Done {
        let file = self.changeable(caller, handle)?;
        let dir = self.new_place(caller, &new)?;
        if dir.export.id != file.export.id {
            return Err(Status::XDev);
        }
        let action = Action::Link(Link {
            ino: file.ino,
            parent: dir.ino,
            name: new.name,
        });
        let objects: Vec<Ino> = vec![dir.ino, file.ino];
        let seen = self.seen(&dir.who, objects, action).await?;
        let mut reply = self.reply(seen.status());
        reply.after(seen.after(1));
        reply.seen(&seen, 0);
        Ok(reply)
    }

    /// What became of an operation, and of its first objects.
    fn done(&self, seen: &Seen, objects: usize) -> Reply {
        let mut reply = self.reply(seen.status());
        for index in 0..objects {
            reply.seen(seen, index);
        }
        reply
    }
}

fn mode(attrs: &NewAttrs, otherwise: u32) -> u32 {
    attrs.mode.unwrap_or(otherwise) & 0o7777
}
