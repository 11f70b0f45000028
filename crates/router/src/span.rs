//! One volume of several Quorate groups, for a mount: the agent's own operations, each sent to the group that keeps the object.
//!
//! - `numbers`: the volume's numbers of objects.
//! - `look`: what has a name, wherever it lies.
//! - `names`: changes of names, which may touch two groups.
//!
//! What is about an object goes to its group as it is, in the mount's session there: opens, reads, writes, locks, extended attributes and
//! ACLs are the group's own, with all that the agent promises for one group. A change of names holds the names as a router does, and
//! what touches two buckets is the coordinator's. So a mount is one more router, without clients.

mod look;
mod names;
mod numbers;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use quorate_client::volume::{Called, Calling, Failing};
use quorate_client::{CallError, Session, Spanning, Volume};
use quorate_files::answer::{Held, StatFs};
use quorate_files::op::{Accessed, GetXattr, Hold};
use quorate_files::{Action, Answer, Errno, Ino, Nothing, Op, Who};
use quorate_nfs::Secrets;
use quorate_nfs::handle::Named;
use quorate_nfs::status::Status;
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::buckets::Buckets;
use crate::coordinator::{Coordinator, Hidden};
use crate::handle::{Handle, key, origin};
use crate::layout::{self, Bucket, Layout};
use crate::names::Names;
use crate::shared::Shared;
use crate::shelf::Shelves;
use crate::upstream::{Opened, Upstreams};
use numbers::{of_copy, parts, take_object, tell, whole};

/// A coordinator among others, for one epoch.
pub type Life = Coordinator<Arc<Buckets<Upstreams>>, Shared<Session>>;

/// The extended attribute of each object in which a mount says on which volume it lies, as `quorate volume list` numbers them. It is not
/// listed, and no part of the volume.
pub const VOLUME: &str = "quorate.volume";
/// How long a group may take to say how much space it has.
const SPACE_TIME: Duration = Duration::from_secs(5);

/// Why volumes can't be mounted as one.
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// An NFS server has no opens, no locks and no extended attributes.
    #[error(
        "{0} is no Quorate group: a mount spans groups alone; for NFS servers use `quorate route`"
    )]
    NotAGroup(String),
    /// Handles of before a move would have to be looked up.
    #[error(
        "a part of this volume was moved by a router once, and a mount can't follow that yet; use `quorate route`"
    )]
    Moved,
    /// More than fit in the numbers of objects.
    #[error("this volume has {0} buckets, and a mount can tell {max} apart", max = numbers::MAX_BUCKETS)]
    Buckets(usize),
    /// A handle that the router has made itself says nothing to it.
    #[error("the volume's own directories: {0:?}")]
    Handle(Status),
}

/// A group, and how its objects are called.
#[derive(Debug)]
struct Member {
    session: Session,
    volume: Volume,
    secrets: Secrets,
    /// As handles have it.
    export: u64,
}

/// See the module. Clones are one.
#[derive(Clone, Debug)]
pub struct Span(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// By the numbers of volumes.
    members: Vec<Option<Member>>,
    /// The volume of each bucket.
    places: Vec<layout::Volume>,
    /// Of each bucket, the directory of what has its names elsewhere, by its group's own number.
    placed: Vec<Ino>,
    buckets: Arc<Buckets<Upstreams>>,
    layout: Arc<Layout>,
    root: Handle,
    /// The root, by the volume's number.
    top: Ino,
    life: watch::Sender<Option<Arc<Life>>>,
    /// What keeps the place among routers, which ends when the one is dropped and the other done.
    keeper: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
    /// What each group has said of its space last.
    spaces: Mutex<BTreeMap<u16, StatFs>>,
    names: Names,
    /// Where changes of names are carried out: they go to their end, whether anybody waits or not.
    runtime: runtime::Handle,
}

/// An object as its group knows it.
#[derive(Clone, Copy, Debug)]
struct At<'a> {
    bucket: Bucket,
    place: layout::Volume,
    member: &'a Member,
    ino: Ino,
}

impl Span {
    /// Sessions with the groups of a volume that was set up. Within a runtime, which must live as long as the mount.
    ///
    /// # Errors
    /// [`SpanError`].
    pub fn new(
        buckets: &Arc<Buckets<Upstreams>>,
        hidden: &[Hidden],
        root: &Handle,
        shelves: &Shelves,
        layout: Arc<Layout>,
    ) -> Result<Span, SpanError> {
        let map = buckets.map();
        if map.buckets.len() > numbers::MAX_BUCKETS {
            return Err(SpanError::Buckets(map.buckets.len()));
        }
        if map.buckets.iter().any(|place| place.moved != 0) {
            return Err(SpanError::Moved);
        }
        let mut members = Vec::new();
        for (number, member) in (0..).zip(&map.volumes) {
            members.push(match shelves.get(layout::Volume(number)) {
                Some(shelf) => {
                    let upstream = buckets.servers.get(layout::Volume(number));
                    let opened = upstream.and_then(|upstream| upstream.opened());
                    let opened = opened.ok_or_else(|| SpanError::NotAGroup(member.url.clone()))?;
                    Some(Member::new(opened, &shelf.top)?)
                }
                None => None,
            });
        }
        let places: Vec<_> = map.buckets.iter().map(|place| place.volume).collect();
        let own = |bucket: Bucket, key: &Bytes| {
            let place = places.get(bucket.0 as usize).ok_or(Status::Stale)?;
            let member = members.get(usize::from(place.0)).and_then(Option::as_ref);
            member.ok_or(Status::Stale)?.own(key)
        };
        let placed = (0..).map(Bucket).zip(hidden);
        let placed = placed.map(|(bucket, hidden)| own(bucket, &hidden.placed));
        let placed = placed
            .collect::<Result<_, _>>()
            .map_err(SpanError::Handle)?;
        let top = own(root.bucket, &root.key).map_err(SpanError::Handle)?;
        let top = whole(root.bucket, top).map_err(|_| SpanError::Handle(Status::Stale))?;
        Ok(Span(Arc::new(Inner {
            members,
            places,
            placed,
            buckets: buckets.clone(),
            layout,
            root: root.clone(),
            top,
            life: watch::Sender::new(None),
            keeper: Mutex::default(),
            spaces: Mutex::default(),
            names: Names::default(),
            runtime: runtime::Handle::current(),
        })))
    }

    /// What is the mount's root.
    pub fn root(&self) -> Ino {
        self.0.top
    }

    /// The volume, for the mount.
    pub fn volume(&self) -> Volume {
        Volume::spanning(Arc::new(self.clone()))
    }

    /// From now on names are changed in this coordinator's epoch; with none, changes wait for one.
    pub fn set_life(&self, life: Option<Arc<Life>>) {
        self.0.life.send_replace(life);
    }

    /// What keeps the place among routers: it ends when `stop` is dropped, for which it needs the sessions. So [`Span::end`] waits for it
    /// before these are closed.
    pub fn kept_by(&self, stop: oneshot::Sender<()>, kept: JoinHandle<()>) {
        *self.0.keeper() = Some((stop, kept));
    }

    /// Gives up the place among routers, and closes all sessions.
    pub async fn end(&self) {
        let keeper = self.0.keeper().take();
        if let Some((stop, kept)) = keeper {
            drop(stop);
            // A panic in it was told by itself.
            let _ = kept.await;
        }
        for member in self.0.members.iter().flatten() {
            member.session.close().await;
        }
    }

    /// Asks all groups for their space, which decides where new directories go if they go where most is free. One that does not answer
    /// has what it had.
    pub async fn learn_space(&self) {
        let _ = self.0.space(&Who::root()).await;
    }
}

impl Spanning for Span {
    fn call(&self, op: Op) -> Calling<'_> {
        let inner = self.0.clone();
        Box::pin(async move { inner.answer(op.who, op.action).await })
    }

    fn generations(&self) -> Vec<u64> {
        let generation = |member: &Option<Member>| {
            let session = member.as_ref().map(|member| &member.session);
            session.map_or(0, Session::generation)
        };
        self.0.members.iter().map(generation).collect()
    }

    fn group_of(&self, ino: Ino) -> usize {
        let place = self.0.places.get(parts(ino).0.0 as usize);
        place.map_or(usize::MAX, |volume| usize::from(volume.0))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.end())
    }

    fn failed(&self) -> Failing {
        let members = self.0.members.iter().flatten();
        let mut failed: Vec<Failing> = members.map(|member| member.volume.failed()).collect();
        Box::pin(poll_fn(move |context| {
            let mut polled = failed.iter_mut().map(|it| it.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }))
    }
}

impl Member {
    fn new(Opened { session, secrets }: Opened, top: &Bytes) -> Result<Member, SpanError> {
        let named = secrets.read(top).map_err(SpanError::Handle)?;
        Ok(Member {
            volume: Volume::new(session.clone()),
            session,
            secrets,
            export: named.export,
        })
    }

    /// The group's number of what routers call so.
    fn own(&self, key: &Bytes) -> Result<Ino, Status> {
        let (_, handle) = origin(key).ok_or(Status::BadHandle)?;
        Ok(self.secrets.read(&handle)?.ino)
    }
}

impl At<'_> {
    /// As routers call it.
    fn handle(&self) -> Handle {
        let named = Named {
            export: self.member.export,
            ino: self.ino,
        };
        Handle {
            bucket: self.bucket,
            key: key(self.place, &self.member.secrets.handle(named)),
        }
    }
}

impl Inner {
    fn at(&self, ino: Ino) -> Called<At<'_>> {
        let (bucket, ino) = parts(ino);
        let stale = CallError::Refused(Errno::ESTALE);
        let place = *self.places.get(bucket.0 as usize).ok_or(stale)?;
        let member = self.members.get(usize::from(place.0));
        let member = member.and_then(Option::as_ref).ok_or(stale)?;
        Ok(At {
            bucket,
            place,
            member,
            ino,
        })
    }

    /// The directory in a bucket of what has its names elsewhere.
    fn placed(&self, bucket: Bucket) -> Called<Ino> {
        let placed = self.placed.get(bucket.0 as usize);
        whole(bucket, *placed.ok_or(CallError::Refused(Errno::ESTALE))?)
    }

    async fn answer(self: Arc<Inner>, who: Who, mut action: Action) -> Called<Answer> {
        names::may_ask(&who, &action)?;
        if let Action::CopyRange(copy) = &action {
            let (to, from) = of_copy(copy);
            if !std::ptr::eq(self.at(to)?.member, self.at(from)?.member) {
                return Err(CallError::Refused(Errno::EXDEV));
            }
        }
        if let Action::GetXattr(get) = &action
            && get.name == VOLUME
        {
            return self.told_volume(get);
        }
        if let Some(object) = take_object(&mut action) {
            let at = self.at(object)?;
            let answer = at.member.volume.run(&who, action).await?;
            return tell(at.bucket, answer);
        }
        match action {
            Action::Ping(nothing) => self.ping(&who, nothing).await,
            Action::Hold(hold) => self.hold_files(&who, hold).await.map(Answer::Held),
            Action::Accessed(read) => self.tell_read(&who, read).await,
            Action::StatFs(_) | Action::StatFsOf(_) => self.space(&who).await.map(Answer::StatFs),
            Action::Lookup(lookup) => self.lookup(&who, lookup).await.map(Answer::Attr),
            Action::ReadDir(list) => self.list(&who, list).await.map(Answer::Entries),
            Action::Create(_)
            | Action::Mkdir(_)
            | Action::Mknod(_)
            | Action::Symlink(_)
            | Action::Link(_)
            | Action::Unlink(_)
            | Action::Rmdir(_)
            | Action::Rename(_) => self.change_names(who, action).await,
            // What is one group's: credentials, quotas, the audit log; and what no mount asks.
            _ => Err(CallError::Refused(Errno::ENOTSUP)),
        }
    }

    fn told_volume(&self, get: &GetXattr) -> Called<Answer> {
        let text = self.at(get.ino)?.place.0.to_string();
        match get.size as usize {
            0 => Ok(Answer::Size(text.len() as u32)),
            size if size < text.len() => Err(CallError::Refused(Errno::ERANGE)),
            _ => Ok(Answer::Bytes(text.into())),
        }
    }

    /// Of one group's files, in the volume's numbers. `EXDEV`: they are of several.
    async fn hold_files(&self, who: &Who, hold: Hold) -> Called<Held> {
        let mut one: Option<&Member> = None;
        let mut own = |list: &[Ino]| -> Called<Vec<Ino>> {
            let own = list.iter().map(|ino| {
                let at = self.at(*ino)?;
                match std::ptr::eq(*one.get_or_insert(at.member), at.member) {
                    true => Ok(at.ino),
                    false => Err(CallError::Refused(Errno::EXDEV)),
                }
            });
            own.collect()
        };
        let (keep, let_go) = (own(&hold.keep)?, own(&hold.let_go)?);
        let Some(member) = one else {
            return Ok(Held { gone: Vec::new() });
        };
        let asked = Hold {
            keep: keep.clone(),
            let_go,
        };
        let held = member.volume.hold(who, asked).await?;
        let gone = keep
            .iter()
            .zip(&hold.keep)
            .filter(|(own, _)| held.gone.contains(own));
        Ok(Held {
            gone: gone.map(|(_, whole)| *whole).collect(),
        })
    }

    /// To each group what was read of it. What is no object's number is passed over, as by a group.
    async fn tell_read(&self, who: &Who, read: Accessed) -> Called<Answer> {
        let mut of_members: Vec<(&Member, Accessed)> = Vec::new();
        for mut seen in read.objects {
            let Ok(at) = self.at(seen.ino) else { continue };
            seen.ino = at.ino;
            match of_members
                .iter_mut()
                .find(|of| std::ptr::eq(of.0, at.member))
            {
                Some((_, read)) => read.objects.push(seen),
                None => of_members.push((
                    at.member,
                    Accessed {
                        objects: vec![seen],
                    },
                )),
            }
        }
        for (member, read) in of_members {
            member.volume.accessed(who, read).await?;
        }
        Ok(Answer::Done(Nothing))
    }

    async fn ping(&self, who: &Who, nothing: Nothing) -> Called<Answer> {
        for member in self.members.iter().flatten() {
            member.volume.ping(who, nothing).await?;
        }
        Ok(Answer::Done(nothing))
    }

    fn keeper(&self) -> MutexGuard<'_, Option<(oneshot::Sender<()>, JoinHandle<()>)>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums of all groups; for one that does not answer, what it said last.
    async fn space(&self, who: &Who) -> Called<StatFs> {
        let mut asked = JoinSet::new();
        for (number, member) in (0..).zip(&self.members) {
            let Some(member) = member else { continue };
            let (volume, who) = (member.volume.clone(), who.clone());
            let told = async move {
                let told = timeout(SPACE_TIME, volume.stat_fs(&who, Nothing)).await;
                (number, told.unwrap_or(Err(CallError::Lost)))
            };
            asked.spawn_on(told, &self.runtime);
        }
        let groups = asked.len();
        let mut told = Vec::new();
        while let Some(one) = asked.join_next().await {
            told.push(one.map_err(|_| CallError::Lost)?);
        }
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, one) in told {
            match one {
                Ok(one) => {
                    let free = one.capacity.saturating_sub(one.used);
                    self.layout.set_free(layout::Volume(number), free);
                    spaces.insert(number, one);
                }
                Err(CallError::Lost) => {}
                Err(error) => return Err(error),
            }
        }
        if spaces.len() < groups {
            return Err(CallError::Lost);
        }
        let sum = spaces.values().cloned().reduce(|sum, one| StatFs {
            capacity: sum.capacity.saturating_add(one.capacity),
            used: sum.used.saturating_add(one.used),
            inodes: sum.inodes.saturating_add(one.inodes),
            used_inodes: sum.used_inodes.saturating_add(one.used_inodes),
            block_size: sum.block_size.max(one.block_size),
            name_max: sum.name_max.min(one.name_max),
        });
        sum.ok_or(CallError::Lost)
    }
}
