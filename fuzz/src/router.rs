//! What clients and servers of NFS say to a router, and what it keeps.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use quorate_nfs::call::{Call, Listing, NewAttrs, Place};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::rpc::read_head;
use quorate_nfs::xdr::{Read, Reader, View, Writer};
use quorate_router::ask::{Ask, Given};
use quorate_router::attrs::{ATTR_BYTES, Attrs, show};
use quorate_router::buckets::Located;
use quorate_router::fuzzing;
use quorate_router::handle::{Handle, key, origin, parts, split, stub_of, target_name};
use quorate_router::intent::Intent;
use quorate_router::layout::{Bucket, Volume};
use quorate_router::map::Map;
use quorate_router::rewrite::{Rewrite, limit, turn};
use quorate_router::table::{Copied, Names, Table};

/// As for encodings: what the dearest list takes up while it grows.
const MEMORY_PER_BYTE: usize = 64;
const MEMORY_AT_LEAST: usize = 64 << 10;
/// The most bytes of one READ, WRITE or listing.
const MOST: usize = 1 << 16;
const FSID: u64 = 7;

fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    crate::within(MEMORY_AT_LEAST + MEMORY_PER_BYTE * bytes, work)
}

/// A handle as a client sends it, the name of a stub's target, and a key: refused, or the one form of what is read.
pub fn handle(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    match (Handle::read(&bytes), parts(data)) {
        (Ok(handle), Ok((bucket, volume, server))) => {
            assert_eq!(handle.write().as_deref(), Ok(data));
            assert_eq!(handle.bucket, bucket);
            assert_eq!(split(&handle.key), Some((volume, server)));
        }
        (Err(one), Err(other)) => assert_eq!(one, other),
        unlike => panic!("{unlike:?}"),
    }
    if let Some((bucket, stub)) = stub_of(data) {
        assert_eq!(target_name(bucket, &stub), data);
    }
    if let Some((volume, server)) = origin(&bytes) {
        assert_eq!(key(volume, &server), data);
    }
}

/// What a server calls the object of each call here.
const CALLED: &[u8] = b"called";

/// A client's call that goes straight through: its other reader takes it for the same, and so it does what the server gets.
pub fn call(data: &[u8]) {
    let Some(passed) = within(data.len(), || fuzzing::passed_on(data, MOST, CALLED)) else {
        return;
    };
    let read = |record: &[u8]| {
        let r = &mut Reader::new(Bytes::copy_from_slice(record));
        let head = read_head(r).expect("a call");
        let call = Call::read(head.procedure, r).expect("a procedure");
        (head, call.expect("its arguments"), r.rest().len())
    };
    let ((came, asked, left), (gone, told, left_too)) = (read(data), read(&passed));
    assert_eq!(left, left_too);
    assert!(left == 0 || left == 12 && matches!(asked, Call::Commit(_)));
    assert_eq!(gone, came);
    // As it came but for the handle, and no more of a listing than may be.
    let called = Bytes::from_static(CALLED);
    let expected = match (asked, &told) {
        (Call::GetAttr(_), _) => Call::GetAttr(called),
        (Call::Readlink(_), _) => Call::Readlink(called),
        (Call::FsInfo(_), _) => Call::FsInfo(called),
        (Call::PathConf(_), _) => Call::PathConf(called),
        (Call::Commit(_), _) => Call::Commit(called),
        (Call::Lookup(place), _) => Call::Lookup(Place {
            dir: called,
            ..place
        }),
        (Call::Access { mask, .. }, _) => Call::Access {
            object: called,
            mask,
        },
        (Call::Read { offset, count, .. }, _) => Call::Read {
            file: called,
            offset,
            count,
        },
        (Call::Write { offset, data, .. }, _) => Call::Write {
            file: called,
            offset,
            data,
        },
        (Call::ReadDir(listing), Call::ReadDir(Listing { bytes, .. })) => {
            assert!(*bytes <= listing.bytes && *bytes as usize <= MOST);
            Call::ReadDir(Listing {
                dir: called,
                bytes: *bytes,
                ..listing
            })
        }
        unlike => panic!("{unlike:?}"),
    };
    assert_eq!(told, expected);
}

/// A bucket that has not moved, and one that has come from volume 0.
fn places() -> &'static [Located; 2] {
    static PLACES: OnceLock<[Located; 2]> = OnceLock::new();
    PLACES.get_or_init(|| {
        let table = Table(vec![Copied {
            key: key(Volume(0), b"then"),
            server: Bytes::from_static(b"now!"),
            from: (1, 2),
            to: (3, 4),
        }]);
        [(0, Names::default()), (9, Names::of(&table))].map(|(moved, names)| Located {
            volume: Volume(1),
            moved,
            names: Arc::new(names),
        })
    })
}

fn shown(volume: Volume, number: u64) -> u64 {
    number.rotate_left(volume.0.into())
}

/// What a server replies; the first byte says to which procedure, and whether the bucket has moved. What a client gets of it is whole, and says the same:
/// each handle is one by which the router comes to what the server has named, and nothing else has changed but numbers.
pub fn reply(data: &[u8]) {
    let Some((&first, reply)) = data.split_first() else {
        return;
    };
    let procedure = u32::from(first & 31);
    let Ok(results) = fuzzing::results(reply) else {
        return;
    };
    asked(procedure, results);
    let rewrite = Rewrite {
        bucket: Bucket(9),
        at: &places()[usize::from(first >> 7)],
        fsid: FSID,
        shown,
    };
    let mut w = Writer::default();
    let read = within(reply.len(), || rewrite.results(procedure, results, &mut w));
    if read.is_err() {
        return;
    }
    // A handle grows by 8 bytes, and the shortest entry that has one is of 124.
    assert!(w.out.len() <= results.len() + results.len() / 15 + 16);
    let before = items(procedure, results).expect("what was read");
    let after = items(procedure, &w.out).expect("what a client reads");
    assert_eq!(before.len(), after.len());
    let stubs = before.iter().zip(&after);
    stubs.for_each(|(before, after)| same(&rewrite, before, after));
    if procedure == 19 {
        let length = w.out.len();
        limit(&mut w.out, 5);
        assert!(w.out.len() == length && items(procedure, &w.out).is_ok());
    }
}

/// What results say, as far as clients are to see it otherwise, by a reader of its own.
#[derive(Debug, PartialEq)]
enum Item<'a> {
    Attrs(Option<[u8; ATTR_BYTES]>),
    Handle(Option<&'a [u8]>),
    Verifier(u64),
    Entry(u64, &'a [u8], &'a [u8]),
    /// What an entry has of its object.
    Object(bool, Option<[u8; ATTR_BYTES]>, Option<&'a [u8]>),
    Same(&'a [u8]),
}

fn items(procedure: u32, results: &[u8]) -> Read<Vec<Item<'_>>> {
    let r = &mut View::new(results);
    let mut out = Vec::new();
    let status = r.array::<4>()?;
    out.push(Item::Same(status));
    let is_done = *status == [0; 4];
    match (procedure, is_done) {
        (1, true) => out.push(Item::Attrs(Some(*r.array()?))),
        (3, true) => {
            out.push(Item::Handle(Some(r.opaque(MAX_HANDLE_BYTES, "handle")?)));
            out.push(after(r)?);
            out.push(after(r)?);
        }
        (8..=11, true) => {
            let made = r.option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?;
            out.push(Item::Handle(made));
            out.push(after(r)?);
            changed(r, &mut out)?;
        }
        (2 | 7..=13 | 21, _) => changed(r, &mut out)?,
        (14, _) => {
            changed(r, &mut out)?;
            changed(r, &mut out)?;
        }
        (15, _) => {
            out.push(after(r)?);
            changed(r, &mut out)?;
        }
        (3..=6 | 16..=20, _) => out.push(after(r)?),
        _ => {}
    }
    if is_done && matches!(procedure, 16 | 17) {
        out.push(Item::Verifier(r.u64()?));
        while r.bool()? {
            let (number, name) = (r.u64()?, r.opaque(MOST, "name")?);
            out.push(Item::Entry(number, name, r.array::<8>()?));
            if procedure == 17 {
                let attrs = r.option(|r| r.array().copied())?;
                let handle = r.option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?;
                out.push(Item::Object(name == b"..", attrs, handle));
            }
        }
    }
    out.push(Item::Same(r.rest()));
    Ok(out)
}

/// `post_op_attr`.
fn after<'a>(r: &mut View<'_>) -> Read<Item<'a>> {
    r.option(|r| r.array().copied()).map(Item::Attrs)
}

/// `wcc_data`.
fn changed<'a>(r: &mut View<'a>, out: &mut Vec<Item<'a>>) -> Read<()> {
    let before = r.option(View::array::<24>)?;
    out.extend(before.map(|before| Item::Same(before)));
    out.push(Item::Attrs(r.option(|r| r.array().copied())?));
    Ok(())
}

fn same<N: Fn(Volume, u64) -> u64>(rewrite: &Rewrite<'_, N>, before: &Item<'_>, after: &Item<'_>) {
    let number = |number| (rewrite.shown)(rewrite.at.volume, number);
    let attrs = |before: [u8; ATTR_BYTES]| {
        let mut attrs = Attrs(before);
        let fileid = number(attrs.fileid());
        show(&mut attrs, fileid, FSID);
        attrs.0
    };
    let is_named = |server: &[u8], handle: &[u8]| {
        let handle = Handle::read(&Bytes::copy_from_slice(handle)).expect("the router's own");
        assert_eq!(handle.bucket, rewrite.bucket);
        assert_eq!(rewrite.at.server(&handle.key).as_deref(), Ok(server));
    };
    match (before, after) {
        (Item::Attrs(before), Item::Attrs(after)) => assert_eq!(before.map(attrs), *after),
        (Item::Handle(Some(before)), Item::Handle(Some(after))) => is_named(before, after),
        (Item::Verifier(before), Item::Verifier(after)) => {
            assert_eq!(before ^ turn(rewrite.at.moved), *after);
        }
        (Item::Entry(before, name, cookie), Item::Entry(after, same, same_too)) => {
            assert_eq!((number(*before), name, cookie), (*after, same, same_too));
        }
        (Item::Object(above, before, named), Item::Object(_, after, called)) => {
            let told = before.filter(|before| !above && Attrs(*before).stub().is_none());
            match (told, named, after, called) {
                (Some(told), Some(named), Some(after), Some(called)) => {
                    assert_eq!(attrs(told), *after);
                    is_named(named, called);
                }
                (None, _, None, None) | (_, None, None, None) => {}
                unlike => panic!("{unlike:?}"),
            }
        }
        (before, after) => assert_eq!(before, after),
    }
}

/// The same results as the coordinator reads them: refused, or with no more than was asked for.
fn asked(procedure: u32, results: &[u8]) {
    let object = Bytes::from_static(b"object");
    let place = Place {
        dir: object.clone(),
        name: object.clone(),
    };
    let new = NewAttrs::default();
    let ask = match procedure {
        1 => Ask::GetAttr(object),
        2 => Ask::SetAttr(object, new),
        3 => Ask::Lookup(place),
        4 => Ask::Access(object, 1),
        5 => Ask::Readlink(object),
        6 => Ask::Read {
            file: object,
            offset: 0,
            count: 64,
        },
        7 => Ask::Write {
            file: object.clone(),
            offset: 0,
            data: object,
            stable: true,
        },
        8 => Ask::Create(place, new),
        16 => Ask::ReadDir {
            dir: object,
            cookie: 0,
            verifier: 0,
        },
        21 => Ask::Commit(object),
        _ => return,
    };
    let bytes = Bytes::copy_from_slice(results);
    let given = within(results.len(), || ask.read(bytes));
    match given {
        Ok(Given::Data { data, .. }) => assert!(data.len() <= 64),
        Ok(Given::Written { count, .. }) => assert!(count as usize <= CALLED.len()),
        Ok(Given::Object(object)) if procedure == 3 => {
            let is_stub = object.attrs.is_none_or(|attrs| attrs.stub().is_some());
            assert_eq!(fuzzing::is_to_be_followed(results), Ok(is_stub));
        }
        _ => {}
    }
}

/// What a router keeps: intentions, maps, and the tables of moves, whose sum is right here. The first byte says which. They may have several forms (what fills
/// up a word is not looked at): what is read, written and read again is equal.
pub fn record(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(rest);
    match kind % 3 {
        0 => {
            if let Ok(read) = within(rest.len(), || Intent::read(bytes)) {
                assert_eq!(Intent::read(read.write().into()).as_ref(), Ok(&read));
            }
        }
        1 => {
            if let Ok(read) = within(rest.len(), || Map::read(bytes)) {
                assert_eq!(Map::read(read.write().into()).as_ref(), Ok(&read));
                let _ = (read.next_move(false), read.next_move(true));
            }
        }
        _ => {
            assert!(Table::read(bytes).is_err(), "a sum that nobody has made");
            let summed = Bytes::from([rest, blake3::hash(rest).as_bytes()].concat());
            if let Ok((from, to, table)) = within(rest.len(), || Table::read(summed)) {
                let again = table.write(from, to).into();
                assert_eq!(Table::read(again), Ok((from, to, table)));
            }
        }
    }
}

/// What servers say that decides whether a volume can be used, and how much room there is: results of FSSTAT and of MOUNT, and labels. The first byte says which.
pub fn setup(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(rest);
    match kind % 3 {
        0 => match within(rest.len(), || fuzzing::space(bytes)) {
            Ok(Ok((words, seconds))) => {
                let attrs = if rest[7] == 1 { ATTR_BYTES } else { 0 };
                let words = words.map(u64::to_be_bytes).concat();
                let said = [&words[..], &seconds.to_be_bytes()].concat();
                assert!(rest.starts_with(&[0; 4]) && rest[8 + attrs..].starts_with(&said));
            }
            Ok(Err(_)) => assert!(!rest.starts_with(&[0; 4]), "nobody has refused it"),
            Err(_) => {}
        },
        1 => match within(rest.len(), || fuzzing::mounted(bytes)) {
            Ok(handle) => {
                let length = (handle.len() as u32).to_be_bytes();
                let said = [&[0; 4], &length[..], &handle].concat();
                assert!(handle.len() <= MAX_HANDLE_BYTES && rest.starts_with(&said));
            }
            Err(Some(status)) => assert!(status > 0 && rest.starts_with(&status.to_be_bytes())),
            Err(None) => {}
        },
        // A text has several forms.
        _ => {
            if let Some((set, volume)) = within(rest.len(), || fuzzing::label(rest)) {
                let text = fuzzing::label_text(set, volume);
                assert_eq!(fuzzing::label(&text), Some((set, volume)));
            }
        }
    }
}
