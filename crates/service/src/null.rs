//! The service of the benchmarks: it does nothing, and says as much as it is asked to.

use std::time::Duration;

use crate::{Bytes, Call, Fault, Rest, Scope, Service, Txn, Uses};

/// The longest result; results of a group are bounded too.
const MAX_RESULT: u32 = 1 << 20;
/// The longest wait, so that no client can stop a replica.
const MAX_WAIT_MS: u32 = 1_000;
/// Bytes of an operation before its padding.
const HEAD: usize = 13;

/// Which operations can't be at work at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// This one and any other.
    #[default]
    All,
    /// Those of the same number; others don't matter to each other.
    Bucket(u32),
    /// None.
    None,
}

/// An operation: how long its result is, how long it takes, what it conflicts with and whether it only reads. What
/// follows is padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullOp {
    /// Whether the operation is said to only read.
    pub read_only: bool,
    /// Bytes of the result.
    pub result: u32,
    /// How long it takes, without work: as with a disk or another service.
    pub wait_ms: u32,
    /// What can't be at work meanwhile.
    pub conflicts: Conflicts,
}

impl NullOp {
    /// The operation with so many bytes of padding.
    pub fn encode(&self, padding: usize) -> Bytes {
        let mut out = vec![u8::from(self.read_only)];
        out.extend(self.result.to_le_bytes());
        out.extend(self.wait_ms.to_le_bytes());
        let conflicts = match self.conflicts {
            Conflicts::All => 0,
            Conflicts::None => u32::MAX,
            Conflicts::Bucket(bucket) => bucket.saturating_add(1).min(u32::MAX - 1),
        };
        out.extend(conflicts.to_le_bytes());
        out.resize(HEAD + padding, 0);
        out.into()
    }

    /// What an operation asks for. Anything may come from a client: too little is an operation that asks for nothing.
    fn decode(op: &[u8]) -> NullOp {
        let Some((head, _)) = op.split_first_chunk::<HEAD>() else {
            return NullOp::default();
        };
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        NullOp {
            read_only: head[0] != 0,
            result: number(1).min(MAX_RESULT),
            wait_ms: number(5).min(MAX_WAIT_MS),
            conflicts: match number(9) {
                0 => Conflicts::All,
                u32::MAX => Conflicts::None,
                bucket => Conflicts::Bucket(bucket - 1),
            },
        }
    }
}

/// The service; it has no state.
#[derive(Clone, Debug)]
pub struct NullService {
    zeros: Bytes,
}

impl Default for NullService {
    fn default() -> NullService {
        let zeros = vec![0; MAX_RESULT as usize].into();
        NullService { zeros }
    }
}

impl Service for NullService {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        NullOp::decode(op).read_only
    }

    fn execute(&self, _txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let op = NullOp::decode(op);
        if op.wait_ms > 0 {
            std::thread::sleep(Duration::from_millis(op.wait_ms.into()));
        }
        Ok(self.zeros.slice(..op.result as usize))
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        NullOp::decode(op).result as usize
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses_at_end(&self, _txn: &Txn<'_>, _call: &Call) -> Result<Option<Uses>, Fault> {
        Ok(None)
    }

    fn uses(&self, _call: &Call, op: &Bytes) -> Uses {
        match NullOp::decode(op).conflicts {
            Conflicts::All => Uses::everything(),
            Conflicts::Bucket(bucket) => Uses::none().write(Scope::Object(0, bucket.into())),
            Conflicts::None => Uses::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client says is what the service reads, whatever the padding; nonsense asks for nothing.
    #[test]
    fn operations_are_read_back() {
        let op = NullOp {
            read_only: true,
            result: 4096,
            wait_ms: 20,
            conflicts: Conflicts::Bucket(0),
        };
        assert_eq!(NullOp::decode(&op.encode(0)), op);
        for conflicts in [Conflicts::All, Conflicts::None, Conflicts::Bucket(99)] {
            let op = NullOp { conflicts, ..op };
            assert_eq!(NullOp::decode(&op.encode(0)), op);
        }
        assert_eq!(NullOp::decode(&op.encode(4096)), op);
        assert_eq!(NullOp::decode(&[1, 2, 3]), NullOp::default());
        let huge = [0xff; HEAD];
        assert_eq!(NullOp::decode(&huge).result, MAX_RESULT);
    }
}
