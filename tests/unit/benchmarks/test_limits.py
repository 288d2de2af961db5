"""Limits that follow load, on an engine in virtual time under more requests than it can answer."""

import pytest

from benchmarks.limits import make_config
from benchmarks.limits_run import Ask, LoadOutcome, VirtualEngine, chat_asks
from engine.observations import StepRecord

TARGET_S = 0.040
RATE_PER_S, DURATION_S = 16.0, 9.0


def overloaded(*, target_s: float | None = None) -> LoadOutcome:
    asks = chat_asks(round(RATE_PER_S * DURATION_S), rate_per_s=RATE_PER_S, seed=3)
    engine = VirtualEngine(make_config(target_s=target_s), seed=3)
    return engine.run(asks, until_s=DURATION_S)


def record(at_s: float, max_tokens: int) -> StepRecord:
    return StepRecord(1, at_s, 0.01, 0, 1, 1, 0, 0, 0, 0, 1, max_tokens, 8)


def test_a_target_is_held_where_the_configured_maximum_misses_it() -> None:
    fixed, adaptive = overloaded(), overloaded(target_s=TARGET_S)
    assert fixed.tpot_p99_s > 2 * TARGET_S
    assert adaptive.tpot_p99_s <= TARGET_S
    assert adaptive.tokens_per_s >= 0.85 * fixed.tokens_per_s
    assert adaptive.most_reversals <= 1
    assert {r.limit_reason for r in adaptive.records[-100:]} == {"tpot_target"}


def test_turns_of_a_limit_are_counted_in_ten_seconds() -> None:
    limits = [(0, 512), (1, 100), (2, 80), (3, 120), (9, 60), (14, 90), (30, 80)]
    outcome = LoadOutcome(records=[record(at_s, limit) for at_s, limit in limits])
    assert outcome.most_reversals == 2
    assert LoadOutcome(records=[record(0, 512), record(1, 20)]).most_reversals == 0


def test_a_virtual_engine_takes_the_time_of_its_profile() -> None:
    engine = VirtualEngine(make_config(), seed=0, is_noisy=False)
    outcome = engine.run([Ask(1.0, 100, 3)])
    assert outcome.ttfts_s["0"] == pytest.approx(0.0075 + 100 * 2.5e-4 + 5000 * 1.4e-7)
    assert outcome.gaps_s == pytest.approx([0.0075 + 1.3e-4 + 3e-7 * n for n in (100, 101)])
    assert outcome.num_generated == 3
