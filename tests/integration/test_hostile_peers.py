"""Gateways that break the protocol, engines that are none, and an engine that stops for good."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from app.channel import ChannelClient, connect_engine
from app.client import EngineClient
from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.membership import ConnectError, EngineAddress, Membership
from app.queue import Job
from app.text.tokenization import Prompt
from cache_tiers.keys import BlockKey
from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    Demand,
    EngineMessage,
    EngineRequest,
    FinishReason,
    GetSnapshot,
    Grant,
    LoadView,
    ModelCard,
    Query,
    ReturnCredits,
    SamplingParams,
    StepFrame,
    Submit,
    TokenDelta,
)
from tests.integration.front_process import front_process
from tests.integration.paced_front import (
    FOREVER,
    SECRET,
    gateway_at,
    running,
    write_paced_checkpoint,
)
from tests.unit.app.dispatch_bench import Recorder
from tests.unit.app.fakes import make_card, until
from wire.connection import Connection, connect
from wire.errors import ConnectionClosed, WireError
from wire.limits import Limits
from wire.listener import listen

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MAX_NOTICE_S = 8.0
"""Five heartbeats that do not come, and what a busy machine adds."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


async def keep(card: ModelCard) -> ModelCard:
    return card


class Listener:
    """Remembers why a connection closed."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def on_credits(self, client: EngineClient) -> None: ...

    def on_step(self, client: EngineClient, events: CacheEvents | None) -> None: ...

    def on_snapshot(self, client: EngineClient, snapshot: CacheSnapshot) -> None: ...

    def on_draining(self, client: EngineClient) -> None: ...

    def on_rung(self, client: EngineClient) -> None: ...

    def on_closed(self, client: EngineClient, reason: str) -> None:
        self.reason = reason


def request(request_id: str, max_tokens: int = FOREVER) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    return EngineRequest(request_id, [1, 2, 3], b"root", [], sampling, timeout_s=60)


def encoded(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


BAD_FRAMES = {
    "no message": b"\xc1",
    "cut": encoded(Submit(request("r")))[:-4],
    "the engine's own": encoded(StepFrame([TokenDelta("r", [1])], LoadView())),
    "of another version": encoded({"type": "hello", "version": 7}),
    "without a credit": encoded(Submit(request("r"))),
    "credits it does not hold": encoded(ReturnCredits(5)),
    "less than no demand": encoded(Demand((0, -1, 0))),
    "a demand per class of another version": encoded({"type": "demand", "num_waiting": [1]}),
}


async def reason_of_end(connection: Connection) -> str:
    async with asyncio.timeout(5):
        while True:
            try:
                await connection.receive()
            except ConnectionClosed as closed:
                return closed.reason


async def test_gateways_that_break_the_protocol_are_cut_and_nobody_else_notices(
    checkpoint: Path,
) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as honest:
        await honest.submit("good", max_tokens=100)
        for name, frame in BAD_FRAMES.items():
            bad = await connect(endpoint, secret=SECRET)
            bad.send(frame)  # before it read the card
            assert await reason_of_end(bad) == "the peer closed the connection", name
            await bad.wait_closed()
        tokens, last = await honest.answer("good")
        assert (len(tokens), last.finish_reason) == (100, FinishReason.LENGTH)
        front.check_health()


async def test_a_gateway_that_floods_slows_nobody_down_for_long(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as honest:
        flooding = await connect(endpoint, secret=SECRET)
        demand, snapshot = encoded(Demand((0, 0, 0))), encoded(GetSnapshot())
        for number in range(5_000):
            flooding.send(demand)
            flooding.send(snapshot)
            flooding.send(encoded(Query(number, "steps", "")))
        await honest.submit("r", max_tokens=20)
        async with asyncio.timeout(5):
            tokens, _ = await honest.answer("r")
        assert len(tokens) == 20
        front.check_health()
        flooding.close("done")
        await flooding.wait_closed()


async def test_a_gateway_that_stalls_gives_back_what_it_holds(checkpoint: Path) -> None:
    mute = Limits(heartbeat_period_s=None)
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as honest,
        gateway_at(endpoint, mute) as stalled,
    ):
        await stalled.submit("r", max_tokens=FOREVER)
        await honest.until(lambda: honest.load.num_running == 1)
        await honest.until(lambda: honest.load.num_running == 0, MAX_NOTICE_S)
        assert await stalled.reason_of_end() == "the peer closed the connection"


async def test_a_forged_id_gets_no_answer_of_another_gateway(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as owner,
        gateway_at(endpoint) as forger,
    ):
        await owner.submit("r", max_tokens=60)
        await owner.started("r")
        await forger.submit("r", max_tokens=60)
        _, refusal = await forger.answer("r")
        assert refusal.is_refused
        tokens, last = await owner.answer("r")
        assert (len(tokens), last.finish_reason) == (60, FinishReason.LENGTH)


@asynccontextmanager
async def impostor(*messages: EngineMessage | bytes) -> AsyncIterator[EngineAddress]:
    """An engine that knows the secret and says ``messages``."""

    async def say(connection: Connection) -> None:
        for message in messages:
            connection.send(message if isinstance(message, bytes) else encoded(message))
        await connection.wait_closed()

    listener = await listen("127.0.0.1", None, secret=SECRET, on_connection=say)
    try:
        yield EngineAddress("e0", listener.endpoint, SECRET)
    finally:
        await listener.close()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (StepFrame([], LoadView()), "sent StepFrame before its card"),
        (Grant(3), "sent Grant before its card"),
        (make_card("another"), "is 'another', not 'e0'"),
        (msgspec.structs.replace(make_card("e0"), block_size_tokens=0), "block_size_tokens = 0"),
        (msgspec.structs.replace(make_card("e0"), max_num_seqs=-1), "max_num_seqs = -1"),
        (b"\xc1", "malformed|invalid"),
        (encoded(make_card("e0"))[:-9], "truncated"),
    ],
    ids=["step", "grant", "another", "no blocks", "no places", "no message", "cut"],
)
async def test_an_engine_that_does_not_show_its_card_first_is_not_used(
    first: EngineMessage | bytes, reason: str
) -> None:
    async with impostor(first, make_card("e0")) as address:
        with pytest.raises(ConnectError, match=f"(?i){reason}"):
            await connect_engine(address, Listener(), keep)


async def test_a_card_that_can_not_be_prepared_leaves_no_connection_behind() -> None:
    async def fail(card: ModelCard) -> ModelCard:
        raise RuntimeError("no tokenizer")

    num_sockets_before = num_sockets()
    async with impostor(make_card("e0")) as address:
        with pytest.raises(RuntimeError, match="no tokenizer"):
            await connect_engine(address, Listener(), fail)
        await until(lambda: num_sockets() == num_sockets_before + 1)  # the listener's own


async def test_nothing_is_heard_of_a_replica_after_its_connection_was_given_up() -> None:
    late = StepFrame([TokenDelta("r", [1])], LoadView())
    async with impostor(make_card("e0"), Grant(-1), late, Grant(1)) as address:
        listener = Listener()
        client = await connect_engine(address, listener, keep)
        await until(lambda: listener.reason is not None)
        assert (client.num_credits, client.is_accepting) == (0, False)


def num_sockets() -> int:
    return len(psutil.Process(os.getpid()).net_connections())


async def submitted(client: ChannelClient, name: str, sink: Callable[[TokenDelta], None]) -> None:
    client.set_demand((0, 1, 0))
    await until(lambda: client.num_credits > 0, 10)
    client.submit(request(name), sink)


async def test_a_stopped_replica_is_noticed_and_its_requests_end(checkpoint: Path) -> None:
    num_sockets_before, tasks_before = num_sockets(), asyncio.all_tasks()
    async with (
        front_process(checkpoint, "tiny/stopped") as stopped,
        running(checkpoint) as (_, healthy),
    ):
        listener, deltas, others = Listener(), list[TokenDelta](), list[TokenDelta]()
        address = EngineAddress(stopped.engine_id, stopped.endpoint, SECRET)
        client = await connect_engine(address, listener, keep)
        other = await connect_engine(EngineAddress("tiny/1", healthy, SECRET), Listener(), keep)
        await submitted(client, "stopped", deltas.append)
        await submitted(other, "healthy", others.append)
        await until(lambda: deltas and others, 10)
        stopped.stop_all()
        stopped_s = time.monotonic()
        asked = asyncio.create_task(client.query("steps", ""))
        await until(lambda: listener.reason is not None, MAX_NOTICE_S)
        assert listener.reason == "nothing came from the peer for 5 s"
        assert time.monotonic() - stopped_s > 3, "a pause of a moment is no reason"
        assert deltas[-1].finish_reason is FinishReason.ERROR
        with pytest.raises((ConnectionClosed, TimeoutError)):
            await asked
        num_ended = len(deltas)
        num_others = len(others)
        await until(lambda: len(others) > num_others + 10)
        assert len(deltas) == num_ended
        assert others[-1].finish_reason is None
        await client.close()
        await other.close()
    await until(lambda: asyncio.all_tasks() == tasks_before)
    assert num_sockets() == num_sockets_before


async def test_a_new_connection_to_a_stopped_replica_fails_in_time(checkpoint: Path) -> None:
    async with front_process(checkpoint, "tiny/stopped") as stopped:
        stopped.stop_all()
        address = EngineAddress(stopped.engine_id, stopped.endpoint, SECRET)
        started_s = time.monotonic()
        with pytest.raises(WireError, match="no handshake within 5 s"):
            await connect_engine(address, Listener(), keep)
        assert time.monotonic() - started_s < MAX_NOTICE_S


async def test_a_request_moves_on_from_a_stopped_replica(checkpoint: Path) -> None:
    async with (
        front_process(checkpoint, "tiny/1") as first,
        front_process(checkpoint, "tiny/2") as second,
    ):
        fronts = {front.engine_id: front for front in (first, second)}
        dispatcher = Dispatcher("tiny", GatewayConfig())
        membership = Membership(dispatcher, connect_engine, keep)
        membership.set_addresses(
            {
                engine_id: EngineAddress(engine_id, front.endpoint, SECRET)
                for engine_id, front in fronts.items()
            }
        )
        await until(lambda: len(dispatcher.fleet) == 2, 10)
        answer = Recorder(is_whole=True)
        job = unending_job(await dispatcher.ready_card(), answer)
        dispatcher.enqueue(job)
        await until(lambda: answer.deltas)
        lost = job.engine_id
        assert lost is not None
        fronts[lost].stop_all()
        await until(lambda: job.engine_id not in (None, lost), MAX_NOTICE_S)
        num_deltas = len(answer.deltas)
        await until(lambda: len(answer.deltas) > num_deltas + 10, 5)
        assert answer.error is None
        assert [member.engine_id for member in dispatcher.fleet] == [*fronts.keys() - {lost}]
        dispatcher.cancel(job.request_id)
        await membership.close()
        await dispatcher.close()
        dispatcher.check_integrity()


def unending_job(card: ModelCard, answer: Recorder) -> Job:
    root, token_ids = BlockKey(card.root_key), [1, 2, 3]
    now_s = time.monotonic()
    return Job(
        request_id="r",
        prompt=Prompt(token_ids, root, [], root),
        sampling=SamplingParams(max_tokens=FOREVER, temperature=0),
        answer=answer,
        arrived_s=now_s,
        deadline_s=now_s + 60,
    )
