//! A correct replica's agreement core with all that drives it: a log, a store, a clock; and what it may never do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use quorate_agreement::{
    Agreement, CLIENT_KEYS_LAST_MS, Config, Input, LOG_WINDOW, Millis, Now, Output, Record,
    Rejected, Tuning,
};
use quorate_wire::digest::Content;
use quorate_wire::message::{MAX_FRAME_BYTES, NewView, PeerMessage, ViewChange};
use quorate_wire::{
    Authentication, ClientId, Digest, Encode, KeyPair, LogIndex, MacKey, Quorum, ReplicaId,
    ReplicaKeys, Seq, Signer, Time, View,
};

pub const TIMEOUT_MS: Millis = 1_000;
/// The root of the initial state.
pub const GENESIS: Digest = Digest([9; 32]);
/// One input has a replica say no more than this: answers to STATUS are the longest.
const MAX_OUTPUTS: usize = 2_048;
/// One input and what follows from it allocates no more than this, and what the input itself may weigh.
const MAX_ALLOCATED: usize = 8 << 20;

pub fn quorum() -> Quorum {
    Quorum::new(4).expect("f = 1")
}

/// The group's id.
pub const GROUP: Digest = Digest([7; 32]);

pub fn key(replica: u8) -> &'static KeyPair {
    static KEYS: OnceLock<Vec<KeyPair>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| (1..=5).map(|i| KeyPair::from_seed(&[i; 32])).collect());
    &keys[usize::from(replica)]
}

/// What a replica signs with.
pub fn signer(replica: ReplicaId) -> Signer {
    Signer::standing(GROUP, key(replica.0).clone())
}

pub fn client() -> ClientId {
    key(4).public()
}

/// The key of the client's link with a replica.
pub fn link_key(replica: u8) -> MacKey {
    MacKey([replica + 1; 32])
}

pub fn at(mono: Millis) -> Now {
    let wall = Time(1_000_000_000_000_000 + mono * 1_000_000);
    Now { mono, wall }
}

/// The root after a batch: a chain over all of them.
fn root_after(root: Digest, batch: Digest) -> Digest {
    Digest::of_parts(Content::TreeNode, &[&root.0, &batch.0])
}

/// What a replica has said, over all its lives.
#[derive(Debug, Default)]
struct Past {
    proposals: BTreeMap<(View, Seq), Digest>,
    prepares: BTreeMap<(View, Seq), Digest>,
    commits: BTreeMap<(View, Seq), Digest>,
    changes: BTreeMap<View, Digest>,
    new_views: BTreeMap<View, Digest>,
    /// How views began, as it was told, and as it has entered them.
    begun: Vec<NewView>,
}

/// Says one thing once: the same again is fine.
fn once<K: Ord + Copy + std::fmt::Debug>(map: &mut BTreeMap<K, Digest>, at: K, what: Digest) {
    let said = *map.entry(at).or_insert(what);
    assert_eq!(said, what, "two different words at {at:?}");
}

impl Past {
    fn say(&mut self, message: &PeerMessage) {
        match message {
            PeerMessage::PrePrepare(m) => {
                self.still_in(m.view);
                once(&mut self.proposals, (m.view, m.seq), m.batch.digest());
            }
            PeerMessage::Prepare(m) => {
                self.still_in(m.view);
                once(&mut self.prepares, (m.view, m.seq), m.digest);
            }
            PeerMessage::Commit(m) => {
                self.still_in(m.view);
                once(&mut self.commits, (m.view, m.seq), m.digest);
            }
            PeerMessage::NewView(m) => {
                let digest = Digest::of(Content::NewView, &m.body.to_bytes());
                once(&mut self.new_views, m.body.view, digest);
            }
            _ => {}
        }
    }

    fn leave(&mut self, change: &ViewChange, digest: Digest) {
        once(&mut self.changes, change.view, digest);
        // P has what this replica said COMMIT for: a batch that committed rests on 2f+1 such words.
        for (&(view, seq), digest) in &self.commits {
            let covered = seq <= change.stable || seq.0 - change.stable.0 > LOG_WINDOW;
            let listed = change
                .prepared
                .iter()
                .any(|v| v.seq == seq && v.view >= view);
            // A view that began without it shows that it has committed nowhere.
            let superseded = self.begun.iter().any(|began| {
                let is_between = view < began.view && began.view < change.view;
                is_between && seq > began.start.0 && began.given(seq) != Some(*digest)
            });
            assert!(
                covered || view >= change.view || listed || superseded,
                "{seq:?} {view:?} is not in P"
            );
        }
    }

    fn still_in(&self, view: View) {
        let left = self.changes.last_key_value().map(|(view, _)| *view);
        assert!(
            left.is_none_or(|left| view >= left),
            "a vote in {view:?}, which was left"
        );
    }
}

/// A line of the log: a record, or one that the head of a new segment repeats.
#[derive(Clone, Debug)]
struct Line {
    index: Option<LogIndex>,
    /// Of a head's first line: the stable checkpoint.
    head_of: Option<Seq>,
    record: Record,
}

/// A correct replica.
#[derive(Debug)]
pub struct Host {
    pub core: Agreement,
    pub me: ReplicaId,
    pub now: Millis,
    log: Vec<Line>,
    persisted: Option<LogIndex>,
    past: Past,
    /// The state: the last place that was executed for good, and the root there.
    pub state: (Seq, Digest),
    /// Roots after the places that were executed here.
    pub roots: BTreeMap<Seq, Digest>,
    /// What was executed, for good.
    pub executed: BTreeMap<Seq, Digest>,
    /// Requests that were executed.
    pub requests: BTreeSet<Digest>,
    tentative: Option<(Seq, Digest)>,
    /// What the store holds.
    pub stored: (Seq, Digest),
    /// What is to be fetched.
    pub fetch: Option<(Seq, Digest)>,
    /// What it wants sent; to all where nobody is named.
    pub sent: Vec<(Option<ReplicaId>, PeerMessage)>,
    pub failed: Option<String>,
    /// Whom it has convicted.
    pub accused: Vec<ReplicaId>,
}

fn config(me: ReplicaId) -> Config {
    Config {
        quorum: quorum(),
        me,
        key: signer(me),
        keys: ReplicaKeys::Standing {
            group: GROUP,
            keys: (0..4).map(|r| key(r).public()).collect(),
        },
        clients: [client()].into(),
        timeout_ms: TIMEOUT_MS,
        guests: false,
        clock_bound_ms: 10_000,
        client_keys_last_ms: CLIENT_KEYS_LAST_MS,
        authentication: Authentication::Mac,
        durable: true,
        checkpoint_bytes: usize::MAX,
        kept_bytes: quorate_wire::message::session::KEPT_BYTES,
        tuning: Tuning::default(),
    }
}

impl Host {
    pub fn new(me: ReplicaId) -> Host {
        let start = (Seq(0), GENESIS);
        let core = Agreement::new(config(me), start, true, vec![], LogIndex(0), at(0));
        let mut host = Host {
            core,
            me,
            now: 0,
            log: Vec::new(),
            persisted: None,
            past: Past::default(),
            state: start,
            roots: [start].into(),
            executed: BTreeMap::new(),
            requests: BTreeSet::new(),
            tentative: None,
            stored: start,
            fetch: None,
            sent: Vec::new(),
            failed: None,
            accused: Vec::new(),
        };
        host.absorb();
        // A daemon's first records are on disk before its links are up.
        host.persist(usize::MAX);
        let _ = host.input(Input::ClientKey(client(), link_key(me.0)));
        host
    }

    pub fn input(&mut self, input: Input) -> Result<(), Rejected> {
        if self.failed.is_some() {
            return Ok(());
        }
        let now = at(self.now);
        if let Input::Peer(_, PeerMessage::NewView(m)) = &input {
            self.past.begun.push(m.body.clone());
        }
        let core = &mut self.core;
        let taken = crate::within(MAX_ALLOCATED, || core.handle(now, input));
        self.core.invariants();
        self.absorb();
        taken
    }

    fn absorb(&mut self) {
        let outputs: Vec<Output> = self.core.drain().collect();
        assert!(outputs.len() <= MAX_OUTPUTS, "{} outputs", outputs.len());
        for output in outputs {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send(to, message) => self.say(Some(to), message),
            Output::Broadcast(message) => self.say(None, message),
            Output::Persist(index, record) => {
                let last = self.log.iter().rev().find_map(|line| line.index);
                assert!(
                    last.is_none_or(|last| index.0 == last.0 + 1),
                    "the log has a gap"
                );
                let index = Some(index);
                if let Record::Entered(entered) = &record {
                    self.past.begun.push(entered.new_view.body.clone());
                }
                self.log.push(Line {
                    index,
                    head_of: None,
                    record,
                });
            }
            Output::Execute(ordered) => {
                assert!(self.fetch.is_none() && ordered.seq == self.state.0.next());
                let done = self.tentative.take();
                assert!(done.is_none_or(|done| done == (ordered.seq, ordered.digest)));
                let root = root_after(self.state.1, ordered.digest);
                self.state = (ordered.seq, root);
                self.roots.insert(ordered.seq, root);
                self.executed.insert(ordered.seq, ordered.digest);
                let digests = ordered.requests.iter().map(|known| known.request.digest());
                self.requests.extend(digests);
            }
            Output::Tentative(ordered) => {
                assert!(self.tentative.is_none() && self.fetch.is_none());
                assert_eq!(ordered.seq, self.state.0.next());
                self.tentative = Some((ordered.seq, ordered.digest));
            }
            Output::Void(..) | Output::Missed(_) => {}
            Output::Rollback => assert!(self.tentative.take().is_some(), "nothing to undo"),
            Output::Stable { seq, head, .. } => {
                for (i, record) in head.into_iter().enumerate() {
                    let head_of = (i == 0).then_some(seq);
                    self.log.push(Line {
                        index: None,
                        head_of,
                        record,
                    });
                }
            }
            Output::FetchState(seq, root) => {
                assert!(self.tentative.is_none() && self.fetch.is_none());
                self.fetch = Some((seq, root));
            }
            Output::Evidence(evidence) => {
                let subject = evidence.verify(quorum(), &config(self.me).keys);
                self.accused
                    .push(subject.expect("what is handed out is proved").replica);
            }
            Output::Fatal(reason) => self.failed = Some(reason),
        }
    }

    fn say(&mut self, to: Option<ReplicaId>, message: PeerMessage) {
        assert!(message.to_bytes().len() <= MAX_FRAME_BYTES);
        self.past.say(&message);
        if let PeerMessage::ViewChange(m) = &message
            && m.body.replica == self.me
        {
            self.past.leave(&m.body, m.digest());
        }
        self.sent.push((to, message));
    }

    /// So many more records are on disk.
    pub fn persist(&mut self, count: usize) {
        let done = self.persisted;
        let open = self.log.iter().filter_map(|line| line.index);
        let open: Vec<LogIndex> = open.filter(|index| Some(*index) > done).collect();
        let Some(&index) = open.get(count.min(open.len()).saturating_sub(1)) else {
            return;
        };
        self.persisted = Some(index);
        let _ = self.input(Input::Persisted(index));
    }

    /// The state as it is now is in the store.
    pub fn checkpoint(&mut self) {
        let (seq, root) = self.state;
        if self.fetch.is_none() && self.failed.is_none() && seq > self.stored.0 {
            self.stored = self.state;
            let _ = self.input(Input::CheckpointMade(seq, root));
        }
    }

    /// A transfer has brought the state that was asked for.
    pub fn fetched(&mut self) {
        let Some((seq, root)) = self.fetch.take() else {
            return;
        };
        self.state = (seq, root);
        self.stored = (seq, root);
        self.roots.insert(seq, root);
        let _ = self.input(Input::StateFetched(seq, root));
    }

    /// Loses what is not on disk, and starts again; `cut` says whether segments have gone that a later one makes needless.
    pub fn restart(&mut self, cut: bool) {
        if self.failed.is_some() {
            return;
        }
        let done = self.persisted;
        let whole = |line: &Line| line.index.is_some() && line.index <= done;
        let kept = self.log.iter().rposition(whole).map_or(0, |at| at + 1);
        self.log.truncate(kept);
        let head = self.log.iter().rposition(|line| line.head_of.is_some());
        if cut && let Some(head) = head {
            let stable = self.log[head].head_of.unwrap_or(Seq(0));
            let mut at = 0;
            self.log.retain(|line| {
                at += 1;
                let place = line.record.seq();
                at > head || place > stable
            });
        }
        let records = self.log.iter().map(|line| line.record.clone()).collect();
        let next = LogIndex(done.map_or(0, |index| index.0 + 1));
        let (whole, now) = (self.fetch.is_none(), at(self.now));
        self.core = Agreement::new(config(self.me), self.stored, whole, records, next, now);
        // The records before are on disk, whatever the core has heard of it.
        self.state = self.stored;
        self.tentative = None;
        self.fetch = None;
        self.sent.clear();
        self.core.invariants();
        self.absorb();
        let _ = self.input(Input::ClientKey(client(), link_key(self.me.0)));
    }
}
