//! Noticing that a replica has contradicted itself in what it signs. Nothing follows from it for agreement, which holds with f
//! such replicas; it is for the operators.

use alloc::boxed::Box;

use quorate_wire::ReplicaId;
use quorate_wire::evidence::{Evidence, Kind, TwoNewViews, TwoViewChanges};
use quorate_wire::message::{SignedNewView, SignedViewChange};

use crate::core::Agreement;
use crate::io::Output;

impl Agreement {
    /// Compares a VIEW-CHANGE with what its sender has said of the same view. A replica that tells two stories is found out when
    /// a NEW-VIEW names the one that was not heard here, and it is fetched.
    pub(crate) fn compare_view_change(&mut self, m: &SignedViewChange) {
        let (replica, view) = (m.body.replica, m.body.view);
        if self.accused.contains(&(replica, Kind::ViewChange)) {
            return;
        }
        let came = self.view_changes.get(&replica).into_iter();
        let entered = self.entered.iter().flat_map(|e| &e.proofs);
        let mut others = came.chain(self.proofs.values()).chain(entered);
        let other =
            others.find(|o| (o.body.replica, o.body.view) == (replica, view) && o.body != m.body);
        if let Some(first) = other.cloned() {
            let second = m.clone();
            let two = TwoViewChanges { first, second };
            self.accuse(replica, Kind::ViewChange, Evidence::ViewChanges(two));
        }
    }

    /// Compares a NEW-VIEW with what the primary has said of the same view.
    pub(crate) fn compare_new_view(&mut self, primary: ReplicaId, m: &SignedNewView) {
        if self.accused.contains(&(primary, Kind::NewView)) {
            return;
        }
        let heard = self.heard_new_views.get(&primary).into_iter();
        let entered = self.entered.iter().map(|e| &e.new_view);
        let mut others = heard.chain(entered);
        let other = others.find(|o| o.body.view == m.body.view && o.body != m.body);
        if let Some(first) = other.cloned() {
            let second = m.clone();
            let two = TwoNewViews { first, second };
            self.accuse(primary, Kind::NewView, Evidence::NewViews(two));
        }
    }

    /// Hands evidence out if it is genuine: what has just come may be signed by nobody.
    fn accuse(&mut self, replica: ReplicaId, kind: Kind, evidence: Evidence) {
        let checked = evidence.verify(self.config.quorum, &self.config.keys);
        if checked.is_ok() {
            self.accused.insert((replica, kind));
            self.out.push_back(Output::Evidence(Box::new(evidence)));
        }
    }
}
