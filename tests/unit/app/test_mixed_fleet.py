"""Replicas of one model whose KV pools hold requests of different lengths."""

from typing import Any

import msgspec
import pytest

from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, make_card

LARGE, SMALL = 2048, 512


def engine(engine_id: str, max_request_tokens: int) -> FakeEngine:
    card = make_card(engine_id)
    card = msgspec.structs.replace(card, max_request_tokens=max_request_tokens)
    return FakeEngine(engine_id, card=card, reply="ok")


async def fleet(make_edge: MakeEdge) -> Edge:
    """The small ones came first."""
    return await make_edge(engine("s", SMALL), engine("t", SMALL), engine("large", LARGE))


async def test_a_request_goes_where_it_fits(make_edge: MakeEdge) -> None:
    edge = await fleet(make_edge)
    for number in range(6):
        response = await edge.complete(f"{number}" + "x" * 600, max_tokens=10)
        assert response.status_code == 200
    assert len(edge.engines["large"].requests) == 6
    for number in range(12):
        assert (await edge.complete(f"{number}", max_tokens=10)).status_code == 200
    assert edge.engines["s"].requests
    assert edge.engines["t"].requests


async def test_prompt_and_answer_count_together(make_edge: MakeEdge) -> None:
    edge = await fleet(make_edge)
    for _ in range(4):
        assert (await edge.complete("x" * 500, max_tokens=100)).status_code == 200
    assert len(edge.engines["large"].requests) == 4


TOO_LONG = "x" * 3000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages"),
        ("/v1/completions", {"prompt": TOO_LONG}, "prompt"),
        ("/v1/completions", {"prompt": [7] * 3000}, "prompt"),
        ("/v1/completions", {"prompt": ["short", TOO_LONG]}, "prompt"),
        ("/v1/completions", {"prompt": "x" * 2000, "max_tokens": 100}, "prompt"),
    ],
)
async def test_what_no_replica_holds_is_refused_before_anything_is_sent(
    make_edge: MakeEdge, path: str, fields: dict[str, Any], param: str, *, stream: bool
) -> None:
    edge = await fleet(make_edge)
    response = await edge.http.post(path, json={"model": "m", "stream": stream} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert str(LARGE) in error["message"]
    assert not any(engine.requests for engine in edge.engines.values())


async def test_a_small_replica_never_gets_what_a_lost_large_one_had(make_edge: MakeEdge) -> None:
    edge = await fleet(make_edge)
    edge.engines["large"].lose()
    response = await edge.complete("x" * 600, max_tokens=10)
    assert response.status_code == 400, "no replica holds it now"
    assert (await edge.complete("x" * 400, max_tokens=10)).status_code == 200
