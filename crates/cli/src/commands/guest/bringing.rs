//! Which credentials are to be brought to the group, and when: each request is ordered and has a row in the audit log, so what was refused is
//! not asked for again and again. What was brought is looked for now and then, which is not ordered: what was taken back is let go of, and when
//! that is ended it has to be brought again.

use core::cmp::Reverse;

use quorate_client::CallError;
use quorate_credential::Chain;
use quorate_files::Errno;
use quorate_files::layout::{MAX_GRANTS_PER_SUBJECT, MAX_LINKS_PER_SUBJECT};

/// The longest pause between two attempts, in rounds: some four minutes.
const LONGEST: u64 = 128;
/// In how many rounds it is looked for once what was brought: each ten seconds.
const LOOKED_FOR: u64 = 5;

/// Which of a key's credentials the group would let go of, since it keeps so many and so many links: those that end first. To bring them would
/// put others out.
pub fn without_place<'a>(held: &[&'a Chain]) -> Vec<&'a Chain> {
    let end = |chain: &Chain| chain.links().last().map(|link| link.terms.window.not_after);
    let mut chains = held.to_vec();
    chains.sort_by_cached_key(|chain| Reverse((end(chain), chain.id())));
    chains.dedup();
    let mut links = 0;
    let with_place = chains
        .iter()
        .take(MAX_GRANTS_PER_SUBJECT)
        .take_while(|chain| {
            links += chain.links().len();
            links <= MAX_LINKS_PER_SUBJECT
        });
    let with_place = with_place.count();
    chains.split_off(with_place)
}

/// What came of an attempt, in one session.
#[derive(Debug)]
struct Attempt {
    chain: Chain,
    generation: u64,
    /// In which round it is due again; never in this session, if none.
    due: Option<u64>,
    /// The group has it, as far as is known.
    is_there: bool,
    /// How many rounds there were before that.
    pause: u64,
}

/// What was brought, or not taken.
#[derive(Debug, Default)]
pub struct Bringing {
    attempts: Vec<Attempt>,
    round: u64,
}

impl Bringing {
    /// Begins a round; of what is not held any more it knows nothing afterwards.
    pub fn begin(&mut self, held: &[&Chain]) {
        self.round += 1;
        self.attempts
            .retain(|attempt| held.contains(&&attempt.chain));
    }

    /// Whether a credential is to be brought now, in this session.
    pub fn is_due(&self, chain: &Chain, generation: u64) -> bool {
        match self.attempt(chain) {
            Some(attempt) if attempt.generation == generation => {
                attempt.due.is_some_and(|due| due <= self.round)
            }
            _ => true,
        }
    }

    /// What came of it.
    pub fn note(&mut self, chain: &Chain, generation: u64, outcome: Result<(), CallError>) {
        let before = self.attempt(chain);
        let before = before.filter(|attempt| attempt.generation == generation);
        let pause = before.map_or(1, |attempt| (2 * attempt.pause).min(LONGEST));
        let due = match outcome {
            Ok(()) => None,
            // It is another key's, or does not hold: it stays so.
            Err(CallError::Refused(Errno::EPERM | Errno::EINVAL)) => None,
            // It is for the next session.
            Err(CallError::Lost) => return,
            // Among others it was taken back, which may be ended.
            Err(CallError::Refused(_) | CallError::Garbled) => Some(self.round + pause),
        };
        self.attempts.retain(|attempt| attempt.chain != *chain);
        self.attempts.push(Attempt {
            chain: chain.clone(),
            generation,
            due,
            is_there: outcome.is_ok(),
            pause,
        });
    }

    /// Whether it is time to look for what was brought.
    pub fn looks(&self) -> bool {
        self.round.is_multiple_of(LOOKED_FOR) && self.attempts.iter().any(|known| known.is_there)
    }

    /// What was brought in this session and is not in force at the group any more is due again, after its pause.
    pub fn found(&mut self, generation: u64, is_in_force: impl Fn(&Chain) -> bool) {
        let known = self.attempts.iter_mut();
        let lost = known.filter(|known| {
            known.is_there && known.generation == generation && !is_in_force(&known.chain)
        });
        for lost in lost {
            lost.is_there = false;
            lost.due = Some(self.round + lost.pause);
        }
    }

    fn attempt(&self, chain: &Chain) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.chain == *chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_credential::{ObjectId, Rights, Scope, Terms, VolumeId, Window};
    use quorate_wire::{Digest, KeyPair};

    fn chain() -> Chain {
        ending(1, 1)
    }

    /// A credential of so many links.
    fn ending(not_after: u64, links: u8) -> Chain {
        let terms = |at: u8| Terms {
            subject: KeyPair::from_seed(&[at + 1; 32]).public(),
            scope: Scope {
                object: ObjectId(1),
                subtree: true,
            },
            rights: Rights::ALL,
            window: Window {
                not_before: 0,
                not_after,
            },
            depth: links - 1 - at,
            serial: 0,
            caveats: Vec::new(),
        };
        let volume = VolumeId(Digest([7; 32]));
        let first = Chain::issue(volume, &KeyPair::from_seed(&[0; 32]), terms(0)).unwrap();
        (1..links).fold(first, |chain, at| {
            chain
                .delegate(&KeyPair::from_seed(&[at; 32]), terms(at))
                .unwrap()
        })
    }

    /// How often a credential is brought in so many rounds of one session, where each attempt ends like that.
    fn attempts(bringing: &mut Bringing, rounds: u32, outcome: Result<(), CallError>) -> u32 {
        let chain = chain();
        let mut asked = 0;
        for _ in 0..rounds {
            bringing.begin(&[&chain]);
            if bringing.is_due(&chain, 1) {
                asked += 1;
                bringing.note(&chain, 1, outcome);
            }
        }
        asked
    }

    /// What the group refuses for good is asked for once in a session, what may become otherwise ever more seldom.
    #[test]
    fn refusals_are_remembered() {
        for outcome in [
            Ok(()),
            Err(CallError::Refused(Errno::EPERM)),
            Err(CallError::Refused(Errno::EINVAL)),
        ] {
            let mut bringing = Bringing::default();
            assert_eq!(attempts(&mut bringing, 1000, outcome), 1, "{outcome:?}");
            assert!(bringing.is_due(&chain(), 2), "in another session");
            bringing.begin(&[]);
            assert!(bringing.is_due(&chain(), 1), "it was away meanwhile");
        }
        for for_now in [Errno::ENOSPC, Errno::EACCES] {
            let for_now = Err(CallError::Refused(for_now));
            let mut bringing = Bringing::default();
            assert_eq!(attempts(&mut bringing, 64, for_now), 7);
            assert_eq!(attempts(&mut bringing, 1280, for_now), 10);
        }
    }

    /// What was brought and is gone, since it was taken back, is brought again; ever more seldom where it goes each time.
    #[test]
    fn what_is_gone_is_brought_again() {
        let (chain, mut bringing) = (chain(), Bringing::default());
        let mut rounds = |is_in_force: bool, rounds: u64| {
            let mut brought = 0;
            for _ in 0..rounds {
                bringing.begin(&[&chain]);
                if bringing.looks() {
                    bringing.found(1, |_| is_in_force);
                }
                if bringing.is_due(&chain, 1) {
                    brought += 1;
                    bringing.note(&chain, 1, Ok(()));
                }
            }
            brought
        };
        assert_eq!(rounds(true, 100), 1);
        assert_eq!(rounds(false, 2 * LOOKED_FOR), 1);
        assert_eq!(rounds(true, 100), 1, "once after it was lost last");
        assert_eq!(rounds(true, 100), 0);
        let often = rounds(false, 100 * LONGEST);
        assert!((90..150).contains(&often), "{often}");
    }

    /// What was lost is brought in the next round.
    #[test]
    fn what_was_lost_is_brought_again() {
        let lost = Err(CallError::Lost);
        assert_eq!(attempts(&mut Bringing::default(), 10, lost), 10);
    }

    /// What ends first has no place where there are too many, or too many links; what there is twice counts once.
    #[test]
    fn the_first_to_end_have_no_place() {
        let short: Vec<Chain> = (0..66).map(|n| ending(100 - n, 1)).collect();
        let held = |chains: &[Chain]| {
            let held: Vec<&Chain> = chains.iter().chain(&chains[..9]).collect();
            without_place(&held)
                .into_iter()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(held(&short[..64]), []);
        assert_eq!(held(&short), short[64..]);
        let long: Vec<Chain> = (0..10).map(|n| ending(100 - n, 16)).collect();
        assert_eq!(held(&long), long[8..]);
    }
}
