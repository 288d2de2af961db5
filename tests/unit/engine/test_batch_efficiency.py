"""The share of computed tokens that somebody needed, and the warning when it is small."""

import logging

import pytest

from engine.batch_efficiency import BatchEfficiency


def record(
    efficiency: BatchEfficiency,
    num_steps: int,
    *,
    num_recomputed: int = 0,
    num_padding: int = 0,
    from_s: float = 0.0,
) -> None:
    for step in range(num_steps):
        efficiency.record(
            num_tokens=100,
            num_recomputed=num_recomputed,
            num_padding=num_padding,
            now_s=from_s + step / 100,
        )


def test_padding_and_what_is_computed_again_are_waste() -> None:
    efficiency = BatchEfficiency()
    assert efficiency.share == 1.0
    record(efficiency, 5)
    assert efficiency.share == 1.0
    record(efficiency, 2000, num_recomputed=20, num_padding=25)
    assert efficiency.share == pytest.approx(80 / 125)


def test_it_follows_the_last_steps() -> None:
    efficiency = BatchEfficiency()
    record(efficiency, 2000, num_padding=300)
    record(efficiency, 500)
    assert efficiency.share > 0.95


def test_much_waste_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    efficiency = BatchEfficiency()
    with caplog.at_level(logging.WARNING):
        record(efficiency, 99, num_recomputed=40)
        assert caplog.messages == []
        record(efficiency, 1000, num_recomputed=40, from_s=1.0)
        record(efficiency, 1000, num_recomputed=40, from_s=62.0)
    assert len(caplog.messages) == 2
    assert "only 60 % of the tokens" in caplog.messages[0]


def test_little_waste_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        record(BatchEfficiency(), 1000, num_padding=30)
    assert caplog.messages == []
