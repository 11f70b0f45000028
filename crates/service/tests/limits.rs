//! What can't be an operation or a result, and what its caller is told.

use quorate_service::{
    Bytes, Call, Fault, Local, MAX_OP_BYTES, MAX_RESULT_BYTES, NoResult, Service, Txn,
};

/// Counts its operations, and answers with so many bytes as an operation has, or with too many.
#[derive(Clone, Debug)]
struct Lengths;

impl Service for Lengths {
    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"count"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        assert!(!op.is_empty(), "none of those is a service's");
        let count = txn.get(b"count")?.unwrap_or_default();
        if op == "count" {
            return Ok(count);
        }
        txn.put("count".into(), [&count[..], b"+"].concat().into());
        Ok(match &op[..] {
            b"too much" => vec![0; MAX_RESULT_BYTES].into(),
            _ => vec![0; op.len() - 16].into(),
        })
    }
}

/// An operation that can't be one is not sent, one whose answer can't be a result is executed, and the caller is told which; all go on in the same
/// session.
#[test]
fn limits_have_names() {
    for replicas in [1, 4] {
        let group = Local::start(replicas, Lengths).expect("a group");
        let session = group.session().expect("a session");
        let longest = Bytes::from(vec![1; MAX_OP_BYTES]);
        let result = session.call_blocking(longest).expect("it fits");
        assert_eq!(result.len(), MAX_OP_BYTES - 16);
        let generation = session.generation();

        let too_long = Bytes::from(vec![1; MAX_OP_BYTES + 1]);
        let too_much = session.call_blocking("too much".into());
        assert_eq!(too_much, Err(NoResult::ResultTooLong));
        for read in [false, true] {
            let ask = |op: Bytes| match read {
                true => session.read_blocking(op),
                false => session.call_blocking(op),
            };
            assert_eq!(ask(too_long.clone()), Err(NoResult::OpTooLong));
            assert_eq!(ask(Bytes::new()), Err(NoResult::OpEmpty));
        }
        assert_eq!(session.read_blocking("count".into()), Ok("++".into()));
        assert_eq!(session.generation(), generation);

        let mut inline = group.inline_session().expect("a session");
        assert_eq!(inline.call(too_long), Err(NoResult::OpTooLong));
        assert_eq!(inline.read(Bytes::new()), Err(NoResult::OpEmpty));
        assert_eq!(inline.call("too much".into()), Err(NoResult::ResultTooLong));
        assert_eq!(inline.read("count".into()), Ok("+++".into()));
        assert_eq!(inline.in_flight(), 0);
    }
}
