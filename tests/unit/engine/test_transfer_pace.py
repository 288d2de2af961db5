"""How many blocks a step may move."""

import pytest

from engine.transfer_pace import TransferPace


def test_without_streams_everything_moves_at_once() -> None:
    assert TransferPace().num_within(None, most=5000) == 5000


@pytest.mark.parametrize(("spare_s", "num_blocks"), [(0.01, 10), (0.0, 1), (-1.0, 1), (9.0, 100)])
def test_beside_streams_as_many_as_fit_and_one_at_least(spare_s: float, num_blocks: int) -> None:
    pace = TransferPace()
    pace.record(100, 0.1)

    assert pace.num_within(spare_s, most=100) == num_blocks


def test_an_unknown_speed_is_not_taken_for_an_endless_one() -> None:
    assert TransferPace().num_within(10.0, most=5000) < 100


def test_the_speed_follows_the_last_steps() -> None:
    pace = TransferPace()
    pace.record(10, 1.0)
    for _ in range(40):
        pace.record(10, 0.1)
    pace.record(0, 5.0)

    assert pace.block_s == pytest.approx(0.01, rel=0.05)
