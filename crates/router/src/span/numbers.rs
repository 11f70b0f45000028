//! Numbers of objects: a volume's, and those that the group has which keeps the object.
//!
//! A volume's number has the bucket in bits 48 to 62, and the group's own number below. It stays the same for the object's life, as the
//! bucket does. Bit 63 is the mount's.

use quorate_client::CallError;
use quorate_client::volume::Called;
use quorate_files::op::CopyRange;
use quorate_files::{Action, Answer, Errno, Handle, Ino, Target};

use crate::layout::Bucket;

/// The most buckets whose numbers fit.
pub(super) const MAX_BUCKETS: usize = 1 << 15;
const SHIFT: u32 = 48;

/// A volume's number.
///
/// # Errors
/// `EOVERFLOW`: the group has given out more than 2^48 numbers.
pub(super) fn whole(bucket: Bucket, own: Ino) -> Called<Ino> {
    match own.0 >> SHIFT {
        0 => Ok(Ino(u64::from(bucket.0) << SHIFT | own.0)),
        _ => Err(CallError::Refused(Errno::EOVERFLOW)),
    }
}

/// The bucket, and the group's own number.
pub(super) fn parts(ino: Ino) -> (Bucket, Ino) {
    let own = ino.0 & ((1 << SHIFT) - 1);
    (Bucket((ino.0 >> SHIFT) as u32), Ino(own))
}

fn of_target(target: &Target) -> Ino {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => *ino,
        Target::Handle(handle) => handle.ino,
    }
}

fn own_target(target: &mut Target) {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => own(ino),
        Target::Handle(handle) => own(&mut handle.ino),
    }
}

fn own(ino: &mut Ino) {
    *ino = parts(*ino).1;
}

/// The two objects of a copy, the one that is written to first.
pub(super) fn of_copy(copy: &CopyRange) -> (Ino, Ino) {
    (of_target(&copy.to), of_target(&copy.from))
}

/// The object of an action about one object and no names in it; nothing for other actions. The action is then in the group's own numbers.
pub(super) fn take_object(action: &mut Action) -> Option<Ino> {
    let by_number = |ino: &mut Ino| {
        let whole = *ino;
        own(ino);
        whole
    };
    let by_target = |target: &mut Target| {
        let whole = of_target(target);
        own_target(target);
        whole
    };
    Some(match action {
        Action::GetAttr(target) | Action::Fsync(target) => by_target(target),
        Action::SetAttr(op) => by_target(&mut op.target),
        Action::Read(op) => by_target(&mut op.target),
        Action::Write(op) => by_target(&mut op.target),
        Action::Fallocate(op) => by_target(&mut op.target),
        Action::Seek(op) => by_target(&mut op.target),
        Action::CopyRange(op) => {
            own_target(&mut op.from);
            by_target(&mut op.to)
        }
        Action::Access(op) => by_number(&mut op.ino),
        Action::Open(op) | Action::CheckOpen(op) => by_number(&mut op.ino),
        Action::Readlink(ino) => by_number(ino),
        Action::SetXattr(op) => by_number(&mut op.ino),
        Action::GetXattr(op) => by_number(&mut op.ino),
        Action::ListXattr(op) => by_number(&mut op.ino),
        Action::RemoveXattr(op) => by_number(&mut op.ino),
        Action::Release(Handle { ino, .. }) => by_number(ino),
        Action::Lock(op) => by_number(&mut op.handle.ino),
        _ => return None,
    })
}

/// An answer about an object of a bucket, in the volume's numbers.
///
/// # Errors
/// As [`whole`].
pub(super) fn tell(bucket: Bucket, mut answer: Answer) -> Called<Answer> {
    let set = |ino: &mut Ino| -> Called<()> {
        *ino = whole(bucket, *ino)?;
        Ok(())
    };
    match &mut answer {
        Answer::Attr(attr) => set(&mut attr.ino)?,
        Answer::Data(data) => set(&mut data.attr.ino)?,
        Answer::Written(written) => set(&mut written.attr.ino)?,
        Answer::Progress(progress) => set(&mut progress.attr.ino)?,
        Answer::Opened(opened) => {
            set(&mut opened.attr.ino)?;
            set(&mut opened.handle.ino)?;
        }
        _ => {}
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_files::Nothing;
    use quorate_files::op::{Access, Place, Write};

    #[test]
    fn numbers_come_back() {
        for bucket in [0, 1, MAX_BUCKETS as u32 - 1].map(Bucket) {
            for own in [1, 7, (1 << SHIFT) - 1].map(Ino) {
                let number = whole(bucket, own).unwrap();
                assert_eq!(parts(number), (bucket, own));
                assert_eq!(number.0 >> 63, 0, "that bit is the mount's");
            }
        }
        let refused = Err(CallError::Refused(Errno::EOVERFLOW));
        assert_eq!(whole(Bucket(0), Ino(1 << SHIFT)), refused);
    }

    #[test]
    fn a_group_is_asked_in_its_own_numbers() {
        let ino = whole(Bucket(3), Ino(9)).unwrap();
        let handle = |ino| Handle { ino, number: 4 };
        let write = |ino| {
            Action::Write(Write {
                target: Target::Handle(handle(ino)),
                place: Place::End(Nothing),
                data: "x".into(),
            })
        };
        let mut action = write(ino);
        assert_eq!(take_object(&mut action), Some(ino));
        assert_eq!(action, write(Ino(9)));
        let mut action = Action::Access(Access { ino, mask: 1 });
        assert_eq!(take_object(&mut action), Some(ino));
        assert_eq!(
            action,
            Action::Access(Access {
                ino: Ino(9),
                mask: 1
            })
        );
        let mut release = Action::Release(handle(ino));
        assert_eq!(take_object(&mut release), Some(ino));
        assert_eq!(release, Action::Release(handle(Ino(9))));
        assert_eq!(take_object(&mut Action::StatFs(Nothing)), None);
    }
}
