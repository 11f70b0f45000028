//! The threads that check signatures for the ordering thread.
//!
//! All signatures of a batch are checked together, at about half the cost of one after the other, and one by one only if one of them is
//! wrong. How many batches wait here is bounded by who hands them over (`staging.rs`).

use std::collections::BTreeMap;

use quorate_agreement::Signed;
use quorate_net::threads::{Crew, Panicked};
use quorate_wire::auth::verify_all;

use super::staging::{Judged, Open};

/// Where signatures are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification {
    /// On how many threads; 0: all on the ordering thread.
    pub threads: usize,
    /// How many there must be to be handed to these threads, while they have nothing to do. Fewer are checked on the ordering thread:
    /// a hand-over costs the processors as much as two or three checks.
    pub from: usize,
}

impl Default for Verification {
    /// What suits this machine: no threads where processors are few.
    fn default() -> Verification {
        let processors = std::thread::available_parallelism();
        let threads = threads_for(processors.map_or(1, usize::from));
        Verification { threads, from: 8 }
    }
}

/// A hand-over costs more than it brings where the ordering threads of a machine keep all its processors busy; so one thread for each two
/// processors beyond the first two, and no more than four: with those the ordering thread has other things to do than wait for checks.
fn threads_for(processors: usize) -> usize {
    (processors / 2).saturating_sub(1).min(4)
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Verifiers {
    verification: Verification,
    crew: Crew<Vec<Open>, Vec<Judged>>,
}

impl Verifiers {
    /// Starts the threads. `tell` is called on them when there is something for [`Verifiers::take_done`]; `died` where one panics.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        verification: Verification,
        tell: impl Fn() + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> std::io::Result<Verifiers> {
        let crew = Crew::spawn(("verifier", verification.threads), judge, tell, died)?;
        Ok(Verifiers { verification, crew })
    }

    /// How they are to be used.
    pub fn verification(&self) -> Verification {
        self.verification
    }

    /// Has a batch checked.
    pub fn check(&self, batch: Vec<Open>) {
        self.crew.send(vec![batch], |_| false);
    }

    /// The batches that were checked since the last time.
    pub fn take_done(&self) -> Vec<Vec<Judged>> {
        self.crew.take_done()
    }
}

impl Drop for Verifiers {
    fn drop(&mut self) {
        self.crew.give_up();
    }
}

/// Checks a batch: what is to be kept apart by itself, and all else together.
fn judge(batch: Vec<Open>) -> Vec<Judged> {
    let together = batch.iter().filter(|open| !open.is_apart);
    let together = check(together.flat_map(Open::signatures));
    let judge = |open: Open| {
        let own = open.is_apart.then(|| check(open.signatures()));
        let verdicts = own.as_ref().unwrap_or(&together);
        let right = |signed| verdicts.get(signed).copied().unwrap_or(false);
        let right: Vec<bool> = open.signatures().iter().map(right).collect();
        open.judged(right)
    };
    batch.into_iter().map(judge).collect()
}

/// Which of some signatures are right. Each is checked once, however often it is there.
fn check<'a>(signatures: impl IntoIterator<Item = &'a Signed>) -> BTreeMap<Signed, bool> {
    let mut verdicts: BTreeMap<Signed, bool> = signatures.into_iter().map(|s| (*s, true)).collect();
    let all: Vec<Signed> = verdicts.keys().copied().collect();
    // What fails together, and one alone, is checked one by one; which says the same of each.
    let are_right = all.len() > 1 && verify_all(&all);
    if !are_right {
        for ((key, digest, signature), is_right) in &mut verdicts {
            *is_right = key.verify(digest, signature).is_ok();
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::super::staging::Staging;
    use super::*;
    use quorate_net::Who;
    use quorate_wire::digest::Content;
    use quorate_wire::{Digest, KeyPair};

    fn signed(key: u8, number: u8) -> Signed {
        let key = KeyPair::from_seed(&[key; 32]);
        let digest = Digest::of(Content::Request, &[number]);
        (key.public(), digest, key.sign(&digest))
    }

    fn forged(key: u8, number: u8) -> Signed {
        let (client, _, signature) = signed(key, number);
        (client, Digest::of(Content::Request, b"other"), signature)
    }

    /// Whoever is beside a wrong signature, in its batch or in the same message: what is right is found right, and nothing else is.
    #[test]
    fn each_is_judged_by_itself() {
        let mut staging = Staging::new(Verification {
            threads: 1,
            from: 8,
        });
        let spoiler = Who::Client(signed(9, 0).0);
        let honest = Who::Client(signed(1, 0).0);
        for round in 0..3 {
            let mixed = vec![signed(9, 1), forged(9, 2), signed(9, 3)];
            assert_eq!(staging.take(spoiler, "spoilt", 1, mixed), None);
            let good: Vec<Signed> = (0..8).map(|n| signed(1, n)).collect();
            assert_eq!(staging.take(honest, "good", 1, good), None);
            let batch = staging.next_batch().expect("enough for one");
            let apart: Vec<bool> = batch.iter().map(|open| open.is_apart).collect();
            assert_eq!(apart, [round > 0, false]);
            let judged = staging.judged(judge(batch));
            let judged = judged.into_iter().map(|(event, verdicts)| {
                let right = verdicts.into_iter().map(|(_, is_right)| is_right);
                (event, right.collect())
            });
            let judged: Vec<(&str, Vec<bool>)> = judged.collect();
            let spoilt = vec![true, false, true];
            assert_eq!(judged, [("spoilt", spoilt), ("good", vec![true; 8])]);
        }
    }

    /// What is handed over comes back, from whatever thread; and the threads end.
    #[test]
    fn batches_come_back() {
        let (tell, told) = std::sync::mpsc::channel();
        let tell = move || tell.send(()).unwrap_or_default();
        let verification = Verification {
            threads: 2,
            from: 8,
        };
        let died = |panicked| panic!("{panicked}");
        let verifiers = Verifiers::spawn(verification, tell, died).expect("threads");
        let mut staging = Staging::new(verification);
        for number in 0..40 {
            let who = Who::Client(signed(number, 0).0);
            let open = vec![signed(number, number)];
            assert!(staging.take(who, number, 1, open).is_none());
        }
        let mut back = 0;
        while back < 40 {
            while let Some(batch) = staging.next_batch() {
                verifiers.check(batch);
            }
            told.recv().expect("the threads run");
            for batch in verifiers.take_done() {
                let judged = staging.judged(batch);
                assert!(judged.iter().all(|(_, verdicts)| verdicts[0].1));
                back += judged.len();
            }
            back += staging.take_few().len();
        }
        assert_eq!(back, 40);
    }

    /// A panic of one of the threads is told by its name: what it was given never comes back.
    #[test]
    fn a_panic_is_told() {
        let verification = Verification {
            threads: 1,
            from: 8,
        };
        let (dying, died) = std::sync::mpsc::channel();
        let tell = || panic!("as asked");
        let died_too = move |panicked| dying.send(panicked).unwrap();
        let verifiers = Verifiers::spawn(verification, tell, died_too).expect("threads");
        verifiers.check(Vec::new());
        let panicked = died.recv().expect("it is told");
        let told = (&*panicked.thread, &*panicked.words);
        assert_eq!(told, ("verifier 0", "as asked"));
    }

    /// None where the processors are few.
    #[test]
    fn few_processors_have_none() {
        let threads = [1, 2, 3, 4, 6, 8, 16, 64].map(threads_for);
        assert_eq!(threads, [0, 0, 0, 1, 2, 3, 4, 4]);
    }
}
