"""What the engines recorded of their steps and requests, asked of all of them side by side.

An engine that does not answer in time is named, not waited for. Must not know HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app.client import AskedTooOftenError
from app.errors import InvalidRequestError, NotFoundError, OverloadedError
from app.gateway import Gateway
from app.member import Member
from app.queue import Job

logger = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 1.0
"""For all engines together."""
MAX_TOTAL_STEPS = 50_000
"""Of all engines asked; some 15 MB of JSON."""
MAX_REQUEST_ID_CHARS = 256

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What the engines answered."""

    records: list[Json]
    """Each with its ``engine``: its id."""
    unanswered: list[str]
    """Ids of engines that did not answer, or have been asked too often."""


class FleetRecords:
    """Asks the engines that are connected to ``gateway``."""

    def __init__(self, gateway: Gateway, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._clock = clock

    async def steps(self, *, model: str | None, engine: str | None, last: int) -> Found:
        """Each engine's newest ``last`` steps, oldest first.

        Of all models and engines unless named. Raises ``NotFoundError``, ``InvalidRequestError``.
        """
        members = self._members(model)
        if engine is not None:
            members = [member for member in members if member.engine_id == engine]
            if not members:
                raise NotFoundError(f"No engine `{engine[:200]}` is connected here.")
        if last * len(members) > MAX_TOTAL_STEPS:
            raise InvalidRequestError(
                f"{last} steps of each of {len(members)} engines are more than {MAX_TOTAL_STEPS} "
                "together. Ask for fewer, or name an engine.",
                param="last",
            )
        replies = await _ask(members, "steps", str(last))
        # An engine has at least an empty list to tell.
        unanswered = [name for name, reply in replies.items() if not isinstance(reply, bytes)]
        return await asyncio.to_thread(_decode, replies, unanswered)

    async def request(self, request_id: str) -> Json:
        """Its course, on every engine that had it and, while it is open, in this gateway.

        Raises ``NotFoundError``, or ``OverloadedError`` if it can't be told now.
        """
        if len(request_id) > MAX_REQUEST_ID_CHARS:
            raise InvalidRequestError(
                f"A request id has at most {MAX_REQUEST_ID_CHARS} characters.", param="request_id"
            )
        replies = await _ask(self._members(None), "request", request_id)
        unanswered = [name for name, reply in replies.items() if isinstance(reply, Exception)]
        found = _decode(replies, unanswered)
        # Now, not before: it may have been submitted in between.
        job = self._open_job(request_id)
        if job is None and not found.records:
            if any(isinstance(reply, AskedTooOftenError) for reply in replies.values()):
                raise OverloadedError("The engines were asked too often. Try again in a moment.")
            raise NotFoundError(_unknown(request_id, found.unanswered))
        return {
            "request_id": request_id,
            "gateway": None if job is None else _job_object(job, self._clock()),
            "engines": found.records,
            "unanswered": found.unanswered,
        }

    def _members(self, model: str | None) -> list[Member]:
        if model is not None:
            return list(self._gateway.dispatcher_of(model).fleet)
        return [
            member
            for dispatcher in self._gateway.dispatchers.values()
            for member in dispatcher.fleet
        ]

    def _open_job(self, request_id: str) -> Job | None:
        jobs = (
            dispatcher.open_job(request_id) for dispatcher in self._gateway.dispatchers.values()
        )
        return next((job for job in jobs if job is not None), None)


_Reply = bytes | Exception | None


async def _ask(
    members: Sequence[Member], kind: Literal["steps", "request"], argument: str
) -> dict[str, _Reply]:
    """By engine id: the reply, or why there is none."""
    tasks = {
        member.engine_id: asyncio.create_task(_query(member, kind, argument)) for member in members
    }
    if tasks:
        await asyncio.wait(tasks.values(), timeout=QUERY_TIMEOUT_S)
    replies = {
        engine_id: task.result() if task.done() else TimeoutError()
        for engine_id, task in tasks.items()
    }
    for task in tasks.values():
        task.cancel()
    return replies


async def _query(member: Member, kind: Literal["steps", "request"], argument: str) -> _Reply:
    try:
        return await member.client.query(kind, argument)
    except Exception as error:
        logger.debug("engine %s: no records: %r", member.engine_id, error)
        return error


def _decode(replies: dict[str, _Reply], unanswered: list[str]) -> Found:
    records: list[Json] = []
    for engine_id, reply in sorted(replies.items()):
        if isinstance(reply, bytes):
            try:
                value = orjson.loads(reply)
                objects = value if isinstance(value, list) else [value]
                records += [{"engine": engine_id, **one} for one in objects]
            except (orjson.JSONDecodeError, TypeError):
                logger.warning("engine %s sent records that are no JSON objects", engine_id)
                unanswered = [*unanswered, engine_id]
    return Found(records, sorted(unanswered))


def _job_object(job: Job, now_s: float) -> Json:
    return {
        "state": "running" if job.is_running else "waiting",
        "engine": job.engine_id,
        "service_class": job.service_class.name.lower(),
        "age_s": round(max(0.0, now_s - job.arrived_s), 6),
        "num_attempts": job.num_attempts,
        "num_samples": job.num_samples,
        "num_prompt_tokens": len(job.prompt.token_ids),
        "source": None if job.expected_transfer is None else job.expected_transfer.kind.value,
        "events": [{"kind": e.kind, "at_s": e.at_s, "value": e.value} for e in job.timeline],
    }


def _unknown(request_id: str, unanswered: Sequence[str]) -> str:
    silent = f" These engines did not answer: {', '.join(unanswered[:20])}." if unanswered else ""
    return (
        f"Nothing is known of a request `{request_id}`: it waits in another gateway, ended long "
        f"ago or never came to an engine. Each of several prompts has an id of its own, which ends "
        f"in -0, -1, …{silent}"
    )
