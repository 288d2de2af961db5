"""``/debug``: what operators are shown of steps and requests, and what they are told when not."""

import asyncio
import json
from typing import Any

import pytest

from app import fleet_records
from app.client import QUERY_TIMEOUT_S, AskedTooOftenError
from engine.messages import QueryKind
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, until
from wire.errors import ConnectionClosed

COURSE = {"request_id": "r", "events": [{"kind": "received", "at_s": 0.0, "value": 0}]}


class RecordingEngine(FakeEngine):
    """Answers queries with ``records``; never, while it ``is_stuck``."""

    def __init__(self, engine_id: str, num_steps: int = 3, **options: Any) -> None:
        super().__init__(engine_id, **options)
        self.steps: Any = [{"step_id": number} for number in range(num_steps)]
        self.courses: dict[str, Any] = {}
        self.is_stuck = False
        self.is_lost = False
        self.is_refusing = False

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        if self.is_stuck:
            await asyncio.sleep(60)
        if self.is_lost:
            raise ConnectionClosed("lost")
        if self.is_refusing:
            raise AskedTooOftenError
        if kind == "steps":
            steps = self.steps[-int(argument) :]
            return json.dumps(steps).encode()
        course = self.courses.get(argument)
        return None if course is None else json.dumps(course).encode()


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_records, "QUERY_TIMEOUT_S", 0.05)


async def get(edge: Edge, path: str) -> Any:
    response = await edge.http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_newest_steps_of_every_engine_carry_its_id(make_edge: MakeEdge) -> None:
    edge = await make_edge(RecordingEngine("e0"), RecordingEngine("e1"))
    answer = await get(edge, "/debug/steps?model=m&last=2")
    shown = sorted((step["engine"], step["step_id"]) for step in answer["data"])
    assert shown == [("e0", 1), ("e0", 2), ("e1", 1), ("e1", 2)]
    assert answer["unanswered"] == []
    alone = await get(edge, "/debug/steps?engine=e1")
    assert {step["engine"] for step in alone["data"]} == {"e1"}


async def test_an_alias_names_the_model(make_edge: MakeEdge) -> None:
    edge = await make_edge(RecordingEngine("e0"))
    assert len((await get(edge, "/debug/steps?model=alias"))["data"]) == 3


@pytest.mark.parametrize("fault", ["is_stuck", "is_lost", "is_refusing"])
async def test_engines_that_do_not_answer_are_named(make_edge: MakeEdge, fault: str) -> None:
    silent = RecordingEngine("e1")
    setattr(silent, fault, True)
    edge = await make_edge(RecordingEngine("e0"), silent)
    answer = await get(edge, "/debug/steps")
    assert {step["engine"] for step in answer["data"]} == {"e0"}
    assert answer["unanswered"] == ["e1"]


async def test_what_is_no_record_spoils_its_own_engine_only(make_edge: MakeEdge) -> None:
    broken = RecordingEngine("e1")
    broken.steps = [1, 2]
    edge = await make_edge(RecordingEngine("e0"), broken)
    answer = await get(edge, "/debug/steps")
    assert {step["engine"] for step in answer["data"]} == {"e0"}
    assert answer["unanswered"] == ["e1"]


@pytest.mark.parametrize("accept", [False, True])
async def test_lines_are_one_object_each(make_edge: MakeEdge, accept: bool) -> None:
    edge = await make_edge(RecordingEngine("e0"))
    path = "/debug/steps" if accept else "/debug/steps?format=jsonl"
    headers = {"accept": "application/jsonl"} if accept else {}
    response = await edge.http.get(path, headers=headers)
    assert response.headers["content-type"].startswith("application/jsonl")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines == [{"engine": "e0", "step_id": number} for number in range(3)]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("last=0", "last"),
        ("last=4097", "last"),
        ("last=-1", "last"),
        ("last=1e3", "last"),
        ("last=", "last"),
        ("last=%D9%A1", "last"),
        ("format=xml", "format"),
        ("count=3", "count"),
        ("last=1&last=2", None),
    ],
)
async def test_bad_parameters_are_refused(
    make_edge: MakeEdge, query: str, param: str | None
) -> None:
    edge = await make_edge(RecordingEngine("e0"))
    response = await edge.http.get(f"/debug/steps?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_too_many_steps_together_are_refused(
    make_edge: MakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_records, "MAX_TOTAL_STEPS", 10)
    edge = await make_edge(RecordingEngine("e0"), RecordingEngine("e1"))
    assert (await edge.http.get("/debug/steps?last=6")).status_code == 400
    assert (await edge.http.get("/debug/steps?last=6&engine=e0")).status_code == 200


@pytest.mark.parametrize("query", ["model=other", "engine=e9", "model=m&engine=e9"])
async def test_unknown_models_and_engines_are_not_found(make_edge: MakeEdge, query: str) -> None:
    edge = await make_edge(RecordingEngine("e0"))
    assert (await edge.http.get(f"/debug/steps?{query}")).status_code == 404


async def test_a_request_is_not_unknown_because_engines_were_asked_too_often(
    make_edge: MakeEdge,
) -> None:
    busy = RecordingEngine("e1")
    busy.is_refusing = True
    edge = await make_edge(RecordingEngine("e0"), busy)
    answer = await edge.http.get("/debug/requests/r")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


async def test_a_request_is_shown_by_each_engine_that_had_it(make_edge: MakeEdge) -> None:
    first, second = RecordingEngine("e0"), RecordingEngine("e1")
    first.courses["r"] = second.courses["r"] = COURSE
    edge = await make_edge(first, second, RecordingEngine("e2"))
    course = await get(edge, "/debug/requests/r")
    assert [part["engine"] for part in course["engines"]] == ["e0", "e1"]
    assert course["engines"][0]["events"] == COURSE["events"]
    assert course["gateway"] is None
    assert course["unanswered"] == []
    lines = (await edge.http.get("/debug/requests/r?format=jsonl")).text.splitlines()
    assert [json.loads(line)["engine"] for line in lines] == ["e0", "e1"]
    assert json.loads(lines[0])["kind"] == "received"


async def test_a_request_that_waits_here_is_shown_without_an_engine(make_edge: MakeEdge) -> None:
    engine = RecordingEngine("e0", num_credits=0)
    edge = await make_edge(engine)
    asking = asyncio.create_task(edge.chat())
    dispatcher = edge.gateway.dispatcher_of("m")
    await until(lambda: dispatcher.num_waiting == 1)
    (job,) = dispatcher._jobs.values()  # its id is in no answer yet
    course = await get(edge, f"/debug/requests/{job.request_id}")
    assert course["engines"] == []
    assert course["gateway"]["state"] == "waiting"
    assert course["gateway"]["num_prompt_tokens"] == len(job.prompt.token_ids)
    lines = (await edge.http.get(f"/debug/requests/{job.request_id}?format=jsonl")).text
    assert len(lines.splitlines()) == len(job.timeline)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_an_unknown_request_is_not_found_and_silent_engines_are_named(
    make_edge: MakeEdge,
) -> None:
    stuck = RecordingEngine("e1")
    stuck.is_stuck = True
    edge = await make_edge(RecordingEngine("e0"), stuck)
    response = await edge.http.get("/debug/requests/nobody")
    assert response.status_code == 404
    assert "e1" in response.json()["error"]["message"]
    assert (await edge.http.get(f"/debug/requests/{'x' * 300}")).status_code == 400
