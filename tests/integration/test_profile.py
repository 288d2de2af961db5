"""An operator's profile of a replica of several ranks, over HTTP, while it answers."""

import asyncio
import base64
import gzip
import json
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from tests.integration.chain import Chain, running_chain
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STEPS = 10


async def test_the_steps_of_a_replica_of_three_ranks_are_recorded_on_rank_0() -> None:
    config = EngineConfig(tensor_parallel_size=3, prefix_caching=False)
    async with (
        running_chain(config) as chain,
        httpx.AsyncClient(base_url=chain.base_url, timeout=120) as http,
    ):
        answering = asyncio.create_task(complete(http))
        profile = await record(http, chain)
        refused = await http.post("/debug/profile", json={"model": MODEL, "rank": 1})
        assert refused.status_code == 400
        assert "only rank 0" in refused.json()["error"]["message"]
        assert (await answering).status_code == 200
    times_ms = {line["name"]: line["ms"] for line in profile["summary"]["operators"]}
    assert all(times_ms[name] > 0 for name in ("attention", "matmul", "collectives", "host"))
    assert sum(times_ms.values()) == pytest.approx(profile["summary"]["step_ms"], rel=0.01)
    trace = json.loads(gzip.decompress(base64.b64decode(profile["trace_gzip_base64"])))
    names = [event["name"] for event in trace["traceEvents"]]
    assert sum(name.startswith("step ") for name in names) == NUM_STEPS
    assert "headwater collectives" in names


async def complete(http: httpx.AsyncClient) -> httpx.Response:
    body = {"model": MODEL, "prompt": "A river", "max_tokens": 120, "ignore_eos": True}
    return await http.post("/v1/completions", json=body)


async def record(http: httpx.AsyncClient, chain: Chain) -> Any:
    body = {"model": MODEL, "steps": NUM_STEPS, "timeout_s": 60}
    response = await http.post("/debug/profile", json=body)
    assert response.status_code == 200, response.text
    profile = response.json()
    assert profile["summary"]["num_steps"] == NUM_STEPS
    return profile
