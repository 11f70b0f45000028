//! A tree of files such as programs work on: directories, C sources that compile, scripts, links, odd names.
//!
//! It is made from a seed, so each run works on the same bytes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Random, program, run, scratch};

/// Files in one directory of the tree, at most.
const FILES_A_DIRECTORY: usize = 25;
/// C files of the program in `project`.
const PARTS: usize = 12;

/// A tree on the local disk, and the same packed.
#[derive(Debug)]
pub struct Source {
    place: tempfile::TempDir,
}

impl Source {
    /// Makes a tree of at least so many files, some 10 KB each.
    pub fn new(files: usize) -> Source {
        let source = Source { place: scratch() };
        let tree = source.tree();
        fs::create_dir(&tree).expect("a directory");
        let mut random = Random::new(files as u64);
        write_project(&tree.join("project"), &mut random);
        for directory in 0..files.div_ceil(FILES_A_DIRECTORY) {
            let path = tree.join(format!("area {}/part-{directory}/source", directory % 7));
            write_directory(&path, directory, &mut random);
        }
        write_oddities(&tree);
        let mut tar = program("tar");
        // This format keeps times to the nanosecond.
        tar.args(["--format=posix", "-cf"])
            .arg(source.packed())
            .arg("-C")
            .arg(source.place.path());
        run(tar.arg("tree"));
        source
    }

    /// The directory.
    pub fn tree(&self) -> PathBuf {
        self.place.path().join("tree")
    }

    /// The same as an archive with the one directory `tree`.
    pub fn packed(&self) -> PathBuf {
        self.place.path().join("tree.tar")
    }
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
}

/// A program of several files, which prints a number that depends on all of them.
fn write_project(directory: &Path, random: &mut Random) {
    fs::create_dir(directory).expect("a directory");
    let names: Vec<String> = (0..PARTS).map(|n| format!("part{n}")).collect();
    let mut header = String::from("#include <stdint.h>\n");
    let mut main = String::from("#include <stdio.h>\n#include \"parts.h\"\n");
    main += "int main(void) {\n    uint32_t x = 1;\n";
    for name in &names {
        header += &format!("uint32_t {name}(uint32_t x);\n");
        main += &format!("    x = {name}(x);\n");
        let part = format!("#include \"parts.h\"\n{}", c_function(name, 4_000, random));
        write(&directory.join(format!("{name}.c")), part.as_bytes(), 0o644);
    }
    main += "    printf(\"%u\\n\", x);\n    return 0;\n}\n";
    write(&directory.join("parts.h"), header.as_bytes(), 0o644);
    write(&directory.join("main.c"), main.as_bytes(), 0o644);
    let objects: Vec<String> = names.iter().map(|name| format!("{name}.o")).collect();
    let makefile = format!(
        "OBJECTS = main.o {}\nCFLAGS = -O1 -Wall -Werror\n\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n\n\
         $(OBJECTS): parts.h\n\nclean:\n\trm -f program $(OBJECTS)\n",
        objects.join(" ")
    );
    write(&directory.join("Makefile"), makefile.as_bytes(), 0o644);
}

/// A function over a table, in about so many bytes.
fn c_function(name: &str, len: usize, random: &mut Random) -> String {
    let numbers: Vec<String> = (0..len / 5)
        .map(|_| random.below(1_000).to_string())
        .collect();
    let rows: Vec<String> = numbers
        .chunks(16)
        .map(|row| format!("    {},\n", row.join(", ")))
        .collect();
    format!(
        "static const unsigned table_of_{name}[] = {{\n{}    0\n}};\n\nunsigned {name}(unsigned x) {{\n    \
         for (unsigned i = 0; i < sizeof table_of_{name} / sizeof *table_of_{name}; i++)\n        \
         x = x * 31 + table_of_{name}[i];\n    return x;\n}}\n",
        rows.concat()
    )
}

fn write_directory(path: &Path, number: usize, random: &mut Random) {
    fs::create_dir_all(path).expect("a directory");
    for file in 0..FILES_A_DIRECTORY {
        let len = match random.below(100) {
            0..5 => 0,
            5..80 => random.below(8_000),
            80..99 => 8_000 + random.below(32_000),
            _ => 300_000,
        } as usize;
        let name = format!("file_{number}_{file}");
        match file % 5 {
            0..3 => {
                let text = c_function(&name, len, random);
                write(&path.join(format!("{name}.c")), text.as_bytes(), 0o644);
            }
            3 => {
                let text = format!("#!/bin/sh\n# {}\necho {name}\n", "words ".repeat(len / 6));
                write(&path.join(format!("{name}.sh")), text.as_bytes(), 0o755);
            }
            _ => write(&path.join(format!("{name}.dat")), &random.bytes(len), 0o640),
        }
    }
    let first = format!("file_{number}_0.c");
    symlink(&first, path.join("first.c")).expect("a symbolic link");
    fs::hard_link(path.join(&first), path.join("same.c")).expect("a second name");
}

fn write_oddities(tree: &Path) {
    let deep = tree.join((0..14).map(|n| format!("level{n}/")).collect::<String>());
    fs::create_dir_all(&deep).expect("deep directories");
    write(&deep.join("at the bottom"), b"here\n", 0o400);
    write(&tree.join("x".repeat(255)), b"long\n", 0o644);
    write(
        &tree.join("na\u{ef}ve \u{1f980} \"quoted\" 'name'\\"),
        b"odd\n",
        0o600,
    );
    write(&tree.join("-rf"), b"", 0o755);
    symlink("nowhere/at/all", tree.join("dangling")).expect("a symbolic link");
    symlink("level0/level1", tree.join("shortcut")).expect("a symbolic link");
    fs::create_dir(tree.join("empty")).expect("a directory");
}

/// What must be equal besides content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The files' modification times and numbers of names too.
    Kept,
    /// Neither of these: the copy was made file by file.
    New,
}

/// Fails unless two trees have the same names, content, types, modes and link targets.
pub fn assert_same(original: &Path, copy: &Path, times: Times) {
    run(program("diff")
        .args(["-r", "--no-dereference"])
        .arg(original)
        .arg(copy));
    let (left, right) = (listing(original, times), listing(copy, times));
    for (left, right) in left.iter().zip(&right) {
        assert_eq!(
            left,
            right,
            "{} and {} differ",
            original.display(),
            copy.display()
        );
    }
    assert_eq!(left.len(), right.len());
}

/// One line for each name below a directory, in order.
fn listing(root: &Path, times: Times) -> Vec<String> {
    let mut out = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory)).expect("a directory's list") {
            let name = directory.join(entry.expect("an entry").file_name());
            let meta = fs::symlink_metadata(root.join(&name)).expect("a file's attributes");
            let mut line = format!("{name:?} {:o}", meta.mode());
            if meta.is_symlink() {
                let target = fs::read_link(root.join(&name)).expect("a link's target");
                line += &format!(" -> {target:?}");
            }
            if meta.is_file() {
                line += &format!(" {}", meta.len());
            }
            if meta.is_file() && times == Times::Kept {
                let nanos = meta.mtime_nsec();
                line += &format!(" {} names, {}.{nanos:09}", meta.nlink(), meta.mtime());
            }
            if meta.is_dir() {
                directories.push(name);
            }
            out.push(line);
        }
    }
    out.sort();
    out
}
