"""Gaps are those between writes, of each sample by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.answers.write_times import WriteTimes
from app.bucket_counts import BucketCounts


def num_values(gaps: BucketCounts) -> float:
    return gaps.cumulative()[-1][1]


def times_of(num_samples: int, gaps: BucketCounts, stamps: list[float]) -> WriteTimes:
    return WriteTimes(num_samples, gaps, iter(stamps).__next__)


@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 1000)), max_size=40))
def test_every_write_of_a_sample_but_its_first_is_one_gap(
    writes: list[tuple[set[int], int]],
) -> None:
    gaps = BucketCounts((1.0, 10.0))
    now_s, stamps = 0.0, []
    for _, pause_s in writes:
        now_s += pause_s
        stamps.append(now_s)
    times = times_of(4, gaps, stamps)
    for samples, _ in writes:
        times.note(samples)
    spans_s: list[float] = []
    num_gaps = 0
    for index in range(4):
        written = [
            stamp for (samples, _), stamp in zip(writes, stamps, strict=True) if index in samples
        ]
        num_gaps += max(0, len(written) - 1)
        span_s = times.span_s([index])
        assert span_s == (written[-1] - written[0] if written else None)
        spans_s.append(span_s or 0.0)
    assert num_values(gaps) == num_gaps
    assert gaps.sum == sum(spans_s)
    begun = [stamp for (samples, _), stamp in zip(writes, stamps, strict=True) if samples]
    assert times.first_s == (begun[0] if begun else None)


def test_the_span_of_several_samples_is_from_the_first_to_the_last_of_all() -> None:
    times = times_of(3, BucketCounts(()), [1.0, 2.0, 5.0, 7.0])
    for index in (0, 1, 0, 2):
        times.note([index])
    assert times.span_s([0, 1]) == pytest.approx(4.0)
    assert times.span_s([2]) == 0.0
