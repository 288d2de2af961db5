"""A running group of ranks, and what its front does with it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from engine.config import EngineSpec
from engine.errors import EngineDeadError
from engine.messages import EngineRequest, SamplingParams, StepFrame, Submit, TokenDelta
from engine.rank_group import RankGroup
from engine.rank_messages import FromGateway
from wire.errors import ConnectionClosed

MAX_LOSS_S = 5.0
"""A replica that lost a rank notices so soon."""


@asynccontextmanager
async def running(
    spec: EngineSpec,
    *,
    max_silence_s: float = 30.0,
    folder: Path | None = None,
    is_gone: Callable[[int], bool] = lambda pid: not psutil.pid_exists(pid),
) -> AsyncIterator[RankGroup]:
    """A group of which all processes must be gone at its end."""
    group = RankGroup(max_silence_s=max_silence_s, folder=folder)
    pids: list[int] = []
    try:
        await group.start(spec)
        pids = group.pids
        yield group
    finally:
        await group.stop()
        assert all(map(is_gone, pids))
        assert not group.is_running


def submit(group: RankGroup, request_id: str, max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    prompt = [3 + byte % 90 for byte in request_id.encode()]  # shorter than a block: no keys
    request = EngineRequest(request_id, prompt, b"", [], sampling, timeout_s=60)
    group.send(FromGateway(1, msgspec.msgpack.encode(Submit(request))))


async def deltas(group: RankGroup) -> AsyncIterator[TokenDelta]:
    while True:
        for frame in (await group.receive()).frames:
            for delta in msgspec.msgpack.decode(frame.payload, type=StepFrame).deltas:
                yield delta


async def answer(group: RankGroup, num_requests: int) -> dict[str, list[int]]:
    """The tokens of every request, once all have ended."""
    tokens: dict[str, list[int]] = {}
    async for delta in deltas(group):
        assert delta.error is None
        tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
        num_requests -= delta.finish_reason is not None
        if num_requests == 0:
            return tokens
    raise AssertionError("unreachable")


async def receive_for_ever(group: RankGroup) -> None:
    while True:
        await group.receive()


async def reason_of_loss(group: RankGroup) -> tuple[str, float]:
    """What the group says when a rank is lost, and after how many seconds."""
    started_s = time.monotonic()
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(2 * MAX_LOSS_S):
            await receive_for_ever(group)
    loss_s = time.monotonic() - started_s
    reason = await group.describe_end()
    assert not group.is_running
    with pytest.raises(EngineDeadError, match=re.escape(reason)):
        group.check()
    return reason, loss_s
