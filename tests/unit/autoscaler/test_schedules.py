from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from autoscaler.config import ScheduleConfig
from autoscaler.schedules import scheduled_min

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(num: int, begin: str, end: str, *days: str) -> ScheduleConfig:
    values = {"min_replicas": num, "begin": begin, "end": end}
    return ScheduleConfig.model_validate(values | ({"days": days} if days else {}))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


WEEKDAYS = schedule(40, "08:00", "18:00", "mon", "tue", "wed", "thu", "fri")


@pytest.mark.parametrize(
    ("time", "num"),
    [
        ("2026-03-02T07:57:59", 0),
        ("2026-03-02T07:58:01", 40),
        ("2026-03-02T12:00", 40),
        ("2026-03-02T17:59:59", 40),
        ("2026-03-02T18:00", 0),
        ("2026-03-07T12:00", 0),
    ],
)
def test_begins_one_lead_before_and_ends_on_time(time: str, num: int) -> None:
    assert scheduled_min([WEEKDAYS], at(time), BERLIN, lead_s=120.0) == num


def test_lasts_into_the_next_day() -> None:
    friday_night = schedule(7, "22:00", "02:00", "fri")
    assert scheduled_min([friday_night], at("2026-03-07T01:59"), BERLIN, 0.0) == 7
    assert scheduled_min([friday_night], at("2026-03-07T02:00"), BERLIN, 0.0) == 0
    assert scheduled_min([friday_night], at("2026-03-07T23:00"), BERLIN, 0.0) == 0


def test_of_several_the_largest_counts() -> None:
    both = [schedule(3, "00:00", "00:00"), WEEKDAYS]
    assert scheduled_min(both, at("2026-03-02T12:00"), BERLIN, 0.0) == 40
    assert scheduled_min(both, at("2026-03-02T20:00"), BERLIN, 0.0) == 3


@pytest.mark.parametrize("day", ["2026-03-29", "2026-03-30", "2026-10-25"])
def test_keeps_to_the_wall_clock_when_summer_time_changes(day: str) -> None:
    daily = schedule(5, "08:00", "09:00")
    assert scheduled_min([daily], at(f"{day}T07:59"), BERLIN, 0.0) == 0
    assert scheduled_min([daily], at(f"{day}T08:00"), BERLIN, 0.0) == 5


def test_a_lead_of_days_reaches_over_days() -> None:
    monday = schedule(5, "08:00", "09:00", "mon")
    assert scheduled_min([monday], at("2026-03-06T09:00"), BERLIN, 3 * 86400.0) == 5
    assert scheduled_min([monday], at("2026-03-06T07:00"), BERLIN, 3 * 86400.0) == 0


def test_a_clock_that_is_nonsense_has_no_schedule() -> None:
    assert scheduled_min([schedule(5, "00:00", "00:00")], 1e18, BERLIN, 0.0) == 0
