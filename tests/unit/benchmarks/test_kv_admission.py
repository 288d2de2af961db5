"""What admission by predicted KV demand is worth, in a pool four times too small."""

import pytest

from benchmarks.kv_admission import (
    DISTRIBUTIONS,
    Lengths,
    log_normal,
    make_run,
    make_workload,
    short,
)
from benchmarks.kv_admission_run import Outcome, Workload


def work_off(policy: str, workload: Workload) -> Outcome:
    return make_run(policy, workload, max_num_seqs=32).work_off()


def make_log_normal() -> Workload:
    lengths = (lambda draw: log_normal(draw, median=50),) * 2
    return make_workload(lengths, num_requests=120, seed=1, max_tokens=300)


def test_nobody_fails_little_is_lost_and_far_more_is_done_than_with_the_worst_case() -> None:
    workload = make_log_normal()
    predicted = work_off("predicted", workload)
    worst_case = work_off("worst_case", workload)

    assert predicted.num_failed == 0
    assert predicted.recomputed_share <= 0.05
    assert predicted.tokens_per_s >= 1.3 * worst_case.tokens_per_s
    assert (worst_case.num_preemptions, worst_case.num_failed) == (0, 0)


def test_optimism_computes_much_again_and_knowing_all_lengths_nothing() -> None:
    workload = make_log_normal()
    assert work_off("optimistic", workload).recomputed_share > 0.05
    known = work_off("known", workload)
    assert known.recomputed_share < 0.01
    assert known.num_failed == 0


@pytest.mark.parametrize("halves", [(short, log_normal), (log_normal, short)])
def test_a_change_of_lengths_midway_is_survived(
    halves: tuple[Lengths, Lengths],
) -> None:
    workload = make_workload(halves, num_requests=60, seed=2, max_tokens=240)
    outcome = work_off("predicted", workload)
    assert outcome.num_failed == 0
    assert outcome.recomputed_share <= 0.1


def test_every_distribution_stays_within_its_bounds() -> None:
    for halves in DISTRIBUTIONS.values():
        workload = make_workload(halves, num_requests=50, seed=0)
        assert len(workload.output_lens) == len(workload.prompt_lens) == 50
        assert all(1 <= length <= workload.max_tokens for length in workload.output_lens)
