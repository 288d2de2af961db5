"""Which schedules hold at a time, or will before a replica could be started. Reads no clock."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from autoscaler.config import WEEKDAYS, ScheduleConfig

_LATEST_S = 250_000_000_000.0
"""The calendar ends in the year 9999."""


def scheduled_min(
    schedules: Iterable[ScheduleConfig], local_s: float, zone: ZoneInfo, lead_s: float
) -> int:
    """Replicas that serve at ``local_s`` (seconds since 1970) or have to start now, since a
    schedule begins within ``lead_s``. 0: no schedule holds."""
    if not 0 <= local_s < _LATEST_S:
        return 0
    today = datetime.fromtimestamp(local_s, UTC).astimezone(zone).date()
    return max(
        (
            schedule.min_replicas
            for schedule in schedules
            if any(
                begin_s - lead_s <= local_s < end_s
                for begin_s, end_s in _times(schedule, today, zone, lead_s)
            )
        ),
        default=0,
    )


def _times(
    schedule: ScheduleConfig, today: date, zone: ZoneInfo, lead_s: float
) -> Iterable[tuple[float, float]]:
    """Begin and end, yesterday's too, and as many days' ahead as a lead may reach."""
    num_ahead = min(7, 1 + int(lead_s // 86400))
    for offset in range(-1, num_ahead + 1):
        day = today + timedelta(days=offset)
        if WEEKDAYS[day.weekday()] in schedule.days:
            last = day if schedule.end > schedule.begin else day + timedelta(days=1)
            yield _since_1970(day, schedule.begin, zone), _since_1970(last, schedule.end, zone)


def _since_1970(day: date, at: time, zone: ZoneInfo) -> float:
    return datetime.combine(day, at, tzinfo=zone).timestamp()
