//! What all correct replicas may say in a scenario, to compare searches.

use std::collections::BTreeSet;

use quorate_wire::View;
use quorate_wire::message::PeerMessage;

use crate::words::{Book, SetId, Word, print_of};

/// Some of the words that correct replicas say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Whatever is said, in each state.
    All,
    /// What anything that commits hangs on, whatever view comes after the first: COMMITs, NEW-VIEWs, and votes in views after the first. Only
    /// where no more is said in another state.
    Lasting,
}

impl Which {
    fn has(self, word: &Word) -> bool {
        let Which::Lasting = self else {
            return true;
        };
        let Word::Message(message) = word else {
            return false;
        };
        match message {
            PeerMessage::Commit(_) | PeerMessage::NewView(_) => true,
            PeerMessage::PrePrepare(m) => m.view > View(0),
            PeerMessage::Prepare(m) => m.view > View(0),
            _ => false,
        }
    }

    /// How many ways there are, of what replicas have said in each state, and a number that stands for them.
    pub(crate) fn of_all(self, said: BTreeSet<[SetId; 3]>, book: &Book) -> (usize, u128) {
        let told = said.iter().map(|said| {
            let words = said.iter().flat_map(|set| book.spoken(*set));
            let words = words.filter(|(_, spoken)| self.has(&spoken.word));
            words.map(|(word, _)| book.tell(word)).collect()
        });
        let told: BTreeSet<BTreeSet<String>> = told.collect();
        let is_most = |one: &&BTreeSet<String>| {
            let more = |other: &BTreeSet<String>| other.len() > one.len() && other.is_superset(one);
            self == Which::All || !told.iter().any(more)
        };
        let prints = told.iter().filter(is_most).map(|words| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            print_of(words.join("; ").as_bytes())
        });
        let prints: Vec<u128> = prints.collect();
        let folded = prints.iter().fold(0, |all, print| all ^ print);
        (prints.len(), folded)
    }
}
