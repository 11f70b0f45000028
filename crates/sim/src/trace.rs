//! What happened, as a digest of all events and as lines for people.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::rc::Rc;

use quorate_wire::Decode;
use quorate_wire::message::PeerMessage;

/// How many of the last events a report shows.
const LAST: usize = 60;

/// Lines that outlive a panic of the world that writes them.
pub type Lines = Rc<RefCell<VecDeque<String>>>;

/// What becomes of the lines.
#[derive(Clone, Debug, Default)]
pub enum Sink {
    /// None are made.
    #[default]
    None,
    /// The last ones are kept.
    Last(Lines),
    /// All are printed.
    Print,
}

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    sink: Sink,
}

impl Trace {
    /// A trace without events.
    pub fn new(sink: Sink) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            sink,
        }
    }

    /// Something happened; `line` is asked only where lines are wanted.
    pub fn note(&mut self, now: u64, numbers: &[u64], line: impl FnOnce() -> String) {
        for number in [now].iter().chain(numbers) {
            // FNV-1a over words: equal traces have equal values, and nobody attacks this.
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        }
        match &self.sink {
            Sink::None => {}
            Sink::Print => println!("{:>10.3} ms  {}", now as f64 / 1000.0, line()),
            Sink::Last(lines) => {
                let mut lines = lines.borrow_mut();
                if lines.len() == LAST {
                    lines.pop_front();
                }
                let mut text = String::new();
                let _ = write!(text, "{:>10.3} ms  {}", now as f64 / 1000.0, line());
                lines.push_back(text);
            }
        }
    }

    /// Whether anybody reads lines.
    pub fn has_lines(&self) -> bool {
        !matches!(self.sink, Sink::None)
    }

    /// Stands for all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// A message in a few words.
pub fn words(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Request(m) => format!("REQUEST {:?}", m.request.digest()),
        PeerMessage::Signed(m) => match PeerMessage::from_bytes(m.content.clone()) {
            Ok(message) => words(&message),
            Err(e) => format!("signed bytes that are no message: {e}"),
        },
        PeerMessage::PrePrepare(m) => format!(
            "PRE-PREPARE {:?} {:?} {:?} of {}",
            m.view,
            m.seq,
            m.batch.digest(),
            m.batch.requests.len()
        ),
        PeerMessage::Prepare(m) => format!("PREPARE {:?} {:?} {:?}", m.view, m.seq, m.digest),
        PeerMessage::Commit(m) => format!("COMMIT {:?} {:?} {:?}", m.view, m.seq, m.digest),
        PeerMessage::Checkpoint(m) => format!("CHECKPOINT {:?} {:?}", m.seq, m.root),
        PeerMessage::ViewChange(m) => {
            let prepared: Vec<_> = m.body.prepared.iter().map(|v| (v.seq, v.view)).collect();
            format!(
                "VIEW-CHANGE {:?} of {:?} above {:?}, prepared {prepared:?}",
                m.body.view, m.body.replica, m.body.stable
            )
        }
        PeerMessage::NewView(m) => format!(
            "NEW-VIEW {:?} from {:?}, {} selected",
            m.body.view,
            m.body.start.0,
            m.body.selection.len()
        ),
        PeerMessage::Status(m) => format!(
            "STATUS {:?}{}{} stable {:?} committed {:?} executed {:?}",
            m.view,
            if m.active { "" } else { " (not started)" },
            m.recovering.map_or(String::new(), |bound| format!(
                " recovering up to {bound:?},"
            )),
            m.stable,
            m.committed,
            m.executed
        ),
        PeerMessage::Committed(m) => format!("COMMITTED {:?} {:?}", m.seq, m.digest),
        PeerMessage::Fetch(m) => format!("FETCH {m:?}"),
        PeerMessage::Batch(m) => format!("BATCH {:?}", m.batch.digest()),
        PeerMessage::Body(m) => format!("BODY {:?}", m.request.digest()),
        PeerMessage::State(_) => "STATE".into(),
        PeerMessage::Vouchers(m) => format!("VOUCHERS {:?} of {}", m.seq, m.replies.len()),
        PeerMessage::EstimatePlease(nonce) => format!("ESTIMATE PLEASE {nonce:x}"),
        PeerMessage::Epoch(m) => format!("EPOCH {}, began {:?}", m.certificate.counter, m.began),
        PeerMessage::Estimate(m) => format!(
            "ESTIMATE checkpoint {:?} prepared {:?} {:?}",
            m.checkpoint, m.prepared, m.view
        ),
    }
}

/// A message in one number, for the trace's digest.
pub fn number(message: &PeerMessage) -> u64 {
    let (tag, a, b) = match message {
        PeerMessage::Request(m) => (1, head(&m.request.digest()), 0),
        PeerMessage::Signed(m) => {
            let bytes = m.signature.signature().0;
            (14, u64::from(bytes[0]), u64::from(bytes[1]))
        }
        PeerMessage::PrePrepare(m) => (2, m.seq.0, m.batch.time.0),
        PeerMessage::Prepare(m) => (3, m.seq.0, head(&m.digest)),
        PeerMessage::Commit(m) => (4, m.seq.0, head(&m.digest)),
        PeerMessage::Checkpoint(m) => (5, m.seq.0, head(&m.root)),
        PeerMessage::ViewChange(m) => (6, m.body.view.0, m.body.prepared.len() as u64),
        PeerMessage::NewView(m) => (7, m.body.view.0, m.body.selection.len() as u64),
        PeerMessage::Status(m) => (8, m.view.0, m.committed.0),
        PeerMessage::Committed(m) => (9, m.seq.0, head(&m.digest)),
        PeerMessage::Fetch(_) => (10, 0, 0),
        PeerMessage::Batch(m) => (11, m.batch.time.0, 0),
        PeerMessage::Body(m) => (12, head(&m.request.digest()), 0),
        PeerMessage::State(_) => (13, 0, 0),
        PeerMessage::Vouchers(m) => (15, m.seq.0, m.replies.len() as u64),
        PeerMessage::EstimatePlease(nonce) => (16, *nonce, 0),
        PeerMessage::Estimate(m) => (17, m.checkpoint.0, m.view.0),
        PeerMessage::Epoch(m) => (18, m.certificate.counter, 0),
    };
    a.rotate_left(8) ^ b.rotate_left(32) ^ tag
}

fn head(digest: &quorate_wire::Digest) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.0[..8]);
    u64::from_le_bytes(bytes)
}
