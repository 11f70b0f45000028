//! Changes of names.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_client::CallError;
use quorate_client::volume::Called;
use quorate_files::answer::Opened;
use quorate_files::op::{
    Access, Create, GetXattr, Link, Mkdir, Open, Rename, RenameMode, Rmdir, Unlink, access, flags,
};
use quorate_files::{Action, Answer, Attr, Errno, Handle, Ino, Nothing, Target, Who};
use quorate_nfs::call::NewAttrs;
use quorate_nfs::status::Status;
use tokio::time::{sleep, timeout};

use super::look::stub;
use super::numbers::{parts, tell};
use super::{Inner, Life};
use crate::attrs::STUB_OWNER;
use crate::coordinator::{Found, Renamed};
use crate::intent::Name;
use crate::layout::Bucket;

/// How long a change of names waits for a place among the routers.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a change is tried that could not be begun, or whose outcome another router has settled.
const ATTEMPTS: usize = 120;
/// Before it is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long another group may take to show that it is there, before something is made on it.
const THERE: Duration = Duration::from_secs(1);
/// What new entries of a directory inherit.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Why a change was not made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// By the coordinator, or a group on its behalf.
    Status(Status),
    /// By a group.
    Call(CallError),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Status(status)
    }
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Refused {
        Refused::Call(error)
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused::Call(CallError::Refused(errno))
    }
}

impl From<Refused> for CallError {
    fn from(refused: Refused) -> CallError {
        let status = match refused {
            Refused::Call(error) => return error,
            Refused::Status(status) => status,
        };
        let told = Errno::ALL
            .iter()
            .find(|&&errno| Status::from(errno) == status);
        match (told, status) {
            (_, Status::Jukebox | Status::Io | Status::ServerFault) | (None, _) => CallError::Lost,
            (Some(&errno), _) => CallError::Refused(errno),
        }
    }
}

/// Nobody is the owner of stubs, or makes anything theirs.
pub(super) fn may_ask(who: &Who, action: &Action) -> Called<()> {
    let given = match action {
        Action::SetAttr(set) => set.uid,
        _ => None,
    };
    match who.uid == STUB_OWNER || given == Some(STUB_OWNER) {
        true => Err(CallError::Refused(Errno::EPERM)),
        false => Ok(()),
    }
}

fn attr_of(answer: Answer) -> Called<Attr> {
    match answer {
        Answer::Attr(attr) => Ok(attr),
        _ => Err(CallError::Garbled),
    }
}

impl Inner {
    /// The coordinator of now.
    pub(super) async fn life(&self) -> Result<Arc<Life>, Refused> {
        let mut lives = self.life.subscribe();
        let is_there = |life: &Option<Arc<Life>>| life.is_some();
        match timeout(PATIENCE, lives.wait_for(is_there)).await {
            Ok(Ok(life)) => life.clone().ok_or(Refused::Call(CallError::Lost)),
            _ => Err(CallError::Lost.into()),
        }
    }

    /// Carries something out, whether anybody waits for it or not.
    pub(super) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refused>> + Send + 'static,
    ) -> Called<T> {
        match self.runtime.spawn(work).await {
            Ok(done) => done.map_err(CallError::from),
            Err(_) => Err(CallError::Lost),
        }
    }

    pub(super) async fn change_names(
        self: &Arc<Inner>,
        who: Who,
        action: Action,
    ) -> Called<Answer> {
        let inner = self.clone();
        self.to_its_end(async move {
            for _ in 0..ATTEMPTS {
                let life = inner.life().await?;
                match inner.change(&life, &who, action.clone()).await {
                    Err(Refused::Status(Status::Jukebox)) => sleep(PAUSE).await,
                    done => return done,
                }
            }
            Err(CallError::Lost.into())
        })
        .await
    }

    async fn change(&self, life: &Life, who: &Who, action: Action) -> Result<Answer, Refused> {
        match action {
            Action::Create(create) => self.create(life, who, create).await.map(Answer::Opened),
            Action::Mkdir(mkdir) => self.mkdir(life, who, mkdir).await.map(Answer::Attr),
            Action::Mknod(mut mknod) => {
                let (_, _held) = self.hold(life, mknod.parent, &mknod.name).await?;
                let parent = mknod.parent;
                mknod.parent = parts(parent).1;
                self.straight(who, parent, Action::Mknod(mknod)).await
            }
            Action::Symlink(mut symlink) => {
                let (_, _held) = self.hold(life, symlink.parent, &symlink.name).await?;
                let parent = symlink.parent;
                symlink.parent = parts(parent).1;
                self.straight(who, parent, Action::Symlink(symlink)).await
            }
            Action::Link(link) => self.link(life, who, link).await.map(Answer::Attr),
            Action::Unlink(unlink) => self.unlink(life, who, unlink).await,
            Action::Rmdir(rmdir) => self.rmdir(life, who, rmdir).await,
            Action::Rename(rename) => self.rename(life, who, rename).await,
            _ => Err(Errno::ENOTSUP.into()),
        }
    }

    /// A name, held until what comes with it goes.
    pub(super) async fn hold(
        &self,
        life: &Life,
        dir: Ino,
        name: &Bytes,
    ) -> Result<(Name, impl Sized + use<'_>), Refused> {
        let name = self.name(dir, name.clone())?;
        let held = self.names.hold(life.log(), vec![name.clone()]).await?;
        Ok((name, held))
    }

    /// Has the group of a directory do what it can do by itself; the action is in its own numbers.
    async fn straight(&self, who: &Who, dir: Ino, action: Action) -> Result<Answer, Refused> {
        let at = self.at(dir)?;
        let answer = at.member.volume.run(who, action).await?;
        Ok(tell(at.bucket, answer)?)
    }

    async fn create(&self, life: &Life, who: &Who, create: Create) -> Result<Opened, Refused> {
        let (name, _held) = self.hold(life, create.parent, &create.name).await?;
        let (parent, how) = (create.parent, create.flags);
        let own = Create {
            parent: parts(parent).1,
            ..create
        };
        let opened = match self.straight(who, parent, Action::Create(own)).await {
            Ok(Answer::Opened(opened)) if stub(&opened.attr).is_none() => return Ok(opened),
            Ok(Answer::Opened(opened)) => Some(opened.handle),
            Ok(_) => return Err(CallError::Garbled.into()),
            // The file that is there may lie elsewhere.
            Err(Refused::Call(CallError::Refused(Errno::EISDIR | Errno::EACCES))) => None,
            Err(refused) => return Err(refused),
        };
        let at = self.at(parent)?;
        if let Some(handle) = opened {
            let ino = parts(handle.ino).1;
            at.member
                .volume
                .release(who, Handle { ino, ..handle })
                .await?;
        }
        let search = Access {
            ino: at.ino,
            mask: access::EXEC,
        };
        if at.member.volume.access(who, search).await? != access::EXEC {
            return Err(Errno::EACCES.into());
        }
        let ino = match life.find(&name).await? {
            Found::Thing(thing, _) if thing.is_dir => return Err(Errno::EISDIR.into()),
            Found::Thing(thing, _) if thing.stub.is_some() => self.number(&thing.object)?,
            _ => return Err(Errno::EACCES.into()),
        };
        let open = Open {
            ino: parts(ino).1,
            flags: how & !flags::EXCLUSIVE,
        };
        match self.straight(who, ino, Action::Open(open)).await? {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(CallError::Garbled.into()),
        }
    }

    /// In which bucket a new directory goes.
    async fn place(&self, name: &Name, parent: Ino) -> Result<Bucket, Refused> {
        let map = self.buckets.map();
        let in_root = name.dir == self.root;
        let bucket = self.layout.place(&name.dir, in_root, &name.name, &map);
        // These are there always.
        if bucket == name.dir.bucket || name.name == "." || name.name == ".." {
            return Ok(name.dir.bucket);
        }
        // What is begun with a group that is away has to wait for it, and others for the directory.
        if !self.is_there(bucket).await {
            return Ok(name.dir.bucket);
        }
        // An ACL that is inherited stays within one group.
        let at = self.at(parent)?;
        let root = Who::root();
        let target = Target::Ino(at.ino);
        if !at.member.volume.get_attr(&root, target).await?.has_xattrs {
            return Ok(bucket);
        }
        let get = GetXattr {
            ino: at.ino,
            name: DEFAULT_ACL.into(),
            size: 0,
        };
        match at.member.volume.get_xattr(&root, get).await {
            Ok(_) => Ok(name.dir.bucket),
            Err(CallError::Refused(Errno::ENODATA)) => Ok(bucket),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the group of a bucket answers.
    async fn is_there(&self, bucket: Bucket) -> bool {
        let look = async { self.attr(self.placed(bucket)?).await };
        matches!(timeout(THERE, look).await, Ok(Ok(_)))
    }

    async fn mkdir(&self, life: &Life, who: &Who, mkdir: Mkdir) -> Result<Attr, Refused> {
        let (name, _held) = self.hold(life, mkdir.parent, &mkdir.name).await?;
        let bucket = self.place(&name, mkdir.parent).await?;
        if bucket == name.dir.bucket {
            let parent = mkdir.parent;
            let own = Mkdir {
                parent: parts(parent).1,
                ..mkdir
            };
            return Ok(attr_of(
                self.straight(who, parent, Action::Mkdir(own)).await?,
            )?);
        }
        let new = NewAttrs {
            mode: Some(mkdir.mode & !mkdir.umask),
            ..NewAttrs::default()
        };
        let (made, _) = life.mkdir(who, name, bucket, new).await?;
        Ok(self.attr(self.number(&made)?).await?)
    }

    async fn link(&self, life: &Life, who: &Who, link: Link) -> Result<Attr, Refused> {
        let (name, _held) = self.hold(life, link.parent, &link.name).await?;
        let (file, own) = parts(link.ino);
        if file == name.dir.bucket {
            let parent = link.parent;
            let link = Link {
                ino: own,
                parent: parts(parent).1,
                ..link
            };
            let answer = self.straight(who, parent, Action::Link(link)).await?;
            return Ok(attr_of(answer)?);
        }
        if name.name == "." || name.name == ".." {
            return Err(Errno::EEXIST.into());
        }
        life.link(who, self.at(link.ino)?.handle(), name).await?;
        Ok(self.attr(link.ino).await?)
    }

    async fn unlink(&self, life: &Life, who: &Who, unlink: Unlink) -> Result<Answer, Refused> {
        let (name, _held) = self.hold(life, unlink.parent, &unlink.name).await?;
        let own = Unlink {
            parent: parts(unlink.parent).1,
            ..unlink
        };
        let done = self.straight(who, unlink.parent, Action::Unlink(own)).await;
        // A stub is a directory.
        let Err(Refused::Call(CallError::Refused(Errno::EISDIR | Errno::EPERM | Errno::EACCES))) =
            done
        else {
            return done;
        };
        match life.find(&name).await? {
            Found::Thing(thing, _) if thing.stub.is_none() => return done,
            Found::Nothing { stub: None } => return done,
            _ => {}
        }
        life.remove(who, name, false).await?;
        Ok(Answer::Done(Nothing))
    }

    async fn rmdir(&self, life: &Life, who: &Who, rmdir: Rmdir) -> Result<Answer, Refused> {
        let (name, _held) = self.hold(life, rmdir.parent, &rmdir.name).await?;
        let (elsewhere, dir) = match &name.name[..] {
            b"." | b".." => (false, None),
            _ => match life.find(&name).await? {
                Found::Thing(thing, _) => {
                    (thing.stub.is_some(), thing.is_dir.then_some(thing.object))
                }
                Found::Nothing { stub } => (stub.is_some(), None),
            },
        };
        let _goes = match &dir {
            Some(dir) => Some(self.names.hold_removal(life.log(), dir).await?),
            None => None,
        };
        if elsewhere {
            life.remove(who, name, true).await?;
            return Ok(Answer::Done(Nothing));
        }
        let own = Rmdir {
            parent: parts(rmdir.parent).1,
            ..rmdir
        };
        self.straight(who, rmdir.parent, Action::Rmdir(own)).await
    }

    async fn rename(&self, life: &Life, who: &Who, rename: Rename) -> Result<Answer, Refused> {
        let from = self.name(rename.parent, rename.name.clone())?;
        let to = self.name(rename.new_parent, rename.new_name.clone())?;
        let exchanges = rename.mode == RenameMode::Exchange;
        // Two at once have no one order that commits them, but in one directory, where stubs keep their objects.
        if exchanges && from.dir != to.dir {
            return Err(Errno::EINVAL.into());
        }
        let _held = self.names.hold_rename(life.log(), &from, &to).await?;
        if rename.mode == RenameMode::NoReplace
            && let Found::Thing(..) = life.find(&to).await?
        {
            return Err(Errno::EEXIST.into());
        }
        let own = Rename {
            parent: parts(rename.parent).1,
            new_parent: parts(rename.new_parent).1,
            ..rename.clone()
        };
        let own = Action::Rename(own);
        if exchanges {
            return self.straight(who, rename.parent, own).await;
        }
        let renaming = life.find_rename(from, to).await?;
        let _goes = match renaming.removes() {
            Some(dir) => Some(self.names.hold_removal(life.log(), dir).await?),
            None => None,
        };
        match life.rename(who, renaming).await? {
            Renamed::Done => Ok(Answer::Done(Nothing)),
            Renamed::Straight(_guard) => self.straight(who, rename.parent, own).await,
        }
    }
}
