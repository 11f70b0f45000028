//! The demonstration of what happens when one server's stored files are changed behind its back.

use std::path::Path;
use std::process::Command;

use crate::harness::{free_ports, quorate, require_fuse, scratch};

#[test]
fn no_wrong_byte_is_served() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demos/contrast.sh");
    let run = Command::new(script)
        .arg("--quorate")
        .env("QUORATE", quorate().get_program())
        .env("TMPDIR", place.path())
        .env("PORT", free_ports(1)[0].to_string())
        .env("FILES", "20")
        .env("ROUNDS", "2")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{text}\n{errors}");
    let right = "of 40 reads: 0 with wrong bytes, 0 that failed";
    assert_eq!(text.matches(right).count(), 2, "{text}\n{errors}");
    assert!(
        text.contains("is damaged") && text.contains("replica 2 is back"),
        "{text}\n{errors}"
    );
    assert!(
        text.contains("whole (4 of 4 replicas answer"),
        "{text}\n{errors}"
    );
}
