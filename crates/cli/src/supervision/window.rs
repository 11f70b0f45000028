//! The window of vulnerability: the longest time in which an attacker must have taken more than f replicas to do harm. Castro and Liskov, PBFT
//! 2002, 4.5: Tv = 2 Tk + Tr. Keys are renewed every Tk, and what was stolen is refused after two renewals; Tr is the longest from when a
//! replica is taken over until it has recovered, which is the period Tw of its recoveries and the longest of these.
//!
//! It is claimed only while all of that is so: of a replica that has recovered within its period, and renews its keys.

use std::collections::BTreeMap;

use quorate_wire::message::Report;
use serde_json::{Value, json};

use super::records::Record;

/// A turn begins when the supervisor looks at the clock, not before: so much later a recovery may end than the period says.
const LATE_MS: u64 = 1_000;
/// So much older than Tk keys may become: making them takes a moment, and a key holder that fails is asked again after a second.
const OLD_MS: u64 = 2_000;

/// What is known of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Tw, in milliseconds, if it recovers by itself.
    pub every_ms: Option<u64>,
    /// Its recoveries.
    pub record: &'a Record,
    /// For how long one has gone on, in milliseconds.
    pub going_ms: Option<u64>,
    /// What it says of itself, if it does.
    pub report: Option<&'a Report>,
}

/// The window of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tk in milliseconds.
    pub tk_ms: Option<u64>,
    /// Tw in milliseconds.
    pub tw_ms: Option<u64>,
    /// How long its longest recovery took, or the present one has taken, in milliseconds.
    pub longest_ms: Option<u64>,
    /// Why none is claimed; none where it is.
    pub reasons: Vec<Reason>,
}

/// Why no window is claimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// There is no schedule.
    NoSchedule,
    /// It has not recovered since anybody takes notes.
    NeverRecovered,
    /// A turn was missed.
    Missed(String),
    /// The present recovery has gone on for longer than the period has room for, in seconds.
    Long(u64),
    /// Its last recovery was longer ago than a period and the longest recovery, in seconds.
    Overdue(u64),
    /// It does not say how its keys are.
    Silent,
    /// The group has no key holders.
    NoKeyHolder,
    /// It never renews its keys.
    NeverRenewed,
    /// It has not renewed its keys for so many seconds.
    OldKeys(u64),
}

impl Window {
    /// Judges what is known, at a time in milliseconds since 1970, in a group of `n`.
    pub fn judge(known: Known<'_>, n: usize, now_ms: u64) -> Window {
        let Known {
            every_ms,
            record,
            going_ms,
            report,
        } = known;
        let longest = record.longest_ms.max(going_ms.unwrap_or(0));
        let mut reasons = Vec::new();
        match every_ms {
            None => reasons.push(Reason::NoSchedule),
            Some(every) => {
                let share = every / n as u64;
                let long = going_ms.filter(|ms| *ms > share);
                reasons.extend(long.map(|ms| Reason::Long(ms / 1000)));
                let last = record.last.as_ref();
                let ago = last.map(|last| now_ms.saturating_sub(last.at_ms));
                let late =
                    ago.filter(|ago| *ago > every.saturating_add(longest).saturating_add(LATE_MS));
                reasons.extend(late.map(|ago| Reason::Overdue(ago / 1000)));
            }
        }
        if record.last.is_none() {
            reasons.push(Reason::NeverRecovered);
        }
        if let Some(missed) = &record.missed {
            reasons.push(Reason::Missed(missed.why.clone()));
        }
        let keys = report.map(|report| report.keys);
        match keys {
            // One that recovers has new keys as soon as it says anything.
            None if going_ms.is_some() => {}
            None => reasons.push(Reason::Silent),
            Some(None) => reasons.push(Reason::NoKeyHolder),
            Some(Some(keys)) if keys.every_ms == 0 => reasons.push(Reason::NeverRenewed),
            Some(Some(keys)) if keys.age_ms > keys.every_ms.saturating_add(OLD_MS) => {
                reasons.push(Reason::OldKeys(keys.age_ms / 1000));
            }
            Some(Some(_)) => {}
        }
        Window {
            tk_ms: keys.flatten().map(|keys| keys.every_ms),
            tw_ms: every_ms,
            longest_ms: (longest > 0).then_some(longest),
            reasons,
        }
    }

    /// Tv in milliseconds, where it is claimed; with what recovery and renewals may be late by before that is told.
    pub fn claimed_ms(&self) -> Option<u64> {
        let claimed = self.reasons.is_empty();
        let (tk, tw, longest) = (self.tk_ms?, self.tw_ms?, self.longest_ms?);
        let keys = tk.saturating_add(OLD_MS).saturating_mul(2);
        let recovery = tw.saturating_add(longest).saturating_add(LATE_MS);
        claimed.then_some(keys.saturating_add(recovery))
    }

    /// For programs, and for `quorate schedule` and `quorate status`.
    pub fn to_json(&self) -> Value {
        let reason = |reason: &Reason| json!({ "alarm": reason.is_alarm(), "text": reason.text() });
        json!({
            "claimed_ms": self.claimed_ms(),
            "key_refresh_ms": self.tk_ms,
            "every_ms": self.tw_ms,
            "longest_recovery_ms": self.longest_ms,
            "not_claimed": self.reasons.iter().map(reason).collect::<Vec<_>>(),
        })
    }
}

impl Reason {
    /// Whether something has gone wrong, rather than was never set up.
    pub fn is_alarm(&self) -> bool {
        match self {
            Reason::NoSchedule
            | Reason::NeverRecovered
            | Reason::NoKeyHolder
            | Reason::NeverRenewed => false,
            Reason::Missed(_)
            | Reason::Long(_)
            | Reason::Overdue(_)
            | Reason::Silent
            | Reason::OldKeys(_) => true,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            Reason::NoSchedule => {
                "it does not recover by itself (`quorate schedule --every`)".into()
            }
            Reason::NeverRecovered => "it has not recovered yet".into(),
            Reason::Missed(why) => format!("its turn to recover was missed: {why}"),
            Reason::Long(s) => {
                format!("its recovery has gone on for {s} s, longer than its part of the period")
            }
            Reason::Overdue(s) => {
                format!("its last recovery was {s} s ago, longer than the period allows")
            }
            Reason::Silent => "it does not answer, so nothing is known of its keys".into(),
            Reason::NoKeyHolder => {
                "the group has no key holders: a key that was stolen stays good".into()
            }
            Reason::NeverRenewed => {
                "it does not renew its keys (`quorate replica --key-refresh`)".into()
            }
            Reason::OldKeys(s) => format!("its keys have not been renewed for {s} s"),
        }
    }
}

/// What is to be said of the windows of some replicas together, from their JSON: the longest of them, or why there is none; and what
/// no window of theirs is about.
pub fn lines(windows: &BTreeMap<u8, Value>, n: usize) -> Vec<String> {
    if windows.is_empty() {
        return Vec::new();
    }
    let of = match windows.len() == n {
        true => String::new(),
        false => format!(" of {}", names(windows.keys())),
    };
    let claimed = windows.values().map(|w| w["claimed_ms"].as_u64());
    let Some(longest) = claimed.max().filter(|_| all_claimed(windows)).flatten() else {
        let mut lines = vec![format!("no window of vulnerability{of} is claimed:")];
        lines.extend(reasons(windows));
        return lines;
    };
    let part = |name: &str| {
        let parts = windows.values().filter_map(|w| w[name].as_u64());
        parts.max().unwrap_or_default() as f64 / 1000.0
    };
    vec![
        format!(
            "window of vulnerability{of}: {:.1} s (keys are renewed every {} s, and twice at the most a stolen one is of use; recoveries come every {} s, and the longest took {:.1} s; with {} s by which these may be late)",
            longest as f64 / 1000.0,
            part("key_refresh_ms"),
            part("every_ms"),
            part("longest_recovery_ms"),
            (2 * OLD_MS + LATE_MS) / 1000,
        ),
        format!("  {EXCEPT}"),
    ]
}

/// What no window is about; see "What is left" in docs/recovery.md.
pub const EXCEPT: &str = "not for a replica that somebody cuts off from all sound ones, which learns of no newer keys, nor for a client that is, which believes each key for as long as three periods if the group file says how long these are, nor for clients' former MAC keys, which one replica takes after their link has gone, for less than the time in which keys are renewed once, and for 30 s at the most";

fn all_claimed(windows: &BTreeMap<u8, Value>) -> bool {
    windows.values().all(|w| w["claimed_ms"].is_u64())
}

/// Each reason once, with those that it is of.
fn reasons(windows: &BTreeMap<u8, Value>) -> Vec<String> {
    let mut by_text: BTreeMap<String, Vec<&u8>> = BTreeMap::new();
    for (id, window) in windows {
        for reason in window["not_claimed"].as_array().into_iter().flatten() {
            let alarm = match reason["alarm"].as_bool() {
                Some(true) => "ALARM: ",
                _ => "",
            };
            let text = reason["text"].as_str().unwrap_or_default();
            let text = format!("{alarm}{text}");
            by_text.entry(text).or_default().push(id);
        }
    }
    let line = |(text, ids): (String, Vec<&u8>)| format!("  {}: {text}", names(ids.into_iter()));
    by_text.into_iter().map(line).collect()
}

fn names<'a>(ids: impl Iterator<Item = &'a u8>) -> String {
    let ids: Vec<String> = ids.map(|id| format!("replica {id}")).collect();
    ids.join(", ")
}

#[cfg(test)]
pub(crate) mod tests {
    use quorate_wire::message::KeyRenewal;
    use quorate_wire::{Digest, ReplicaId, Seq, View};

    use super::super::records::{Ended, Missed};
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    pub(crate) fn report(keys: Option<(u64, u64)>) -> Report {
        Report {
            nonce: 1,
            replica: ReplicaId(2),
            view: View(0),
            active: true,
            committed: Seq(1),
            executed: Seq(1),
            stable: Seq(0),
            root: Digest([0; 32]),
            fetching: false,
            links: Vec::new(),
            clients: 1,
            clients_put_aside: 0,
            view_changes: 0,
            uptime_ms: 1,
            fault: Default::default(),
            recovering: None,
            check: None,
            steps: Vec::new(),
            ordered: None,
            went_back: false,
            recoveries: Vec::new(),
            recovery_intended: false,
            keys: keys.map(|(every_ms, age_ms)| KeyRenewal { every_ms, age_ms }),
        }
    }

    fn record(ago_ms: u64) -> Record {
        Record {
            last: Some(Ended {
                at_ms: NOW - ago_ms,
                took_ms: 4_000,
                shutdown_ms: 50,
                check: None,
                steps: Vec::new(),
                ordered: None,
            }),
            longest_ms: 6_000,
            recent_ms: vec![6_000],
            missed: None,
            begun: false,
            begun_ms: None,
        }
    }

    fn judge(record: &Record, every_s: u64, going_s: u64, report: Option<&Report>) -> Window {
        let known = Known {
            every_ms: (every_s > 0).then_some(every_s * 1000),
            record,
            going_ms: (going_s > 0).then_some(going_s * 1000),
            report,
        };
        Window::judge(known, 4, NOW)
    }

    /// 2 Tk, Tw and the longest recovery, while all is as it should be, or late by no more than is claimed.
    #[test]
    fn a_window_is_claimed() {
        let sound = report(Some((15_000, 14_000)));
        let window = judge(&record(500_000), 600, 0, Some(&sound));
        assert_eq!(window.claimed_ms(), Some(34_000 + 601_000 + 6_000));
        let (late, old) = (record(607_000), report(Some((15_000, 17_000))));
        assert_eq!(
            judge(&late, 600, 0, Some(&old)).claimed_ms(),
            window.claimed_ms()
        );
        // One that recovers says nothing at first; and if this one takes longer than any before, that counts.
        let window = judge(&record(500_000), 600, 9, Some(&sound));
        assert_eq!(window.claimed_ms(), Some(34_000 + 601_000 + 9_000));
    }

    /// Whatever is missing or has gone wrong, nothing is claimed, and the reason is told.
    #[test]
    fn no_window_without_its_reasons() {
        let sound = report(Some((15_000, 14_000)));
        let missed = Record {
            missed: Some(Missed {
                at_ms: NOW,
                why: "because".into(),
            }),
            ..record(1_000)
        };
        let (old, never) = (report(Some((15_000, 17_001))), report(Some((0, 1))));
        let none = report(None);
        let fine = record(1_000);
        let cases = [
            (judge(&fine, 0, 0, Some(&sound)), Reason::NoSchedule),
            (
                judge(&Record::default(), 600, 0, Some(&sound)),
                Reason::NeverRecovered,
            ),
            (
                judge(&missed, 600, 0, Some(&sound)),
                Reason::Missed("because".into()),
            ),
            (judge(&fine, 600, 151, Some(&sound)), Reason::Long(151)),
            (
                judge(&record(607_001), 600, 0, Some(&sound)),
                Reason::Overdue(607),
            ),
            (judge(&fine, 600, 0, None), Reason::Silent),
            (judge(&fine, 600, 0, Some(&none)), Reason::NoKeyHolder),
            (judge(&fine, 600, 0, Some(&never)), Reason::NeverRenewed),
            (judge(&fine, 600, 0, Some(&old)), Reason::OldKeys(17)),
        ];
        for (window, reason) in cases {
            assert_eq!(window.claimed_ms(), None, "{reason:?}");
            assert_eq!(window.reasons, [reason]);
        }
    }

    /// Of several the longest; none of all where there is none of one; and only of those that are known.
    #[test]
    fn the_longest_is_told() {
        let (sound, none) = (report(Some((15_000, 0))), report(None));
        let long = judge(&record(1_000), 600, 0, Some(&sound)).to_json();
        let short = judge(&record(1_000), 60, 0, Some(&sound)).to_json();
        let unclaimed = judge(&record(1_000), 600, 0, Some(&none)).to_json();
        let told = |windows: &[(u8, &Value)]| {
            let windows = windows.iter().map(|(id, w)| (*id, (*w).clone())).collect();
            lines(&windows, 2).join("\n")
        };
        let both = told(&[(0, &long), (1, &short)]);
        assert!(
            both.starts_with("window of vulnerability: 641.0 s"),
            "{both}"
        );
        assert!(both.contains(EXCEPT));
        let one = told(&[(1, &short)]);
        assert!(
            one.starts_with("window of vulnerability of replica 1: 101.0 s"),
            "{one}"
        );
        let no = told(&[(0, &long), (1, &unclaimed)]);
        assert!(
            no.starts_with("no window") && no.contains("replica 1: the group has no key"),
            "{no}"
        );
        assert_eq!(told(&[]), "");
    }
}
