"""The channel client against the other end of a socket pair."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest

from app.channel import ChannelClient
from app.client import EngineClient
from cache_tiers.rung import Rung
from engine.messages import (
    Abort,
    CacheEvents,
    CacheSnapshot,
    Demand,
    Draining,
    EngineMessage,
    EngineRequest,
    FinishReason,
    GatewayMessage,
    GetSnapshot,
    Grant,
    LoadView,
    Peers,
    Query,
    Reply,
    ReturnCredits,
    SamplingParams,
    StepFrame,
    Submit,
    TokenDelta,
)
from engine.rung_messages import RungOrder, RungState
from tests.unit.app.fakes import make_card, until
from wire.connection import Connection, adopt
from wire.errors import ConnectionClosed

REQUEST = EngineRequest("r", [1, 2], b"root", [], SamplingParams(max_tokens=3), timeout_s=5)


@dataclass(eq=False)
class Listener:
    """Remembers what it was told."""

    heard: list[str] = field(default_factory=list)
    events: list[CacheEvents | None] = field(default_factory=list)

    def on_credits(self, client: EngineClient) -> None:
        self.heard.append("credits")

    def on_step(self, client: EngineClient, events: CacheEvents | None) -> None:
        self.heard.append("step")
        self.events.append(events)

    def on_snapshot(self, client: EngineClient, snapshot: CacheSnapshot) -> None:
        self.heard.append("snapshot")

    def on_draining(self, client: EngineClient) -> None:
        self.heard.append("draining")

    def on_rung(self, client: EngineClient) -> None:
        self.heard.append("rung")

    def on_closed(self, client: EngineClient, reason: str) -> None:
        self.heard.append("closed")


@dataclass(frozen=True, slots=True)
class Pair:
    """A client and the engine's end of its connection."""

    client: ChannelClient
    engine: Connection
    listener: Listener

    def send(self, message: EngineMessage) -> None:
        self.engine.send(msgspec.msgpack.encode(message))

    async def next(self) -> GatewayMessage:
        return msgspec.msgpack.decode(await self.engine.receive(), type=GatewayMessage)

    async def grant(self, num_credits: int) -> None:
        """As many as the client then asks for."""
        self.client.set_demand((0, num_credits, 0))
        assert await self.next() == Demand((0, num_credits, 0))
        self.send(Grant(num_credits))
        await until(lambda: self.client.num_credits == num_credits)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    listener = Listener()
    client = ChannelClient(await adopt(ours), make_card(), listener)
    engine = await adopt(theirs)
    yield Pair(client, engine, listener)
    await client.close()
    engine.close("the test ended")
    await engine.wait_closed()


async def test_a_request_goes_down_and_its_deltas_come_up_in_order(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(REQUEST, deltas.append)
    assert pair.client.num_credits == 0
    assert await pair.next() == Submit(REQUEST)
    sent = [TokenDelta("r", [1]), TokenDelta("r", [2], FinishReason.STOP), TokenDelta("r", [3])]
    events = CacheEvents(1, [b"k"], [])
    pair.send(StepFrame(sent[:1], LoadView(num_running=1), events))
    pair.send(StepFrame(sent[1:], LoadView(num_running=2)))
    await until(lambda: len(pair.listener.events) == 2)
    assert deltas == sent[:2], "something followed the last delta"
    assert pair.listener.events == [events, None]
    assert pair.client.load.num_running == 2


async def test_no_demand_gives_unused_credits_back(pair: Pair) -> None:
    await pair.grant(2)
    pair.client.set_demand((0, 0, 0))
    assert pair.client.num_credits == 0
    assert [await pair.next() for _ in range(2)] == [ReturnCredits(2), Demand((0, 0, 0))]


async def test_a_grant_that_crossed_the_end_of_the_demand_goes_back(pair: Pair) -> None:
    pair.client.set_demand((0, 1, 0))
    pair.client.set_demand((0, 0, 0))
    pair.send(Grant(1))
    assert [await pair.next() for _ in range(3)] == [
        Demand((0, 1, 0)),
        Demand((0, 0, 0)),
        ReturnCredits(1),
    ]
    assert pair.client.num_credits == 0


async def test_only_open_requests_are_aborted(pair: Pair) -> None:
    await pair.grant(1)
    pair.client.abort("unknown")
    pair.client.submit(REQUEST, lambda delta: None)
    pair.client.abort("r", 2)
    pair.client.abort("r", 2, 1)
    assert [await pair.next() for _ in range(3)] == [
        Submit(REQUEST),
        Abort("r", 2),
        Abort("r", 2, 1),
    ]


async def test_a_request_is_open_until_its_last_sample_ends(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(msgspec.structs.replace(REQUEST, num_samples=2), deltas.append)
    sent = [
        TokenDelta("r", [1], FinishReason.STOP, index=1),
        TokenDelta("r", [2], index=1),
        TokenDelta("r", [3], index=0),
        TokenDelta("r", [4], index=7),
        TokenDelta("r", [5], FinishReason.STOP, index=0),
        TokenDelta("r", [6], index=0),
    ]
    pair.send(StepFrame(sent, LoadView()))
    await until(lambda: pair.listener.events)
    assert deltas == [sent[0], sent[2], sent[4]], "something of a sample that had ended, or is none"


async def test_a_lost_connection_ends_every_open_sample_once(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(msgspec.structs.replace(REQUEST, num_samples=3), deltas.append)
    pair.send(StepFrame([TokenDelta("r", [1], FinishReason.STOP, index=1)], LoadView()))
    await until(lambda: pair.listener.events)
    pair.engine.close("gone")
    await until(lambda: "closed" in pair.listener.heard)
    lost = [delta.index for delta in deltas if delta.finish_reason is FinishReason.ERROR]
    assert lost == [0, 2]


async def test_a_refusal_ends_all_samples(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(msgspec.structs.replace(REQUEST, num_samples=3), deltas.append)
    refusal = TokenDelta("r", [], FinishReason.ERROR, error="no", is_refused=True)
    pair.send(StepFrame([refusal, TokenDelta("r", [1], index=1)], LoadView()))
    await until(lambda: pair.listener.events)
    pair.client.abort("r")
    pair.client.set_demand((0, 0, 0))
    assert deltas == [refusal]
    heard = [await pair.next() for _ in range(2)]
    assert not any(isinstance(message, Abort) for message in heard)


async def test_it_hears_how_many_gateways_there_are(pair: Pair) -> None:
    assert pair.client.num_gateways == 1
    pair.send(Peers(3))
    await until(lambda: pair.client.num_gateways == 3)


async def test_a_draining_engine_takes_nothing_more_and_finishes_what_runs(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(2)
    pair.client.submit(REQUEST, deltas.append)
    pair.send(Draining())
    pair.send(Grant(1))
    pair.send(StepFrame([TokenDelta("r", [1], FinishReason.STOP)], LoadView()))
    await until(lambda: deltas)
    assert pair.listener.heard == ["credits", "draining", "step"]
    assert not pair.client.is_accepting
    assert pair.client.num_credits == 0


async def test_a_lost_connection_ends_open_requests_before_it_is_told(pair: Pair) -> None:
    order: list[str] = []
    await pair.grant(2)
    pair.client.submit(REQUEST, lambda delta: order.append(str(delta.finish_reason)))
    pair.engine.close("gone")
    await until(lambda: "closed" in pair.listener.heard)
    assert order == ["error"]
    assert not pair.client.is_accepting
    assert pair.client.num_credits == 0


async def test_a_message_that_is_not_understood_closes_the_connection(pair: Pair) -> None:
    pair.engine.send(b"\xc1 is never msgpack")
    await until(lambda: "closed" in pair.listener.heard)
    async with asyncio.timeout(2):
        await pair.engine.wait_closed()


@pytest.mark.parametrize(
    "message",
    [
        StepFrame([], LoadView(num_running=-1)),
        StepFrame([], LoadView(step_time_s=float("nan"))),
        StepFrame([], LoadView(prefill_tokens_per_s=float("inf"))),
        StepFrame([], LoadView(pending_prefill_tokens=10**18)),
        Grant(-1),
        Grant(10**12),
        Peers(0),
        Peers(10**12),
        make_card(),
    ],
)
async def test_nonsense_closes_the_connection_and_ends_what_is_open(
    pair: Pair, message: EngineMessage
) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(REQUEST, deltas.append)
    pair.send(message)
    await until(lambda: "closed" in pair.listener.heard)
    assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]
    assert "nonsense" in str(deltas[0].error)
    assert pair.client.load == LoadView()


async def test_forged_deltas_and_unknown_replies_are_ignored(pair: Pair) -> None:
    pair.send(StepFrame([TokenDelta("forged", [1], FinishReason.STOP)], LoadView()))
    pair.send(Reply(77, b"[]"))
    pair.send(CacheSnapshot(1, [b"k"]))
    await until(lambda: "snapshot" in pair.listener.heard)
    assert pair.client.is_accepting


async def test_a_query_gets_the_reply_of_its_id(pair: Pair) -> None:
    asked = asyncio.create_task(pair.client.query("request", "r"))
    assert await pair.next() == Query(1, "request", "r")
    pair.send(Reply(2, b"another"))
    pair.send(Reply(1, b"[]"))
    assert await asked == b"[]"


async def test_a_query_ends_with_the_connection(pair: Pair) -> None:
    asked = asyncio.create_task(pair.client.query("steps", ""))
    await pair.next()
    pair.engine.close("gone")
    with pytest.raises(ConnectionClosed):
        await asked
    with pytest.raises(ConnectionClosed):
        await pair.client.query("steps", "")


async def test_missed_events_are_asked_for(pair: Pair) -> None:
    pair.client.request_snapshot()
    assert await pair.next() == GetSnapshot()


async def test_nothing_is_delivered_once_the_connection_is_given_up(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(REQUEST, deltas.append)
    pair.send(Grant(-1))
    pair.send(StepFrame([TokenDelta("r", [1])], LoadView(num_running=1)))
    pair.send(Grant(1))
    pair.send(CacheSnapshot(1, [b"k"]))
    await until(lambda: "closed" in pair.listener.heard)
    await pair.engine.wait_closed()
    assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]
    assert pair.listener.heard == ["credits", "closed"]
    assert (pair.client.num_credits, pair.client.load) == (0, LoadView())


async def test_a_request_is_not_touched_by_what_is_said_of_others(pair: Pair) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(REQUEST, deltas.append)
    own = TokenDelta("r", [1])
    forged = [
        TokenDelta(name, [9], FinishReason.STOP) for name in ("", "R", "r ", "r\0", "q" * 1000)
    ]
    forged += [TokenDelta("r", [9], FinishReason.STOP, index=index) for index in (-1, 1, 2**40)]
    pair.send(StepFrame([*forged, own], LoadView()))
    await until(lambda: deltas)
    assert deltas == [own]


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode(StepFrame([TokenDelta("r", [1])], LoadView()))[:-3],
        msgspec.msgpack.encode(StepFrame([TokenDelta("r", [1])], LoadView())) + b"\x00",
        msgspec.msgpack.encode(Submit(REQUEST)),
        msgspec.msgpack.encode({"type": "of a later version"}),
        msgspec.msgpack.encode({"type": "step", "deltas": [["r", ["one"]]], "load": []}),
        msgspec.msgpack.encode({"type": "grant", "num_credits": True}),
    ],
    ids=["cut", "too long", "the other way", "unknown", "mistyped", "no number"],
)
async def test_what_is_no_message_of_ours_closes_the_connection(pair: Pair, payload: bytes) -> None:
    deltas: list[TokenDelta] = []
    await pair.grant(1)
    pair.client.submit(REQUEST, deltas.append)
    pair.engine.send(payload)
    await until(lambda: "closed" in pair.listener.heard)
    assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]


async def test_a_query_without_a_reply_ends_and_a_late_one_is_ignored() -> None:
    ours, theirs = socket.socketpair()
    client = ChannelClient(await adopt(ours), make_card(), Listener())
    pair = Pair(client, await adopt(theirs), Listener())
    with pytest.raises(TimeoutError):
        await client.query("steps", "", timeout_s=0.02)
    pair.send(Reply(1, b"late"))
    asked = asyncio.create_task(client.query("steps", ""))
    assert [await pair.next() for _ in range(2)] == [Query(1, "steps"), Query(2, "steps")]
    pair.send(Reply(2, b"[]"))
    pair.send(Reply(2, b"again"))
    assert await asked == b"[]"
    await client.close()
    await pair.engine.wait_closed()


async def test_an_engine_that_sleeps_gets_its_credits_back_and_serves_again(pair: Pair) -> None:
    """It goes on counting them: kept ones would never be granted again."""
    await pair.grant(2)
    pair.send(RungState(Rung.SERVING, is_moving=True))
    assert await pair.next() == ReturnCredits(2)
    assert (pair.client.num_credits, pair.client.is_accepting) == (0, False)
    pair.send(Grant(1))  # on its way meanwhile
    assert await pair.next() == ReturnCredits(1)
    pair.send(RungState(Rung.PARKED, wake_s=1.5))
    await until(lambda: pair.client.rung_state == RungState(Rung.PARKED, wake_s=1.5))
    pair.client.set_rung(RungOrder(Rung.SERVING, 1, 2))
    assert await pair.next() == RungOrder(Rung.SERVING, 1, 2)
    pair.send(RungState(Rung.SERVING))
    await until(lambda: pair.client.is_accepting)
    assert pair.listener.heard == ["credits", "rung", "rung", "rung"]
    pair.send(Grant(1))
    await until(lambda: pair.client.num_credits == 1)


@pytest.mark.parametrize(
    "state",
    [
        RungState(Rung.STAGED),
        RungState(Rung.PARKED, wake_s=float("nan")),
        RungState(Rung.SERVING, sleep_s=-1.0),
    ],
)
async def test_a_rung_that_no_replica_stands_on_closes_the_connection(
    pair: Pair, state: RungState
) -> None:
    pair.send(state)
    await until(lambda: "closed" in pair.listener.heard)
    assert "rung" not in pair.listener.heard
