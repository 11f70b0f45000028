//! CREATE of names whose files lie on another volume.

use quorate_files::Who;
use quorate_nfs::call::{NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Writer;
use quorate_router::ask::{Ask, Given, Object, attrs, place};

use super::calls::CREATE;
use super::straight::{Site, TEXT};
use super::told::Manner;
use super::{Client, at};

/// Not GUARDED: what is there already is given.
async fn create(client: &Client, at: Place, size: Option<u64>) -> Result<Object, Status> {
    let new = NewAttrs {
        size,
        ..NewAttrs::default()
    };
    let mut w = Writer::default();
    place(&mut w, &at);
    w.u32(0);
    attrs(&mut w, &new);
    let who = Who::root();
    let called = client.0.call((100_003, 3), CREATE, &who, &w.out);
    match Ask::Create(at, new).read(called.await.unwrap())? {
        Given::Object(object) => Ok(object),
        other => panic!("{other:?}"),
    }
}

/// Servers refuse it, as there is a directory of that name with them, or give that directory, as Linux' own does.
#[tokio::test]
async fn what_lies_elsewhere_is_given() {
    let site = Site::with(super::Serving::default()).await;
    let client = Client::connect(site.port).await.0;
    let dir = |name| client.object(Ask::Lookup(at(&site.root, name)));
    let (here, there) = (dir("a").await.unwrap(), dir("b").await.unwrap());
    let moved = Ask::Rename(at(&there, "file"), at(&here, "moved"));
    client.ask(moved).await.unwrap();
    for manner in [Manner::Well, Manner::Bare, Manner::Guarding] {
        site.manner(manner);
        let made = create(&client, at(&here, "moved"), None).await.unwrap();
        assert_eq!(made.handle, site.files[1], "{manner:?}");
        assert_eq!(made.attrs.unwrap().kind(), 1, "{manner:?}");
        let dir = create(&client, at(&site.root, "b"), None).await;
        assert_eq!(dir.unwrap_err(), Status::Exist, "{manner:?}");
    }
    for (manner, size) in [(Manner::Well, 9), (Manner::Bare, 8), (Manner::Guarding, 7)] {
        site.manner(manner);
        let cut = create(&client, at(&here, "moved"), Some(size)).await;
        assert_eq!(cut.unwrap().attrs.unwrap().size(), size, "{manner:?}");
    }
    site.manner(Manner::Well);
    let own = create(&client, at(&here, "file"), None).await.unwrap();
    assert_eq!(own.handle, site.files[0]);
    assert_eq!(own.attrs.unwrap().size(), TEXT.len() as u64);
    for (name, manner) in [("new", Manner::Well), ("newer", Manner::Bare)] {
        site.manner(manner);
        let made = create(&client, at(&here, name), None).await.unwrap();
        let found = client.object(Ask::Lookup(at(&here, name))).await;
        assert_eq!(found, Ok(made.handle));
    }
}
