//! The scenarios, each as a test.

use quorate_sim::scenarios::ALL;

macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let scenario = ALL.iter().find(|s| s.name == stringify!($name));
                let result = (scenario.expect("it is on the list").run)();
                assert!(result.is_ok(), "{result:?}");
            }
        )*

        #[test]
        fn none_is_left_out() {
            let names = [$(stringify!($name)),*];
            assert!(ALL.iter().all(|s| names.contains(&s.name)));
        }
    };
}

tests! {
    who_starts_again_helps_those_who_lag
    state_transfer_with_a_lying_donor
    who_withholds_keeps_nobody_out
    a_state_transfer_is_cut_short
    a_damaged_state_is_mended
    an_unreadable_value_is_mended
    who_recovers_without_end_is_kept_at_bay
    two_liars_of_ten_move_no_bound
    equivocating_primary
    equivocation_leaves_evidence
    slow_primary
    flooding_replica
    kept_in_the_dark
    reads_beside_one_in_the_dark
    a_primary_with_two_others_alone
    inconsistent_authenticators
    inconsistent_authenticators_without_a_repeat
    what_others_vouch_for_is_voted_for
    clients_with_wrong_macs_in_turn
    long_requests_for_the_primary_alone
    absurd_messages_are_refused
    primary_crash
    without_logs_who_crashes_is_gone
    a_primary_hands_over
    a_view_begins_above_its_primarys_window
    power_cut
    view_change_with_prepared_batches
    restart_in_a_view_change
    the_log_is_cut_in_a_view_change
    null_places_outlive_a_power_cut
    tentative_replies_of_three_views
    two_tentative_replies_do_not_suffice
    two_do_not_make_a_read
    early_reads_of_two_states_do_not_count_together
    a_huge_place_is_refused
    two_commits_do_not_suffice
    patience_falls_back
    steady_load_keeps_the_view
    undone_results_are_not_missed
    a_paused_primary_is_soon_left
    a_wrong_mac_for_one_stops_nobody
    a_full_log_is_refused
    strangers_are_not_served
    a_stale_proposal_is_given_up
    who_asks_without_end_is_put_off
    a_fetched_state_is_no_water_mark
    a_lost_log_comes_back
    the_primary_has_lost_its_log
    a_power_cut_takes_a_log
    a_recovery_is_cut_short
    two_lost_logs_are_too_many
    a_lost_vote_is_not_given_again
    a_lying_estimate_holds_nobody_up
    former_words_do_not_add_up
    what_was_set_aside_serves_to_the_end
    a_silent_replica_keeps_nobody_away
    a_primary_that_orders_no_recovery_is_left
    who_is_kept_from_a_replica_learns_from_the_order
    keys_from_long_ago_make_no_estimate
    all_recover_at_once
    a_replica_that_lies_about_its_view_keeps_nobody_away
    two_words_lead_nobody_far
    claims_that_go_with_their_keys_lead_to_a_state
    who_skips_numbers_keeps_nobody_away
    service_is_back_within_two_timeouts
    leaping_primary
    dawdling_primary
    lingering_primary
    bare_primary
    starving_primary
    a_client_and_a_replica_in_league
    old_requests_are_not_ordered
    who_is_led_away_alone_is_met
}
