"""When sessions come back, and what that means for their blocks."""

import math

import pytest

from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended
from cache_tiers.return_times import ReturnTimes
from cache_tiers.think_time import ThinkTime

LAST = BlockKey(b"last".ljust(16))


def ended(expected_return_s: float | None = None) -> Ended:
    return Ended(LAST, [bytes(16), LAST], "chat", expected_return_s)


def test_quantiles_follow_what_was_seen() -> None:
    times = ReturnTimes()
    for pause_s in range(1, 1001):
        times.record("chat", float(pause_s))
    assert times.quantile_s("chat", 0.5) == pytest.approx(660, rel=0.25)  # the latest count more
    assert times.quantile_s("chat", 0.05) < times.quantile_s("chat", 0.95)  # type: ignore[operator]


def test_kinds_are_apart_and_little_is_too_little() -> None:
    times = ReturnTimes()
    for _ in range(30):
        times.record("tool", 2.0)
        times.record("chat", 200.0)
    times.record("rare", 5.0)
    assert times.quantile_s("tool", 0.5) == pytest.approx(2, rel=0.25)
    assert times.quantile_s("chat", 0.5) == pytest.approx(200, rel=0.25)
    assert times.quantile_s("rare", 0.5) is None


def test_what_never_returns_takes_for_ever() -> None:
    times = ReturnTimes()
    for _ in range(50):
        times.record_lost("chat")
        times.record("chat", 1.0)
    assert times.quantile_s("chat", 0.9) == math.inf
    assert times.quantile_s("chat", 0.3) == pytest.approx(1, abs=0.3)


def test_habits_change() -> None:
    times = ReturnTimes()
    for pause_s, num in ((10.0, 2000), (1000.0, 1000)):
        for _ in range(num):
            times.record("chat", pause_s)
    assert times.quantile_s("chat", 0.5) == pytest.approx(1000, rel=0.25)


def test_many_kinds_are_bounded() -> None:
    times = ReturnTimes()
    for number in range(1000):
        times.record(f"kind-{number}", 1.0)
    assert times.quantile_s("kind-999", 0.5) is not None, "taken together with others"


def test_a_prompt_that_goes_on_ends_the_pause() -> None:
    think_time = ThinkTime()
    for number in range(30):
        think_time.begin(0, ended(), 1000.0 * number)
        think_time.end(0, [BlockKey(bytes(16)), LAST], 1000.0 * number + 60)
    assert len(think_time) == 0
    assert think_time.begin(0, ended(), 0.0).usual_s == pytest.approx(60, rel=0.25)
    assert think_time.begin(0, ended(5.0), 0.0).usual_s == 5.0, "who knows better is believed"


def test_blocks_are_due_once_shortly_before_the_return() -> None:
    think_time = ThinkTime()
    pause = think_time.begin(0, ended(100.0), 0.0)
    assert think_time.take_due(1e9) == [], "nothing left the arena"
    think_time.demoted(pause, 100.0, lead_s=3.0)
    assert think_time.take_due(96.0) == []
    assert think_time.take_due(97.0) == [pause]
    assert think_time.take_due(98.0) == []


def test_pauses_that_last_too_long_are_forgotten() -> None:
    think_time = ThinkTime()
    for number in range(5000):
        think_time.begin(0, Ended(number.to_bytes(16), [], "chat"), float(number))
    assert len(think_time) == 4096
    think_time.begin(0, ended(), 1e6)
    assert len(think_time) == 1
    assert think_time.return_times.quantile_s("chat", 0.5) == math.inf


def test_long_prompts_are_remembered_in_bounded_memory() -> None:
    think_time = ThinkTime()
    keys = [bytes(16)] * 100_000
    for number in range(30):
        think_time.begin(0, Ended(number.to_bytes(16), keys, "chat"), 0.0)
    assert len(think_time) == 10
    for number in range(30):
        think_time.end(0, [BlockKey(number.to_bytes(16))], 60.0)
    for number in range(10):
        think_time.begin(0, Ended(number.to_bytes(16), keys, "chat"), 99.0)
    assert len(think_time) == 10, "what ended takes no room"
