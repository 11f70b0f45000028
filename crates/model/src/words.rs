//! What is said, each thing once under a number, and sets of it.

use std::fmt;
use std::rc::Rc;

use foldhash::fast::FixedState;
use quorate_agreement::selection::{Selection, select};
use quorate_wire::digest::Content;
use quorate_wire::message::PeerMessage;
use quorate_wire::{Digest, Encode, ReplicaId, Seq, View};

use crate::scenario::quorum;

/// A table whose order nothing follows from.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedState>;

/// The number of a [`Word`].
pub type WordId = u32;
/// The number of a set of words.
pub type SetId = u32;

/// What a replica has said to the others, or done for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// To all others.
    Message(PeerMessage),
    /// A batch has committed at a place.
    Committed(Seq, Digest),
    /// It was handed to execution.
    Executed(Seq, Digest),
    /// It was handed to execution tentatively, in a view.
    Tentative(Seq, Digest, View),
    /// A checkpoint became stable.
    Stable(Seq, Digest),
}

impl Word {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Word::Message(m) => {
                out.push(0);
                m.encode(&mut out);
            }
            Word::Committed(seq, digest) => {
                out.push(1);
                (*seq, *digest).encode(&mut out);
            }
            Word::Executed(seq, digest) => {
                out.push(2);
                (*seq, *digest).encode(&mut out);
            }
            Word::Tentative(seq, digest, view) => {
                out.push(3);
                (*seq, (*digest, *view)).encode(&mut out);
            }
            Word::Stable(seq, root) => {
                out.push(4);
                (*seq, *root).encode(&mut out);
            }
        }
        out
    }

    /// What a message is about. Only messages of one subject bring about something together.
    pub fn subject(&self) -> Subject {
        match self {
            Word::Message(m) => match m {
                PeerMessage::PrePrepare(m) => Subject::Votes(m.view, m.seq, m.batch.digest()),
                PeerMessage::Prepare(m) => Subject::Votes(m.view, m.seq, m.digest),
                PeerMessage::Commit(m) => Subject::Votes(m.view, m.seq, m.digest),
                PeerMessage::Committed(m) => Subject::Hints(m.seq, m.digest),
                PeerMessage::ViewChange(_) | PeerMessage::NewView(_) => Subject::Views,
                PeerMessage::Checkpoint(_) => Subject::Checkpoints,
                _ => Subject::Any,
            },
            _ => Subject::Any,
        }
    }

    /// The place and the view that it is about, 0 where it is about none.
    pub fn bounds(&self) -> (Seq, View) {
        let Word::Message(message) = self else {
            return (Seq(0), View(0));
        };
        match message {
            PeerMessage::PrePrepare(m) => (m.seq, m.view),
            PeerMessage::Prepare(m) => (m.seq, m.view),
            PeerMessage::Commit(m) => (m.seq, m.view),
            PeerMessage::Committed(m) => (m.seq, View(0)),
            PeerMessage::Checkpoint(m) => (m.seq, View(0)),
            PeerMessage::ViewChange(m) => (Seq(0), m.body.view),
            PeerMessage::NewView(m) => (Seq(0), m.body.view),
            _ => (Seq(0), View(0)),
        }
    }
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Something that goes with all others.
    Any,
    /// A batch at a place in a view.
    Votes(View, Seq, Digest),
    /// That a batch committed at a place.
    Hints(Seq, Digest),
    /// The change of views.
    Views,
    /// Checkpoints.
    Checkpoints,
}

impl Subject {
    /// Whether two messages may be needed together, and then their common subject.
    pub fn with(self, other: Subject) -> Option<Subject> {
        match (self, other) {
            (Subject::Any, other) => Some(other),
            (own, Subject::Any) => Some(own),
            (own, other) => (own == other).then_some(own),
        }
    }
}

/// A word and who said it.
#[derive(Clone, Debug)]
pub struct Spoken {
    /// Who.
    pub by: ReplicaId,
    /// What.
    pub word: Word,
    /// What it is about.
    pub subject: Subject,
}

/// All words that anyone has said, and the sets of words that replicas have said by some moment.
#[derive(Debug, Default)]
pub struct Book {
    words: Interned<Spoken>,
    sets: Vec<Rc<[WordId]>>,
    sets_by_content: Map<Rc<[WordId]>, SetId>,
    by_subject: Map<(SetId, Subject), Rc<[WordId]>>,
    /// NEW-VIEWs by what their readers make of them.
    new_views: Map<u128, WordId>,
    /// VIEW-CHANGEs by the digests by which NEW-VIEWs name them.
    changes: Map<Digest, WordId>,
    names: Vec<(Digest, String)>,
}

/// Values by number.
#[derive(Debug)]
struct Interned<T> {
    values: Vec<T>,
    numbers: Map<u128, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned {
            values: Vec::new(),
            numbers: Map::default(),
        }
    }
}

/// 128 bits that stand for some bytes: two of a thousand million agree by chance once in 10^20.
pub fn print_of(bytes: &[u8]) -> u128 {
    let digest = Digest::of(Content::PeerMessage, bytes);
    u128::from_le_bytes(std::array::from_fn(|i| digest.0[i]))
}

impl Book {
    /// The number of a word.
    pub fn word(&mut self, by: ReplicaId, word: Word) -> WordId {
        let mut bytes = word.to_bytes();
        bytes.push(by.0);
        let next = self.words.values.len() as WordId;
        let number = *self.words.numbers.entry(print_of(&bytes)).or_insert(next);
        if number == next {
            let subject = word.subject();
            if let Word::Message(PeerMessage::ViewChange(m)) = &word {
                self.changes.insert(m.digest(), number);
            }
            self.words.values.push(Spoken { by, word, subject });
        }
        number
    }

    /// The number of a message. NEW-VIEWs that start a view alike are one, whichever VIEW-CHANGEs they rest on: a reader takes it if its
    /// selection is that of what it names, and then remembers the selection.
    pub fn message(&mut self, by: ReplicaId, message: PeerMessage) -> WordId {
        let PeerMessage::NewView(m) = &message else {
            return self.word(by, Word::Message(message));
        };
        let proofs = self.proofs(&message);
        let bodies = proofs.iter().filter_map(|proof| match proof {
            PeerMessage::ViewChange(m) => Some(&m.body),
            _ => None,
        });
        let right = select(quorum(), &bodies.collect::<Vec<_>>());
        let expected = Selection {
            start: m.body.start,
            batches: m.body.selection.clone(),
        };
        let mut bytes = vec![by.0, u8::from(right == Some(expected))];
        (m.body.view, m.body.start).encode(&mut bytes);
        m.body.selection.encode(&mut bytes);
        let print = print_of(&bytes);
        if let Some(known) = self.new_views.get(&print) {
            return *known;
        }
        let word = self.word(by, Word::Message(message));
        self.new_views.insert(print, word);
        word
    }

    /// A word.
    pub fn get(&self, word: WordId) -> &Spoken {
        &self.words.values[word as usize]
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.words.values.len()
    }

    /// Whether nobody has said anything.
    pub fn is_empty(&self) -> bool {
        self.words.values.is_empty()
    }

    /// The number of a set of words.
    pub fn set(&mut self, mut words: Vec<WordId>) -> SetId {
        words.sort_unstable();
        words.dedup();
        let words: Rc<[WordId]> = words.into();
        let next = self.sets.len() as SetId;
        let number = *self.sets_by_content.entry(words.clone()).or_insert(next);
        if number == next {
            self.sets.push(words);
        }
        number
    }

    /// The words of a set.
    pub fn words_of(&self, set: SetId) -> Rc<[WordId]> {
        self.sets[set as usize].clone()
    }

    /// The words of a set that may be needed together with those of a subject.
    pub fn about(&mut self, set: SetId, subject: Subject) -> Rc<[WordId]> {
        if let Some(words) = self.by_subject.get(&(set, subject)) {
            return words.clone();
        }
        let fits = |word: &&WordId| subject.with(self.get(**word).subject).is_some();
        let words = self.sets[set as usize].iter().filter(fits).copied();
        let words: Rc<[WordId]> = words.collect();
        self.by_subject.insert((set, subject), words.clone());
        words
    }

    /// A set without what nobody takes any more once all have left a view: proposals and PREPAREs of it and those before it.
    pub fn outliving(&mut self, set: SetId, view: View) -> SetId {
        let is_over = |word: &Word| match word {
            Word::Message(PeerMessage::PrePrepare(m)) => m.view <= view,
            Word::Message(PeerMessage::Prepare(m)) => m.view <= view,
            _ => false,
        };
        let left = self.spoken(set).filter(|(_, s)| !is_over(&s.word));
        let left = left.map(|(word, _)| word).collect();
        self.set(left)
    }

    /// Those of a set that are about no view, or one up to `view`, and not about the change of views.
    pub fn up_to(&mut self, set: SetId, view: View) -> SetId {
        let fits = |s: &Spoken| s.subject != Subject::Views && s.word.bounds().1 <= view;
        let left = self.spoken(set).filter(|(_, s)| fits(s));
        let left = left.map(|(word, _)| word).collect();
        self.set(left)
    }

    pub fn proofs(&self, message: &PeerMessage) -> Vec<PeerMessage> {
        let PeerMessage::NewView(new_view) = message else {
            return Vec::new();
        };
        let proofs = new_view.body.proofs.iter();
        let words = proofs.filter_map(|(_, digest)| self.changes.get(digest));
        let said = words.filter_map(|word| match &self.get(*word).word {
            Word::Message(message) => Some(message.clone()),
            _ => None,
        });
        said.collect()
    }

    /// Whether a word is in a set.
    pub fn has(&self, set: SetId, word: WordId) -> bool {
        self.sets[set as usize].binary_search(&word).is_ok()
    }

    /// The words of a set with their authors.
    pub fn spoken(&self, set: SetId) -> impl Iterator<Item = (WordId, &Spoken)> {
        let words = self.sets[set as usize].iter();
        words.map(|word| (*word, &self.words.values[*word as usize]))
    }

    /// Gives a digest a name for people.
    pub fn name(&mut self, digest: Digest, name: impl Into<String>) {
        self.names.push((digest, name.into()));
    }

    /// What people call a digest.
    pub fn name_of(&self, digest: &Digest) -> String {
        let named = self.names.iter().find(|(d, _)| d == digest);
        named.map_or_else(|| format!("{digest:?}"), |(_, name)| name.clone())
    }

    /// A word for people.
    pub fn tell(&self, word: WordId) -> String {
        let Spoken { by, word, .. } = self.get(word);
        format!("{by:?} {}", Telling { book: self, word })
    }
}

struct Telling<'a> {
    book: &'a Book,
    word: &'a Word,
}

impl fmt::Display for Telling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |digest: &Digest| self.book.name_of(digest);
        let votes = |votes: &[quorate_wire::message::Vote]| {
            let votes = votes
                .iter()
                .map(|v| format!("{:?}={}@{:?}", v.seq, name(&v.digest), v.view));
            votes.collect::<Vec<_>>().join(" ")
        };
        match self.word {
            Word::Committed(seq, digest) => write!(f, "commits {} at {seq:?}", name(digest)),
            Word::Executed(seq, digest) => write!(f, "executes {} at {seq:?}", name(digest)),
            Word::Tentative(seq, digest, view) => {
                let digest = name(digest);
                write!(f, "executes {digest} at {seq:?} tentatively in {view:?}")
            }
            Word::Stable(seq, root) => write!(f, "has {} stable at {seq:?}", name(root)),
            Word::Message(PeerMessage::PrePrepare(m)) => {
                let digest = name(&m.batch.digest());
                write!(f, "PRE-PREPARE {:?} {:?} {digest}", m.view, m.seq)
            }
            Word::Message(PeerMessage::Prepare(m)) => {
                write!(f, "PREPARE {:?} {:?} {}", m.view, m.seq, name(&m.digest))
            }
            Word::Message(PeerMessage::Commit(m)) => {
                write!(f, "COMMIT {:?} {:?} {}", m.view, m.seq, name(&m.digest))
            }
            Word::Message(PeerMessage::ViewChange(m)) => {
                let (p, q) = (votes(&m.body.prepared), votes(&m.body.preprepared));
                write!(f, "VIEW-CHANGE {:?} P[{p}] Q[{q}]", m.body.view)
            }
            Word::Message(PeerMessage::NewView(m)) => {
                let selection: Vec<_> = m.body.selection.iter().map(name).collect();
                let start = m.body.start.0;
                // The VIEW-CHANGEs are those of the first that was come upon.
                write!(
                    f,
                    "NEW-VIEW {:?} from {start:?}: {selection:?}",
                    m.body.view
                )
            }
            Word::Message(other) => write!(f, "{other:?}"),
        }
    }
}
