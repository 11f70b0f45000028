//! The bodies of records, in blob segments.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use quorate_store::{Appender, Blobs};
use quorate_wire::Body;

use super::error::blob_error;
use super::segment::{BodyRef, Found};
use super::{Record, WalError};

/// Whether bytes that were durable are gone.
fn is_loss(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
    )
}

#[derive(Debug)]
pub(super) struct Bodies {
    blobs: Arc<Blobs>,
    appender: Appender,
    /// The segment of which it was last told that it is damaged: where one place is, there are often hundreds.
    told: Cell<Option<u64>>,
}

impl Bodies {
    pub fn new(blobs: Arc<Blobs>) -> Bodies {
        let appender = Appender::pinning(blobs.clone());
        Bodies {
            blobs,
            appender,
            told: Cell::new(None),
        }
    }

    /// Writes the bodies of records, and makes them durable: only then may frames refer to them.
    pub fn write(&mut self, records: &[Record]) -> Result<Vec<Vec<BodyRef>>, WalError> {
        let mut written = Vec::with_capacity(records.len());
        for record in records {
            let mut bodies = Vec::with_capacity(record.bodies.len());
            for body in &record.bodies {
                let place = self.appender.append(body.bytes()).map_err(blob_error)?;
                let sum = crc32fast::hash(body.bytes());
                bodies.push(BodyRef { place, sum });
            }
            written.push(bodies);
        }
        self.appender.sync().map_err(blob_error)?;
        for (record, refs) in records.iter().zip(&written) {
            for (body, at) in record.bodies.iter().zip(refs) {
                self.blobs.remember(body.clone(), at.place, record.seq);
            }
        }
        Ok(written)
    }

    /// Fetches the bodies of a record; none, if one of them is gone or changed: what the record says of the replica stands, and
    /// its content can be fetched from others.
    pub fn read(&self, found: Found) -> Result<Record, WalError> {
        let blobs = &self.blobs;
        let mut bodies = Vec::with_capacity(found.bodies.len());
        let mut damaged = false;
        for BodyRef { place, sum } in found.bodies {
            let body = match blobs.read(place) {
                Ok(body) if crc32fast::hash(&body) == sum => Body::new(body),
                Err(e) if !is_loss(&e.source) => return Err(blob_error(e)),
                Ok(_) | Err(_) => {
                    if self.told.replace(Some(place.segment)) != Some(place.segment) {
                        let segment = blobs.segment_path(place.segment);
                        tracing::error!(
                            "{} is damaged at byte {}, and perhaps at others, where the write-ahead log has bodies of records: check the disk",
                            segment.display(),
                            place.offset
                        );
                    }
                    damaged = true;
                    break;
                }
            };
            bodies.push((body, place));
        }
        if damaged {
            bodies.clear();
        }
        for (body, place) in &bodies {
            blobs.remember(body.clone(), *place, found.seq);
        }
        Ok(Record {
            index: found.index,
            seq: found.seq,
            bytes: found.bytes,
            bodies: bodies.into_iter().map(|(body, _)| body).collect(),
            damaged,
        })
    }

    /// Says which segments the log no longer refers to: those below the first one of these.
    pub fn unpin(&self, firsts: impl Iterator<Item = Option<u64>>) {
        let needed = firsts.chain([self.appender.current()]).flatten().min();
        self.blobs.unpin_below(needed.unwrap_or(u64::MAX));
    }
}
