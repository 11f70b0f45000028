//! First inputs for what a router reads.

use quorate_nfs::xdr::Writer;
use quorate_router::attrs::{ATTR_BYTES, DIRECTORY, STUB_OWNER};
use quorate_router::handle::{Handle, key, target_name};
use quorate_router::intent::{Intent, Name, Thing};
use quorate_router::layout::{Bucket, Volume};
use quorate_router::map::{Map, Member, Use};
use quorate_router::table::{Copied, Table};

use super::write;

pub fn all() -> std::io::Result<()> {
    let handle = shown(b"thing").write().expect("a short handle");
    write("router_handle", 0, &handle)?;
    write("router_handle", 1, &target_name(Bucket(9), b"\0\x01stub"))?;
    write(
        "router_handle",
        2,
        &shown(&[7; 56]).write().expect("56 bytes"),
    )?;
    calls(&handle)?;
    replies()?;
    setups()?;
    records()
}

/// Results of FSSTAT and MOUNT, and a label.
fn setups() -> std::io::Result<()> {
    let mut done = Vec::new();
    for has_attrs in [false, true] {
        let mut w = Writer::default();
        w.u32(0);
        match has_attrs {
            true => after(&mut w, 5),
            false => w.bool(false),
        }
        (1..=6).for_each(|word| w.u64(word << 33));
        w.u32(9);
        done.push(w.out);
    }
    let mut refused = Writer::default();
    words(&mut refused, [70, 0]);
    let mut mounted = Writer::default();
    mounted.u32(0);
    mounted.opaque(b"the root");
    words(&mut mounted, [1, 1]);
    let mut denied = Writer::default();
    denied.u32(13);
    let label = quorate_router::fuzzing::label_text([0xa5; 16], Volume(7));
    let all = [
        (0, &done[0][..]),
        (0, &done[1]),
        (0, &refused.out),
        (1, &mounted.out),
        (1, &denied.out),
        (2, &label),
    ];
    for (i, (kind, bytes)) in all.into_iter().enumerate() {
        write("router_setup", i, &[&[kind], bytes].concat())?;
    }
    Ok(())
}

fn words<const N: usize>(w: &mut Writer, words: [u32; N]) {
    words.into_iter().for_each(|word| w.u32(word));
}

fn shown(server: &[u8]) -> Handle {
    Handle {
        bucket: Bucket(9),
        key: key(Volume(1), server),
    }
}

/// A call of each procedure that goes straight through, by a user in two groups.
fn calls(handle: &[u8]) -> std::io::Result<()> {
    for procedure in [1_u32, 3, 4, 5, 6, 7, 16, 17, 19, 20, 21] {
        let mut w = Writer::default();
        words(&mut w, [9, 0, 2, 100_003, 3, procedure, 1, 32, 7]);
        w.opaque(b"host");
        words(&mut w, [1000, 100, 2, 1, 2, 0, 0]);
        w.opaque(handle);
        match procedure {
            3 => w.opaque(b"name"),
            4 => w.u32(0x1f),
            6 => words(&mut w, [0, 4096, 100]),
            7 => {
                words(&mut w, [0, 4096, 4, 2]);
                w.opaque(b"data");
            }
            16 => words(&mut w, [0, 3, 0, 0, 4096]),
            17 => words(&mut w, [0, 3, 0, 0, 512, 4096]),
            21 => words(&mut w, [0, 0, 0]),
            _ => {}
        }
        write("router_call", procedure as usize, &w.out)?;
    }
    Ok(())
}

fn attrs(uid: u32) -> [u8; ATTR_BYTES] {
    let mut out = [0; ATTR_BYTES];
    for (at, word) in [DIRECTORY, 0, 2, uid, 9].into_iter().enumerate() {
        out[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
    }
    out[ATTR_BYTES - 1] = 9;
    out
}

fn after(w: &mut Writer, uid: u32) {
    w.bool(true);
    w.fixed(&attrs(uid));
}

fn changed(w: &mut Writer) {
    w.bool(true);
    w.fixed(&[7; 24]);
    after(w, 5);
}

/// What a server says to each procedure: done, with and without attributes, and refused; in a bucket that has moved and in one that has not.
fn replies() -> std::io::Result<()> {
    for procedure in 1..=21_u32 {
        for (i, moved) in [0, 0x80].into_iter().enumerate() {
            for status in [0, 70] {
                let mut w = Writer::default();
                // A reply that was accepted; no verifier.
                words(&mut w, [9, 1, 0, 0, 0, 0, status]);
                results(&mut w, procedure, status == 0, moved != 0);
                let number = procedure as usize * 4 + 2 * i + usize::from(status != 0);
                let first = [procedure as u8 | moved];
                write("router_reply", number, &[&first[..], &w.out].concat())?;
            }
        }
    }
    Ok(())
}

fn results(w: &mut Writer, procedure: u32, is_done: bool, has_moved: bool) {
    let named: &[u8] = if has_moved { b"now!" } else { b"server" };
    match (procedure, is_done) {
        (1, true) => w.fixed(&attrs(5)),
        (3, true) => {
            w.opaque(named);
            after(w, if has_moved { STUB_OWNER } else { 5 });
            w.bool(false);
        }
        (8..=11, true) => {
            w.bool(true);
            w.opaque(named);
            after(w, 5);
            changed(w);
        }
        (2 | 7..=13 | 21, _) => changed(w),
        (14, _) => {
            changed(w);
            changed(w);
        }
        (15, _) => {
            after(w, 5);
            changed(w);
        }
        (3..=6 | 16..=20, _) => after(w, 5),
        _ => {}
    }
    match (procedure, is_done) {
        (6, true) => {
            words(w, [4, 1]);
            w.opaque(b"data");
        }
        (5, true) => w.opaque(b"target"),
        (4, true) => w.u32(7),
        (7, true) => {
            words(w, [6, 2, 0, 1]);
        }
        (21, true) => w.u64(1),
        (19, true) => w.fixed(&[0xff; 48]),
        (16 | 17, true) => {
            w.u64(3);
            for (name, uid) in [(&b".."[..], 0), (b"own", 5), (b"stub", STUB_OWNER)] {
                w.bool(true);
                w.u64(9);
                w.opaque(name);
                w.u64(1);
                if procedure == 17 {
                    after(w, uid);
                    w.bool(true);
                    w.opaque(named);
                }
            }
            w.bool(false);
            w.bool(true);
        }
        _ => {}
    }
}

fn records() -> std::io::Result<()> {
    let name = |text: &'static [u8]| Name {
        dir: shown(b"dir"),
        name: text.into(),
    };
    let thing = |stub: bool| Thing {
        stub: stub.then(|| key(Volume(0), b"stub")),
        object: shown(b"thing"),
        is_dir: stub,
    };
    let intents = [
        Intent::Mkdir {
            at: name(b"a"),
            bucket: Bucket(2),
        },
        Intent::Remove {
            at: name(b"a"),
            thing: thing(true),
        },
        Intent::Attach {
            from: Some(name(b"a")),
            thing: thing(true),
            to: name(b"b"),
            replaced: Some(thing(false)),
        },
        Intent::Attach {
            from: None,
            thing: thing(false),
            to: name(b"b"),
            replaced: None,
        },
    ];
    for (i, intent) in intents.iter().enumerate() {
        write("router_record", i, &[&[0][..], &intent.write()].concat())?;
    }
    let mut map = Map::first(vec!["nfs://a/".into(), "nfs://b/".into()], 5);
    map.volumes[0].state = Use::Draining;
    map.volumes.push(Member {
        url: "group:c".into(),
        state: Use::Removed,
        tables: vec![3, 9],
    });
    map.buckets[2].moved = 9;
    write("router_record", 10, &[&[1][..], &map.write()].concat())?;
    let table = Table(vec![Copied {
        key: key(Volume(0), b"then"),
        server: "now!".into(),
        from: (1, 2),
        to: (3, 4),
    }]);
    // The target adds the sum.
    let table = table.write(Volume(0), Volume(1));
    let body = &table[..table.len() - 32];
    write("router_record", 20, &[&[2][..], body].concat())
}
