"""What is expected between two keys of an index that keeps every 8th."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.stride_remainder import StrideRemainder


def test_before_reports_a_prefix_ends_anywhere_in_a_stride() -> None:
    remainder = StrideRemainder(8)
    assert remainder.expected_blocks(0, 30) == 0
    assert remainder.expected_blocks(2, 30) == 3.5
    assert remainder.expected_blocks(3, 30) == 6  # all strides match: so does the rest, likely


def test_prompts_that_part_behind_one_system_prompt_are_predicted_exactly_in_time() -> None:
    remainder = StrideRemainder(8)
    for _ in range(300):
        remainder.learn(15, 150, 125)
    assert remainder.expected_blocks(15, 150) == pytest.approx(5, abs=0.05)
    assert remainder.expected_blocks(0, 150) == 0


def test_short_shared_prefixes_that_hold_no_key_are_learned() -> None:
    remainder = StrideRemainder(8)
    for _ in range(300):
        remainder.learn(0, 40, 6)
    assert remainder.expected_blocks(0, 40) == pytest.approx(6, abs=0.05)


def test_what_was_evicted_or_stored_meanwhile_teaches_nothing() -> None:
    remainder = StrideRemainder(8)
    for num_cached_blocks in (0, 15, 24, 200):
        remainder.learn(2, 300, num_cached_blocks)
    assert remainder.expected_blocks(2, 300) == 3.5


def test_the_sum_of_predictions_is_unbiased_whatever_the_lengths() -> None:
    draw = random.Random(5)
    remainder = StrideRemainder(8)
    predicted, actual = [], []
    for _ in range(3000):
        num_cached = 8 * draw.randint(1, 20) + draw.choice((0, 1, 1, 2, 7))
        num_prompt = num_cached + draw.randint(8, 60)
        expected = remainder.expected_blocks(num_cached // 8, num_prompt)
        predicted.append(num_cached // 8 * 8 + expected)
        actual.append(num_cached)
        remainder.learn(num_cached // 8, num_prompt, num_cached)
    assert fmean(predicted) == pytest.approx(fmean(actual), rel=0.005)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500), st.integers(0, 500)), max_size=30),
    st.integers(0, 50),
    st.integers(0, 7),
)
def test_it_never_reaches_the_next_stride_nor_the_end_of_the_prompt(
    reports: list[tuple[int, int, int]], num_matching: int, num_more: int
) -> None:
    remainder = StrideRemainder(8)
    for report in reports:
        num_strides, num_prompt, num_cached = report
        remainder.learn(min(num_strides, num_prompt // 8), num_prompt, num_cached)
    expected = remainder.expected_blocks(num_matching, num_matching * 8 + num_more)
    assert 0 <= expected <= num_more
