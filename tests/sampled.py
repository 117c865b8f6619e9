"""Which tests the default command runs for a few of their parameters only, so that it stays under ten minutes.

The others wear the mark `long`, as tests of minutes do: `python -m pytest -m long` runs them, and CI a seventh of them
a day (tests/parts.py). A test is named here for its time, not for its worth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

# Of a test's parameters every k-th is run by default, from the first on; 0: none.
EVERY = {
    "tests/cli/test_account.py": {
        "test_no_number_of_adaptive_parameters_stands_without_its_reservation": 3,
        "test_nothing_is_cut_off": 0,
    },
    "tests/cli/test_accounting_verbs.py": {
        "test_its_commands_run": 3,
        "test_its_python_runs": 2,
        "test_the_examples_of_help_run": 0,
    },
    "tests/cli/test_calibrate_and_certify.py": {
        "test_a_group_is_certified_as_such": 0,
    },
    "tests/cli/test_cli.py": {
        "test_a_folder_that_cannot_be_written": 3,
        "test_a_pipe_of_any_encoding_gets_the_same_text": 2,
        "test_a_reader_that_goes_away_is_no_failed_run": 0,
        "test_ctrl_c_keeps_the_place_and_the_same_command_goes_on": 0,
        "test_killed_at_random_moments_nothing_finished_is_lost": 0,
    },
    "tests/cli/test_extremes.py": {
        "test_what_cannot_be_proven_is_one_sentence": 9,
    },
    "tests/cli/test_hostile_input.py": {
        "test_streams_that_cannot_be_written": 6,
    },
    "tests/clipping/test_each_record_alone.py": {
        "test_a_record_whose_gradient_cancels_moves_a_weighted_sum_by_z_clip_norms": 2,
        "test_at_a_kink_the_gradients_are_summed_whose_projections_were_taken": 3,
        "test_one_record_moves_the_sum_of_a_mechanism_by_what_its_event_says": 4,
        "test_one_record_moves_the_sum_of_an_engine_by_the_clip_norm": 3,
        "test_one_record_moves_the_sum_of_dpis_by_what_the_ledger_says": 5,
    },
    "tests/clipping/test_ghost.py": {
        "test_every_model": 10,
    },
    "tests/clipping/test_jl_forward.py": {
        "test_every_model": 0,
    },
    "tests/contracts/test_accountants.py": {
        "test_delta_falls_from_at_most_one_to_at_least_zero": 12,
        "test_epsilon_and_delta_invert_each_other": 12,
        "test_epsilon_falls_with_delta_and_is_never_negative": 3,
        "test_epsilon_grows_with_steps_rate_and_precision": 3,
        "test_it_is_pure": 9,
        "test_no_bound_is_below_the_truth": 9,
    },
    "tests/contracts/test_checks.py": {
        "test_every_check_has_a_planted_fault_that_it_refutes": 3,
        "test_verdicts_are_valid_and_set_by_the_seed": 12,
    },
    "tests/contracts/test_clipping.py": {
        "test_engine_passes_the_checks": 2,
        "test_sum_is_the_definition_s": 3,
    },
    "tests/contracts/test_datasets.py": {
        "test_every_file_is_checked_as_published": 2,
        "test_loads_the_same_twice_into_separate_memory": 10,
        "test_shapes_and_types_are_the_declared_ones": 10,
    },
    "tests/contracts/test_mechanism_ledgers.py": {
        "test_mechanism_passes_the_checks": 36,
        "test_what_is_printed_fails_the_check_that_it_should_fail": 6,
    },
    "tests/contracts/test_mechanisms.py": {
        "test_training_is_the_same_alone_in_a_stack_and_in_chunks": 4,
    },
    "tests/contracts/test_models.py": {
        "test_evaluate_is_the_direct_computation": 10,
        "test_split_and_join_are_inverse": 2,
        "test_start_is_set_by_the_seed_alone": 2,
        "test_training_takes_every_model": 9,
    },
    "tests/contracts/test_references.py": {
        "test_a_composition_of_gaussians_is_one_gaussian": 2,
        "test_divergences_grow_with_the_order_and_bound_delta": 6,
        "test_more_releases_and_larger_epsilon": 4,
        "test_no_upper_bound_lies_below_the_truth": 8,
        "test_one_release_by_its_densities": 9,
        "test_one_release_by_two_routes": 6,
    },
    "tests/datasets/test_cifar10.py": {
        "test_the_real_pictures_are_the_known_ones": 0,
    },
    "tests/datasets/test_datasets.py": {
        "test_published_files": 2,
    },
    "tests/datasets/test_imdb.py": {
        "test_lengths_are_those_of_keras_own_copy": 0,
        "test_subwords_are_those_of_the_tutorial": 0,
    },
    "tests/judging/claims/test_judges.py": {
        "test_a_bound_is_compared_with_the_truth": 0,
        "test_renyi_divergences_are_bounds_too": 0,
    },
    "tests/judging/claims/test_stored_verdicts.py": {
        "test_every_edited_value_is_named_and_left_out": 4,
        "test_no_dead_anchor_and_no_unfilled_place_where_some_claims_are_judged": 3,
        "test_no_file_stops_the_report_or_verify": 3,
    },
    "tests/judging/claims/test_texts.py": {
        "test_every_quotation_is_filled_by_a_verdict": 12,
    },
    "tests/judging/claims/test_verdicts.py": {
        "test_an_unsound_bound_is_broken_on_the_lattice_too": 8,
        "test_other_printed_numbers_change_the_verdict": 48,
        "test_the_verdict_is_the_expected_one": 45,
        "test_what_is_refuted_stands_on_two_routes": 24,
    },
    "tests/judging/claims/test_verify.py": {
        "test_a_verdict_that_changed_ends_with_one_either_way": 0,
        "test_an_unsound_bound_shows_datasets_event_and_two_routes": 3,
        "test_certified_verdicts_are_resumed_and_not_replaced_by_weaker_ones": 0,
        "test_several_processes_give_the_same": 0,
    },
    "tests/judging/faults/test_planted.py": {
        "test_fault_is_found": 24,
        "test_importance_with_private_bounds_passes": 0,
        "test_workshop_without_a_fault_passes": 10,
    },
    "tests/judging/test_check.py": {
        "test_every_line_says_what_was_checked_and_found": 0,
    },
    "tests/judging/test_conformance.py": {
        "test_a_slow_accountant_at_some_stored_points": 0,
        "test_an_accountant_at_stored_points": 12,
        "test_exact_answers_on_every_certified_point": 0,
    },
    "tests/mechanisms/test_dp_sgd_jl.py": {
        "test_sensitivity_has_the_law_of_the_event": 6,
    },
    "tests/mechanisms/test_dpis_estimate.py": {
        "test_noise_on_the_sums_has_the_stated_scale": 0,
        "test_the_sum_of_norms_moves_by_at_most_its_bound": 0,
    },
    "tests/mechanisms/test_dpis_run.py": {
        "test_going_on_from_a_saved_state_is_going_on": 2,
        "test_the_same_alone_and_in_a_stack": 2,
    },
    "tests/mechanisms/test_pipeline.py": {
        "test_every_rule_goes_with_every_update": 3,
    },
    "tests/mechanisms/test_quantile_clipping.py": {
        "test_it_finds_the_quantile_of_the_norms": 3,
    },
    "tests/plan/test_cache.py": {
        "test_a_broken_file_is_as_good_as_none": 3,
        "test_a_plan_is_the_same_without_a_cache_with_an_empty_one_and_with_a_full_one": 0,
        "test_only_the_calibrated_noise_is_confirmed": 3,
        "test_what_is_no_number_is_dropped": 4,
    },
    "tests/plan/test_probe.py": {
        "test_what_breaks_training_is_refused_with_its_layer": 8,
        "test_what_keeps_every_property_passes": 6,
    },
    "tests/plan/test_weights.py": {
        "test_frozen_parameters_stay_and_are_not_trained": 2,
    },
    "tests/privacy/accountants/test_exact.py": {
        "test_a_planted_fault_misses_certified_points": 3,
        "test_it_meets_every_certified_point_within_its_budget_and_its_own_error_bar": 0,
        "test_random_compositions_stay_below_the_lattice_and_invert": 0,
    },
    "tests/privacy/accountants/test_exact_projections.py": {
        "test_a_fresh_certificate_holds_the_value": 0,
        "test_a_planted_fault_misses_certified_points": 2,
        "test_delta_falls_and_is_convex_in_the_exponential_of_epsilon": 0,
        "test_epsilon_at_delta_is_what_another_method_told": 3,
        "test_it_meets_every_stored_point": 0,
        "test_random_points_lie_just_below_the_lattice_s_rigorous_bound": 0,
    },
    "tests/privacy/accountants/test_exact_single.py": {
        "test_random_sensitivity_at_large_epsilon": 2,
    },
    "tests/privacy/accountants/test_lattice.py": {
        "test_a_larger_epsilon_has_no_larger_delta": 0,
        "test_against_the_definition": 4,
        "test_at_random": 2,
        "test_few_releases_stay_above_the_certified_end": 3,
        "test_it_is_above_the_stored_enclosures_and_close": 6,
        "test_it_meets_the_exact_accountant_from_above": 3,
        "test_many_projections_stay_above_the_exact_answer": 3,
        "test_one_release_meets_the_exact_answer": 0,
        "test_random_sensitivity_against_integration": 0,
        "test_the_reference_meets_it": 0,
        "test_the_transforms_themselves_on_gaussians": 3,
    },
    "tests/privacy/accountants/test_optimal_composition.py": {
        "test_pure_releases": 2,
        "test_unlike_releases_by_the_hundred": 2,
    },
    "tests/privacy/accountants/test_published_accountants.py": {
        "test_delta_at_epsilon_is_no_more_than_delta": 4,
        "test_delta_inverts_epsilon": 2,
    },
    "tests/privacy/accountants/test_rdp.py": {
        "test_groups": 6,
        "test_laplace": 12,
        "test_leaf_against_fifty_digits": 2,
        "test_poisson_sampling_under_replacement": 9,
    },
    "tests/privacy/certified/test_enclosures.py": {
        "test_corners": 3,
        "test_counts_add_up_and_order_does_not_matter": 0,
        "test_many_projections_are_nearly_none": 0,
        "test_many_questions_share_the_work_and_agree": 0,
        "test_nearly_everything_sampled_is_nearly_the_gaussian": 0,
        "test_nesting_as_digits_grow": 0,
        "test_one_release_is_the_integral_of_the_definition": 8,
        "test_random_sensitivity_of_one_release_against_the_definition": 0,
        "test_replace_one_against_the_definition": 0,
        "test_two_unlike_releases_against_the_double_integral": 0,
    },
    "tests/privacy/certified/test_extremes.py": {
        "test_extremes_are_answered_or_refused": 2,
        "test_randomized_response_has_all_its_digits": 2,
    },
    "tests/privacy/certified/test_few_steps.py": {
        "test_add_by_its_mirror": 2,
        "test_bent_and_straight_lines_meet": 2,
        "test_epsilon_and_delta_invert_each_other": 0,
        "test_two_releases_against_the_double_integral": 2,
    },
    "tests/privacy/certified/test_inequalities.py": {
        "test_the_aliases": 0,
    },
    "tests/privacy/certified/test_planted_faults.py": {
        "test_the_aliases": 3,
        "test_the_bound_holds_at_every_larger_u": 9,
        "test_the_moments": 3,
        "test_the_tail": 8,
    },
    "tests/privacy/test_bu2020_rows.py": {
        "test_the_document_shows_what_its_program_prints": 0,
        "test_the_exact_accountant_lies_inside": 0,
        "test_the_printed_numbers_by_fifty_digits": 3,
    },
    "tests/privacy/test_calibration.py": {
        "test_a_factor_on_the_rates": 0,
        "test_it_is_monotone": 0,
        "test_the_first_that_covers_the_releases_answers": 2,
    },
    "tests/privacy/test_sensitivity.py": {
        "test_a_gaussian_is_the_sampled_one_at_rate_one": 4,
        "test_lower_ends_of_fixed_batches_keep_the_sensitivity_of_what_stands_beside": 0,
        "test_only_noise_over_sensitivity_counts": 3,
        "test_real_numbers": 2,
    },
    "tests/privacy/test_sound_answers.py": {
        "test_exact_warns_of_nothing": 0,
        "test_what_was_nonsense": 2,
    },
    "tests/privacy/test_trade_off.py": {
        "test_the_command_line_prints_the_trade_off": 0,
    },
    "tests/privacy/test_zero_out.py": {
        "test_every_accountant_says_of_zero_out_what_it_says_of_add_or_remove": 3,
        "test_explicit_datasets_attain_the_pair": 0,
        "test_other_datasets_stay_below": 0,
    },
    "tests/references/test_references.py": {
        "test_epsilon_is_the_inverse_of_delta": 0,
        "test_fault_one_direction_is_forgotten": 4,
        "test_quadrature_and_balls_agree_to_25_digits": 8,
        "test_refinement_nests_and_gains_a_factor": 3,
        "test_renyi_of_the_gaussian": 20,
        "test_the_estimate_lies_in_the_enclosure": 3,
        "test_two_and_three_releases_by_nested_sums": 4,
        "test_unlike_gaussians_on_the_lattice_contain_the_one_gaussian_they_are": 0,
    },
    "tests/references/test_table.py": {
        "test_a_handful_computed_anew_overlaps_the_stored": 0,
        "test_divergences_computed_anew_are_the_stored_ones": 4,
        "test_the_outcomes_of_given_votes_are_the_stored_ones": 0,
    },
    "tests/references/test_unlike_faults.py": {
        "test_fault_mass_above_the_cap_is_dropped": 0,
        "test_one_direction_composed_is_no_bound_for_fixed_size_batches": 0,
    },
    "tests/references/test_unlike_references.py": {
        "test_an_always_replaced_record_is_a_gaussian_of_sensitivity_two": 0,
        "test_data_independent_bounds_hold_for_these_votes": 0,
        "test_fixed_size_lies_between_and_is_sharp_for_one_release": 0,
        "test_quadrature_and_balls_agree": 15,
        "test_the_cap_only_widens": 0,
        "test_the_closed_form_of_laplace_lies_in_the_lattice": 8,
        "test_too_many_multisets_go_on_a_lattice": 0,
        "test_two_releases_by_an_integral": 0,
    },
    "tests/reporting/test_first_screen.py": {
        "test_no_cell_of_any_csv_file_is_a_formula": 4,
        "test_the_page_of_the_shipped_records_and_of_a_fresh_run_has_no_loose_end": 2,
    },
    "tests/reporting/test_report_browser.py": {
        "test_no_error_no_request_no_overflow": 4,
    },
    "tests/spec/test_paper_specs.py": {
        "test_a_wrong_digit_is_found": 4,
        "test_with_data_only_the_gpu_is_missing": 0,
        "test_without_data_everything_is_skipped_with_the_command": 0,
    },
    "tests/spec/test_shipped.py": {
        "test_a_name_means_its_path_with_a_slash_or_a_suffix_too": 6,
    },
    "tests/spec/test_spec_properties.py": {
        "test_every_point_is_its_own_spec": 0,
        "test_round_trip": 0,
    },
    "tests/spec/test_trust.py": {
        "test_it_is_imported_where_it_is_allowed": 4,
    },
    "tests/step/test_recurrent.py": {
        "test_models_train_and_are_evaluated": 12,
    },
    "tests/store/test_agreement.py": {
        "test_any_content_is_one_named_damaged_file": 6,
        "test_what_is_no_file_is_never_opened": 3,
    },
    "tests/store/test_own_randomness.py": {
        "test_code_from_outside_is_known_with_all_that_it_imports_of_its_own": 4,
    },
    "tests/store/test_records.py": {
        "test_a_writer_killed_at_random_moments_loses_nothing_finished": 0,
    },
    "tests/test_compare_speed.py": {
        "test_asv_benchmarks_run": 4,
    },
    "tests/test_sampled.py": {
        "test_every_word_stands_in_the_id_of_a_test": 4,
    },
    "tests/test_third_party.py": {
        "test_an_accountant_works_as_its_page_says": 0,
        "test_an_installed_package_adds_its_entries": 0,
        "test_the_page_works_as_written": 0,
    },
    "tests/training/test_train.py": {
        "test_a_checkpoint_that_does_not_fit_is_never_used_and_says_so": 6,
        "test_a_kill_within_a_long_epoch_loses_only_the_time_since_the_last_checkpoint": 0,
        "test_alone_stacked_and_in_pieces_agree": 2,
    },
    "tests/training/test_train_mechanisms.py": {
        "test_a_gradient_that_is_not_finite_ends_its_run_and_names_the_step": 6,
        "test_a_record_that_prints_the_number_of_examples_does_not_call_it_private": 3,
    },
    "tests/training/test_training_benchmark.py": {
        "test_plan": 0,
    },
}

# Parameters that take seconds wherever they stand: the word stands in their id between "-", "." and the ends.
SLOW = {
    "tests/clipping/test_ghost.py": ("alexnet", "vgg13"),
    "tests/contracts/test_accountants.py": ("optimal_composition",),
    "tests/contracts/test_datasets.py": ("cifar10", "imdb"),
    "tests/contracts/test_mechanism_ledgers.py": ("mechanism_releases",),
    "tests/contracts/test_models.py": ("alexnet", "vgg13"),
    "tests/judging/faults/test_planted.py": ("mechanism_releases",),
    "tests/privacy/test_calibration.py": ("mixed",),
    "tests/test_compare_speed.py": ("Unlike",),
    "tests/test_docs.py": ("mechanism_releases",),
}


def words(name: str) -> set[str]:
    """The words in a test's id: of its parameters, between "-" and "."."""
    return set(re.split("[-.]", name.partition("[")[2].rstrip("]")))


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark with `long` what the default command leaves out."""
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        path, _, name = item.nodeid.partition("::")
        test = path, name.partition("[")[0].rpartition("::")[2]
        every = EVERY.get(path, {}).get(test[1])
        if item.get_closest_marker("long") is not None:
            continue
        if not words(name).isdisjoint(SLOW.get(path, ())):
            item.add_marker("long")
        elif every is not None:
            if every == 0 or seen[test] % every:
                item.add_marker("long")
            seen[test] += 1
