"""The step loop of an engine with a node's cache: what wakes it, what it tells without steps."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from cache_tiers.messages import MediaEvents
from cache_tiers.tier import TierKind
from engine.messages import CacheEvents, EngineRequest, Medium, Submit
from engine.rank_messages import FromGateway, RankEvent, StepReport, StoreKept
from engine.step_loop import ANSWER_WAIT_S, IDLE_POLL_S, StepLoop
from tests.unit.engine.fakes import make_request
from tests.unit.engine.tier_fakes import TieredEngine, make_tiered
from wire.pipe import SyncPipe

PROMPT = [3, *range(10, 30)]


@dataclass
class Bench:
    loop: StepLoop
    tiered: TieredEngine
    front: SyncPipe
    node: SyncPipe
    """The node's end of its connection."""

    def submit(self, request: EngineRequest) -> None:
        payload = msgspec.msgpack.encode(Submit(request))
        self.front.send(msgspec.msgpack.encode(FromGateway(1, payload)))

    def reports(self) -> list[StepReport]:
        """Of one turn."""
        self.loop.turn()
        events = [msgspec.msgpack.decode(frame, type=RankEvent) for frame in self.front.poll(0.0)]
        assert all(isinstance(event, StepReport) for event in events)
        return [event for event in events if isinstance(event, StepReport)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    tiered = make_tiered()
    tiered.engine._clock = time.monotonic  # the loop's
    pairs = [socket.socketpair(), socket.socketpair()]
    loop_end, front, engine_end, node = (SyncPipe(s) for pair in pairs for s in pair)
    tiered.node.pipe = engine_end
    yield Bench(StepLoop(tiered.engine, loop_end), tiered, front, node)
    for pipe in (loop_end, front, engine_end, node):
        pipe.close()


def turn_s(bench: Bench) -> float:
    started_s = time.monotonic()
    bench.reports()
    return time.monotonic() - started_s


def test_an_idle_loop_wakes_for_the_node(bench: Bench) -> None:
    bench.node.send(b"news")

    assert turn_s(bench) < IDLE_POLL_S / 2


def test_an_idle_loop_wakes_for_the_front(bench: Bench) -> None:
    bench.submit(make_request("a", PROMPT))

    assert turn_s(bench) < IDLE_POLL_S / 2


def test_an_idle_loop_waits_no_longer_than_the_prompts_that_wait_for_the_node(
    bench: Bench,
) -> None:
    bench.tiered.node.is_silent = True
    bench.submit(make_request("a", PROMPT, timeout_s=0.05))
    bench.reports()

    assert 0.1 < turn_s(bench) < IDLE_POLL_S / 2


def test_a_request_that_waits_for_the_node_is_told_at_once(bench: Bench) -> None:
    bench.tiered.node.is_silent = True
    bench.submit(make_request("a", PROMPT))

    [report] = bench.reports()

    assert report.num_submits_taken == 1
    assert [note.event.kind for note in report.notes] == ["taken"]
    assert report.load.num_waiting == 1
    assert report.record is None


def test_a_step_waits_a_moment_for_the_answer_to_a_prompt_that_just_came(bench: Bench) -> None:
    bench.submit(make_request("busy", [3, 5], max_tokens=50))
    bench.reports()
    bench.tiered.node.is_silent = True
    bench.submit(make_request("a", PROMPT))
    started_s = time.monotonic()
    bench.reports()
    assert time.monotonic() - started_s >= ANSWER_WAIT_S

    assert bench.tiered.desk.num_waiting == 1
    assert bench.tiered.engine.load.num_running == 1  # who decodes has gone on


def test_what_media_gained_is_told_without_a_step_and_in_order(bench: Bench) -> None:
    key, other = b"a" * 16, b"b" * 16
    bench.tiered.node.news += [
        MediaEvents(TierKind.HOST, [key], []),
        MediaEvents(TierKind.DISK, [other], [key]),
    ]
    bench.node.send(b"news")

    reports = bench.reports()

    assert [report.events for report in reports] == [
        CacheEvents(1, [key], [], Medium.HOST),
        CacheEvents(2, [other], [key], Medium.DISK),
    ]
    assert all(report.record is None for report in reports)
    assert all(report.stats.tiers is not None for report in reports)


def test_a_replica_that_leaves_stores_what_it_keeps_and_says_so(bench: Bench) -> None:
    bench.submit(make_request("a", PROMPT, max_tokens=1))
    bench.reports()
    bench.front.send(msgspec.msgpack.encode(StoreKept(7)))

    reports = bench.reports()

    assert [report.kept_stored for report in reports] == [None, 7]
    assert reports[0].record is not None
    assert reports[0].record.num_stores == 5
    assert len(bench.tiered.node.images) == 5
