//! Records out of a stream (RFC 5531, 11), many for each read of it: what a connection brings lies in one buffer, and records are looked at there.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::rpc::{LAST, MAX_RECORD_BYTES};

/// How much is read of calls at once.
pub const CALL_BYTES: usize = 64 << 10;
/// How much is read at once of replies, which are longer.
pub const REPLY_BYTES: usize = 256 << 10;
/// The bytes of a fragment's head.
const HEAD: usize = 4;
/// The most fragments of a record: a stranger can make them as short as he likes.
const MAX_FRAGMENTS: usize = 64;

/// Why this is no record. The connection ends with it.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// More than any call has.
    #[error("a record of more than {MAX_RECORD_BYTES} bytes")]
    TooLong,
    /// Nobody cuts a record like that in earnest.
    #[error("a record of more than {MAX_FRAGMENTS} fragments")]
    TooManyFragments,
}

/// What a connection has brought, and was not looked at yet.
#[derive(Debug)]
pub struct Records {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    least: usize,
}

impl Records {
    /// With a buffer of so many bytes, but while a longer record comes.
    pub fn new(bytes: usize) -> Records {
        Records {
            bytes: vec![0; bytes],
            start: 0,
            end: 0,
            least: bytes,
        }
    }

    /// The next record, if all of it is there; then it is done with. Fragments are joined.
    ///
    /// # Errors
    /// [`RecordError`]: it is no record, as soon as that shows.
    pub fn take(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let there = &self.bytes[self.start..self.end];
        // One fragment, as nearly all are.
        if let Some((head, rest)) = there.split_first_chunk::<HEAD>() {
            let head = u32::from_be_bytes(*head);
            let len = (head & !LAST) as usize;
            if len > MAX_RECORD_BYTES {
                return Err(RecordError::TooLong);
            }
            if head & LAST != 0 {
                if rest.len() < len {
                    return Ok(None);
                }
                let from = self.start + HEAD;
                self.start = from + len;
                return Ok(Some(&self.bytes[from..from + len]));
            }
        }
        self.joined()
    }

    /// A record of several fragments. They are moved together only once they are all there.
    fn joined(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let (mut at, mut len) = (self.start, 0);
        let mut fragments = Vec::new();
        loop {
            let Some(head) = self.bytes[at..self.end].first_chunk::<HEAD>() else {
                return Ok(None);
            };
            let head = u32::from_be_bytes(*head);
            let more = (head & !LAST) as usize;
            len += more;
            if len > MAX_RECORD_BYTES {
                return Err(RecordError::TooLong);
            }
            fragments.push(at + HEAD..at + HEAD + more);
            at += HEAD + more;
            if at > self.end {
                return Ok(None);
            }
            if head & LAST != 0 {
                break;
            }
            if fragments.len() == MAX_FRAGMENTS {
                return Err(RecordError::TooManyFragments);
            }
        }
        let from = self.start + HEAD;
        let mut to = from;
        for fragment in fragments {
            let len = fragment.len();
            self.bytes.copy_within(fragment, to);
            to += len;
        }
        self.start = at;
        Ok(Some(&self.bytes[from..to]))
    }

    /// Whether a part of a record is there.
    pub fn has_part(&self) -> bool {
        self.start < self.end
    }

    /// How long the record is of which a part is there, as far as its first fragment says; the most that it can be, if it has several.
    pub fn coming(&self) -> usize {
        match self.bytes[self.start..self.end].first_chunk::<HEAD>() {
            None => 0,
            Some(head) => match u32::from_be_bytes(*head) {
                head if head & LAST != 0 => ((head & !LAST) as usize).min(MAX_RECORD_BYTES),
                _ => MAX_RECORD_BYTES,
            },
        }
    }

    /// Takes in what has come, or waits for it; how many bytes it was: none at the end of the stream. If it is given up meanwhile,
    /// nothing is lost.
    ///
    /// Room grows as bytes come: who only says that he will send much costs nothing.
    ///
    /// # Errors
    /// If the connection broke.
    pub async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.bytes.truncate(self.least);
            self.bytes.shrink_to(self.least);
        } else if self.bytes.len() - self.end < self.least / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.bytes.len() {
                self.bytes.resize(2 * self.end, 0);
            }
        }
        let read = from.read(&mut self.bytes[self.end..]).await?;
        self.end += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(out: &mut Vec<u8>, bytes: &[u8], last: bool) {
        let head = bytes.len() as u32 | if last { LAST } else { 0 };
        out.extend_from_slice(&head.to_be_bytes());
        out.extend_from_slice(bytes);
    }

    /// What comes in pieces of so many bytes; the records, and why it ended.
    fn read(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<RecordError>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut records, mut all) = (Records::new(CALL_BYTES), Vec::new());
            for mut piece in stream.chunks(piece) {
                while !piece.is_empty() {
                    records.fill(&mut piece).await.unwrap();
                    loop {
                        match records.take() {
                            Ok(Some(record)) => all.push(record.to_vec()),
                            Ok(None) => break,
                            Err(error) => return (all, Some(error)),
                        }
                    }
                }
            }
            (all, None)
        })
    }

    /// Records come out as they went in, wherever the stream is cut.
    #[test]
    fn cut_anywhere() {
        let long: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for len in [0usize, 1, 40, 3, 70_000, 5, 300_000, 44] {
            fragment(&mut stream, &long[..len], true);
            expected.push(long[..len].to_vec());
            // The same in pieces.
            let (one, two) = long[..len].split_at(len / 3);
            fragment(&mut stream, one, false);
            fragment(&mut stream, b"", false);
            fragment(&mut stream, two, true);
            expected.push(long[..len].to_vec());
        }
        for piece in [1, 2, 3, 4, 5, 7, 1 << 10, 65_537, stream.len()] {
            let (all, error) = read(&stream, piece);
            assert!(error.is_none() && all == expected, "{piece}");
        }
        let small = &stream[..stream.len().min(190)];
        let whole = read(small, small.len()).0;
        for cut in 1..small.len() {
            assert_eq!(read(small, cut).0, whole, "{cut}");
        }
    }

    #[test]
    fn what_is_no_record_ends_it_at_once() {
        let head = |len: usize, last| (len as u32 | if last { LAST } else { 0 }).to_be_bytes();
        let long = head(MAX_RECORD_BYTES + 1, true);
        assert!(matches!(read(&long, 4).1, Some(RecordError::TooLong)));
        let mut sum = Vec::new();
        fragment(&mut sum, &vec![7; 1 << 19], false);
        sum.extend_from_slice(&head(MAX_RECORD_BYTES - (1 << 19) + 1, true));
        assert!(matches!(read(&sum, 4096).1, Some(RecordError::TooLong)));
        let empty = head(0, false).repeat(MAX_FRAGMENTS);
        let error = read(&empty, 3).1;
        assert!(matches!(error, Some(RecordError::TooManyFragments)));
        // As long as one may be.
        let mut most = Vec::new();
        fragment(&mut most, &vec![7; MAX_RECORD_BYTES], true);
        assert_eq!(read(&most, 1 << 16).0[0].len(), MAX_RECORD_BYTES);
    }

    /// Room is not made for what is only said, and not kept for what is over.
    #[test]
    fn room_grows_as_bytes_come() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut records = Records::new(CALL_BYTES);
            let head = (LAST | MAX_RECORD_BYTES as u32).to_be_bytes();
            records.fill(&mut &head[..]).await.unwrap();
            assert_eq!(records.coming(), MAX_RECORD_BYTES);
            assert_eq!(records.bytes.len(), CALL_BYTES);
            let mut rest = &vec![0; MAX_RECORD_BYTES][..];
            while !rest.is_empty() {
                assert!(records.take().unwrap().is_none());
                records.fill(&mut rest).await.unwrap();
                assert!(records.bytes.len() <= CALL_BYTES.max(2 * records.end));
            }
            assert!(records.take().unwrap().is_some());
            assert_eq!(records.fill(&mut &[][..]).await.unwrap(), 0);
            assert_eq!(records.bytes.capacity(), CALL_BYTES);
        });
    }
}
