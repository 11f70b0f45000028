//! What must hold in every state.
//!
//! | property | what is compared |
//! |---|---|
//! | agreement | what correct replicas have committed at a place, whatever the view, and what a client may have been told tentatively |
//! | one vote | what one replica has said in a view at a place, in its PREPAREs and in its COMMITs, and of a view |
//! | validity | what commits, with what clients asked for |
//! | stability | a stable checkpoint, with the CHECKPOINTs of the others |
//! | correct replicas go on | nobody gives up |
//! | invariants | those of the core itself |

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quorate_wire::message::PeerMessage;
use quorate_wire::{Digest, ReplicaId, Seq, View};

use crate::cast::Cast;
use crate::words::{Book, SetId, Word, WordId};

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub property: &'static str,
    /// What was seen.
    pub what: String,
    /// How the group came there, a line for each step.
    pub trace: Vec<String>,
}

impl Violation {
    pub(crate) fn new(property: &'static str, what: impl Into<String>) -> Violation {
        Violation {
            property,
            what: what.into(),
            trace: Vec::new(),
        }
    }

    /// A panic of the core.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Violation {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::new("invariants", text.unwrap_or("a panic without words"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.what)?;
        self.trace
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What one correct replica has said and done.
pub fn of_one(me: ReplicaId, said: SetId, cast: &Cast, book: &Book) -> Result<(), Violation> {
    let mut votes: BTreeMap<(u8, View, Seq), Digest> = BTreeMap::new();
    for (_, spoken) in book.spoken(said) {
        let vote = match &spoken.word {
            Word::Committed(_, digest) if !cast.is_valid(digest) => {
                let digest = book.name_of(digest);
                let what = format!("{me:?} commits {digest}, which no client asked for");
                return Err(Violation::new("validity", what));
            }
            Word::Message(PeerMessage::Prepare(m)) => ((0, m.view, m.seq), m.digest),
            Word::Message(PeerMessage::Commit(m)) => ((1, m.view, m.seq), m.digest),
            Word::Message(PeerMessage::ViewChange(m)) => ((2, m.body.view, Seq(0)), m.digest()),
            Word::Message(PeerMessage::NewView(m)) => {
                let body = quorate_wire::Encode::to_bytes(&m.body);
                let digest = Digest::of(quorate_wire::digest::Content::NewView, &body);
                ((3, m.body.view, Seq(0)), digest)
            }
            _ => continue,
        };
        let (key, digest) = vote;
        if *votes.entry(key).or_insert(digest) != digest {
            let what = format!("{me:?} says two things in {:?} at {:?}", key.1, key.2);
            return Err(Violation::new("one vote", what));
        }
    }
    Ok(())
}

/// What all correct replicas have said and done.
pub fn of_all(said: &[SetId], cast: &Cast, book: &Book) -> Result<(), Violation> {
    let mut agreed: BTreeMap<Seq, Digest> = BTreeMap::new();
    let mut told: BTreeMap<(Seq, Digest, View), usize> = BTreeMap::new();
    let mut roots: BTreeMap<(Seq, Digest), usize> = BTreeMap::new();
    let mut stable = Vec::new();
    let mut agree = |seq: Seq, digest: Digest, how: &str| {
        let first = *agreed.entry(seq).or_insert(digest);
        if first == digest {
            return Ok(());
        }
        let (first, digest) = (book.name_of(&first), book.name_of(&digest));
        let what = format!("{digest} {how} at {seq:?}, where {first} is agreed on");
        Err(Violation::new("agreement", what))
    };
    let words: BTreeSet<WordId> = said
        .iter()
        .flat_map(|set| book.spoken(*set).map(|(word, _)| word))
        .collect();
    for word in words {
        match &book.get(word).word {
            Word::Committed(seq, digest) => agree(*seq, *digest, "commits")?,
            Word::Executed(seq, digest) => agree(*seq, *digest, "is executed")?,
            Word::Tentative(seq, digest, view) => {
                *told.entry((*seq, *digest, *view)).or_default() += 1;
            }
            Word::Message(PeerMessage::Checkpoint(m)) => {
                *roots.entry((m.seq, m.root)).or_default() += 1;
            }
            Word::Stable(seq, root) => stable.push((*seq, *root)),
            Word::Message(_) => {}
        }
    }
    // The faulty one says the same to the client.
    let f = cast.quorum.f();
    for ((seq, digest, _), count) in told {
        if count + f >= cast.quorum.commit() {
            agree(seq, digest, "is taken by a client")?;
        }
    }
    for (seq, root) in stable {
        let had = roots.get(&(seq, root)).copied().unwrap_or(0);
        if had + f < cast.quorum.commit() {
            let root = book.name_of(&root);
            let what = format!("{root} is stable at {seq:?}, and {had} correct replicas have it");
            return Err(Violation::new("stability", what));
        }
    }
    Ok(())
}
