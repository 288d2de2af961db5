"""Who starts when, what is computed for them, and what counts of it."""

import math

import pytest

from benchmarks.batching_outcome import Outcome, Progress, summarize_column, summarize_ttft
from benchmarks.batching_policies import (
    CONTINUOUS,
    DYNAMIC,
    POLICIES,
    STATIC,
    STATIC_COMPACT,
    Policy,
    Row,
)
from benchmarks.batching_workload import Ask, LengthRange, draw_asks

BATCH = [Ask(0, 4, 9, 0.0), Ask(1, 8, 3, 0.0)]


def num_starts(policy: Policy, *, waiting: int, running: int = 0, waited_s: float = 0.0) -> int:
    return policy.num_starts(
        num_waiting=waiting, longest_wait_s=waited_s, num_open=running, batch_size=4
    )


@pytest.mark.parametrize("policy", [STATIC, STATIC_COMPACT, DYNAMIC])
def test_a_batch_starts_when_the_one_before_has_ended(policy: Policy) -> None:
    assert num_starts(policy, waiting=9, running=1) == 0
    assert num_starts(policy, waiting=9) == 4


def test_a_static_batch_waits_for_nobody() -> None:
    assert num_starts(STATIC, waiting=1) == 1


def test_a_window_gathers_until_it_is_over_or_the_batch_is_full() -> None:
    assert num_starts(DYNAMIC, waiting=3, waited_s=DYNAMIC.window_s * 0.9) == 0
    assert num_starts(DYNAMIC, waiting=3, waited_s=DYNAMIC.window_s) == 3
    assert num_starts(DYNAMIC, waiting=4) == 4


def test_continuous_batching_keeps_one_batch_waiting_in_the_engine() -> None:
    assert num_starts(CONTINUOUS, waiting=9, running=3) == 5
    assert num_starts(CONTINUOUS, waiting=1, running=3) == 1
    assert num_starts(CONTINUOUS, waiting=9, running=9) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_starts_when_nobody_waits(policy: Policy) -> None:
    assert num_starts(policy, waiting=0) == 0


def test_rows_are_shaped_by_their_batch() -> None:
    assert CONTINUOUS.shape(BATCH) == STATIC_COMPACT.shape(BATCH) == [Row(4, 9), Row(8, 3)]
    assert STATIC.shape(BATCH) == [Row(4, 9), Row(8, 9)]
    assert DYNAMIC.shape(BATCH) == [Row(8, 9), Row(8, 9)]


def test_lengths_are_log_uniform() -> None:
    lengths = LengthRange(8, 800)
    assert [lengths.at(fraction) for fraction in (0.0, 0.5, 1.0)] == [8, 80, 800]
    with pytest.raises(ValueError, match="in order"):
        LengthRange(8, 7)


def test_every_64_asks_hold_the_whole_distribution() -> None:
    asks = draw_asks(128, prompts=LengthRange(1, 9), outputs=LengthRange(8, 800), seed=3)
    for batch in (asks[:64], asks[64:]):
        strata = sorted(math.log(ask.output_len / 8) / math.log(100) * 64 for ask in batch)
        # A length is a whole number: below 20 tokens that is coarser than a stratum.
        assert all(abs(at - place - 0.5) < 1.5 for place, at in enumerate(strata))
    assert all(1 <= ask.prompt_len <= 9 and ask.arrival_s == 0.0 for ask in asks)


def test_arrivals_come_in_order_at_the_rate_asked_for_and_change_no_length() -> None:
    lengths = LengthRange(1, 50)
    burst = draw_asks(2000, prompts=lengths, outputs=lengths, seed=1)
    asks = draw_asks(2000, prompts=lengths, outputs=lengths, seed=1, asks_per_s=4.0)
    assert asks == draw_asks(2000, prompts=lengths, outputs=lengths, seed=1, asks_per_s=4.0)
    arrivals_s = [ask.arrival_s for ask in asks]
    assert arrivals_s == sorted(arrivals_s)
    assert arrivals_s[-1] == pytest.approx(500.0, rel=0.1)
    assert {ask.index for ask in burst} == {ask.index for ask in asks} == set(range(2000))


def test_tokens_beyond_the_answer_count_for_nothing() -> None:
    progress = Progress(Ask(0, prompt_len=5, output_len=3, arrival_s=1.0))
    assert progress.num_useful_slots == 0
    progress.take(1, 1.5)
    progress.take(1, 1.75)
    assert (progress.num_useful_slots, progress.is_done) == (6, False)
    progress.take(2, 2.0)
    progress.take(1, 2.5)
    assert (progress.num_tokens, progress.num_useful_slots) == (3, 7)
    assert progress.is_done
    assert progress.first_token_s == 1.5


def test_outcomes_add_up() -> None:
    started = [Progress(Ask(0, 5, 3, 1.0), 3, 1.5), Progress(Ask(1, 2, 4, 1.25), 0, None)]
    outcome = Outcome.of(started, elapsed_s=2.0, num_slots=14)
    assert (outcome.tokens_per_s, outcome.useful_share) == (1.5, 0.5)
    total = Outcome.total([outcome, Outcome(6.0, 9, 7, 14, (0.25,))])
    assert total == Outcome(8.0, 12, 14, 28, (0.5, 0.25))


def test_columns_stand_next_to_their_reference() -> None:
    slow, fast = Outcome(2.0, 10, 5, 20, (0.1, 0.3)), Outcome(2.0, 40, 20, 20)
    speed, share = summarize_column("slow", slow, peer="fast", reference=fast)
    assert (speed.case, speed.value, speed.peer_value) == ("slow_tokens_per_s", 5.0, 20.0)
    assert (share.case, share.value, share.peer_value) == ("slow_useful_share", 0.25, 1.0)
    p50, p99 = summarize_ttft("slow", slow)
    assert (p50.case, p50.unit) == ("slow_ttft_p50", "ms")
    assert p50.value == pytest.approx(200.0)
    assert p99.value == pytest.approx(298.0)
