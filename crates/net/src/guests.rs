//! Whether somebody whom the group file does not name is let in, by the credential that comes as the first frame of its link.
//!
//! TLS establishes that the other side has a key; the credential says that a key which the volume's owner has granted something, at first hand or
//! by others, is that one. What it may do is not asked here: that is for the replicated service, which has each credential brought to it.

use bytes::Bytes;
use quorate_credential::{Chain, Refusal, Trust, VolumeId};
use quorate_wire::PublicKey;

use crate::group::Group;

/// How far this machine's clock may be off, in seconds, against whoever issued the credential: as far as replicas let agreed time be off.
const CLOCK_BOUND: u64 = 10;

/// A guest whose credential holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// Its key, which is that of its link.
    pub key: PublicKey,
    /// By whose hands its credential has come: whom the owner has granted it, and so on. Nobody's, where that is the guest itself.
    pub hosts: Vec<PublicKey>,
    /// The last second in which it is let in.
    pub until: u64,
}

/// Who comes with this key and these bytes, in this second.
pub(crate) fn judge(
    group: &Group,
    key: &PublicKey,
    bytes: Bytes,
    now: u64,
) -> Result<Guest, Refusal> {
    let chain = Chain::from_bytes(bytes)?;
    // Signatures come last: they cost most, and strangers can ask for them.
    if chain.subject() != *key {
        return Err(Refusal::WrongSubject);
    }
    let window = match chain.links().last() {
        Some(link) => link.terms.window,
        None => return Err(Refusal::WrongSubject),
    };
    let until = window.not_after.saturating_add(CLOCK_BOUND);
    if now > until {
        return Err(Refusal::Expired(window.not_after));
    }
    if now.saturating_add(CLOCK_BOUND) < window.not_before {
        return Err(Refusal::NotYet(window.not_before));
    }
    let owner = group.owner();
    let trust = Trust {
        volume: VolumeId(group.id()),
        owners: owner.as_slice(),
    };
    chain.verify(&trust)?;
    let subjects = chain.links().iter().map(|link| link.terms.subject);
    Ok(Guest {
        key: *key,
        hosts: subjects.filter(|subject| subject != key).collect(),
        until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Files, Purpose};
    use quorate_credential::{ObjectId, Rights, Scope, Terms, Window};
    use quorate_wire::KeyPair;

    const FROM: u64 = 1_000_000;
    const UNTIL: u64 = 2_000_000;

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn group() -> Group {
        let replicas = vec![("127.0.0.1:7000".to_string(), key(1).public())];
        let files = Files::default();
        let group = Group::new("test", replicas, Vec::new(), files, Purpose::Service);
        group.unwrap().with_owner(key(90).public()).unwrap()
    }

    fn terms(subject: u8, depth: u8) -> Terms {
        Terms {
            subject: key(subject).public(),
            scope: Scope {
                object: ObjectId(7),
                subtree: true,
            },
            rights: Rights::READ | Rights::DELEGATE,
            window: Window {
                not_before: FROM,
                not_after: UNTIL,
            },
            depth,
            serial: 1,
            caveats: Vec::new(),
        }
    }

    fn of_owner(volume: &Group) -> Chain {
        let volume = VolumeId(volume.id());
        Chain::issue(volume, &key(90), terms(50, 1)).unwrap()
    }

    fn judged(chain: &Chain, shown_by: u8, now: u64) -> Result<Guest, Refusal> {
        let bytes = chain.to_bytes().into();
        judge(&group(), &key(shown_by).public(), bytes, now)
    }

    /// Who holds the last key of a chain from the owner comes in, as the guest of whom the owner knows.
    #[test]
    fn the_holder_comes_in() {
        let bob = of_owner(&group());
        let carol = bob.delegate(&key(50), terms(51, 0)).unwrap();
        let came = judged(&carol, 51, FROM).unwrap();
        assert_eq!(came.key, key(51).public());
        assert_eq!(came.hosts, [key(50).public()]);
        assert_eq!(judged(&bob, 50, FROM).unwrap().hosts, []);
    }

    /// A copy without the key, another volume's credential, another owner's, one that is changed, and bytes that are none.
    #[test]
    fn others_stay_out() {
        let bob = of_owner(&group());
        assert_eq!(judged(&bob, 51, FROM), Err(Refusal::WrongSubject));
        let replicas = vec![("127.0.0.1:7001".to_string(), key(1).public())];
        let files = Files::default();
        let other = Group::new("test", replicas, Vec::new(), files, Purpose::Service).unwrap();
        let elsewhere = of_owner(&other);
        assert_eq!(judged(&elsewhere, 50, FROM), Err(Refusal::WrongVolume));
        let volume = VolumeId(group().id());
        let by_other = Chain::issue(volume, &key(91), terms(50, 0)).unwrap();
        assert_eq!(judged(&by_other, 50, FROM), Err(Refusal::WrongOwner));

        let good = bob.to_bytes();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let judged = judge(&group(), &key(50).public(), bad.into(), FROM);
            assert!(judged.is_err(), "byte {at}");
        }
        let none = judge(&group(), &key(50).public(), Bytes::from_static(b"x"), FROM);
        assert!(matches!(none, Err(Refusal::Malformed(_))));
    }

    /// Within the bound of clocks its time is what counts, to the second.
    #[test]
    fn its_time_is_bounded() {
        let bob = of_owner(&group());
        let at = |now| judged(&bob, 50, now).map(|came| came.until);
        assert_eq!(at(FROM - CLOCK_BOUND), Ok(UNTIL + CLOCK_BOUND));
        assert_eq!(at(UNTIL + CLOCK_BOUND), Ok(UNTIL + CLOCK_BOUND));
        assert_eq!(at(FROM - CLOCK_BOUND - 1), Err(Refusal::NotYet(FROM)));
        assert_eq!(at(UNTIL + CLOCK_BOUND + 1), Err(Refusal::Expired(UNTIL)));
    }

    /// Nobody is a guest of a group without an owner.
    #[test]
    fn without_an_owner_nobody_comes_in() {
        let replicas = vec![("127.0.0.1:7000".to_string(), key(1).public())];
        let files = Files::default();
        let group = Group::new("test", replicas, Vec::new(), files, Purpose::Service).unwrap();
        let chain = of_owner(&group).to_bytes().into();
        let judged = judge(&group, &key(50).public(), chain, FROM);
        assert_eq!(judged, Err(Refusal::WrongOwner));
    }
}
