//! What people do with files, as one workload: unpack, build, commit, query, copy, move, remove.
//!
//! Each step checks what came of it. Nothing in it knows what happens to the replicas meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Source, Times, assert_same, program, run};

/// The steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Unpack,
    Build,
    Git,
    Sqlite,
    Copy,
    Remove,
}

/// Does all of it in a directory; `about_to` hears of each step before it starts.
pub fn work(place: &Path, source: &Source, mut about_to: impl FnMut(Step)) {
    let tree = work_and_leave(place, source, &mut about_to);
    about_to(Step::Copy);
    let moved = copy_and_move(place, &tree, source);
    about_to(Step::Remove);
    remove(&[&tree, &moved]);
}

/// Does all but the last two steps; where the tree is that is left.
pub fn work_and_leave(place: &Path, source: &Source, mut about_to: impl FnMut(Step)) -> PathBuf {
    about_to(Step::Unpack);
    let tree = unpack(place, source);
    about_to(Step::Build);
    build(place, &tree, source);
    about_to(Step::Git);
    commit_to_git(&tree);
    assert_same(&source.tree(), &tree, Times::Kept);
    about_to(Step::Sqlite);
    query(place, "delete");
    tree
}

/// Unpacks the archive; the new tree.
pub fn unpack(place: &Path, source: &Source) -> PathBuf {
    run(program("tar")
        .arg("-xpf")
        .arg(source.packed())
        .arg("-C")
        .arg(place));
    let tree = place.join("tree");
    assert_same(&source.tree(), &tree, Times::Kept);
    tree
}

/// Builds the program in the tree, runs it from the mount, and holds it against a build on the local disk.
fn build(place: &Path, tree: &Path, source: &Source) {
    let there = place.join("build");
    run(program("cp")
        .arg("-r")
        .arg(tree.join("project"))
        .arg(&there));
    let local = crate::harness::scratch();
    let here = local.path().join("project");
    run(program("cp")
        .arg("-r")
        .arg(source.tree().join("project"))
        .arg(&here));
    let outputs = [&there, &here].map(|directory| {
        run(program("make").args(["-j2", "-C"]).arg(directory));
        let output = run(&mut program(
            directory.join("program").to_str().expect("a path"),
        ));
        let again = run(program("make").arg("-C").arg(directory));
        assert!(
            again.contains("up to date"),
            "make would build again: {again}"
        );
        output
    });
    assert_eq!(
        outputs[0], outputs[1],
        "the built program says something else"
    );
    run(program("make").arg("-C").arg(&there).arg("clean"));
    assert_same(&source.tree().join("project"), &there, Times::New);
}

/// Commits the tree to a new repository in it, looks the repository through, and takes it away again.
fn commit_to_git(tree: &Path) {
    let git = |arguments: &[&str]| run(program("git").arg("-C").arg(tree).args(arguments));
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message=All of it"]);
    git(&["fsck", "--full", "--strict"]);
    let changed = git(&["status", "--porcelain", "--ignored"]);
    assert_eq!(changed, "", "git sees changes where there are none");
    fs::remove_dir_all(tree.join(".git")).expect("the repository is removed");
}

/// Many small transactions on a database, one process each and within one.
pub fn query(place: &Path, journal: &str) {
    let database = place.join(format!("{journal}.db"));
    let sqlite = |statements: &str| {
        run(program("sqlite3")
            .args(["-bail", "-batch"])
            .arg(&database)
            .arg(statements))
    };
    let mode = sqlite(&format!("pragma journal_mode={journal};"));
    assert_eq!(
        mode.trim(),
        journal,
        "sqlite does not take this kind of journal"
    );
    sqlite("create table t (id integer primary key, text text, number integer unique);");
    for round in 0..5 {
        let mut statements = String::new();
        for at in 0..20 {
            let number = round * 20 + at;
            statements += &format!(
                "begin immediate; insert into t (text, number) values (hex(randomblob(200)), {number}); \
                 update t set text = 'x' || text where number = {}; commit; ",
                number / 2
            );
        }
        sqlite(&statements);
    }
    sqlite("begin; delete from t; rollback;");
    let found = sqlite("pragma integrity_check; select count(*), sum(number) from t;");
    assert_eq!(found, "ok\n100|4950\n");
    let left = fs::read_dir(place).expect("a list").flatten();
    let left = left.filter(|e| {
        e.file_name()
            .to_string_lossy()
            .starts_with(&format!("{journal}.db-"))
    });
    assert_eq!(left.count(), 0, "sqlite left its journal");
}

/// Copies the tree, moves the copy; where it is then.
fn copy_and_move(place: &Path, tree: &Path, source: &Source) -> PathBuf {
    let (copy, moved) = (place.join("copy"), place.join("moved"));
    run(program("cp").arg("-r").arg(tree).arg(&copy));
    assert_same(&source.tree(), &copy, Times::New);
    run(program("mv").arg(&copy).arg(&moved));
    assert!(!copy.exists());
    assert_same(&source.tree(), &moved, Times::New);
    let (from, to) = (moved.join("project/main.c"), moved.join("empty/main.c"));
    run(program("mv").arg(&from).arg(&to));
    assert!(!from.exists() && to.exists());
    run(program("mv").arg(&to).arg(&from));
    moved
}

pub fn remove(trees: &[&Path]) {
    run(program("rm").arg("-r").args(trees));
    for tree in trees {
        assert!(
            fs::symlink_metadata(tree).is_err(),
            "{} is still there",
            tree.display()
        );
    }
}
