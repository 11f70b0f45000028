//! How a listing ends when the directory is gone, of a group whose answers are made up.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_files::answer::{Entries, Entry};
use quorate_files::{Action, Answer, Errno, Ino, Kind, Op, Who};

use super::super::caching::Caching;
use super::super::core::Core;
use super::super::owners::Acting;
use super::super::shares::{Shares, Start};
use crate::volume::{CallError, Calling, Failing, Spanning, Volume};

/// A group that has one entry of many in each page, until it refuses.
#[derive(Debug, Default)]
struct Fake {
    refuses: Mutex<Option<Errno>>,
}

impl Spanning for Fake {
    fn call(&self, op: Op) -> Calling<'_> {
        let Action::ReadDir(op) = op.action else {
            panic!("{op:?}");
        };
        let answer = match *self.refuses.lock().unwrap() {
            Some(errno) => Err(CallError::Refused(errno)),
            None => Ok(Answer::Entries(Entries {
                entries: vec![Entry {
                    name: Bytes::from_static(b"file"),
                    ino: Ino(7),
                    kind: Kind::Regular,
                    cookie: op.cookie + 1,
                    attr: None,
                }],
                end: false,
                next: op.cookie + 1,
            })),
        };
        Box::pin(async { answer })
    }

    fn generations(&self) -> Vec<u64> {
        vec![1]
    }

    fn group_of(&self, _: Ino) -> usize {
        0
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }

    fn failed(&self) -> Failing {
        Box::pin(std::future::pending())
    }
}

/// How a directory is listed that is refused from the start, or after its first page.
async fn listed(start: Start, errno: Errno, pages: u64) -> Result<usize, fuser::Errno> {
    let fake = Arc::new(Fake::default());
    let volume = Volume::spanning(fake.clone());
    let runtime = tokio::runtime::Handle::current();
    let core = Core::new(volume, start, Caching::default(), runtime);
    let number = core.listings.add(Ino(5), Who::root());
    for cookie in 0..pages {
        let page = core.list(number, cookie, false).await?;
        assert_eq!(page.entries().len(), 1);
    }
    *fake.refuses.lock().unwrap() = Some(errno);
    let page = core.list(number, pages, false).await?;
    Ok(page.entries().len())
}

/// A directory that is gone is empty to who begins to list it. Who has a part is told that it is not all; so is a guest, to whom it may be gone alone.
#[tokio::test]
async fn a_listing_that_breaks_off_does_not_look_complete() {
    let shared = || Start::Shared(Ino(5), Acting::default());
    let (gone, out) = (Errno::ENOENT, Errno::ESTALE);
    for start in [Start::Volume, shared()] {
        for pages in [0, 2] {
            assert_eq!(listed(start.clone(), gone, pages).await, Ok(0));
        }
    }
    let stale = Err(fuser::Errno::ESTALE);
    assert_eq!(listed(Start::Volume, out, 0).await, Ok(0));
    assert_eq!(listed(Start::Volume, out, 2).await, stale);
    assert_eq!(listed(shared(), out, 0).await, stale);
    assert_eq!(listed(shared(), out, 2).await, stale);
    let shares = Start::Shares(Shares::default(), Acting::default());
    assert_eq!(listed(shares, out, 1).await, stale);
}
