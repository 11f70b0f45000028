//! What the objects of credentials are called in the mount's root: as their files are.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// The most files that are looked at: so many credentials may one key have, and some that have ended.
const MAX_FILES: usize = 256;

/// The names of files. Each keeps its own as long as the file is there.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<PathBuf, Bytes>);

impl Names {
    /// Forgets the names of files that are not there any more.
    pub fn retain(&mut self, files: &[PathBuf]) {
        self.0.retain(|file, _| files.contains(file));
    }

    /// A file's name without its extension; with a number, if another file has that.
    pub fn of(&mut self, file: &Path) -> Bytes {
        if let Some(name) = self.0.get(file) {
            return name.clone();
        }
        let stem = file.file_stem().unwrap_or(OsStr::new("shared"));
        let stem = Bytes::copy_from_slice(stem.as_encoded_bytes());
        let mut name = stem.clone();
        let mut number = 2;
        while self.0.values().any(|other| *other == name) {
            name = [&stem[..], format!("-{number}").as_bytes()].concat().into();
            number += 1;
        }
        self.0.insert(file.into(), name.clone());
        name
    }
}

/// Leaves as many files as are looked at; what there is to say of the others.
pub fn bound(files: &mut Vec<PathBuf>) -> Option<String> {
    let left = files.len().checked_sub(MAX_FILES)?;
    let first = files.get(MAX_FILES)?.display().to_string();
    files.truncate(MAX_FILES);
    Some(format!(
        "there are more than {MAX_FILES} files: {left} are not looked at, from {first} on"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files with one name have their own objects, and what is called somehow stays so while the other comes and goes.
    #[test]
    fn names_are_told_apart() {
        let [a, b, c] = ["a/bob.cred", "b/bob.cred", "c/bob.cred"].map(PathBuf::from);
        let mut names = Names::default();
        assert_eq!(names.of(&b), "bob");
        assert_eq!(names.of(&a), "bob-2");
        assert_eq!(names.of(&c), "bob-3");
        assert_eq!(
            (&names.of(&a)[..], &names.of(&b)[..]),
            (&b"bob-2"[..], &b"bob"[..])
        );
        names.retain(&[a.clone(), c.clone()]);
        assert_eq!(names.of(&a), "bob-2");
        assert_eq!(names.of(&b), "bob");
        assert_eq!(names.of(Path::new("d/bob-2.cred")), "bob-2-2");
        assert_eq!(names.of(Path::new("eve")), "eve");
    }

    /// Who has too many files is told which are of no use.
    #[test]
    fn too_many_files_are_told() {
        let file = |n: usize| PathBuf::from(format!("{n:03}.cred"));
        let mut files: Vec<_> = (0..MAX_FILES).map(file).collect();
        assert_eq!(bound(&mut files), None);
        files.push(file(MAX_FILES));
        let said = bound(&mut files).unwrap();
        assert!(
            said.contains("1 are not") && said.contains("256.cred"),
            "{said}"
        );
        assert_eq!(files.len(), MAX_FILES);
    }
}
