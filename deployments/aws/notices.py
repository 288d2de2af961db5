"""What EC2 announces to an instance about its own end, read from the words of the metadata service.

Must not know how they were fetched, nor what follows from them.

Formats: "Spot Instance interruption notices" and "View scheduled events" in the EC2 user guide.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

SPOT_ACTION_PATH = "spot/instance-action"
REBALANCE_PATH = "events/recommendations/rebalance"
SCHEDULED_EVENTS_PATH = "events/maintenance/scheduled"

EVENT_LEAD_S = 900.0
"""How long before a scheduled event, known for days, the node is emptied."""

_EVENT_TIME = "%d %b %Y %H:%M:%S %Z"


class NoticeUnreadable(ValueError):
    """The metadata service said something in a form that isn't known."""


class NoticeKind(StrEnum):
    SPOT = "spot"
    """The capacity is wanted back, in two minutes or less."""
    SCHEDULED = "scheduled"
    """The host is rebooted, retired or stopped at a time known for days."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The instance ends, or is away for a while."""

    kind: NoticeKind
    action: str
    """In EC2's words: `terminate`, `stop`, `hibernate`, `system-reboot`, ..."""
    at_s: float
    """When, in seconds of Unix time."""

    def is_due(self, now_s: float) -> bool:
        """Whether the node has to be emptied by now."""
        return self.kind is NoticeKind.SPOT or self.at_s - now_s <= EVENT_LEAD_S


def _event_time(value: object) -> object:
    """``21 Jan 2019 09:00:43 GMT``, whatever the locale says of months elsewhere."""
    if not isinstance(value, str):
        return value
    return datetime.strptime(value, _EVENT_TIME).replace(tzinfo=UTC)


class _SpotAction(BaseModel):
    action: Literal["terminate", "stop", "hibernate"]
    time: datetime


class _Rebalance(BaseModel):
    noticeTime: datetime  # noqa: N815  the service's name


class _Event(BaseModel):
    Code: str
    NotBefore: Annotated[datetime, BeforeValidator(_event_time)]
    State: str = "active"


_EVENTS = TypeAdapter(list[_Event])


def spot_notice(text: str) -> Notice:
    """Of `SPOT_ACTION_PATH`. Raises `NoticeUnreadable`."""
    try:
        action = _SpotAction.model_validate_json(text)
    except ValidationError as error:
        raise _unreadable(SPOT_ACTION_PATH, text) from error
    return Notice(NoticeKind.SPOT, action.action, _unix_s(action.time))


def scheduled_notices(text: str) -> list[Notice]:
    """Of `SCHEDULED_EVENTS_PATH`, those that are still to come. Raises `NoticeUnreadable`."""
    try:
        events = _EVENTS.validate_json(text)
    except ValidationError as error:
        raise _unreadable(SCHEDULED_EVENTS_PATH, text) from error
    return [
        Notice(NoticeKind.SCHEDULED, event.Code, _unix_s(event.NotBefore))
        for event in events
        if event.State == "active"
    ]


def rebalance_time_s(text: str) -> float:
    """Of `REBALANCE_PATH`: since when the risk of an interruption is higher, in Unix time.

    Raises `NoticeUnreadable`.
    """
    try:
        return _unix_s(_Rebalance.model_validate_json(text).noticeTime)
    except ValidationError as error:
        raise _unreadable(REBALANCE_PATH, text) from error


def first_due(notices: Iterable[Notice], now_s: float) -> Notice | None:
    """The earliest of those for which the node has to be emptied by now."""
    due = [notice for notice in notices if notice.is_due(now_s)]
    return min(due, key=lambda notice: notice.at_s, default=None)


def _unix_s(time: datetime) -> float:
    """A time without a zone is in UTC, as all of EC2's."""
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _unreadable(path: str, text: str) -> NoticeUnreadable:
    return NoticeUnreadable(f"the metadata service says {text[:200]!r} at {path}")
