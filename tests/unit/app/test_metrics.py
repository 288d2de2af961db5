"""What the gateway measures of requests, from HTTP to the page."""

import asyncio
import json
import logging
import re
import time

import msgspec
import pytest

from cache_tiers.messages import PeerAddress
from engine.messages import (
    CacheSnapshot,
    FinishReason,
    LoadView,
    Medium,
    RestoredTokens,
    TokenDelta,
    Usage,
)
from tests.unit.app.answers.test_streaming import RawClient, request_id_at
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, make_card, until

MODEL = 'model_name="m"'


def value(edge: Edge, series: str) -> float:
    """Of one series, as a scrape shows it."""
    page = edge.gateway.render_metrics().decode()
    found = [line for line in page.splitlines() if line.startswith(f"headwater:{series} ")]
    assert len(found) == 1, f"{series}: {found}"
    return float(found[0].rsplit(" ", 1)[1])


async def test_prefix_tokens_count_once_per_prompt_whatever_the_samples(
    make_edge: MakeEdge,
) -> None:
    engine = FakeEngine(reply="ab")
    edge = await make_edge(engine)
    await edge.chat(n=3)
    await until(lambda: not engine.sinks)
    assert value(edge, f"prefix_predicted_tokens_total{{{MODEL}}}") == 0
    assert value(edge, f"prefix_cached_tokens_total{{{MODEL}}}") == 16
    assert value(edge, f"first_token_predicted_seconds_total{{{MODEL}}}") > 0
    assert value(edge, f"first_token_actual_seconds_total{{{MODEL}}}") > 0
    assert value(edge, f"first_token_time_ratio_count{{{MODEL}}}") == 1


async def test_the_second_of_two_equal_prompts_is_predicted_to_hit(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ab"))
    prompt = "x" * 16 * 8 * 3  # three strides of the index
    await edge.complete(prompt)
    before = value(edge, f"prefix_predicted_tokens_total{{{MODEL}}}")
    await edge.complete(prompt)
    after = value(edge, f"prefix_predicted_tokens_total{{{MODEL}}}")
    assert before == 0
    assert 16 * 8 * 2 <= after < len(prompt)


async def test_of_a_prompt_that_was_sent_twice_only_the_engine_that_answered_counts(
    make_edge: MakeEdge,
) -> None:
    engines = FakeEngine("e0"), FakeEngine("e1")
    edge = await make_edge(*engines)
    asked = asyncio.create_task(edge.chat(stream=False))
    await until(lambda: engines[0].requests or engines[1].requests)
    first, second = engines if engines[0].requests else engines[::-1]
    first.lose()
    second.say(await request_id_at(second), "ok", FinishReason.STOP)
    assert (await asked).status_code == 200
    assert value(edge, f"prefix_cached_tokens_total{{{MODEL}}}") == 16
    assert value(edge, f"engine_submissions_total{{{MODEL}}}") == 2
    assert value(edge, f"engine_retries_total{{{MODEL}}}") == 1


async def test_an_engine_that_has_said_nothing_yet_is_not_credited_with_anothers_hits(
    make_edge: MakeEdge,
) -> None:
    engines = FakeEngine("e0"), FakeEngine("e1")
    edge = await make_edge(*engines)
    client = RawClient(edge, stream=False)
    await until(lambda: engines[0].requests or engines[1].requests)
    first, second = engines if engines[0].requests else engines[::-1]
    first.say(await request_id_at(first), "a")
    first.lose()
    await request_id_at(second)
    samples = dict(second.samples)
    second.samples.clear()  # it does not answer the abort
    client.leave()
    await client.task
    second.samples.update(samples)
    assert value(edge, f"engine_submissions_total{{{MODEL}}}") == 2
    assert value(edge, f"prefix_cached_tokens_total{{{MODEL}}}") == 0


async def test_gaps_and_the_first_token_are_stamped_when_the_client_took_them(
    make_edge: MakeEdge,
) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    client = RawClient(edge)
    client.may_send.clear()
    request_id = await request_id_at(engine)
    engine.say(request_id, "a")
    await asyncio.sleep(0.03)
    client.may_send.set()
    await until(lambda: '"a"' in client.text)
    engine.say(request_id, "b")
    await until(lambda: '"b"' in client.text)
    engine.say(request_id, "c")
    await until(lambda: '"c"' in client.text)
    gaps = f"inter_token_latency_seconds_count{{{MODEL}}}"
    assert value(edge, gaps) == 2  # while the stream lasts
    client.may_send.clear()
    engine.say(request_id, "d", FinishReason.LENGTH)
    await asyncio.sleep(0.03)
    client.may_send.set()
    await client.task
    assert value(edge, gaps) == 3
    assert value(edge, f"inter_token_latency_seconds_sum{{{MODEL}}}") >= 0.03
    assert value(edge, f"time_to_first_token_seconds_sum{{{MODEL}}}") >= 0.03
    assert value(edge, f"request_time_per_output_token_seconds_count{{{MODEL}}}") == 1


async def test_what_leaves_in_one_write_is_one_gap(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    client = RawClient(edge, n=2)
    request_id = await request_id_at(engine)
    for index in (0, 1):
        engine.say(request_id, "a", index=index)
    await until(lambda: client.text.count('"a"') == 2)
    for index in (0, 1):
        engine.say(request_id, "bc", index=index)
        engine.say(request_id, "de", FinishReason.LENGTH, index=index)
    await client.task
    assert value(edge, f"inter_token_latency_seconds_count{{{MODEL}}}") == 2


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.TIMEOUT, "error"),
        (None, "abort"),
    ],
)
async def test_requests_count_by_how_they_ended(
    make_edge: MakeEdge, finish: FinishReason | None, reason: str
) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    client = RawClient(edge)
    engine.say(await request_id_at(engine), "ab", finish)
    if finish is None:
        client.leave()
    await client.task
    assert value(edge, f'request_success_total{{finished_reason="{reason}",{MODEL}}}') == 1
    assert value(edge, f"e2e_request_latency_seconds_count{{{MODEL}}}") == 1


async def test_tokenizing_is_timed_and_stands_in_the_timeline(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply="ab")
    edge = await make_edge(engine)
    await edge.chat()
    assert value(edge, f"tokenizing_time_seconds_count{{{MODEL}}}") == 1
    (request,) = engine.requests.values()
    kinds = [event.kind for event in request.timeline]
    assert kinds == ["received", "tokenized", "queued", "submitted"]
    times_s = [event.at_s for event in request.timeline]
    assert times_s[0] == 0.0
    assert times_s == sorted(times_s)
    assert request.timeline[1].value == len(request.token_ids)


async def test_queues_are_shown_per_class(make_edge: MakeEdge) -> None:
    engine = FakeEngine(num_credits=0)
    edge = await make_edge(engine)
    client = RawClient(edge)
    await until(lambda: edge.gateway.dispatchers["m"].num_waiting)
    await asyncio.sleep(0.002)
    assert value(edge, f'queue_depth{{{MODEL},service_class="standard"}}') == 1
    assert value(edge, f'queue_depth{{{MODEL},service_class="batch"}}') == 0
    assert value(edge, f'queue_oldest_age_seconds{{{MODEL},service_class="standard"}}') > 0
    assert value(edge, f'queue_estimated_wait_seconds{{{MODEL},service_class="batch"}}') >= 0
    assert value(edge, f"prefix_index_bytes{{{MODEL}}}") >= 0
    client.leave()
    await client.task


async def test_no_label_comes_from_a_client(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ab"))
    for word in ("zzz-a", "zzz-b"):
        await edge.chat(model=word)
        await edge.chat(user=word, service_tier=word)
        await edge.http.get(f"/{word}")
        await edge.http.get(f"/v1/models/{word}")
        await edge.http.request(word, "/v1/models", headers={"x-request-id": word})
    page = edge.gateway.render_metrics().decode()
    assert "zzz" not in page
    routes = set(re.findall(r'route="([^"]*)"', page))
    assert routes <= {"unknown", "/v1/chat/completions", "/v1/models/{name}", "/v1/models"}


async def test_the_log_line_tells_class_prediction_attempts_and_tokenizing(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headwater.request")
    edge = await make_edge(FakeEngine(reply="ab"))
    await edge.chat()
    lines = [record for record in caplog.records if record.name == "headwater.request"]
    line = json.loads(lines[-1].getMessage())
    assert line["service_class"] == "standard"
    assert line["cached_tokens"] == 16
    assert line["predicted_cached_tokens"] == 0
    assert (line["attempts"], line["retries"]) == (1, 0)
    assert line["tokenizing_ms"] >= 0


async def test_what_was_loaded_stands_beside_what_was_expected(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headwater.request")
    card = msgspec.structs.replace(make_card(), node_cache=PeerAddress("a", 7000, b"secret"))
    engine = FakeEngine(card=card)
    edge = await make_edge(engine)
    first = asyncio.create_task(edge.complete("x" * 400))
    keys = engine.requests[await request_id_at(engine)].block_keys[7::8]
    engine.say(await request_id_at(engine), "a", FinishReason.STOP)
    await first
    edge.gateway.dispatchers["m"].engines.on_snapshot(
        engine, CacheSnapshot(0, keys, medium=Medium.HOST)
    )
    engine.step(LoadView(prefill_base_s=0.01, prefill_token_s=0.001))
    outcomes = [(392, RestoredTokens(host=392, seconds=0.147)), (0, None)]
    for number, (cached_tokens, restored) in enumerate(outcomes, start=1):
        asked = asyncio.create_task(edge.complete("x" * 400))
        request_id = await request_id_at(engine, number)
        usage = Usage(400, cached_tokens, 1, restored=restored)
        engine.send(TokenDelta(request_id, [5], FinishReason.STOP, usage))
        await asked
        engine.step(engine.load)
    by_source = f'{MODEL},source="host"'
    assert value(edge, f'restored_tokens_total{{medium="host",{MODEL}}}') == 392
    assert value(edge, f"transfers_missed_total{{{by_source}}}") == 1
    assert value(edge, f"transfer_actual_seconds_sum{{{by_source}}}") == pytest.approx(0.147)
    predicted_s = value(edge, f"transfer_predicted_seconds_sum{{{by_source}}}")
    assert predicted_s == pytest.approx(392 / 8000, rel=0.05), "8 times as fast as computed"
    ratio = value(edge, f"transfer_seconds_ratio_sum{{{by_source}}}")
    assert ratio == pytest.approx(0.147 / predicted_s)
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "headwater.request"]
    assert [line.get("source") for line in lines] == [None, "host", "host"]
    assert [line.get("restored_tokens") for line in lines] == [None, {"host": 392}, None]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_wall_clock_that_steps_changes_no_duration(
    make_edge: MakeEdge,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
) -> None:
    caplog.set_level(logging.INFO, logger="headwater.request")
    engine = FakeEngine(reply="abc")
    edge = await make_edge(engine)
    wall_s = time.time()

    def step() -> float:
        nonlocal wall_s
        wall_s += step_s
        return wall_s

    monkeypatch.setattr(time, "time", step)
    await edge.chat()
    client = RawClient(edge)
    await client.task
    lines = [
        json.loads(record.getMessage())
        for record in caplog.records
        if record.name == "headwater.request"
    ]
    assert len(lines) == 2
    for line in lines:
        durations = [duration for name, duration in line.items() if name.endswith("_ms")]
        assert len(durations) >= 4
        assert all(0 <= duration < 60_000 for duration in durations), line
    for request in engine.requests.values():
        assert all(0 <= event.at_s < 60 for event in request.timeline)
        assert 0 <= request.age_s < 60
        assert request.timeout_s > 60
    page = edge.gateway.render_metrics().decode()
    sums = re.findall(r"^headwater:\w+_seconds_(?:sum|total)\S* (\S+)$", page, re.MULTILINE)
    assert len(sums) >= 6
    assert all(0 <= float(total) < 60 for total in sums)
