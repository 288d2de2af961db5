"""A fleet that takes no requests: who waits, how long, and what the others are told."""

from collections.abc import AsyncIterator

import pytest

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.errors import ModelLoadingError, RequestTimeoutError
from app.readiness import FIRST_ABSENCE_S
from app.waiting import TICK_S
from engine.messages import ServiceClass
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.dispatch_bench import Bench, answer_of
from tests.unit.app.fakes import FakeEngine, make_card, until


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Requests may wait for 30 s."""
    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    bench.dispatcher = Dispatcher(
        "m", GatewayConfig(max_queue_len=2, max_queue_wait_s=30), clock=lambda: bench.now_s
    )
    yield bench
    bench.dispatcher.check_integrity()
    await bench.dispatcher.close()


def lose_the_only_engine(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.lose()


async def test_requests_wait_for_a_fleet_that_was_lost_a_moment_ago(bench: Bench) -> None:
    lose_the_only_engine(bench)
    assert (await bench.dispatcher.ready_card()).engine_id == "a", "its prompts can be made"
    job = bench.send()
    assert bench.dispatcher.queues()[0].estimated_wait_s >= FIRST_ABSENCE_S
    bench.now_s += 3
    back = FakeEngine("b")
    bench.add(back)
    assert list(back.requests) == [job.request_id]
    assert bench.dispatcher.queues()[0].estimated_wait_s == 0


async def test_while_weights_are_replaced_prompts_are_made_for_most_engines(bench: Bench) -> None:
    old = [FakeEngine(card=make_card(f"old-{number}", max_model_len=4096)) for number in range(2)]
    new = [FakeEngine(card=make_card(f"new-{number}", model="next")) for number in range(3)]
    for number, engine in enumerate([*old, *new]):
        bench.add(engine)
        assert bench.dispatcher.card is not None
        assert bench.dispatcher.card.engine_id == ("old-0" if number < 4 else "new-0")


async def test_who_waited_in_vain_is_told_when_to_come_back(bench: Bench) -> None:
    lose_the_only_engine(bench)
    job = bench.send()
    bench.now_s += 31
    await until(lambda: answer_of(job).error, timeout_s=20 * TICK_S)
    error = answer_of(job).error
    assert isinstance(error, ModelLoadingError)
    assert 0.7 * 31 <= int(error.headers["retry-after"]) <= 1.3 * 31


async def test_a_full_engine_is_no_missing_one(bench: Bench) -> None:
    bench.add(FakeEngine("a", num_credits=0))
    job = bench.send()
    bench.now_s += 31
    await until(lambda: answer_of(job).error, timeout_s=20 * TICK_S)
    assert isinstance(answer_of(job).error, RequestTimeoutError)


async def test_the_queue_of_an_empty_fleet_is_bounded(bench: Bench) -> None:
    lose_the_only_engine(bench)
    bench.send()
    bench.send()
    with pytest.raises(Exception, match="2 requests wait, of at most 2"):
        bench.send()


async def test_a_fleet_that_takes_long_to_come_back_is_not_waited_for(bench: Bench) -> None:
    for absence_s in (80, 80, 80):
        lose_the_only_engine(bench)
        bench.now_s += absence_s
    bench.add(FakeEngine("b"))
    lose = bench.dispatcher.fleet.get("b")
    assert lose is not None
    bench.dispatcher.engines.on_closed(lose.client, "it died, too")
    with pytest.raises(ModelLoadingError, match="in about") as caught:
        bench.send()
    assert int(caught.value.headers["retry-after"]) > 50
    assert bench.send(service_class=ServiceClass.BATCH), "the batch class may wait 60 s longer"


async def test_one_that_is_away_longer_than_ever_is_expected_to_be_away_as_long_again(
    bench: Bench,
) -> None:
    lose_the_only_engine(bench)
    bench.now_s += 31
    with pytest.raises(ModelLoadingError, match="about 31 s"):
        bench.send()


async def test_a_draining_fleet_is_waited_for_too(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.is_accepting = False
    bench.dispatcher.engines.on_draining(engine)
    job = bench.send()
    bench.now_s += 1
    bench.add(FakeEngine("b"))
    assert job.engine_id == "b"


async def test_over_http_a_request_survives_the_loss_of_all_engines(make_edge: MakeEdge) -> None:
    engine = FakeEngine("a", reply="ok")
    edge = await make_edge(engine)
    assert (await edge.chat()).status_code == 200
    engine.lose()
    edge.engines["a"] = engine
    engine.is_accepting, engine.num_credits = True, 10  # and discovery dials it again
    answer = await edge.chat()
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
