//! The examples run, and say what they should.

use std::process::Command;

/// What an example prints. It is built with the tests, unless only some of them are asked for.
fn run(name: &str) -> String {
    let test = std::env::current_exe().expect("this program has a file");
    let built = test.parent().and_then(|deps| deps.parent());
    let example = built.expect("a directory").join("examples").join(name);
    assert!(
        example.exists(),
        "{} is missing: `cargo test -p quorate-service` builds it",
        example.display()
    );
    let output = Command::new(example).output().expect("it starts");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {shown}{errors}");
    shown
}

/// Ten additions at the same time, none of them lost.
#[test]
fn the_counter() {
    assert!(run("counter").ends_with("read: 55\n"));
}

/// On worker threads a key's operations still come one after the other.
#[test]
fn the_key_value_store() {
    let shown = run("key_value");
    assert!(
        shown.contains("fruit = pear, before: b\"apple\""),
        "{shown}"
    );
    assert!(shown.contains("fruit is b\"pear\""), "{shown}");
}

#[test]
fn the_null_service() {
    let shown = run("null");
    let answered = shown.lines().map(|line| {
        let (_, rest) = line
            .split_once(" in flight: ")
            .expect("a line for each way");
        let (count, _) = rest.split_once(' ').expect("how many");
        count.parse::<u32>().expect("a number")
    });
    let answered: Vec<u32> = answered.collect();
    assert_eq!(answered.len(), 2);
    assert!(answered.iter().all(|count| *count > 0), "{shown}");
}

/// A service of one's own takes less than 80 lines, with all that a replica's process and a client do, and no other crate.
#[test]
fn the_examples_are_short() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    for name in ["counter", "key_value", "last_word"] {
        let text = std::fs::read_to_string(format!("{directory}/{name}.rs")).expect("it is there");
        assert!(text.lines().count() < 80, "{name}");
        let used = text.lines().filter_map(|line| {
            let line = line.trim_start().trim_start_matches("pub ");
            let path = line
                .strip_prefix("use ")
                .or(line.strip_prefix("extern crate "))?;
            path.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        });
        let used: Vec<&str> = used.collect();
        assert!(used.contains(&"quorate_service"), "{name}: {used:?}");
        let known = |root: &&str| ["std", "quorate_service"].contains(root);
        assert!(used.iter().all(known), "{name}: {used:?}");
    }
}

/// What one client has written outlives the client and the primary, which takes part again when it is started again.
#[test]
fn the_processes() {
    let shown = run("processes");
    assert_eq!(
        shown,
        "hello, after \"\"\ngoodbye, after \"hello\"\n?, after \"goodbye\"\n"
    );
}
