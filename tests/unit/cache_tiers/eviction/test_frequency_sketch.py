"""Counting uses in little memory."""

import os

from cache_tiers.eviction.frequency_sketch import FrequencySketch


def test_counts_are_never_too_low_and_rarely_too_high() -> None:
    sketch = FrequencySketch(4000)
    keys = [os.urandom(16) for _ in range(1000)]
    for _ in range(3):
        counts = sketch.add(keys)
    assert min(counts) == 3
    assert sum(count > 3 for count in counts) < 5
    assert [sketch.estimate(key) for key in keys] == counts
    assert sum(sketch.estimate(os.urandom(16)) > 0 for _ in range(1000)) < 300


def test_forgets_what_was_long_ago() -> None:
    sketch = FrequencySketch(64)
    old = os.urandom(16)
    for _ in range(40):
        sketch.add([old])
    assert sketch.estimate(old) == 40
    for _ in range(50):
        sketch.add([os.urandom(16) for _ in range(64)])
    assert sketch.estimate(old) < 20


def test_nothing_counts_nothing() -> None:
    assert FrequencySketch(0).add([]) == []


def test_the_most_is_the_most() -> None:
    sketch, key = FrequencySketch(10**5), os.urandom(16)
    assert [sketch.add([key]) for _ in range(300)][-1] == [255]
