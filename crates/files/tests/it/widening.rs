//! What a guest moves gives it nothing that it had not, by any of its credentials, however deep below.

use bytes::Bytes;
use quorate_credential::{Caveat, Chain, Rights};
use quorate_files::{Errno, Ino};

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, key, refused, terms};

const BOB: u8 = 1;
const CAROL: u8 = 2;

/// Carol's, by way of Bob: a directory, while what leads to it has a name that begins so.
fn passed_on(v: &Volume, above: Ino, prefix: &'static str, low: Ino, from: u64) -> Chain {
    let mut to_bob = terms(BOB, above.0);
    to_bob
        .caveats
        .push(Caveat::NamePrefix(Bytes::from_static(prefix.as_bytes())));
    let bob = v.issue(BOB, to_bob);
    let mut to_carol = terms(CAROL, low.0);
    to_carol.depth = 1;
    to_carol.window.not_before = from;
    bob.delegate(&key(BOB), to_carol).unwrap()
}

/// A directory that was renamed away from a prefix, and what is in it from a credential, is not renamed back by another credential: that would
/// outlive the other, and give what only the one gives.
#[test]
fn no_name_brings_back_what_a_prefix_took() -> Result<()> {
    let mut v = Volume::new();
    let above = v.dir(Ino::ROOT, b"above");
    let middle = v.dir(above, b"pub-a");
    let low = v.dir(middle, b"low");
    let file = v.file(low, b"file");
    let first = passed_on(&v, above, "pub-", low, 0);
    v.put(CAROL, &first)?;
    assert!(v.read_ino(CAROL, file).is_ok());
    v.rename(MEMBER, (above, b"pub-a"), (above, b"old-a"))?;
    refused(v.read_ino(CAROL, file), Errno::ESTALE);

    let mut t = terms(CAROL, above.0);
    t.rights = Rights::READING | Rights::RENAME_FROM | Rights::RENAME_INTO;
    let second = v.issue(CAROL, t);
    v.put(CAROL, &second)?;
    refused(
        v.rename(CAROL, (above, b"old-a"), (above, b"pub-a")),
        Errno::EXDEV,
    );
    v.rename(CAROL, (above, b"old-a"), (above, b"new-a"))?;
    // Nor in exchange, and within what the prefix allows it goes.
    v.dir(above, b"pub-b");
    let exchanged = v.rename_in(
        CAROL,
        (above, b"pub-b"),
        (above, b"new-a"),
        quorate_files::op::RenameMode::Exchange,
    );
    refused(exchanged, Errno::EXDEV);
    v.rename(CAROL, (above, b"pub-b"), (above, b"pub-c"))?;
    v.check();
    Ok(())
}

/// A credential that was brought and has not begun counts as it will be then.
#[test]
fn what_is_to_come_is_not_widened() -> Result<()> {
    let mut v = Volume::new();
    let (out, shared) = (v.dir(Ino::ROOT, b"out"), v.dir(Ino::ROOT, b"shared"));
    v.dir(out, b"dir");
    v.share(CAROL, Ino::ROOT, Rights::ALL);
    let mut t = terms(CAROL, shared.0);
    t.window.not_before = v.second() + 100;
    t.serial = 7;
    let to_come = v.issue(CAROL, t);
    v.put(CAROL, &to_come)?;
    refused(
        v.rename(CAROL, (out, b"dir"), (shared, b"dir")),
        Errno::EXDEV,
    );
    v.file(out, b"file");
    let file = v.lookup(MEMBER, out, b"file")?.ino;
    refused(v.link(CAROL, file, shared, b"file"), Errno::EXDEV);
    // What is taken back is not to come.
    let of = quorate_files::op::Serial {
        issuer: crate::sharing::public(0),
        serial: 7,
    };
    let until = Some(v.second() + 10);
    v.revoke(0, quorate_files::op::Revoked::Serial(of), None, until)?;
    v.rename(CAROL, (out, b"dir"), (shared, b"dir"))
}
