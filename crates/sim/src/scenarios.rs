//! Scripted scenarios: one kind of trouble each, told step by step. All checkers look on.
//!
//! `tests/it/scenarios.rs` runs each as a test; `cargo xtask mutants` runs them on the code with a bug in it.

mod adversaries;
mod client;
mod cores;
mod liars;
mod recovery;
mod state;
mod views;

use bytes::Bytes;
use quorate_agreement::Rejected;
use quorate_wire::Encode;

use crate::service::{APPEND, GET, ListOp};
use crate::trace::Sink;
use crate::{Failure, Knobs, World};

type Outcome = Result<(), Failure>;

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Runs it. It panics where it did not come to what it wants to show.
    pub run: fn() -> Result<(), Failure>,
}

macro_rules! scenarios {
    ($($module:ident::$name:ident)*) => {
        /// All of them.
        pub const ALL: &[Scenario] = &[
            $(Scenario { name: stringify!($name), run: $module::$name },)*
        ];
    };
}

scenarios! {
    state::who_starts_again_helps_those_who_lag
    state::state_transfer_with_a_lying_donor
    state::who_withholds_keeps_nobody_out
    state::a_state_transfer_is_cut_short
    state::a_damaged_state_is_mended
    state::an_unreadable_value_is_mended
    adversaries::equivocating_primary
    adversaries::equivocation_leaves_evidence
    adversaries::slow_primary
    adversaries::flooding_replica
    adversaries::kept_in_the_dark
    adversaries::reads_beside_one_in_the_dark
    adversaries::a_primary_with_two_others_alone
    adversaries::inconsistent_authenticators
    adversaries::inconsistent_authenticators_without_a_repeat
    adversaries::what_others_vouch_for_is_voted_for
    adversaries::clients_with_wrong_macs_in_turn
    adversaries::long_requests_for_the_primary_alone
    adversaries::absurd_messages_are_refused
    views::primary_crash
    views::power_cut
    views::view_change_with_prepared_batches
    views::restart_in_a_view_change
    views::the_log_is_cut_in_a_view_change
    views::null_places_outlive_a_power_cut
    client::tentative_replies_of_three_views
    client::two_tentative_replies_do_not_suffice
    client::two_do_not_make_a_read
    client::early_reads_of_two_states_do_not_count_together
    adversaries::a_huge_place_is_refused
    views::two_commits_do_not_suffice
    views::patience_falls_back
    views::steady_load_keeps_the_view
    views::undone_results_are_not_missed
    views::a_paused_primary_is_soon_left
    adversaries::a_wrong_mac_for_one_stops_nobody
    cores::a_full_log_is_refused
    cores::strangers_are_not_served
    cores::a_stale_proposal_is_given_up
    cores::who_asks_without_end_is_put_off
    cores::a_fetched_state_is_no_water_mark
    recovery::a_lost_log_comes_back
    recovery::the_primary_has_lost_its_log
    recovery::a_power_cut_takes_a_log
    recovery::a_recovery_is_cut_short
    recovery::two_lost_logs_are_too_many
    recovery::a_lost_vote_is_not_given_again
    recovery::a_lying_estimate_holds_nobody_up
    recovery::former_words_do_not_add_up
    recovery::what_was_set_aside_serves_to_the_end
    recovery::a_silent_replica_keeps_nobody_away
    recovery::a_primary_that_orders_no_recovery_is_left
    recovery::who_is_kept_from_a_replica_learns_from_the_order
    recovery::keys_from_long_ago_make_no_estimate
    recovery::all_recover_at_once
    recovery::a_replica_that_lies_about_its_view_keeps_nobody_away
    recovery::two_words_lead_nobody_far
    recovery::claims_that_go_with_their_keys_lead_to_a_state
    recovery::who_skips_numbers_keeps_nobody_away
    liars::who_recovers_without_end_is_kept_at_bay
    liars::two_liars_of_ten_move_no_bound
    adversaries::leaping_primary
    adversaries::dawdling_primary
    adversaries::lingering_primary
    adversaries::bare_primary
    adversaries::starving_primary
    adversaries::a_client_and_a_replica_in_league
    adversaries::old_requests_are_not_ordered
    adversaries::who_is_led_away_alone_is_met
    views::without_logs_who_crashes_is_gone
    views::a_primary_hands_over
    views::service_is_back_within_two_timeouts
    views::a_view_begins_above_its_primarys_window
}

fn group(clients: usize, change: impl FnOnce(&mut Knobs)) -> World {
    let mut knobs = Knobs::calm(4);
    knobs.clients = clients;
    change(&mut knobs);
    let mut w = World::new(1, knobs, Sink::None);
    w.run_for(20).expect("nothing happens to it");
    w
}

/// A client asks for an append; gives the operation.
fn ask(w: &mut World, client: usize, token: u64) -> usize {
    let op = ListOp {
        kind: APPEND,
        key: (token % 3) as u8,
        token,
        expected: 0,
        work: 0,
        padding: Bytes::from_static(&[7; 60]),
    };
    w.call(client, op.to_bytes().into(), false)
}

/// A client appends, one after the other, and has each result within some time.
fn append(w: &mut World, client: usize, tokens: std::ops::Range<u64>, within_ms: u64) -> Outcome {
    for token in tokens {
        let operation = ask(w, client, token);
        w.run_until("answered", within_ms, |w| {
            w.operation(operation).done.is_some()
        })?;
    }
    Ok(())
}

fn standing(w: &World, server: usize) -> quorate_agreement::Standing {
    w.server(server).replica.as_ref().expect("up").standing()
}

fn rejected(w: &World, server: usize, reason: Rejected) -> u64 {
    let replica = w.server(server).replica.as_ref().expect("up");
    replica.rejections().get(&reason).copied().unwrap_or(0)
}
