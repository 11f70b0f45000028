//! The user that a supervised replica runs as, where that is not the supervisor's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where a system without a directory service lists its users (passwd(5)).
const USERS: &str = "/etc/passwd";

/// A user and its group. It has no other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    /// Of a name that the system lists, or of two numbers, `UID:GID`.
    ///
    /// # Errors
    /// If there is no such user, or it is root: nothing would keep that from this process.
    pub fn named(text: &str) -> Result<Account> {
        let numbers = text.split_once(':').and_then(|(uid, gid)| {
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(Account { uid, gid })
        });
        let account = match numbers {
            Some(account) => account,
            None => {
                let users = fs::read_to_string(USERS).with_context(|| USERS.to_string())?;
                find(&users, text).with_context(|| {
                    format!(
                        "--user {text}: there is no such user in {USERS}; give its numbers, UID:GID"
                    )
                })?
            }
        };
        if account.uid == 0 || account.gid == 0 {
            bail!("--user {text}: that is root, who may do everything that the supervisor may");
        }
        Ok(account)
    }

    /// Which part of a path this user could change: the thing itself, or a directory above it in which it could be exchanged.
    ///
    /// # Errors
    /// If the path is not there, or can't be looked at.
    pub fn could_change(&self, path: &Path) -> Result<Option<PathBuf>> {
        let path = path.canonicalize();
        let path = path.with_context(|| "a path that the supervisor goes by")?;
        for (place, part) in path.ancestors().enumerate() {
            let about = fs::metadata(part).with_context(|| part.display().to_string())?;
            let mode = about.mode();
            let owns = about.uid() == self.uid;
            let writes = mode & 0o002 != 0 || mode & 0o020 != 0 && about.gid() == self.gid;
            // In a directory with the sticky bit only what one owns can be moved away.
            let kept = place > 0 && mode & 0o1000 != 0;
            if owns || writes && !kept {
                return Ok(Some(part.to_path_buf()));
            }
        }
        Ok(None)
    }
}

fn find(users: &str, name: &str) -> Option<Account> {
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        if fields.next()? != name {
            return None;
        }
        let mut fields = fields.skip(1);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_user_is_found_by_name_or_numbers() {
        let users = "root:x:0:0:root:/root:/bin/sh\nquorate:x:990:991::/:/bin/false\nbad:x:no:1\n";
        let expected = Account { uid: 990, gid: 991 };
        assert_eq!(find(users, "quorate"), Some(expected));
        assert_eq!(find(users, "quorat"), None);
        assert_eq!(find(users, "bad"), None);
        assert_eq!(Account::named("990:991").unwrap(), expected);
        for wrong in ["root", "0:5", "5:0", "no such user", "990:", ":", "-1:5"] {
            assert!(Account::named(wrong).is_err(), "{wrong}");
        }
    }

    /// What belongs to a user, or stands where all may write, could be changed by it; a directory with the sticky bit above changes nothing.
    #[test]
    fn what_could_be_changed_is_named() {
        let place = tempfile::tempdir().unwrap();
        let (inner, list) = (place.path().join("inner"), place.path().join("inner/list"));
        fs::create_dir(&inner).unwrap();
        fs::write(&list, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let own = fs::metadata(&list).unwrap();
        let stranger = Account {
            uid: own.uid() + 4_000,
            gid: own.gid() + 4_000,
        };
        let of_group = Account {
            gid: own.gid(),
            ..stranger
        };
        let owner = Account {
            uid: own.uid(),
            ..stranger
        };
        mode(&inner, 0o755);
        mode(&list, 0o644);
        let list = list.canonicalize().unwrap();
        let inner = inner.canonicalize().unwrap();
        assert_eq!(stranger.could_change(&list).unwrap(), None);
        assert_eq!(owner.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o664);
        assert_eq!(stranger.could_change(&list).unwrap(), None);
        assert_eq!(of_group.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o646);
        assert_eq!(stranger.could_change(&list).unwrap(), Some(list.clone()));
        mode(&list, 0o600);
        mode(&inner, 0o777);
        assert_eq!(stranger.could_change(&list).unwrap(), Some(inner.clone()));
        mode(&inner, 0o1777);
        assert_eq!(stranger.could_change(&list).unwrap(), None);
        assert_eq!(stranger.could_change(&inner).unwrap(), Some(inner));
        assert!(stranger.could_change(&place.path().join("none")).is_err());
    }
}
