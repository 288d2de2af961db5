"""docs/capacity.md says what the results and the arithmetic say."""

from dataclasses import replace

import pytest

from benchmarks.capacity import RESULTS, Measured, render
from benchmarks.machine import REPOSITORY

PAGE = REPOSITORY / "docs" / "capacity.md"


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured.of(RESULTS)


def test_the_page_is_up_to_date(measured: Measured) -> None:
    assert PAGE.read_text("utf-8") == render(measured), "run `make docs`"


def test_a_missing_result_is_said_and_not_filled_in(measured: Measured) -> None:
    without = replace(measured, channel_64=None, channel_256=None)
    assert (
        "| Channels, both ends | `tokens/s × (c + f / deltas per frame)` | not measured yet |"
        in (render(without))
    )
    assert "so it is too low" in render(without)


def test_a_channel_that_was_measured_is_counted(measured: Measured) -> None:
    page = render(replace(measured, channel_64=160_000.0, channel_256=200_000.0))
    assert "c = 4.6 µs per delta and f = 107 µs per frame" in page
    assert "so it is too low" not in page
