"""Requests that belong together have one affinity, and no others."""

import asyncio
from typing import Any

import pytest

from app.requests.completion_request import parse_completion_request
from app.requests.session import RETURN_HEADER, SESSION_HEADER, affinity_of, beginning_of
from engine.messages import FinishReason
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine, until

BEGINNING = (b"begins so",)


def affinity(
    *headers: tuple[bytes, bytes], beginning: tuple[bytes, ...] = BEGINNING, **fields: Any
) -> int | None:
    body = {"model": "m", "prompt": "Hi"} | fields
    return affinity_of(parse_completion_request(body, max_fanout=1), headers, beginning)


def test_a_named_session_counts_before_everything_else() -> None:
    named = affinity((SESSION_HEADER, b"s"))
    assert named == affinity((SESSION_HEADER, b"s"), beginning=(), user="u", prompt_cache_key="k")
    assert named != affinity((SESSION_HEADER, b"t"))
    keyed = affinity(prompt_cache_key="k")
    assert keyed == affinity(prompt_cache_key="k", user="u", beginning=())
    assert len({named, keyed, affinity(user="k"), affinity(), affinity(beginning=(b"k",))}) == 5


def test_tenants_and_salts_share_no_affinity() -> None:
    session = (SESSION_HEADER, b"s")
    tenants = [affinity(session, (b"authorization", key)) for key in (b"Bearer a", b"Bearer b")]
    assert len({*tenants, affinity(session), affinity(session, cache_salt="x")}) == 4


def test_it_has_64_bits_whatever_the_client_sends() -> None:
    for value in (affinity((SESSION_HEADER, b"\xff" * 9000)), affinity(user="\ud800" * 9000)):
        assert value is not None
        assert 0 <= value < 2**64
    assert affinity(beginning=()) is None


def test_where_one_part_ends_matters() -> None:
    assert affinity(beginning=(b"ab", b"c")) != affinity(beginning=(b"a", b"bc"))


def test_a_conversation_is_known_by_its_first_question() -> None:
    system = {"role": "system", "content": "You help."}
    first, second = ({"role": "user", "content": text} for text in ("One?", "Two?"))
    answer = {"role": "assistant", "content": "1."}
    beginning = beginning_of([system, first])
    assert beginning == beginning_of([system, first, answer, second])
    assert beginning != beginning_of([system, second])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": ["One " * 40, "Two " * 40]}),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"x-headwater-session": "s"}])
async def test_the_jobs_of_a_request_carry_it(
    make_edge: MakeEdge, path: str, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    num_prompts = len(fields.get("prompt", [""]))
    asking = asyncio.create_task(
        edge.http.post(path, json={"model": "m"} | fields, headers=headers)
    )
    await until(lambda: len(engine.requests) == num_prompts)
    jobs = [edge.gateway.dispatchers["m"].open_job(request_id) for request_id in engine.requests]
    affinities = {job.affinity for job in jobs if job is not None}
    assert None not in affinities
    assert len(affinities) == (1 if headers else num_prompts)
    for request_id in engine.requests:
        engine.say(request_id, "ok", FinishReason.STOP)
    assert (await asking).status_code == 200


@pytest.mark.parametrize(
    ("headers", "fields", "kind"),
    [
        ({}, {}, "standard"),
        ({"x-headwater-session": "s"}, {}, "standard/named"),
        ({"x-headwater-class": "batch"}, {"prompt_cache_key": "k"}, "batch/named"),
    ],
)
async def test_the_engine_is_told_what_kind_of_session_it_is_and_when_it_goes_on(
    make_edge: MakeEdge, headers: dict[str, str], fields: dict[str, Any], kind: str
) -> None:
    engine = FakeEngine(reply="ok")
    edge = await make_edge(engine)
    for return_s, expected_s in (({}, None), ({RETURN_HEADER: "12.5"}, 12.5)):
        answer = await edge.http.post(
            "/v1/completions",
            json={"model": "m", "prompt": "Hi"} | fields,
            headers=headers | return_s,
        )
        assert answer.status_code == 200
        request = list(engine.requests.values())[-1]
        assert (request.session_kind, request.expected_return_s) == (kind, expected_s)


@pytest.mark.parametrize("value", ["0", "-1", "86401", "nan", "inf", "soon", ""])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
)
async def test_a_return_time_that_is_none_is_refused(
    make_edge: MakeEdge, path: str, fields: dict[str, Any], value: str
) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    answer = await edge.http.post(
        path, json={"model": "m"} | fields, headers={RETURN_HEADER: value}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == RETURN_HEADER
    assert "above 0 and at most 86400" in error["message"]
