//! Which recoveries of replicas the group has ordered, as an entry of the replicated state.
//!
//! | key | value |
//! |---|---|
//! | `00 'v'` | of each replica, in order of their ids, the number of its last statement that it recovers (`u64`); 0 where there was none |
//!
//! It is there once a replica has recovered, in groups with key holders. Who has this state refuses what a replica certified before its
//! statement, whoever keeps its newer certificates away. PBFT 2002, 4.3.2 (the recovery request).

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::{Fault, Snapshot, Txn};
use quorate_wire::message::{Outcome, Recovers};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{ClientId, Decode, Digest, Encode, IdentityKey, ReplicaKeys, RequestNumber};

use crate::sessions::OWN_KEYS;

const KEY: &[u8] = &[OWN_KEYS, b'v'];

/// Whose word it is that a replica recovers.
#[derive(Clone, Debug)]
pub struct Identities {
    group: Digest,
    /// By these names they make requests.
    keys: Vec<ClientId>,
}

impl Identities {
    /// Those of a group with key holders.
    pub fn of(keys: &ReplicaKeys) -> Option<Identities> {
        match keys {
            ReplicaKeys::Standing { .. } => None,
            ReplicaKeys::Certified { group, identities } => Some(Identities {
                group: *group,
                keys: identities.iter().map(IdentityKey::name).collect(),
            }),
        }
    }

    /// Takes note of a statement. Whoever shows one again changes nothing.
    pub fn recover(
        &self,
        txn: &mut Txn<'_>,
        client: &ClientId,
        number: RequestNumber,
        Recovers { group, replica }: Recovers,
    ) -> Result<Outcome, Fault> {
        let at = usize::from(replica.0);
        if group != self.group || self.keys.get(at) != Some(client) {
            return Ok(Outcome::Malformed(()));
        }
        let mut numbers = match txn.get(KEY)? {
            Some(row) => read(row, self.keys.len())?,
            None => alloc::vec![0; self.keys.len()],
        };
        if number.0 <= numbers[at] && !is_on(Mutant::StatementReplayed) {
            return Ok(Outcome::TooOld(()));
        }
        numbers[at] = number.0;
        txn.put(Bytes::from_static(KEY), numbers.to_bytes().into());
        Ok(Outcome::Done(Bytes::new()))
    }
}

/// The number of the last recovery of each of `n` replicas that a state tells of, in order of their ids.
///
/// # Errors
/// [`Fault`] where the store fails, or what is there does not decode.
pub fn recoveries(snapshot: &dyn Snapshot, n: usize) -> Result<Option<Vec<u64>>, Fault> {
    let row = snapshot.get(KEY)?;
    row.map(|row| read(row, n)).transpose()
}

fn read(row: Bytes, n: usize) -> Result<Vec<u64>, Fault> {
    let numbers = Vec::<u64>::from_bytes(row).ok();
    let whole = numbers.filter(|numbers| numbers.len() == n);
    whole.ok_or_else(|| Fault::value(KEY, "the list of recoveries does not decode"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use quorate_state::{MemorySnapshot, State};
    use quorate_wire::{Certifies, KeyPair, P256Pair, ReplicaId};

    const GROUP: Digest = Digest([7; 32]);

    /// Of replica 2 a TPM's.
    fn key(seed: u8) -> IdentityKey {
        match seed {
            2 => P256Pair::from_secret(&[seed; 32]).unwrap().identity(),
            _ => KeyPair::from_seed(&[seed; 32]).identity(),
        }
    }

    /// What a state tells after some statements, each by the key of a number, of a group, a replica and a number.
    fn told(all: &[(u8, Digest, u8, u64)]) -> (Vec<Outcome>, Option<Vec<u64>>) {
        let keys = ReplicaKeys::Certified {
            group: GROUP,
            identities: (0..4).map(key).collect(),
        };
        let known = Identities::of(&keys).unwrap();
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let mut txn = state.begin();
        let outcomes = all.iter().map(|&(by, group, replica, number)| {
            let replica = ReplicaId(replica);
            let recovers = Recovers { group, replica };
            let outcome = known.recover(&mut txn, &key(by).name(), RequestNumber(number), recovers);
            outcome.unwrap()
        });
        let outcomes = outcomes.collect();
        let row = txn.get(KEY).unwrap();
        (outcomes, row.map(|row| read(row, 4).unwrap()))
    }

    /// Numbers only rise, each replica's by its own identity.
    #[test]
    fn only_newer_statements_count() {
        let (done, old) = (Outcome::Done(Bytes::new()), Outcome::TooOld(()));
        let (outcomes, row) = told(&[
            (2, GROUP, 2, 5),
            (2, GROUP, 2, 5),
            (2, GROUP, 2, 4),
            (0, GROUP, 0, 1),
            (2, GROUP, 2, 9),
        ]);
        assert_eq!(
            outcomes,
            [done.clone(), old.clone(), old, done.clone(), done]
        );
        assert_eq!(row, Some(alloc::vec![1, 0, 9, 0]));
    }

    /// A client, another replica, and a replica of another group say nothing that counts.
    #[test]
    fn others_have_no_say() {
        let all = [
            (9, GROUP, 2, 5),
            (1, GROUP, 2, 5),
            (2, Digest([8; 32]), 2, 5),
            (2, GROUP, 4, 5),
            (2, GROUP, 255, 5),
        ];
        let (outcomes, row) = told(&all);
        assert!(outcomes.iter().all(|o| *o == Outcome::Malformed(())));
        assert_eq!(row, None);
    }
}
