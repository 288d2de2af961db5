"""The connection to the node's cache: order of news, a lost node, later attempts."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from cache_tiers.messages import Cancel, EngineToNode, Gone, NodeToEngine, Slots
from cache_tiers.tier import TierError
from engine.tier_link import MOST_RETRY_S, RETRY_S, LinkDown, LinkUp, TierLink
from tests.unit.engine.fakes import FakeClock
from tests.unit.engine.tier_fakes import FakeArena
from wire.frames import HEADER_BYTES
from wire.pipe import SyncPipe

ARENA = FakeArena(memoryview(bytearray(16)))


@dataclass
class Dialer:
    """Connects to this process, or fails as long as a test says so."""

    error: Exception | None = None
    num_attempts: int = 0
    nodes: list[SyncPipe] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> tuple[SyncPipe, FakeArena]:
        self.num_attempts += 1
        self.gate.wait(5)
        if self.error is not None:
            raise self.error
        ours, theirs = socket.socketpair()
        self.nodes.append(SyncPipe(theirs))
        return SyncPipe(ours), ARENA

    def say(self, *messages: NodeToEngine) -> None:
        for message in messages:
            self.nodes[-1].send(msgspec.msgpack.encode(message))


@pytest.fixture
def dialer() -> Iterator[Dialer]:
    dialer = Dialer()
    dialer.gate.set()
    yield dialer
    for node in dialer.nodes:
        node.close()


def poll(link: TierLink) -> list[object]:
    """Until something comes."""
    for _ in range(500):
        news = link.poll()
        if news:
            return list(news)
        time.sleep(0.002)
    return []


def test_messages_come_in_order_after_the_node_itself(dialer: Dialer) -> None:
    link = TierLink(dialer)
    link.connect_now()
    dialer.say(Slots([1, 2]), Gone([b"k" * 16]))

    assert poll(link) == [LinkUp(ARENA), Slots([1, 2]), Gone([b"k" * 16])]
    link.send(Cancel(3))
    [frame] = dialer.nodes[0].poll(1.0)
    assert msgspec.msgpack.decode(frame, type=EngineToNode) == Cancel(3)
    link.close()


def test_an_attempt_does_not_hold_the_loop_up(dialer: Dialer) -> None:
    dialer.gate.clear()
    link = TierLink(dialer)

    started_s = time.monotonic()
    for _ in range(100):
        assert link.poll() == []
    assert time.monotonic() - started_s < 1.0
    assert dialer.num_attempts == 1
    dialer.gate.set()

    assert poll(link) == [LinkUp(ARENA)]
    link.close()


def test_a_node_that_goes_is_told_once_and_tried_again_later(
    dialer: Dialer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    link = TierLink(dialer, clock=clock)
    link.connect_now()
    assert poll(link) == [LinkUp(ARENA)]
    dialer.nodes[0].close()

    [news] = poll(link)
    assert isinstance(news, LinkDown)
    assert link.pipe is None
    link.send(Cancel(1))
    assert link.poll() == []
    assert dialer.num_attempts == 1
    clock.now_s += RETRY_S

    assert poll(link) == [LinkUp(ARENA)]
    assert caplog.text.count("is gone") == 1
    link.close()


def test_a_node_that_is_not_there_is_logged_once(
    dialer: Dialer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    dialer.error = TierError("no node cache at /nowhere")
    link = TierLink(dialer, clock=clock)
    link.connect_now()
    for _ in range(3):
        num_attempts = dialer.num_attempts
        assert link.poll() == []
        clock.now_s += RETRY_S
        link.poll()
        while dialer.num_attempts == num_attempts:
            time.sleep(0.002)
        while link._attempts.empty():
            time.sleep(0.002)

    assert caplog.text.count("/nowhere") == 1


@pytest.mark.parametrize("garbage", [b"\xc1", msgspec.msgpack.encode(["no", "message"])])
def test_a_node_that_breaks_the_protocol_is_left(dialer: Dialer, garbage: bytes) -> None:
    link = TierLink(dialer)
    link.connect_now()
    assert poll(link) == [LinkUp(ARENA)]
    dialer.nodes[0].send(garbage)

    [news] = poll(link)

    assert isinstance(news, LinkDown)
    assert "protocol" in news.reason


def test_a_node_that_does_not_read_is_left(dialer: Dialer) -> None:
    link = TierLink(dialer)
    link.connect_now()
    poll(link)
    assert link.pipe is not None
    link.pipe._max_send_queue_bytes = HEADER_BYTES

    link.send(Cancel(1))

    [news] = poll(link)
    assert isinstance(news, LinkDown)


def test_a_connection_that_can_not_be_used_is_dropped(dialer: Dialer) -> None:
    link = TierLink(dialer)
    link.connect_now()
    poll(link)

    link.drop("rank 1 can't use the arena")

    assert poll(link) == [LinkDown("rank 1 can't use the arena")]


def test_connections_that_do_not_last_are_made_ever_more_rarely(dialer: Dialer) -> None:
    clock = FakeClock(now_s=1000.0)
    link = TierLink(dialer, clock=clock)
    link.connect_now()
    pauses_s = []
    for lasts_s in (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, MOST_RETRY_S):
        assert poll(link) == [LinkUp(ARENA)]
        clock.now_s += lasts_s
        link.drop("rank 1 can't use the arena")
        link.poll()
        pauses_s.append(link._retry_at_s - clock.now_s)
        clock.now_s = link._retry_at_s

    assert pauses_s == [RETRY_S, 6.0, 12.0, 24.0, 48.0, MOST_RETRY_S, RETRY_S]
    link.close()
