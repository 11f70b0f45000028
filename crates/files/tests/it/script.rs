//! Random operations that make sense in their order, for properties that hold executions against each other.

use bytes::Bytes;
use quorate_credential::{self as credential, Chain, VolumeId};
use quorate_execution::Call;
use quorate_files::answer::Answer;
use quorate_files::op::*;
use quorate_files::{Admission, Genesis, Handle, Ino, Kind, Nothing, Outcome, Stamp};

use crate::common::World;
use crate::sharing;
use crate::support::Step;

/// So little that space and numbers run out often.
pub const SMALL: Genesis = Genesis {
    capacity_bytes: 50 * 4096,
    capacity_inodes: 14,
    root_uid: 0,
    root_gid: 0,
    root_mode: 0o1777,
};

/// What answers have told of so far.
pub struct Known {
    inos: Vec<Ino>,
    dirs: Vec<Ino>,
    handles: Vec<(u64, Handle)>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            inos: vec![Ino::ROOT],
            dirs: vec![Ino::ROOT],
            handles: Vec::new(),
        }
    }
}

impl Known {
    pub fn learn(&mut self, session: u64, answer: &Answer) {
        let attr = match answer {
            Answer::Opened(opened) => {
                self.handles.push((session, opened.handle));
                &opened.attr
            }
            Answer::Attr(attr) => attr,
            Answer::Made(made) => &made.attr,
            Answer::WithAttrs(seen) => {
                if let Ok(answer) = &seen.outcome.0 {
                    self.learn(session, answer);
                }
                return;
            }
            _ => return,
        };
        if !self.inos.contains(&attr.ino) {
            self.inos.push(attr.ino);
            if attr.kind == Kind::Directory {
                self.dirs.push(attr.ino);
            }
        }
    }
}

pub type Raw = [u8; 10];

/// Few objects, few names, few places: so that operations meet.
pub struct Maker<'a> {
    pub raw: &'a Raw,
    pub known: &'a Known,
}

impl Maker<'_> {
    pub fn action(&self) -> Action {
        self.maybe_with_attrs(match self.raw[1] {
            0..100 => self.on_names(),
            100..160 => self.on_objects(),
            160.. => self.on_content(),
        })
    }

    /// One of two users.
    pub fn who(&self) -> Who {
        match self.raw[0].is_multiple_of(2) {
            true => Who::new(1000, 100),
            false => Who::root(),
        }
    }

    fn pick<T: Copy>(&self, list: &[T], i: usize) -> T {
        list[usize::from(self.raw[i]) % list.len()]
    }

    fn ino(&self, i: usize) -> Ino {
        // Sometimes one that is yet to be made.
        match self.raw[i] {
            250.. => Ino(u64::from(self.raw[i]) % 16),
            200.. => self.pick(&self.known.inos, i),
            _ => {
                let recent = self.known.inos.len().saturating_sub(4);
                self.pick(&self.known.inos[recent..], i)
            }
        }
    }

    fn dir(&self, i: usize) -> Ino {
        match self.raw[i] {
            240.. => self.ino(i),
            _ => self.pick(&self.known.dirs, i),
        }
    }

    fn name(&self, i: usize) -> Bytes {
        Bytes::from_static(self.pick(&[&b"a"[..], b"b", b"c", b"d"], i))
    }

    fn handle(&self, i: usize) -> Handle {
        let own: Vec<_> = self.known.handles.iter().rev().take(6).collect();
        match own.get(usize::from(self.raw[i]) % own.len().max(1)) {
            Some((_, handle)) => *handle,
            None => Handle {
                ino: self.ino(i),
                number: 5,
            },
        }
    }

    fn target(&self, i: usize) -> Target {
        match self.raw[i + 1] % 6 {
            0 => Target::Ino(self.ino(i)),
            1 if self.raw[i + 1] >= 100 => Target::Checked(self.ino(i)),
            1 => Target::Unopened(self.ino(i)),
            _ => Target::Handle(self.handle(i)),
        }
    }

    /// Mostly for reading and writing.
    fn flags(&self, i: usize, end: u32) -> u32 {
        let bits = u32::from(self.raw[i]) % end;
        match self.raw[8] % 4 {
            0 => bits,
            1 => bits & flags::TRUNC | flags::READ | flags::WRITE,
            2 => bits & flags::APPEND | flags::READ | flags::WRITE,
            _ => flags::READ | flags::WRITE,
        }
    }

    fn offset(&self, i: usize) -> u64 {
        self.pick(&[0, 100, 4096, 65_000, 65_536, 70_000, 131_072, 200_000], i)
    }

    /// Of the first few: so that attributes are found again.
    fn old_ino(&self, i: usize) -> Ino {
        self.pick(&self.known.inos[..self.known.inos.len().min(2)], i)
    }

    fn xattr(&self, i: usize) -> Bytes {
        let names = [
            &b"user.x"[..],
            b"security.capability",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
        ];
        Bytes::from_static(self.pick(&names, i))
    }

    /// One for the caller who is not the superuser, or none.
    fn acl(&self, i: usize) -> Bytes {
        let (all, perm) = ([255; 4], self.raw[i] % 8);
        let mut out = vec![2, 0, 0, 0];
        let entries = [(1, 6), (2, perm), (4, 4), (16, 7), (32, 0)];
        for (tag, perm) in entries.iter().take(usize::from(self.raw[i] / 8) % 12) {
            out.extend_from_slice(&[*tag, 0, *perm, 0]);
            out.extend_from_slice(&if *tag == 2 { [232, 3, 0, 0] } else { all });
        }
        out.into()
    }

    fn set_attr(&self) -> SetAttr {
        let mut op = crate::common::set_attr(self.target(3));
        match self.raw[5] % 6 {
            0 => op.mode = Some(self.pick(&[0o600, 0o644, 0o4777, 0o2775, 0], 6)),
            1 => op.uid = Some(self.pick(&[0, 1000], 6)),
            2 => op.gid = Some(self.pick(&[0, 100], 6)),
            3 => op.mtime = Some(SetTime::Now(Nothing)),
            _ => op.size = Some(self.pick(&[0, 0, 10, 65_536, 66_000, 300_000], 6)),
        }
        op
    }

    fn write(&self) -> Write {
        let len = self.pick(&[0, 1, 1, 4096, 5000, 65_536, 80_000], 6);
        Write {
            target: self.target(3),
            place: match self.raw[5] {
                0..30 => Place::End(Nothing),
                _ => Place::At(self.offset(5)),
            },
            data: Bytes::from(vec![self.raw[7]; len]),
        }
    }

    /// One in four is looked at from both sides, with a guard now and then.
    fn maybe_with_attrs(&self, action: Action) -> Action {
        if !self.raw[0].is_multiple_of(8) && self.raw[0] % 8 != 3 {
            return action;
        }
        let count = usize::from(self.raw[3]) % 4;
        let objects = [self.dir(3), self.ino(5), self.ino(4)];
        Action::WithAttrs(WithAttrs {
            objects: objects[..count].to_vec(),
            guard: (self.raw[4] < 20).then(Stamp::default),
            action: Box::new(action),
        })
    }

    fn on_names(&self) -> Action {
        let (parent, name) = (self.dir(3), self.name(4));
        let mode = self.pick(&[0o644, 0o755, 0o777, 0o4755], 6);
        match self.raw[2] % 16 {
            0..4 => Action::Create(Create {
                parent,
                name,
                mode,
                umask: 0,
                flags: self.flags(7, 64),
            }),
            4 => Action::Make(Make {
                parent,
                name,
                mode,
                umask: 0,
                verifier: self.pick(&[None, Some(0), Some(1)], 7),
            }),
            5 => Action::Mkdir(Mkdir {
                parent,
                name,
                mode,
                umask: 0,
            }),
            6 => Action::Mknod(Mknod {
                parent,
                name,
                kind: Kind::Fifo,
                mode,
                umask: 0,
                rdev: 0,
            }),
            7 => Action::Symlink(Symlink {
                parent,
                name,
                target: self.name(5),
            }),
            8 => Action::Link(Link {
                ino: self.ino(5),
                parent,
                name,
            }),
            9 | 10 => Action::Unlink(Unlink { parent, name }),
            11 => Action::Rmdir(Rmdir { parent, name }),
            12 | 13 => Action::Rename(Rename {
                parent,
                name,
                new_parent: self.dir(5),
                new_name: self.name(6),
                mode: match self.raw[7] % 4 {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                },
            }),
            _ => Action::Lookup(Lookup {
                parent,
                name: match self.raw[7] {
                    0..20 => Bytes::from_static(b".."),
                    _ => name,
                },
            }),
        }
    }

    fn on_objects(&self) -> Action {
        match self.raw[2] % 36 {
            0..3 => Action::SetAttr(self.set_attr()),
            3 | 4 => Action::Open(Open {
                ino: match self.raw[5] % 4 {
                    0 => self.dir(3),
                    _ => self.ino(3),
                },
                flags: self.flags(4, 16),
            }),
            5..7 => Action::Release(self.handle(3)),
            7 | 8 => Action::GetAttr(self.target(3)),
            9 => Action::Access(Access {
                ino: self.ino(3),
                mask: u32::from(self.raw[4]) % 8,
            }),
            10 => Action::Readlink(self.ino(3)),
            11 | 12 => Action::ReadDir(ReadDir {
                target: match self.raw[5] % 3 {
                    0 => self.target(3),
                    _ => Target::Ino(self.dir(3)),
                },
                cookie: 0,
                count: 20,
                plus: self.raw[6].is_multiple_of(2),
            }),
            13 => Action::StatFs(Nothing),
            14 => self
                .pick(&[true, false], 4)
                .then_some(())
                .map_or(Action::Fsync(self.target(3)), |()| Action::Ping(Nothing)),
            15 | 16 => Action::SetXattr(SetXattr {
                ino: self.old_ino(3),
                name: self.xattr(4),
                value: match self.xattr(4).starts_with(b"system.") {
                    true => self.acl(5),
                    false => Bytes::from(vec![7; usize::from(self.raw[5]) * 4]),
                },
                mode: XattrMode::Set,
            }),
            17 => Action::GetXattr(GetXattr {
                ino: self.old_ino(3),
                name: self.xattr(4),
                size: 5000,
            }),
            18 => Action::ListXattr(ListXattr {
                ino: self.old_ino(3),
                size: 5000,
            }),
            19 => Action::RemoveXattr(RemoveXattr {
                ino: self.old_ino(3),
                name: self.xattr(4),
            }),
            20 => Action::SetQuota(SetQuota {
                dir: self.dir(3),
                limits: (self.raw[4] > 40).then(|| Limits {
                    bytes: (self.raw[5] > 60).then(|| u64::from(self.raw[6]) * 1024),
                    files: (self.raw[7] > 60).then(|| u64::from(self.raw[7]) % 9),
                }),
            }),
            21 => Action::Adopt(Adopt {
                dir: self.dir(3),
                after: 0,
            }),
            22 => Action::StatFsOf(self.ino(3)),
            23 => Action::Quotas(Quotas {
                about: self.raw[4].is_multiple_of(2).then(|| self.ino(3)),
                after: 0,
            }),
            24 => Action::CheckOpen(Open {
                ino: self.ino(3),
                flags: self.flags(4, 16) & !flags::TRUNC,
            }),
            25..28 => {
                let list = |i: usize| match self.raw[i] % 3 {
                    0 => vec![],
                    1 => vec![self.ino(i)],
                    _ => vec![self.ino(i), self.ino(i + 1)],
                };
                Action::Hold(Hold {
                    keep: list(3),
                    let_go: list(5),
                })
            }
            34 | 35 => Action::Accessed(Accessed {
                objects: (0..6)
                    .map(|change| Seen {
                        ino: self.ino(3 + change as usize % 3),
                        change,
                    })
                    .collect(),
            }),
            28 => Action::Grants(Grants {
                about: self.raw[4].is_multiple_of(2).then(|| self.ino(3)),
                after: None,
                count: u32::from(self.raw[5]) % 8,
            }),
            29 => Action::Revocations(Revocations {
                after: None,
                count: u32::from(self.raw[5]) % 8,
            }),
            30 => Action::Audit(Audit {
                from: u64::from(self.raw[4]) % 16,
                count: u32::from(self.raw[5]) % 8,
            }),
            _ => Action::Lock(Lock {
                handle: self.handle(3),
                space: LockSpace::Posix,
                owner: u64::from(self.raw[4]) % 2,
                pid: 1,
                start: u64::from(self.raw[5]) % 4,
                end: 4,
                kind: self.pick(&[LockKind::Read, LockKind::Write, LockKind::Unlock], 6),
                test: self.raw[7].is_multiple_of(2),
            }),
        }
    }

    fn on_content(&self) -> Action {
        match self.raw[2] % 18 {
            0..10 => Action::Write(self.write()),
            10..13 => Action::Read(Read {
                target: self.target(3),
                offset: self.offset(5),
                len: self.pick(&[0, 1, 5000, 70_000], 6),
            }),
            16.. => Action::CopyRange(CopyRange {
                from: self.target(3),
                offset: self.offset(5),
                to: self.target(4),
                to_offset: self.offset(6),
                len: self.pick(&[0, 1, 5000, 70_000, u64::MAX >> 2], 7),
            }),
            13 => Action::Seek(Seek {
                target: self.target(3),
                offset: self.offset(5),
                whence: self.pick(&[Whence::Data, Whence::Hole], 6),
            }),
            _ => Action::Fallocate(Fallocate {
                target: self.target(3),
                mode: self.pick(
                    &[
                        FallocateMode::Allocate,
                        FallocateMode::KeepSize,
                        FallocateMode::PunchHole,
                        FallocateMode::ZeroRange,
                        FallocateMode::ZeroRangeKeepSize,
                    ],
                    6,
                ),
                offset: self.offset(5),
                len: self.pick(&[1, 4096, 70_000], 7),
            }),
        }
    }
}

/// Operations that make sense in their order, with the results they have then.
pub fn script(raws: &[Raw]) -> Vec<Step> {
    let mut world = World::with(SMALL);
    let mut known = Known::default();
    let mut steps = Vec::new();
    for raw in raws {
        let mut session = 1 + u64::from(raw[9]) % 2;
        let op = if raw[1] < 6 {
            world.end_session(session);
            None
        } else {
            let maker = Maker { raw, known: &known };
            let (who, action) = (maker.who(), maker.action());
            // Handles are of their session; somebody else's is no handle.
            if raw[8] >= 10 {
                session = owner(&action, &known).unwrap_or(session);
            }
            let op = Op::new(who, action).to_bytes();
            let result = world.execute(session, &op);
            if let Ok(answer) = Outcome::from_bytes(result).unwrap().0 {
                known.learn(session, &answer);
            }
            Some(op)
        };
        steps.push(Step {
            call: world.call(session),
            op,
        });
    }
    steps
}

/// The guests' keys have these numbers.
pub const GUESTS: [u8; 2] = [1, 2];

/// A volume with an owner, whose member is who members of [`World`] are.
pub fn admission() -> Admission {
    Admission {
        volume: sharing::VOLUME,
        owner: Some(sharing::public(0)),
        members: [World::with(SMALL).call(1).client].into(),
    }
}

/// What is done about credentials beside a guest's operation, and with which key: they are brought, passed on, listed, taken back and brought again.
pub fn about_credentials(raw: &Raw, guest: u8, is_first: bool) -> Vec<(u8, Action)> {
    let volume = VolumeId(sharing::VOLUME);
    let mut found = Vec::new();
    let mut terms = sharing::terms(guest, u64::from(raw[4] % 4).max(1));
    terms.window = credential::Window {
        not_before: 0,
        not_after: u64::MAX / 2_000_000_000,
    };
    terms.serial = u64::from(raw[5] % 3);
    let is_brought = is_first || raw[2] < 60;
    let is_asked_for = (200..230).contains(&raw[2]);
    if is_brought || is_asked_for {
        let chain = Chain::issue(volume, &sharing::key(0), terms).unwrap();
        let put = |chain: &Chain| {
            Action::PutCredential(PutCredential {
                chain: chain.to_bytes().into(),
            })
        };
        let other = GUESTS[(usize::from(raw[3]) + 1) % GUESTS.len()];
        if is_asked_for {
            let passed_on = Action::PassedOn(PassedOn {
                link: chain.id(),
                about: None,
                after: None,
                count: 1 + u32::from(raw[5]) % 8,
            });
            // Who holds it, who may hold what was passed on from it, and who may ask for all.
            found.push(([guest, other, 0][usize::from(raw[6]) % 3], passed_on));
            return found;
        }
        found.push((guest, put(&chain)));
        if raw[6].is_multiple_of(3) {
            let mut below = chain.links()[0].terms.clone();
            below.subject = sharing::public(other);
            below.depth -= 1;
            if let Ok(longer) = chain.delegate(&sharing::key(guest), below) {
                found.push((other, put(&longer)));
            }
        }
    }
    if raw[2] >= 240 {
        let what = Revoked::Key(sharing::public(guest));
        let revoke = Revoke {
            what: what.clone(),
            by: None,
            until: None,
        };
        found.push((0, Action::Revoke(revoke)));
        if raw[5].is_multiple_of(2) {
            found.push((0, Action::Restore(Restore { what, by: None })));
        }
    }
    found
}

/// The same operations, a part of them by guests, with what is done about credentials in between.
pub fn with_guests(script: Vec<Step>, raws: &[Raw]) -> Vec<Step> {
    let by = |step: &Step, key: u8| Call {
        client: sharing::public(key),
        ..step.call
    };
    let mut steps = Vec::new();
    for (mut step, raw) in script.into_iter().zip(raws) {
        let guest = GUESTS[usize::from(raw[3]) % GUESTS.len()];
        let is_first = step.call.now.0.is_multiple_of(7);
        for (after, (key, action)) in (0..).zip(about_credentials(raw, guest, is_first)) {
            // At times that have no operation yet: the script's are 1,000 ns and more from each other.
            let mut call = by(&step, key);
            call.now.0 -= 500 - after;
            steps.push(Step {
                call,
                op: Some(Op::new(Who::root(), action).to_bytes()),
            });
        }
        if raw[7] % 3 == 0 {
            step.call = by(&step, guest);
        }
        steps.push(step);
    }
    steps
}

/// Whose handle an action names.
pub fn owner(action: &Action, known: &Known) -> Option<u64> {
    let handle = match action {
        Action::WithAttrs(with) => return owner(&with.action, known),
        Action::Release(handle) => handle,
        Action::Lock(lock) => &lock.handle,
        Action::GetAttr(Target::Handle(handle)) | Action::Fsync(Target::Handle(handle)) => handle,
        Action::Read(Read { target, .. })
        | Action::Write(Write { target, .. })
        | Action::Seek(Seek { target, .. })
        | Action::Fallocate(Fallocate { target, .. })
        | Action::ReadDir(ReadDir { target, .. })
        | Action::CopyRange(CopyRange { to: target, .. })
        | Action::SetAttr(SetAttr { target, .. }) => match target {
            Target::Handle(handle) => handle,
            Target::Ino(_) | Target::Unopened(_) | Target::Checked(_) => return None,
        },
        _ => return None,
    };
    let mut found = known.handles.iter();
    found
        .find(|(_, h)| h == handle)
        .map(|(session, _)| *session)
}
