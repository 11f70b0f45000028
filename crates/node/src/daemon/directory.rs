//! A replica's directory: that it is this group's, and that it is not one that has lost what was in it.
//!
//! A replica must not forget what it has told the others: with an empty log it could vote a second time, for something
//! else, and count among the faulty ones without anybody's knowledge. So a directory is marked when the replica is
//! made, and the mark says whether the replica has ever run. From then on a log that is not there is lost, and the replica comes
//! back as one that has forgotten all. The state need not be there: the others have it as well.

use std::io::ErrorKind;
use std::path::Path;

use quorate_net::group::{Durability, Group};
use quorate_net::{disk, hex};

use super::DaemonError;
use super::aside;
use super::ground::{self, Keep};
use super::restore::Past;

/// The mark's file. Its first line is the group's id; the second is [`NEW`] until the replica runs.
pub(super) const MARK: &str = "group-id";
const NEW: &str = "new";

/// What a directory's mark says.
struct Mark {
    is_ours: bool,
    is_new: bool,
}

/// Makes the directory of a replica that has never run.
///
/// # Errors
/// [`DaemonError::HasRun`] and [`DaemonError::OtherGroup`]: a replica has run there. Or those of the disk.
pub fn make(data: &Path, group: &Group) -> Result<(), DaemonError> {
    std::fs::create_dir_all(data).map_err(io(data))?;
    match read(data, group)? {
        // Nothing can be lost where nothing has run: what is left of an attempt that failed is made anew.
        None | Some(Mark { is_new: true, .. }) => write(data, group, true),
        Some(Mark { is_ours: true, .. }) => Err(DaemonError::HasRun(data.into())),
        Some(Mark { is_ours: false, .. }) => Err(DaemonError::OtherGroup(data.into())),
    }
}

/// Makes the directory of a replica again that has run and has lost it.
///
/// # Errors
/// [`DaemonError::NotLost`] and [`DaemonError::OtherGroup`]: it is there. Or those of the disk.
pub(super) fn make_again(data: &Path, group: &Group) -> Result<(), DaemonError> {
    std::fs::create_dir_all(data).map_err(io(data))?;
    match read(data, group)? {
        Some(Mark { is_ours: true, .. }) => Err(DaemonError::NotLost(data.into())),
        Some(Mark { is_ours: false, .. }) => Err(DaemonError::OtherGroup(data.into())),
        None => {
            // A log without a mark is from who knows when.
            aside::drop_former_log(data)?;
            aside::forget_log(data)?;
            write(data, group, false)
        }
    }
}

/// A replica comes back that believes nothing of what lies there, and not the mark either: whoever had the machine could have made it that of
/// one that has never run, or taken it away.
pub(super) fn distrust(data: &Path, group: &Group) -> Result<Past, DaemonError> {
    if group.protocol().durability == Durability::Memory {
        return Err(DaemonError::Forgotten(data.into()));
    }
    std::fs::create_dir_all(data).map_err(io(data))?;
    ground::clear(data, None, Keep::All).map_err(io(data))?;
    write(data, group, false)?;
    Ok(Past::Distrusted)
}

/// A replica goes on with what was set aside when it began to recover, if there is something.
pub(super) fn take_back(data: &Path, group: &Group) -> Result<Past, DaemonError> {
    let was_there = aside::take_back(data)?;
    Ok(match check(data, group)? {
        Past::Logged if was_there => Past::TakenBack,
        past => past,
    })
}

/// Sees that the directory is this group's, and what it may have lost.
pub(super) fn check(data: &Path, group: &Group) -> Result<Past, DaemonError> {
    let lost = |what| DaemonError::Lost {
        data: data.into(),
        what,
        tolerated: group.quorum().f(),
    };
    let mark = read(data, group)?.ok_or_else(|| lost("mark (`group-id`)"))?;
    if !mark.is_ours {
        return Err(DaemonError::OtherGroup(data.into()));
    }
    if mark.is_new {
        return Ok(Past::None);
    }
    if group.protocol().durability == Durability::Memory {
        return Err(DaemonError::Forgotten(data.into()));
    }
    match has_segments(&data.join("log")) {
        Ok(true) => {
            if !data.join("state.redb").exists() {
                tracing::warn!(
                    "the state (`state.redb`) is not there; it is fetched from the others"
                );
            }
            Ok(Past::Logged)
        }
        Ok(false) => Ok(Past::Lost),
        Err(e) => Err(io(&data.join("log"))(e)),
    }
}

/// The log has its first record: from now on it must be there. To be called before anything is said to others that counts.
pub(super) fn note_run(data: &Path, group: &Group) -> Result<(), DaemonError> {
    match read(data, group)? {
        Some(Mark { is_new: false, .. }) => Ok(()),
        _ => write(data, group, false),
    }
}

fn read(data: &Path, group: &Group) -> Result<Option<Mark>, DaemonError> {
    let path = data.join(MARK);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(&path)(e)),
    };
    let mut lines = text.lines();
    Ok(Some(Mark {
        is_ours: lines.next() == Some(hex::encode(&group.id().0).as_str()),
        is_new: lines.next() == Some(NEW),
    }))
}

fn write(data: &Path, group: &Group, new: bool) -> Result<(), DaemonError> {
    let path = data.join(MARK);
    let id = hex::encode(&group.id().0);
    let text = match new {
        true => format!("{id}\n{NEW}\n"),
        false => format!("{id}\n"),
    };
    disk::replace(&path, text.as_bytes(), 0o644).map_err(io(&path))
}

fn has_segments(log: &Path) -> std::io::Result<bool> {
    let entries = match std::fs::read_dir(log) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    for entry in entries {
        if entry?.path().extension().is_some_and(|e| e == "wal") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> DaemonError + use<> {
    let path = path.to_owned();
    move |source| DaemonError::Io {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_net::group::{Files, Protocol, Purpose};
    use quorate_net::keys;

    fn group(name: &str) -> Group {
        let key = keys::generate().unwrap().public();
        let replicas = vec![("127.0.0.1:1".to_string(), key)];
        let files = Files::default();
        Group::new(name, replicas, Vec::new(), files, Purpose::Service).unwrap()
    }

    /// New: the log may be missing. Once it has run that is a loss, and it can't be made new again. The state may be missing.
    #[test]
    fn what_has_run_must_be_there() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path();
        let (ours, other) = (group("ours"), group("other"));
        assert!(matches!(check(data, &ours), Err(DaemonError::Lost { .. })));
        make(data, &other).unwrap();
        make(data, &ours).unwrap();
        assert_eq!(check(data, &ours).unwrap(), Past::None);
        assert!(matches!(
            check(data, &other),
            Err(DaemonError::OtherGroup(_))
        ));

        let memory = Protocol {
            durability: Durability::Memory,
            ..Protocol::default()
        };
        let memory = group("ours").with_protocol(memory);
        let elsewhere = tempfile::tempdir().unwrap();
        make(elsewhere.path(), &memory).unwrap();
        check(elsewhere.path(), &memory).unwrap();
        note_run(elsewhere.path(), &memory).unwrap();
        assert!(matches!(
            check(elsewhere.path(), &memory),
            Err(DaemonError::Forgotten(_))
        ));

        note_run(data, &ours).unwrap();
        assert_eq!(check(data, &ours).unwrap(), Past::Lost);
        std::fs::create_dir(data.join("log")).unwrap();
        std::fs::write(data.join("log/lock"), b"").unwrap();
        assert_eq!(check(data, &ours).unwrap(), Past::Lost);
        std::fs::write(data.join("log/0000000000000001.wal"), b"").unwrap();
        assert_eq!(check(data, &ours).unwrap(), Past::Logged);
        assert!(matches!(
            make_again(data, &ours),
            Err(DaemonError::NotLost(_))
        ));
        std::fs::remove_file(data.join(MARK)).unwrap();
        make_again(data, &ours).unwrap();
        assert_eq!(
            check(data, &ours).unwrap(),
            Past::Lost,
            "the log is set aside"
        );
        assert!(matches!(make(data, &ours), Err(DaemonError::HasRun(_))));
        assert!(matches!(
            make(data, &other),
            Err(DaemonError::OtherGroup(_))
        ));
    }
}
