//! Records as the log gets them: large operations beside them, without a copy.

use bytes::Bytes;
use quorate_agreement::Record;
use quorate_store::LARGE_BYTES;
use quorate_wire::{Decode, DecodeError, Encode, LogIndex, Reader};

use crate::wal;

/// A record's bytes are a list of positions (`u16`), and the record, in which the requests at these positions of its content
/// have an empty operation. Their operations are the bodies, in this order.
pub(crate) fn pack(index: LogIndex, record: &Record) -> wal::Record {
    let (mut positions, mut bodies) = (Vec::<u16>::new(), Vec::new());
    for (position, request) in (0..).zip(record.requests()) {
        if request.op().len() >= LARGE_BYTES {
            positions.push(position);
            bodies.push(request.body().clone());
        }
    }
    let mut bytes = Vec::new();
    positions.encode(&mut bytes);
    if positions.is_empty() {
        record.encode(&mut bytes);
    } else {
        let mut stripped = record.clone();
        for position in positions {
            let request = &mut stripped.requests_mut()[usize::from(position)];
            *request = request.with_op(Bytes::new());
        }
        stripped.encode(&mut bytes);
    }
    wal::Record {
        index,
        seq: record.seq(),
        bytes: Bytes::from(bytes),
        bodies,
        damaged: false,
    }
}

/// The record in what [`pack`] made; without content, if its bodies are damaged: what others have of it has the same digest.
pub(crate) fn unpack(packed: wal::Record) -> Result<Record, DecodeError> {
    let mut r = Reader::new(packed.bytes);
    let positions = Vec::<u16>::decode(&mut r)?;
    let mut record = Record::decode(&mut r)?;
    r.finish()?;
    if packed.damaged {
        record.drop_content();
        return Ok(record);
    }
    if positions.len() != packed.bodies.len() {
        return Err(DecodeError::Invalid("number of bodies"));
    }
    for (position, body) in positions.into_iter().zip(packed.bodies) {
        let requests = record.requests_mut();
        let request = requests.get_mut(usize::from(position));
        let request = request.ok_or(DecodeError::Invalid("position of a body"))?;
        *request = request.with_op(body);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_agreement::durable::{Content, PrePrepared};
    use quorate_wire::message::{Batch, Request, Vote};
    use quorate_wire::{PublicKey, RequestNumber, Seq, SessionId, Time, View};

    fn record(ops: &[usize]) -> Record {
        let request = |(number, bytes): (u64, &usize)| {
            let op = Bytes::from(vec![number as u8; *bytes]);
            let (client, session) = (PublicKey([3; 32]), SessionId(4));
            let number = RequestNumber(number);
            Request::after(client, session, number, RequestNumber(7), op)
        };
        let requests: Vec<Request> = (8..).zip(ops).map(request).collect();
        let batch = Batch {
            time: Time(5),
            requests: requests.iter().map(Request::digest).collect(),
        };
        let vote = Vote {
            seq: Seq(6),
            view: View(1),
            digest: batch.digest(),
        };
        let content = Some(Content { batch, requests });
        Record::PrePrepared(PrePrepared { vote, content })
    }

    /// What is packed comes back; large operations travel as they are, and leave no trace in the record's bytes.
    #[test]
    fn records_come_back() {
        const LARGE: usize = LARGE_BYTES;
        let cases: [&[usize]; 5] = [
            &[],
            &[0, 100, LARGE - 1],
            &[LARGE],
            &[0, LARGE, 5, 1 << 20, 0],
            &[LARGE, LARGE],
        ];
        for ops in cases {
            let record = record(ops);
            let packed = pack(LogIndex(9), &record);
            let large: Vec<_> = ops.iter().filter(|bytes| **bytes >= LARGE).collect();
            assert_eq!(packed.bodies.len(), large.len());
            assert!(packed.bytes.len() < LARGE + 1000);
            let first = record.requests().iter().find(|r| r.op().len() >= LARGE);
            if let Some(first) = first {
                assert_eq!(packed.bodies[0].bytes().as_ptr(), first.op().as_ptr());
            }
            assert_eq!(unpack(packed.clone()), Ok(record.clone()));
            if let Some(one_less) = packed.bodies.len().checked_sub(1) {
                let mut robbed = packed;
                robbed.bodies.truncate(one_less);
                assert!(unpack(robbed.clone()).is_err());
                robbed.bodies.clear();
                robbed.damaged = true;
                let without = unpack(robbed).expect("a record");
                assert!(without.requests().is_empty() && without.seq() == record.seq());
            }
        }
    }
}
