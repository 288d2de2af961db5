"""Engines that die, stop, leave and join while answers are streamed: what clients see of it."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
import orjson
import psutil
import pytest

from app.config import GatewayConfig, ModelRoute
from app.gateway import Gateway
from benchmarks.statistics import percentile
from engine.config import EngineConfig, PacedConfig
from engine.front import EngineFront
from tests.integration.chain import Chain, running_chain
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STEP_S = 0.05
NUM_STREAMS = 16
NUM_TOKENS = 100
PACED = EngineConfig(
    runner="paced",
    max_num_seqs=NUM_STREAMS,
    paced=PacedConfig(step_base_s=STEP_S, per_decode_s=0.0, per_prefill_token_s=0.0001),
)


@dataclass(slots=True, eq=False)
class Stream:
    """What a client sees of one answer."""

    request_id: str = ""
    engine_id: str = ""
    """That ran it when everything was undisturbed."""
    text: str = ""
    arrived_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str | None = None

    async def read(self, client: httpx.AsyncClient, prompt: str) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            self.request_id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self._see(orjson.loads(line[6:]))

    def _see(self, event: dict[str, object]) -> None:
        match event:
            case {"error": {"message": str(message)}}:
                self.error = message
            case {"choices": [{"delta": {"content": str(text)}}]} if text:
                self.text += text
                self.arrived_s.append(time.monotonic())
            case {"usage": {"completion_tokens": int(num_tokens)}}:
                self.num_tokens = num_tokens


@asynccontextmanager
async def streaming(chain: Chain) -> AsyncIterator[list[Stream]]:
    """Streams that all run on some engine; at the end all of them have ended."""
    streams = [Stream() for _ in range(NUM_STREAMS)]
    async with (
        httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client,
        asyncio.TaskGroup() as group,
    ):
        for number, stream in enumerate(streams):
            group.create_task(stream.read(client, f"{number} ways to go on, please."))
        await until(lambda: all(len(stream.arrived_s) > 3 for stream in streams))
        engine_of = {
            request_id: member.engine_id
            for member in chain.gateway.dispatchers[MODEL].fleet
            for request_id in member.running
        }
        for stream in streams:
            stream.engine_id = engine_of[stream.request_id]
        yield streams


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> float:
    """Seconds until it holds."""
    started_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return time.monotonic() - started_s


def gap_p99_s(streams: list[Stream]) -> float:
    gaps_s = [after - before for stream in streams for before, after in pairwise(stream.arrived_s)]
    return percentile(gaps_s, 99.0)


def engine_ids(chain: Chain) -> set[str]:
    return {member.engine_id for member in chain.gateway.dispatchers[MODEL].fleet}


def check_nothing_is_left(chain: Chain, fronts: list[EngineFront]) -> None:
    """No job, no request, no credit that somebody holds."""
    dispatcher = chain.gateway.dispatchers[MODEL]
    dispatcher.check_integrity()
    assert (dispatcher.num_running, dispatcher.num_waiting) == (0, 0)
    for front in fronts:
        assert front.num_open == 0


async def kill(front: EngineFront) -> None:
    psutil.Process(front.rank_pid).kill()


async def stop(front: EngineFront) -> None:
    """Only the signal: whoever looks after the engine has to notice."""
    psutil.Process(front.rank_pid).send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("disturb", [kill, stop])
async def test_answers_go_on_elsewhere_and_other_streams_notice_nothing(
    disturb: Callable[[EngineFront], Awaitable[None]],
) -> None:
    async with running_chain(PACED, num_engines=4) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed:
            victim_id = f"{MODEL}/0"
            await asyncio.sleep(5 * STEP_S)
            await disturb(chain.fronts[0])
            assert await until(lambda: victim_id not in engine_ids(chain)) < 5.0
        moved = [stream for stream in disturbed if stream.engine_id == victim_id]
        others = [stream for stream in disturbed if stream.engine_id != victim_id]
        check_nothing_is_left(chain, chain.fronts[1:])
    assert 1 <= len(moved) < NUM_STREAMS
    assert [stream.error for stream in disturbed] == [None] * NUM_STREAMS
    assert [stream.num_tokens for stream in disturbed] == [NUM_TOKENS] * NUM_STREAMS
    assert [stream.text for stream in disturbed] == [stream.text for stream in undisturbed]
    assert gap_p99_s(others) <= 1.5 * gap_p99_s(undisturbed)


async def test_draining_and_joining_engines_disturb_nobody() -> None:
    async with running_chain(PACED, num_engines=3) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed, chain.another_engine() as front:
            drained = asyncio.create_task(chain.fronts[0].drain())
            await until(lambda: front.num_connected == 1)
        assert await drained
        check_nothing_is_left(chain, [*chain.fronts, front])
    assert [stream.error for stream in disturbed] == [None] * NUM_STREAMS
    assert [stream.text for stream in disturbed] == [stream.text for stream in undisturbed]
    assert gap_p99_s(disturbed) <= 1.5 * gap_p99_s(undisturbed)


async def test_a_fresh_gateway_decides_like_an_old_one() -> None:
    prefixes = [f"Conversation {number}: " + "word " * 400 for number in range(4)]
    async with running_chain(PACED, num_engines=4) as chain:
        async with httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client:
            for prefix in prefixes:
                body = {"model": MODEL, "prompt": prefix, "max_tokens": 2}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
        fresh = Gateway(GatewayConfig(models=(ModelRoute(name=MODEL),)))
        try:
            fresh.set_engines(MODEL, chain.addresses)
            old, new = (gateway.dispatchers[MODEL] for gateway in (chain.gateway, fresh))
            assert await until(lambda: len(new.fleet.index) == len(old.fleet.index)) < 2.0
            card = old.card
            assert card is not None
            tokenizer = await chain.gateway.tokenizers.get(card)
            for prefix in prefixes:
                keys = tokenizer.completion_prompt(prefix + "And then?").index_keys
                known = new.fleet.index.match(keys)
                assert max(held.accelerator for held in known.values()) >= 2
                assert known == old.fleet.index.match(keys)
        finally:
            await fresh.close()
