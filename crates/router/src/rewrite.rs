//! Replies of servers, as clients are to see them: their handles become the router's, and attributes show one space of numbers.

use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::xdr::{Malformed, Read, View, Writer};

use crate::attrs::{ATTR_BYTES, Attrs, show};
use crate::buckets::Located;
use crate::layout::{Bucket, Volume};

/// The longest name in a listing.
const MAX_NAME_BYTES: usize = 1 << 16;

/// What results begin with, up to where nothing is to be changed any more.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// `fattr3`.
    Attr,
    /// `post_op_attr`.
    After,
    /// `wcc_data`.
    Changed,
    /// `nfs_fh3`.
    Handle,
    /// `post_op_fh3`.
    MadeHandle,
    /// Entries of READDIR.
    Entries,
    /// Entries of READDIRPLUS.
    EntriesPlus,
}

/// Results of a procedure that was carried out, and of one that was not (RFC 1813, 3.3).
fn parts(procedure: u32) -> (&'static [Part], &'static [Part]) {
    use Part::{After, Attr, Changed, Entries, EntriesPlus, Handle, MadeHandle};
    match procedure {
        1 => (&[Attr], &[]),
        2 | 7 | 12 | 13 | 21 => (&[Changed], &[Changed]),
        3 => (&[Handle, After, After], &[After]),
        4..=6 | 18..=20 => (&[After], &[After]),
        8..=11 => (&[MadeHandle, After, Changed], &[Changed]),
        14 => (&[Changed, Changed], &[Changed, Changed]),
        15 => (&[After, Changed], &[After, Changed]),
        16 => (&[After, Entries], &[After]),
        17 => (&[After, EntriesPlus], &[After]),
        _ => (&[], &[]),
    }
}

/// Of which bucket results are, and what numbers clients see.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite<'a, N> {
    /// The bucket.
    pub bucket: Bucket,
    /// Where it is.
    pub at: &'a Located,
    /// The one number of all file systems.
    pub fsid: u64,
    /// A file's number on a volume, as clients see it.
    pub shown: N,
}

impl<N: Fn(Volume, u64) -> u64> Rewrite<'_, N> {
    /// Results of a procedure, as clients are to see them, after what was written already.
    ///
    /// # Errors
    /// [`Malformed`]: they are no such results; then some of them may have been written.
    pub fn results(&self, procedure: u32, results: &[u8], w: &mut Writer) -> Read<()> {
        let r = &mut View::new(results);
        let status = r.u32()?;
        w.u32(status);
        let (done, refused) = parts(procedure);
        for part in if status == 0 { done } else { refused } {
            self.part(*part, r, w)?;
        }
        w.fixed(r.rest());
        Ok(())
    }

    fn part(&self, part: Part, r: &mut View, w: &mut Writer) -> Read<()> {
        match part {
            Part::Attr => self.attr(w, attrs(r)?),
            Part::After => {
                let attrs = r.option(attrs)?;
                self.after(w, attrs);
            }
            Part::Changed => {
                // Size and two times.
                let before = r.option(View::array::<24>)?;
                w.bool(before.is_some());
                before.iter().for_each(|before| w.fixed(&before[..]));
                let attrs = r.option(attrs)?;
                self.after(w, attrs);
            }
            Part::Handle => {
                let handle = r.opaque(MAX_HANDLE_BYTES, "handle")?;
                self.handle(w, handle)?;
            }
            Part::MadeHandle => {
                let handle = r.option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?;
                w.bool(handle.is_some());
                if let Some(handle) = handle {
                    self.handle(w, handle)?;
                }
            }
            Part::Entries => self.entries(r, w, false)?,
            Part::EntriesPlus => self.entries(r, w, true)?,
        }
        Ok(())
    }

    /// Attributes.
    pub fn attr(&self, w: &mut Writer, mut attrs: Attrs) {
        let fileid = (self.shown)(self.at.volume, attrs.fileid());
        show(&mut attrs, fileid, self.fsid);
        w.fixed(&attrs.0);
    }

    /// Attributes that may be absent.
    pub fn after(&self, w: &mut Writer, attrs: Option<Attrs>) {
        w.bool(attrs.is_some());
        if let Some(attrs) = attrs {
            self.attr(w, attrs);
        }
    }

    fn handle(&self, w: &mut Writer, server: &[u8]) -> Read<()> {
        let shown = self.at.shown(self.bucket, server);
        w.opaque(shown.map_err(|_| Malformed::TooLong("handle"))?.bytes());
        Ok(())
    }

    fn entries(&self, r: &mut View, w: &mut Writer, plus: bool) -> Read<()> {
        w.u64(r.u64()? ^ turn(self.at.moved));
        while r.bool()? {
            w.bool(true);
            w.u64((self.shown)(self.at.volume, r.u64()?));
            let name = r.opaque(MAX_NAME_BYTES, "name")?;
            w.opaque(name);
            w.fixed(r.array::<8>()?);
            if !plus {
                continue;
            }
            let attrs = r.option(attrs)?;
            let handle = r.option(|r| r.opaque(MAX_HANDLE_BYTES, "handle"))?;
            // Clients look up what these do not say: what a stub stands for, and what is above a placed directory.
            let told = attrs
                .filter(|attrs| attrs.stub().is_none() && name != b"..")
                .zip(handle);
            match told {
                None => {
                    w.bool(false);
                    w.bool(false);
                }
                Some((attrs, handle)) => {
                    self.after(w, Some(attrs));
                    w.bool(true);
                    self.handle(w, handle)?;
                }
            }
        }
        w.bool(false);
        Ok(())
    }
}

fn attrs(r: &mut View) -> Read<Attrs> {
    Ok(Attrs(*r.array()?))
}

/// Has results of FSINFO speak of no more bytes for one READ, WRITE or listing than there may be.
pub fn limit(results: &mut [u8], most: u32) {
    let word = |at: usize| Some(u32::from_be_bytes(*results.get(at..)?.first_chunk()?));
    let after = match (word(0), word(4)) {
        (Some(0), Some(0)) => 8,
        (Some(0), Some(_)) => 8 + ATTR_BYTES,
        _ => return,
    };
    // The most and the best of READ, the same of WRITE, and the best of READDIR; multiples are between them.
    for at in [0, 1, 3, 4, 6].map(|word| after + 4 * word) {
        if let Some(bytes) = results.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *bytes = u32::from_be_bytes(*bytes).min(most).to_be_bytes();
        }
    }
}

/// What the verifiers of listings differ by when a bucket has moved: cookies of its old server mean nothing to the new one.
pub fn turn(moved: u64) -> u64 {
    moved.reverse_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::{DIRECTORY, STUB_OWNER};

    fn rewrite(at: &Located) -> Rewrite<'_, fn(Volume, u64) -> u64> {
        Rewrite {
            bucket: Bucket(9),
            at,
            fsid: 7,
            shown: crate::attrs::fileid,
        }
    }

    fn located() -> Located {
        Located {
            volume: Volume(1),
            moved: 0,
            names: Default::default(),
        }
    }

    fn attrs(uid: u32) -> Attrs {
        let mut out = Vec::new();
        for word in [DIRECTORY, 0, 2, uid, 1] {
            out.extend_from_slice(&u32::to_be_bytes(word));
        }
        out.resize(ATTR_BYTES, 0);
        Attrs(out.try_into().unwrap())
    }

    /// What a stub is does not reach a client, nor what is above a directory.
    #[test]
    fn stubs_are_not_told() {
        let mut w = Writer::default();
        w.u32(0);
        w.bool(false);
        w.u64(0);
        for (name, uid) in [("..", 0), ("own", 5), ("stub", STUB_OWNER)] {
            w.bool(true);
            w.u64(9);
            w.opaque(name.as_bytes());
            w.u64(1);
            w.bool(true);
            w.fixed(&attrs(uid).0);
            w.bool(true);
            w.opaque(name.as_bytes());
        }
        w.bool(false);
        w.bool(true);
        let mut out = Writer::default();
        let done = rewrite(&located()).results(17, &w.out, &mut out);
        assert_eq!(done, Ok(()));
        let out = out.out;
        let find = |what: &[u8]| out.windows(what.len()).filter(|w| *w == what).count();
        assert_eq!(find(&[1, 0, 0, 1, 0, 0, 0, 9, b'o', b'w', b'n']), 1);
        assert_eq!(find(&STUB_OWNER.to_be_bytes()), 0);
        assert_eq!((find(b".."), find(b"stub"), find(b"own")), (1, 1, 2));
        assert_eq!(find(&[128, 0, 0, 0, 0, 0, 0, 9]), 3);
    }

    #[test]
    fn fsinfo_says_what_there_may_be() {
        let sizes = [9, 8, 7, 6, 5, 4, 3, 2];
        for has_attrs in [false, true] {
            let mut w = Writer::default();
            w.u32(0);
            w.bool(has_attrs);
            if has_attrs {
                w.fixed(&[0xff; ATTR_BYTES]);
            }
            let start = w.out.len();
            sizes.into_iter().for_each(|size| w.u32(size));
            limit(&mut w.out, 5);
            let limited = [5, 5, 7, 5, 5, 4, 3, 2].map(u32::to_be_bytes).concat();
            assert_eq!(w.out[start..], limited);
            for len in 0..w.out.len() {
                limit(&mut w.out[..len], 5);
            }
        }
        let refused = [70, 0, u32::MAX].map(u32::to_be_bytes).concat();
        let mut results = refused.clone();
        limit(&mut results, 5);
        assert_eq!(results, refused);
    }

    /// No results make it panic, and what it does not know passes as it is.
    #[test]
    fn any_results() {
        for procedure in 0..25 {
            for fill in [0u8, 1, 255] {
                for len in 0..300 {
                    let mut bytes = vec![fill; len];
                    bytes.iter_mut().take(4).for_each(|b| *b = 0);
                    let mut out = Writer::default();
                    let _ = rewrite(&located()).results(procedure, &bytes, &mut out);
                }
            }
        }
        let read = [&[0u8; 8][..], b"content"].concat();
        let mut out = Writer::default();
        let done = rewrite(&located()).results(6, &read, &mut out);
        assert_eq!((done, out.out), (Ok(()), read));
    }
}
