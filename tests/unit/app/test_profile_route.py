"""``POST /debug/profile``: whom it asks, what it shows, and what it refuses."""

import base64
import gzip
from typing import Any

import msgspec
import pytest

from app import profile_route
from app.client import QUERY_TIMEOUT_S, AskedTooOftenError
from engine.messages import LoadView, QueryKind
from engine.profile import (
    Profile,
    ProfileLine,
    ProfileOrder,
    ProfileRefused,
    ProfileSummary,
)
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine
from wire.errors import ConnectionClosed

SUMMARY = ProfileSummary(
    num_steps=3,
    num_steps_asked=5,
    step_ms=2.0,
    num_prefill_tokens=0.0,
    num_decodes=4.0,
    operators=[ProfileLine("matmul", "matmul", 1.5, 0.75), ProfileLine("host", "host", 0.5, 0.25)],
    details=[ProfileLine("mlp", "matmul", 1.0, 0.5)],
    source="compiled step",
    num_steps_in_operators=3,
    notes=["only 3 of 5 steps came before the time was over"],
)
TRACE = gzip.compress(b'{"traceEvents": []}')


class ProfiledEngine(FakeEngine):
    """Answers with ``answer``, or raises it."""

    def __init__(self, engine_id: str, answer: Any, num_running: int = 0) -> None:
        super().__init__(engine_id)
        self.answer = answer
        self.load = LoadView(num_running=num_running)
        self.orders: list[tuple[ProfileOrder, float]] = []

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        assert kind == "profile"
        self.orders.append((msgspec.json.decode(argument, type=ProfileOrder), timeout_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, bytes | None):
            return self.answer
        return msgspec.msgpack.encode(self.answer)


async def ask(make_edge: MakeEdge, *engines: FakeEngine, **body: Any) -> Any:
    edge = await make_edge(*engines)
    return await edge.http.post("/debug/profile", json={"model": "m"} | body)


async def test_the_answer_has_the_summary_a_table_and_the_trace(make_edge: MakeEdge) -> None:
    engine = ProfiledEngine("e0", Profile(SUMMARY, TRACE))
    response = await ask(make_edge, engine, steps=5, timeout_s=2.5)
    assert response.status_code == 200
    answer = response.json()
    assert (answer["engine"], answer["rank"]) == ("e0", 0)
    assert answer["summary"]["num_steps"] == 3
    assert answer["summary"]["operators"][0] == {
        "name": "matmul",
        "operator": "matmul",
        "ms": 1.5,
        "share": 0.75,
    }
    rows = answer["table"].splitlines()
    assert rows[2].split() == ["matmul", "1.500", "75.0%"]
    assert rows[3].split() == ["mlp", "1.000", "50.0%"]
    assert rows[-1] == "note: only 3 of 5 steps came before the time was over"
    assert base64.b64decode(answer["trace_gzip_base64"]) == TRACE
    assert engine.orders == [(ProfileOrder(5, 2.5), 2.5 + profile_route.GRACE_S)]


async def test_a_trace_that_was_too_large_is_null(make_edge: MakeEdge) -> None:
    response = await ask(make_edge, ProfiledEngine("e0", Profile(SUMMARY, None)))
    assert response.status_code == 200
    assert response.json()["trace_gzip_base64"] is None


async def test_the_busiest_engine_is_recorded_unless_one_is_named(make_edge: MakeEdge) -> None:
    profile = Profile(SUMMARY, None)
    engines = [ProfiledEngine(f"e{index}", profile, num_running=index % 2) for index in range(3)]
    edge = await make_edge(*engines)
    busiest = await edge.http.post("/debug/profile", json={"model": "alias"})
    named = await edge.http.post("/debug/profile", json={"model": "m", "engine": "e2"})
    assert [busiest.json()["engine"], named.json()["engine"]] == ["e1", "e2"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1001}, "steps"),
        ({"steps": "5"}, "steps"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 121}, "timeout_s"),
        ({"rank": 1}, "rank"),
        ({"step": 5}, "step"),
        ({"model": 1}, "model"),
    ],
)
async def test_bad_fields_are_refused_by_name(
    make_edge: MakeEdge, body: dict[str, Any], param: str
) -> None:
    engine = ProfiledEngine("e0", Profile(SUMMARY, None))
    response = await ask(make_edge, engine, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert engine.orders == []


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "other"}, 404), ({"engine": "e9"}, 404)],
)
async def test_unknown_models_and_engines_are_not_found(
    make_edge: MakeEdge, body: dict[str, Any], status: int
) -> None:
    response = await ask(make_edge, ProfiledEngine("e0", Profile(SUMMARY, None)), **body)
    assert response.status_code == status


async def test_a_model_without_engines_is_loading(make_edge: MakeEdge) -> None:
    assert (await ask(make_edge)).status_code == 503


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (ProfileRefused(), 409),
        (AskedTooOftenError(), 503),
        (TimeoutError(), 504),
        (ConnectionClosed("gone"), 500),
        (b"nonsense", 500),
        (None, 500),
    ],
    ids=["busy", "too often", "time-out", "lost", "nonsense", "nothing"],
)
async def test_what_an_engine_cannot_do_has_a_status_of_its_own(
    make_edge: MakeEdge, answer: Any, status: int
) -> None:
    response = await ask(make_edge, ProfiledEngine("e0", answer))
    assert response.status_code == status
    assert response.json()["error"]["message"]


async def test_only_admin_keys_may_record(make_edge: MakeEdge) -> None:
    engine = ProfiledEngine("e0", Profile(SUMMARY, None))
    edge = await make_edge(
        engine, api_keys=("user-key-0123456789",), admin_keys=("admin-key-012345",)
    )
    statuses = []
    for key in ("user-key-0123456789", "admin-key-012345"):
        response = await edge.http.post(
            "/debug/profile", json={"model": "m"}, headers={"authorization": f"Bearer {key}"}
        )
        statuses.append(response.status_code)
    assert statuses == [403, 200]
    assert len(engine.orders) == 1
