"""``/debug``: the engines' records for operators, as JSON or as one JSON object per line."""

import re
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.errors import InvalidRequestError
from app.fleet_records import FleetRecords, Found
from app.gateway import Gateway
from app.record import record_of

JSONL = "application/jsonl"
DEFAULT_STEPS = 100
MAX_STEPS = 4096
"""As many as an engine keeps."""


class DebugRoutes:
    """The middleware has asked for an admin key where keys are configured."""

    def __init__(self, gateway: Gateway) -> None:
        self._records = FleetRecords(gateway)

    async def steps(self, request: Request) -> Response:
        """``?model=&engine=&last=&format=``: all but the newest steps of each engine left out."""
        record_of(request.scope).route = "/debug/steps"
        query = _query_of(request, {"model", "engine", "last", "format"})
        is_jsonl = _wants_jsonl(request, query)
        found = await self._records.steps(
            model=query.get("model"), engine=query.get("engine"), last=_last(query.get("last"))
        )
        if is_jsonl:
            return _lines([*found.records, *_unanswered_line(found.unanswered)])
        return _json(_list(found))

    async def request(self, request: Request) -> Response:
        """The whole course of one request; as lines, one per event."""
        record_of(request.scope).route = "/debug/requests/{id}"
        query = _query_of(request, {"format"})
        is_jsonl = _wants_jsonl(request, query)
        course = await self._records.request(request.path_params["request_id"])
        return _lines(_event_lines(course)) if is_jsonl else _json(course)


def _list(found: Found) -> dict[str, Any]:
    return {"object": "list", "data": found.records, "unanswered": found.unanswered}


def _event_lines(course: dict[str, Any]) -> list[dict[str, Any]]:
    """The gateway's own part only while no engine repeats it."""
    parts = course["engines"] or [{**course["gateway"], "engine": None}]
    events = [
        {"request_id": course["request_id"], "engine": part["engine"], **event}
        for part in parts
        for event in part["events"]
    ]
    return [*events, *_unanswered_line(course["unanswered"])]


def _unanswered_line(unanswered: list[str]) -> list[dict[str, Any]]:
    return [{"unanswered": unanswered}] if unanswered else []


def _query_of(request: Request, known: set[str]) -> dict[str, str]:
    items = request.query_params.multi_items()
    for name, _ in items:
        if name not in known:
            raise InvalidRequestError(
                f"There is no parameter `{name[:100]}` here, only {', '.join(sorted(known))}.",
                param=name[:100],
            )
    if len({name for name, _ in items}) != len(items):
        raise InvalidRequestError("Each parameter may be given once.")
    return dict(items)


def _last(text: str | None) -> int:
    if text is None:
        return DEFAULT_STEPS
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= number <= MAX_STEPS:
        raise InvalidRequestError(f"`last` must be from 1 to {MAX_STEPS}.", param="last")
    return number


def _wants_jsonl(request: Request, query: dict[str, str]) -> bool:
    chosen = query.get("format")
    if chosen is None:
        return JSONL in request.headers.get("accept", "")
    if chosen not in ("json", "jsonl"):
        raise InvalidRequestError("`format` must be json or jsonl.", param="format")
    return chosen == "jsonl"


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _lines(objects: Iterable[dict[str, Any]]) -> Response:
    return Response(b"".join(orjson.dumps(one) + b"\n" for one in objects), media_type=JSONL)
