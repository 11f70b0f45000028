//! A client that lets its primary have each request just before a backup would show it. See `judge/shown.rs`.

use bytes::Bytes;
use quorate_agreement::{Agreement, Input, Millis};
use quorate_wire::message::{AuthRequest, Commit, PeerMessage, PrePrepare, Prepare, Vote};
use quorate_wire::{Authenticator, Digest, LogIndex, Seq, Verified, View};

use crate::support::*;

/// A backup in views 0 and 1.
const ME: u8 = 2;
/// A backup shows the primary what has waited for so long.
const SHOWN_MS: Millis = 60;

struct Backup {
    it: Agreement,
    now: Millis,
    /// Clients that show their requests to all at once, and those that do not.
    prompt: Vec<u8>,
    late: Vec<u8>,
    /// What was ordered, from the first place on.
    ordered: Vec<Digest>,
}

impl Backup {
    fn new(prompt: impl Iterator<Item = u8>, late: impl Iterator<Item = u8>) -> Backup {
        let (prompt, late): (Vec<u8>, Vec<u8>) = (prompt.collect(), late.collect());
        let clients = prompt.iter().chain(&late).map(|seed| key(*seed).public());
        Backup {
            it: fresh_with(ME, |config| config.clients = clients.collect()),
            now: 1_000,
            prompt,
            late,
            ordered: Vec::new(),
        }
    }

    fn view(&self) -> View {
        self.it.standing().view
    }

    fn sync(&mut self) {
        let _ = self
            .it
            .handle(at(self.now), Input::Persisted(LogIndex(1 << 40)));
    }

    fn watch(&mut self, request: AuthRequest) {
        let input = Input::Watch(Verified::from_link(request));
        let _ = self.it.handle(at(self.now), input);
    }

    fn pass(&mut self, ms: Millis) {
        for _ in 0..ms {
            self.now += 1;
            self.it.handle(at(self.now), Input::Tick).unwrap();
        }
        self.it.invariants();
    }

    /// The primary of this view has a batch ordered, at once.
    fn order(&mut self, requests: &[AuthRequest]) {
        let (view, seq) = (self.view(), Seq(self.ordered.len() as u64 + 1));
        let of_first = pre_prepare(self.now, seq.0, requests);
        let proposal = PrePrepare { view, ..of_first };
        let digest = proposal.batch.digest();
        self.ordered.push(digest);
        let primary = quorum().primary(view).0;
        let others = (0..4).filter(|id| *id != ME);
        from_peer(
            &mut self.it,
            self.now,
            primary,
            PeerMessage::PrePrepare(proposal),
        )
        .unwrap();
        self.sync();
        for from in others.clone() {
            let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
            let _ = from_peer(&mut self.it, self.now, from, vote);
        }
        self.sync();
        for from in others {
            let vote = PeerMessage::Commit(Commit { view, seq, digest });
            let _ = from_peer(&mut self.it, self.now, from, vote);
        }
        assert_eq!(self.it.standing().committed, seq);
        self.it.drain().for_each(drop);
    }

    /// The others have left view 0 as well, and the next one begins with all that was ordered.
    fn begin_view_1(&mut self) {
        let place = |(at, digest): (usize, &Digest)| Vote {
            seq: Seq(at as u64 + 1),
            view: View(0),
            digest: *digest,
        };
        let votes: Vec<Vote> = self.ordered.iter().enumerate().map(place).collect();
        let change = |id| {
            let mut body = view_change_body(id, 1);
            body.prepared = votes.clone();
            body.preprepared = votes.clone();
            signed(body)
        };
        let changes = [change(0), change(1), change(3)];
        for change in &changes {
            let m = PeerMessage::ViewChange(change.clone());
            let _ = from_peer(&mut self.it, self.now, change.body.replica.0, m);
        }
        let selection = self.ordered.clone();
        let m = new_view(1, named(&changes), (Seq(0), GENESIS), selection);
        from_peer(&mut self.it, self.now, 1, PeerMessage::NewView(m)).unwrap();
        self.sync();
        let standing = self.it.standing();
        assert_eq!((standing.view, standing.active), (View(1), true));
        self.it.drain().for_each(drop);
    }

    /// What is ordered while clients ask: all show what they ask to the backups, and the late one the primary so much later. After how long this replica leaves its view.
    fn leaves(&mut self, rounds: u64, late_by: Millis) -> Option<Millis> {
        let (view, start) = (self.view(), self.now);
        for round in 0..rounds {
            let number = self.now;
            // Each of them lets backups watch something now and then.
            let turn = self.prompt[round as usize % self.prompt.len()];
            let prompt = op_of(turn, number);
            self.watch(prompt.clone());
            self.order(&[prompt]);
            let late: Vec<_> = self.late.iter().map(|it| op_of(*it, number)).collect();
            late.iter().cloned().for_each(|op| self.watch(op));
            self.pass(late_by);
            if self.view() > view {
                return Some(self.now - start);
            }
            self.order(&late);
            self.pass(2);
        }
        None
    }
}

fn op_of(client: u8, number: u64) -> AuthRequest {
    let mut body = request_of(client, number, Bytes::from_static(b"op"));
    body.auth = Authenticator::Signed(key(client).sign_in(&GROUP, &body.request.digest()).into());
    body
}

/// Has clients be late by design in two views.
fn is_late_in_two_views(mut backup: Backup) {
    // So many batches have to be known.
    assert_eq!(backup.leaves(8, 1), None);
    let first = backup.leaves(60, SHOWN_MS - 2);
    assert!(first.is_some_and(|ms| ms < 5_000), "{first:?}");
    backup.begin_view_1();
    assert_eq!(backup.leaves(60, SHOWN_MS - 2), None);
}

/// It has one primary left, and no other: nothing that it asks counts then before a backup has shown it.
#[test]
fn a_client_that_is_late_on_purpose_has_one_primary_left() {
    is_late_in_two_views(Backup::new(51..53, 50..51));
}

/// Some at once have no more left than one.
#[test]
fn clients_that_are_late_on_purpose_have_one_primary_left() {
    is_late_in_two_views(Backup::new(70..90, 50..59));
}

/// A primary that keeps all waiting is left after one that was left for a client that was late: what others ask counts as before.
#[test]
fn a_primary_that_keeps_others_waiting_is_left_beside_it() {
    let mut backup = Backup::new(51..53, 50..51);
    assert_eq!(backup.leaves(8, 1), None);
    assert!(backup.leaves(60, SHOWN_MS - 2).is_some());
    backup.begin_view_1();
    let view = backup.view();
    let left = (0..100u64).any(|_| {
        let number = backup.now;
        let asked = [50, 51, 52].map(|client| op_of(client, number));
        asked.iter().cloned().for_each(|op| backup.watch(op));
        backup.pass(SHOWN_MS - 2);
        let has_left = backup.view() > view;
        if !has_left {
            backup.order(&asked);
        }
        has_left
    });
    assert!(left);
}
