"""What is learned from answers about the length of the next."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.output_lengths import OutputLengths, range_index


def observe(lengths: OutputLengths, *num_tokens: int, begin: int = 0) -> None:
    for num in num_tokens:
        lengths.observe_end(lengths.first_trial(begin), num)


def survival(lengths: OutputLengths, num_tokens: float) -> float:
    return math.exp(float(lengths.log_survival(np.array(float(num_tokens)))))


def length_that_ends(lengths: OutputLengths, share: float, *, num_tokens: int = 0) -> int:
    """The first length before which ``share`` of the answers end that got to ``num_tokens``."""
    points = np.arange(float(num_tokens), 10_000.0)
    ended = 1 - np.exp(lengths.log_survival(points) - lengths.log_survival(points[:1]))
    assert ended[-1] >= share, "so many do not end"
    return num_tokens + int(np.argmax(ended >= share))


@settings(max_examples=50)
@given(st.integers(0, 1 << 23))
def test_ranges_are_narrow_and_in_order(num_tokens: int) -> None:
    index = range_index(num_tokens)
    assert range_index(num_tokens + 1) - index in (0, 1)
    assert range_index(num_tokens + num_tokens // 4 + 1) > index


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=60))
def test_ever_fewer_get_further(answers: list[tuple[int, bool]]) -> None:
    lengths = OutputLengths()
    for num, has_ended in answers:
        if has_ended:
            observe(lengths, num)
        else:
            lengths.observe_growth(lengths.first_trial(0), num)
    shares = [survival(lengths, num) for num in range(0, 10_000, 97)]
    assert shares[0] == 1.0
    assert all(a >= b > 0 for a, b in pairwise(shares))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
    st.integers(0, 300),
    st.booleans(),
)
def test_it_does_not_matter_how_often_an_answer_was_looked_at(
    growth: list[int], begin: int, has_ended: bool
) -> None:
    often, once = OutputLengths(), OutputLengths()
    num_tokens, next_trial = begin, often.first_trial(begin)
    for num_more in growth:
        num_tokens += num_more
        if num_tokens >= next_trial:  # else there is nothing to learn
            next_trial = often.observe_growth(next_trial, num_tokens)
            assert next_trial > num_tokens
    for lengths, trial in ((often, next_trial), (once, once.first_trial(begin))):
        if has_ended:
            lengths.observe_end(trial, num_tokens)
        else:
            lengths.observe_growth(trial, num_tokens)
    points = np.arange(0.0, 5000.0)
    assert often.log_survival(points).tolist() == once.log_survival(points).tolist()


def test_the_shares_that_end_are_those_of_the_answers() -> None:
    draw = random.Random(0)
    answers = [round(150 * draw.lognormvariate(0, 1)) + 1 for _ in range(3000)]
    lengths = OutputLengths()
    observe(lengths, *answers)
    answers.sort()
    for share in (0.1, 0.5, 0.9):
        assert length_that_ends(lengths, share) == pytest.approx(
            answers[int(share * 3000)], rel=0.25
        )
    longer = [num for num in answers if num >= 200]
    expected = longer[len(longer) // 2]
    assert length_that_ends(lengths, 0.5, num_tokens=200) == pytest.approx(expected, rel=0.25)


def test_answers_that_still_run_keep_those_that_ended_early_from_looking_typical() -> None:
    lengths = OutputLengths()
    for _ in range(90):
        lengths.observe_growth(lengths.first_trial(0), 1000)
    observe(lengths, *[10] * 10)
    assert survival(lengths, 900) > 0.8


def test_what_was_cut_off_did_not_end() -> None:
    lengths = OutputLengths()
    for _ in range(300):
        lengths.observe_growth(lengths.first_trial(0), 64)
    assert survival(lengths, 64) > 0.9


def test_of_what_was_generated_elsewhere_nothing_is_learned() -> None:
    lengths = OutputLengths()
    observe(lengths, *[200] * 50, begin=100)
    assert survival(lengths, 96) == pytest.approx(survival(OutputLengths(), 96))
    assert length_that_ends(lengths, 0.9, num_tokens=112) < 256


def test_a_change_shows_after_a_few_hundred_answers() -> None:
    lengths = OutputLengths()
    observe(lengths, *[20] * 3000)
    assert length_that_ends(lengths, 0.5) < 25
    observe(lengths, *[400] * 600)
    assert length_that_ends(lengths, 0.5) > 300
    observe(lengths, *[20] * 600)
    assert length_that_ends(lengths, 0.5) < 25


def test_however_surely_answers_end_the_next_may_go_on() -> None:
    lengths = OutputLengths()
    observe(lengths, *[16] * 5000)
    assert 0 < survival(lengths, 21) < 0.01
    assert length_that_ends(lengths, 0.5, num_tokens=24) > 24
