//! The file service's operations as typed calls.
//!
//! What can be repeated without harm is repeated when the session was lost meanwhile; the rest fails with
//! [`CallError::Lost`], since nobody knows whether it was executed.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use quorate_files::answer::{
    Adopted, Audit as AuditRows, Data, Entries, Grants as KeptGrants, Held, HeldLock, Made, Opened,
    Progress, Quotas as QuotaRows, Revocations as KeptRevocations, StatFs,
    WithAttrs as AttrsAnswer, Written,
};
use quorate_files::op::{
    Access, Accessed, Adopt, Audit, Create, Fallocate, GetXattr, Grants, Hold, Link, ListXattr,
    Lock, Lookup, Make, Mkdir, Mknod, Open, PassedOn, Place, PutCredential, Quotas, Read, ReadDir,
    RemoveXattr, Rename, Restore, Revocations, Revoke, Rmdir, Seek, SetAttr, SetQuota, SetXattr,
    Symlink, Unlink, WithAttrs, Write, XattrMode, flags,
};
use quorate_files::{Action, Answer, Attr, Errno, Handle, Ino, Nothing, Op, Outcome, Target, Who};
use quorate_wire::Digest;

use crate::let_in::LetIn;
use crate::session::{Gathering, NoResult, Session, SessionFailed};

/// How often an operation is sent again after a lost session.
const ATTEMPTS: usize = 5;

/// Why a call brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service refused it.
    #[error("{0}")]
    Refused(Errno),
    /// The session was lost; nobody knows whether the operation was executed.
    #[error("the session with the group was lost")]
    Lost,
    /// 2f+1 replicas vouch for something that is no answer to the operation: they run another version.
    #[error("the group speaks another version of the file service")]
    Garbled,
}

/// What a call brings.
pub type Called<T> = Result<T, CallError>;

/// What a look at an extended attribute, or at the list of them, brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrAnswer {
    /// The value, or the names.
    Bytes(Bytes),
    /// How long that would be.
    Size(u32),
}

/// An operation under way.
pub type Calling<'a> = Pin<Box<dyn Future<Output = Called<Answer>> + Send + 'a>>;

/// The end of a session that has failed: see [`Session::failed`].
pub type Failing = Pin<Box<dyn Future<Output = SessionFailed> + Send>>;

/// A volume that several groups keep together: which of them does what is its own business. Numbers of objects, and so handles, are the
/// volume's, not a group's.
pub trait Spanning: Debug + Send + Sync {
    /// Sends an operation once. Until it is first polled nothing is done; the first time it is polled may be on any thread.
    fn call(&self, op: Op) -> Calling<'_>;

    /// The [generation](Session::generation) of the session with each group.
    fn generations(&self) -> Vec<u64>;

    /// Which group keeps an object; any number for what is none.
    fn group_of(&self, ino: Ino) -> usize;

    /// Closes all sessions.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Done when one of the sessions has [failed](Session::failed).
    fn failed(&self) -> Failing;
}

/// A volume, through a session, or through several. Clones share it.
#[derive(Clone, Debug)]
pub struct Volume {
    way: Way,
    /// Of a guest.
    let_in: Option<LetIn>,
}

#[derive(Clone, Debug)]
enum Way {
    Group(Session),
    Groups(Arc<dyn Spanning>),
}

/// The sessions that a volume had at some moment.
#[derive(Clone, Debug)]
pub struct Generations(Vec<u64>);

/// Calls that have one kind of answer.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($op:ty) => $action:ident -> $answer:ident($out:ty);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`CallError`].
            pub async fn $name(&self, who: &Who, op: $op) -> Called<$out> {
                match self.run(who, Action::$action(op)).await? {
                    Answer::$answer(out) => Ok(out),
                    _ => Err(CallError::Garbled),
                }
            }
        )*
    };
}

impl Volume {
    /// The volume that a session's group keeps.
    pub fn new(session: Session) -> Volume {
        let way = Way::Group(session);
        let let_in = None;
        Volume { way, let_in }
    }

    /// The same for a guest, whom replicas let in only by a credential. Without one all is refused with `EACCES`, where it would wait for ever; what was
    /// under way before, and changes something, is [`CallError::Lost`].
    pub fn of_guest(session: Session, let_in: LetIn) -> Volume {
        Volume {
            let_in: Some(let_in),
            ..Volume::new(session)
        }
    }

    /// The volume that several groups keep together.
    pub fn spanning(groups: Arc<dyn Spanning>) -> Volume {
        let way = Way::Groups(groups);
        let let_in = None;
        Volume { way, let_in }
    }

    /// The id of the group that keeps it, if it is one group's alone.
    pub fn group(&self) -> Option<Digest> {
        match &self.way {
            Way::Group(session) => Some(session.group()),
            Way::Groups(_) => None,
        }
    }

    /// Whether it is a guest's, of whom credentials are asked.
    pub fn is_guests(&self) -> bool {
        self.let_in.is_some()
    }

    /// The sessions of now. A handle ends with the session in which it was opened.
    pub fn generations(&self) -> Generations {
        Generations(match &self.way {
            Way::Group(session) => vec![session.generation()],
            Way::Groups(groups) => groups.generations(),
        })
    }

    /// The session among these that an object's handles are bound to.
    pub fn generation_in(&self, generations: &Generations, ino: Ino) -> u64 {
        let index = self.group_of(ino);
        generations.0.get(index).copied().unwrap_or(0)
    }

    /// Which of its groups keeps an object.
    pub fn group_of(&self, ino: Ino) -> usize {
        match &self.way {
            Way::Group(_) => 0,
            Way::Groups(groups) => groups.group_of(ino),
        }
    }

    /// The session of now that an object's handles are bound to. Rises with each that was opened.
    pub fn generation(&self, ino: Ino) -> u64 {
        match &self.way {
            Way::Group(session) => session.generation(),
            Way::Groups(_) => self.generation_in(&self.generations(), ino),
        }
    }

    /// Has what is asked from now on leave together, see [`Session::gather`]; where several groups keep the volume each goes by itself.
    pub fn gather(&self) -> Option<Gathering> {
        match &self.way {
            Way::Group(session) => Some(session.gather()),
            Way::Groups(_) => None,
        }
    }

    /// Closes the session, or all of them: see [`Session::close`].
    pub async fn close(&self) {
        match &self.way {
            Way::Group(session) => session.close().await,
            Way::Groups(groups) => groups.close().await,
        }
    }

    /// Done when the session, or one of them, has failed: see [`Session::failed`].
    pub fn failed(&self) -> Failing {
        match &self.way {
            Way::Group(session) => Box::pin(session.failed()),
            Way::Groups(groups) => groups.failed(),
        }
    }

    /// Sends an operation once.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn once(&self, who: &Who, action: Action) -> Called<Answer> {
        self.send(Op::new(who.clone(), action)).await
    }

    /// Sends an operation; again, if the session is lost and a repetition does no harm.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn run(&self, who: &Who, action: Action) -> Called<Answer> {
        let attempts = match &self.way {
            Way::Group(_) if is_repeatable(&action) => ATTEMPTS,
            // Each of several groups is asked so.
            Way::Group(_) | Way::Groups(_) => 1,
        };
        let op = Op::new(who.clone(), action);
        let mut answer = Err(CallError::Lost);
        for _ in 0..attempts {
            answer = self.send(op.clone()).await;
            // To be refused now would say nothing of what was sent before.
            if answer != Err(CallError::Lost) || self.is_out() {
                break;
            }
        }
        answer
    }

    fn is_out(&self) -> bool {
        self.let_in.as_ref().is_some_and(LetIn::is_out)
    }

    async fn send(&self, op: Op) -> Called<Answer> {
        let session = match &self.way {
            Way::Group(session) => session,
            Way::Groups(groups) => return groups.call(op).await,
        };
        if self.is_out() {
            return Err(CallError::Refused(Errno::EACCES));
        }
        let bytes = op.to_bytes();
        let reads = op.action.is_read_only();
        let asked = async {
            match reads {
                true => session.read(bytes).await,
                false => session.call(bytes).await,
            }
        };
        let result = match &self.let_in {
            None => asked.await,
            Some(let_in) => tokio::select! {
                biased;
                result = asked => result,
                () = let_in.out() => return Err(match reads {
                    true => CallError::Refused(Errno::EACCES),
                    // It may have been done.
                    false => CallError::Lost,
                }),
            },
        };
        let result = result.map_err(|why| match why {
            NoResult::SessionLost => CallError::Lost,
            // No operation of this file service is so, nor an answer to one.
            NoResult::OpTooLong | NoResult::OpEmpty | NoResult::ResultTooLong => CallError::Garbled,
            // Nor is it of this one: the results of all that a session has in flight are kept, a change's being short.
            NoResult::ResultGone => CallError::Garbled,
        });
        match Outcome::from_bytes(result?) {
            Ok(Outcome(outcome)) => outcome.map_err(CallError::Refused),
            Err(_) => Err(CallError::Garbled),
        }
    }

    /// Lists a part of a directory: some entries, unless there are none up to its end.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn read_dir(&self, who: &Who, mut op: ReadDir) -> Called<Entries> {
        loop {
            match self.run(who, Action::ReadDir(op.clone())).await? {
                // Of many names the caller may list none.
                Answer::Entries(page) if page.entries.is_empty() && !page.end => {
                    op.cookie = page.next;
                }
                Answer::Entries(page) => return Ok(page),
                _ => return Err(CallError::Garbled),
            }
        }
    }

    calls! {
        /// Waits for its place in the order, and does nothing.
        ping(Nothing) => Ping -> Done(Nothing);
        /// The object with a name.
        lookup(Lookup) => Lookup -> Attr(Attr);
        /// Attributes.
        get_attr(Target) => GetAttr -> Attr(Attr);
        /// Changes attributes. The size may take several calls, see [`SetAttr::size`].
        set_attr(SetAttr) => SetAttr -> Attr(Attr);
        /// Which accesses would be allowed.
        access(Access) => Access -> Allowed(u32);
        /// Opens an object.
        open(Open) => Open -> Opened(Opened);
        /// Whether an object could be opened, without opening it.
        check_open(Open) => CheckOpen -> Attr(Attr);
        /// Holds files, and lets go of others.
        hold(Hold) => Hold -> Held(Held);
        /// Tells what was read.
        accessed(Accessed) => Accessed -> Done(Nothing);
        /// Makes and opens a file, or opens what has the name.
        create(Create) => Create -> Opened(Opened);
        /// Lets go of a handle.
        release(Handle) => Release -> Done(Nothing);
        /// Reads a file.
        read(Read) => Read -> Data(Data);
        /// Writes to a file.
        write(Write) => Write -> Written(Written);
        /// Makes a file without opening it, or finds it.
        make(Make) => Make -> Made(Made);
        /// Makes a directory.
        mkdir(Mkdir) => Mkdir -> Attr(Attr);
        /// Makes a pipe, socket, device or file.
        mknod(Mknod) => Mknod -> Attr(Attr);
        /// Makes a symbolic link.
        symlink(Symlink) => Symlink -> Attr(Attr);
        /// Where a symbolic link points.
        readlink(Ino) => Readlink -> Bytes(Bytes);
        /// Gives an object one more name.
        link(Link) => Link -> Attr(Attr);
        /// Removes a name.
        unlink(Unlink) => Unlink -> Done(Nothing);
        /// Removes an empty directory.
        rmdir(Rmdir) => Rmdir -> Done(Nothing);
        /// Moves a name.
        rename(Rename) => Rename -> Done(Nothing);
        /// Lists a directory.
        /// Space and limits.
        stat_fs(Nothing) => StatFs -> StatFs(StatFs);
        /// Waits for what was agreed before.
        fsync(Target) => Fsync -> Done(Nothing);
        /// Allocates, punches or zeroes; up to where, the answer says.
        fallocate(Fallocate) => Fallocate -> Progress(Progress);
        /// Sets an extended attribute.
        set_xattr(SetXattr) => SetXattr -> Attr(Attr);
        /// Removes an extended attribute.
        remove_xattr(RemoveXattr) => RemoveXattr -> Attr(Attr);
        /// Tests, takes or lets go of a lock.
        lock(Lock) => Lock -> Lock(Option<HeldLock>);
        /// Brings a credential of this session's key. Its digest.
        put_credential(PutCredential) => PutCredential -> Granted(Digest);
        /// Takes credentials back.
        revoke(Revoke) => Revoke -> Done(Nothing);
        /// Ends a revocation.
        restore(Restore) => Restore -> Done(Nothing);
        /// What was taken back.
        revocations(Revocations) => Revocations -> Revocations(KeptRevocations);
        /// The credentials that the volume keeps.
        grants(Grants) => Grants -> Grants(KeptGrants);
        /// Those of them that were passed on from a link.
        passed_on(PassedOn) => PassedOn -> Grants(KeptGrants);
        /// The audit log.
        audit(Audit) => Audit -> Audit(AuditRows);
        /// Gives a directory a quota, or takes it away.
        set_quota(SetQuota) => SetQuota -> Done(Nothing);
        /// Has a directory's entries count under its quota.
        adopt(Adopt) => Adopt -> Adopted(Adopted);
        /// Quotas, and what is in use.
        quotas(Quotas) => Quotas -> Quotas(QuotaRows);
        /// Space and limits where an object is.
        stat_fs_of(Ino) => StatFsOf -> StatFs(StatFs);
    }

    /// Does an action, and says what it did to the attributes of some objects.
    ///
    /// # Errors
    /// See [`CallError`]; what the service refuses of the action is in the answer.
    pub async fn with_attrs(&self, who: &Who, op: WithAttrs) -> Called<AttrsAnswer> {
        match self.run(who, Action::WithAttrs(op)).await? {
            Answer::WithAttrs(answer) => Ok(answer),
            _ => Err(CallError::Garbled),
        }
    }

    /// An extended attribute.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn get_xattr(&self, who: &Who, op: GetXattr) -> Called<XattrAnswer> {
        xattr_answer(self.run(who, Action::GetXattr(op)).await?)
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list_xattr(&self, who: &Who, op: ListXattr) -> Called<XattrAnswer> {
        xattr_answer(self.run(who, Action::ListXattr(op)).await?)
    }

    /// The next data or hole, however far it is.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn seek(&self, who: &Who, mut op: Seek) -> Called<u64> {
        loop {
            match self.run(who, Action::Seek(op.clone())).await? {
                Answer::Offset(offset) => return Ok(offset),
                Answer::Progress(progress) if progress.done > op.offset => {
                    op.offset = progress.done
                }
                _ => return Err(CallError::Garbled),
            }
        }
    }
}

fn xattr_answer(answer: Answer) -> Called<XattrAnswer> {
    match answer {
        Answer::Bytes(bytes) => Ok(XattrAnswer::Bytes(bytes)),
        Answer::Size(size) => Ok(XattrAnswer::Size(size)),
        _ => Err(CallError::Garbled),
    }
}

/// Whether an operation done twice leaves and answers the same as done once, if nobody else comes between.
fn is_repeatable(action: &Action) -> bool {
    match action {
        Action::Ping(_)
        | Action::PutCredential(_)
        | Action::Revoke(_)
        | Action::Fsync(_)
        | Action::SetAttr(_)
        | Action::Fallocate(_)
        | Action::CopyRange(_)
        | Action::Adopt(_)
        | Action::Accessed(_)
        | Action::Open(_) => true,
        Action::SetQuota(set) => set.limits.is_some(),
        Action::Write(write) => matches!(write.place, Place::At(_)),
        Action::Create(create) => create.flags & flags::EXCLUSIVE == 0,
        Action::Make(_) => true,
        // Done once, it has changed what the guard is compared with.
        Action::WithAttrs(with) => with.guard.is_none() && is_repeatable(&with.action),
        Action::SetXattr(set) => set.mode == XattrMode::Set,
        // Of the rest, what changes nothing.
        other => other.is_read_only(),
    }
}
