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
enum Mark {
    Missing,
    /// It is there, and names no group: the disk has lost what it said.
    Damaged,
    Of {
        is_ours: bool,
        is_new: bool,
    },
}

/// Makes the directory of a replica that has never run.
///
/// # Errors
/// [`DaemonError::HasRun`] and [`DaemonError::OtherGroup`]: a replica has run there. Or those of the disk.
pub fn make(data: &Path, group: &Group) -> Result<(), DaemonError> {
    disk::make_private_directory(data).map_err(io(data))?;
    match read(data, group)? {
        // Nothing can be lost where nothing has run: what is left of an attempt that failed is made anew.
        Mark::Missing | Mark::Of { is_new: true, .. } => write(data, group, true),
        // A mark is written whole or not at all, so this one is older than the damage.
        Mark::Damaged | Mark::Of { is_ours: true, .. } => Err(DaemonError::HasRun(data.into())),
        Mark::Of { is_ours: false, .. } => Err(DaemonError::OtherGroup(data.into())),
    }
}

/// Makes the directory of a replica again that has run and has lost it.
///
/// # Errors
/// [`DaemonError::NotLost`] and [`DaemonError::OtherGroup`]: it is there. Or those of the disk.
pub(super) fn make_again(data: &Path, group: &Group) -> Result<(), DaemonError> {
    disk::make_private_directory(data).map_err(io(data))?;
    match read(data, group)? {
        Mark::Of { is_ours: true, .. } => Err(DaemonError::NotLost(data.into())),
        Mark::Of { is_ours: false, .. } => Err(DaemonError::OtherGroup(data.into())),
        Mark::Missing | Mark::Damaged => {
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
    disk::make_private_directory(data).map_err(io(data))?;
    shut(data);
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
    match read(data, group)? {
        Mark::Missing => return Err(lost("mark (`group-id`)")),
        Mark::Damaged => return Err(lost("whole mark (`group-id`)")),
        Mark::Of { is_ours: false, .. } => return Err(DaemonError::OtherGroup(data.into())),
        Mark::Of { is_new: true, .. } => {
            shut(data);
            return Ok(Past::None);
        }
        Mark::Of { .. } => shut(data),
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
        Mark::Of { is_new: false, .. } => Ok(()),
        _ => write(data, group, false),
    }
}

fn read(data: &Path, group: &Group) -> Result<Mark, DaemonError> {
    let path = data.join(MARK);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Mark::Missing),
        Err(e) => return Err(io(&path)(e)),
    };
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let Some(id) = lines.next().and_then(hex::decode32) else {
        return Ok(Mark::Damaged);
    };
    Ok(Mark::Of {
        is_ours: id == group.id().0,
        is_new: lines.next() == Some(NEW),
    })
}

/// What people have stored is no business of other users of the machine. Directories were made open to them once.
fn shut(data: &Path) {
    match disk::shut_directory(data) {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            "{} was open to other users of this machine; from now on it is this replica's user's alone",
            data.display()
        ),
        Err(e) => tracing::warn!(
            "{} is open to other users of this machine, and can't be shut to them: {e}",
            data.display()
        ),
    }
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

    /// A mark that names no group any more is lost, and not another group's; nor is it that of a replica that has never run.
    #[test]
    fn a_damaged_mark_is_lost() {
        let id = hex::encode(&group("ours").id().0);
        for left in [&b""[..], &[0; 65], &id.as_bytes()[..63], &[0xff; 64]] {
            let place = tempfile::tempdir().unwrap();
            let (data, ours) = (place.path(), group("ours"));
            make(data, &ours).unwrap();
            note_run(data, &ours).unwrap();
            std::fs::write(data.join(MARK), left).unwrap();
            assert!(matches!(check(data, &ours), Err(DaemonError::Lost { .. })));
            assert!(matches!(make(data, &ours), Err(DaemonError::HasRun(_))));
            make_again(data, &ours).unwrap();
            assert_eq!(check(data, &ours).unwrap(), Past::Lost);
        }
    }

    /// What a replica keeps is its user's alone, whichever way its directory comes to be; one that was open is shut when the replica starts.
    #[test]
    fn a_directory_is_its_users_alone() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let mode = |data: &Path| std::fs::metadata(data).unwrap().mode() & 0o777;
        let ours = group("ours");
        let ways: [&dyn Fn(&Path); 3] = [
            &|data| make(data, &ours).unwrap(),
            &|data| make_again(data, &ours).unwrap(),
            &|data| assert_eq!(distrust(data, &ours).unwrap(), Past::Distrusted),
        ];
        for way in ways {
            let place = tempfile::tempdir().unwrap();
            let data = &place.path().join("replica-0");
            way(data);
            assert_eq!(mode(data), 0o700);
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(data, open.clone()).unwrap();
            check(data, &ours).unwrap();
            assert_eq!(mode(data), 0o700);
            std::fs::set_permissions(data, open).unwrap();
            distrust(data, &ours).unwrap();
            assert_eq!(mode(data), 0o700);
        }
    }
}
