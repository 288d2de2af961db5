"""The engine's front: what an engine replica runs beside its step loop.

Owns the connections to the gateways and the credits; forwards requests to the step loop's process
and its frames to the gateways; knows whether that process is alive; drains. Must not know tensors,
Ray or HTTP. Lives on one event loop.
"""

import asyncio
import itertools
import logging
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from cache_tiers.messages import PeerAddress
from engine.cache_mirror import MAX_PART_KEYS, CacheMirror
from engine.checkpoints.store import open_checkpoint
from engine.config import EngineSpec
from engine.credits import CreditLedger
from engine.engine_metrics import EngineMetrics
from engine.errors import CreditError, EngineDeadError, EngineStartError, ProtocolError
from engine.gateway_link import GatewayLink
from engine.gateways import Gateways
from engine.messages import (
    Abort,
    Demand,
    Draining,
    GatewayMessage,
    GetSnapshot,
    Grant,
    LoadView,
    Query,
    ReturnCredits,
    StepFrame,
    Submit,
)
from engine.model_card import make_model_card
from engine.open_requests import OpenRequests
from engine.profile_orders import ProfileOrders
from engine.rank_group import MAX_SILENCE_S, RankGroup
from engine.rank_messages import FromGateway, GatewayGone, Record, StepReport, StoreKept
from engine.records import Records
from wire.connection import Connection
from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed
from wire.frames import MAX_FRAME_BYTES
from wire.limits import MIB, Limits
from wire.listener import Listener, listen

logger = logging.getLogger(__name__)

MAX_GATEWAY_BACKLOG_BYTES = 8 * MIB
"""Frames that a gateway has not read; with more, it is cut."""
DRAIN_SETTLE_S = 1.0
"""Credits that are out when draining begins can be used for so long: submits are on their way."""
STORE_KEPT_LIMIT_S = 5.0
"""For storing what the accelerator keeps, when the last request has ended."""
SNAPSHOT_KEY_BYTES = 40
"""Most that a key takes in a snapshot."""
MAX_REQUEST_ID_CHARS = 256
"""Records keep the ids."""
FAIR_TURN_FRAMES = 64
"""So many frames of one gateway are handled before others get their turn."""
_DRAIN_POLL_S = 0.05
_MAX_GATEWAY_FRAME_BYTES = MAX_FRAME_BYTES - 64
"""A gateway's frame goes on to the step loop inside of another one, which must not be too large."""


class Node(NamedTuple):
    """Where a replica runs, as gateways are told."""

    node_id: str = ""
    cache_address: PeerAddress | None = None
    """Of its cache, for other nodes'."""


class EngineFront:
    """Call order: ``start``, ``drain`` if there is time, ``close`` in any case."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        engine_id: str,
        secret: bytes,
        host: str,
        unix_dir: Path | None,
        node: Node | None = None,
        max_silence_s: float = MAX_SILENCE_S,
        max_gateway_backlog_bytes: int = MAX_GATEWAY_BACKLOG_BYTES,
        rank_module: str = "engine.rank",
    ) -> None:
        self._spec = spec.model_copy(update={"checkpoint": spec.checkpoint.absolute()})
        self._engine_id = engine_id
        self._secret = secret
        self._host = host
        self._unix_dir = unix_dir
        self._node = node or Node()
        self._max_gateway_backlog_bytes = max_gateway_backlog_bytes
        self._ranks = RankGroup(
            max_silence_s=max_silence_s, folder=unix_dir, rank_module=rank_module
        )
        max_num_seqs = spec.config.max_num_seqs
        self._ledger = CreditLedger(
            # A few wait inside, so that the next step already takes a finished request's place.
            max_num_seqs + max(2, max_num_seqs // 16),
            ttft_budget_s=spec.config.ttft_budget_s,
            step_budget_tokens=spec.config.max_num_batched_tokens,
        )
        self._sources = itertools.count(1)
        self._gateways = Gateways()
        self._open = OpenRequests(self._ledger)
        self._mirror = CacheMirror()
        self._records = Records()
        self._profile_orders = ProfileOrders()
        self._metrics: EngineMetrics | None = None
        self._load = LoadView()
        self._card = b""
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._is_draining = False
        self._kept_stored = asyncio.Event()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(GatewayMessage).decode

    @property
    def rank_pid(self) -> int:
        """Process id of the step loop."""
        return self._ranks.pid

    @property
    def num_open(self) -> int:
        """Samples that gateways submitted and that have not ended."""
        return self._ledger.num_in_flight

    @property
    def num_connected(self) -> int:
        """Gateways."""
        return len(self._gateways)

    async def start(self) -> Endpoint:
        """Load the model and listen. Raises ``EngineStartError``; ``close`` is due then, too."""
        ready = await self._ranks.start(self._spec)
        self._load = ready.load
        logger.info(
            "%s: loaded in %.2f s, warmed up in %.2f s, prefills %.0f tokens/s",
            self._engine_id,
            ready.load_time_s,
            ready.warm_up_time_s,
            ready.load.prefill_tokens_per_s,
        )
        self._metrics = EngineMetrics(
            self._spec,
            ready,
            engine_id=self._engine_id,
            steps=self._records.steps,
            ranks=self._ranks,
        )
        checkpoint = await asyncio.to_thread(open_checkpoint, self._spec.checkpoint)
        card = make_model_card(self._spec, checkpoint, ready, engine_id=self._engine_id)
        self._card = self._encode(
            msgspec.structs.replace(
                card, node_id=self._node.node_id, node_cache=self._node.cache_address
            )
        )
        try:
            self._listener = await listen(
                self._host,
                self._unix_dir / "engine.sock" if self._unix_dir is not None else None,
                secret=self._secret,
                on_connection=self._serve,
                limits=Limits(
                    max_frame_bytes=_MAX_GATEWAY_FRAME_BYTES,
                    max_send_queue_bytes=len(self._card)
                    + MAX_PART_KEYS * SNAPSHOT_KEY_BYTES
                    + self._max_gateway_backlog_bytes,
                ),
            )
        except (OSError, ValueError) as error:
            raise EngineStartError(f"cannot listen on {self._host}: {error}") from error
        self._tasks = [
            asyncio.create_task(self._relay(), name="relay"),
            asyncio.create_task(self._gateways.share_load(lambda: self._load), name="share load"),
        ]
        return self._listener.endpoint

    def check_health(self) -> None:
        """Raises ``EngineDeadError`` with the reason when a rank is gone or stuck."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self._ranks.check()
        if not self._ranks.is_running:
            raise EngineDeadError("the engine is not running")

    def render_metrics(self) -> bytes:
        """In Prometheus' text format, as things are now. Precondition: ``start`` returned."""
        assert self._metrics is not None, "metrics follow start"
        return self._metrics.render()

    async def drain(self, grace_s: float | None = None) -> bool:
        """Grant nothing more and wait for the running requests, up to ``grace_s`` if given.

        Returns whether all of them ended.
        """
        self._is_draining = True
        self._ledger.stop_granting()
        self._gateways.tell(Draining())
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        while self._failure is None:
            is_settled = self._ledger.num_granted == 0 or now_s() - started_s > DRAIN_SETTLE_S
            if self._ledger.num_in_flight == 0 and is_settled:
                await self._store_kept()
                return True
            if grace_s is not None and now_s() - started_s > grace_s:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        return False

    async def _store_kept(self) -> None:
        """Let the node's cache have the prefixes that only this replica holds."""
        if self._spec.node_cache_socket is None:
            return
        self._ranks.send(StoreKept())
        try:
            await asyncio.wait_for(self._kept_stored.wait(), STORE_KEPT_LIMIT_S)
        except TimeoutError:
            logger.warning(
                "%s: not all cached prefixes were stored in %.0f s, the rest is lost",
                self._engine_id,
                STORE_KEPT_LIMIT_S,
            )

    async def close(self) -> None:
        """Close all connections and end the step loop's process; fine at any time, even twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
        await self._ranks.stop()

    async def _serve(self, connection: Connection) -> None:
        """One gateway, from its handshake to its end."""
        gateway = GatewayLink(next(self._sources), connection, self._mirror.snapshot)
        self._gateways.enter(gateway)
        self._ledger.set_demand(gateway.source, (0, 0, 0))
        connection.send(self._card)
        gateway.ask_snapshot()
        connection.send(self._encode(StepFrame([], self._load)))
        self._gateways.tell_number()
        if self._is_draining:
            connection.send(self._encode(Draining()))
        try:
            for num_frames in itertools.count(1):
                if self._failure is not None:
                    break
                self._take(gateway, await connection.receive())
                if num_frames % FAIR_TURN_FRAMES == 0:
                    await asyncio.sleep(0)
            connection.close(self._failure or "")
        except ConnectionClosed as closed:
            logger.info("gateway %d is gone: %s", gateway.source, closed.reason)
        except (CreditError, ProtocolError, msgspec.MsgspecError) as error:
            logger.warning("gateway %d broke the protocol: %s", gateway.source, error)
            connection.close(str(error))
        finally:
            self._gateways.leave(gateway)
            self._ledger.closed(gateway.source)
            self._ranks.send(GatewayGone(gateway.source))
            self._grant()

    def _take(self, gateway: GatewayLink, payload: bytes) -> None:
        message = self._decode(payload)
        if isinstance(message, Abort):
            if self._open.can_abort(gateway.source, message.request_id):
                self._ranks.send(FromGateway(gateway.source, payload))
            return
        if isinstance(message, GetSnapshot):
            gateway.ask_snapshot()
            return
        if isinstance(message, Query):
            self._answer(gateway, message)
            return
        if isinstance(message, Demand):
            self._ledger.set_demand(gateway.source, message.num_waiting)
        elif isinstance(message, ReturnCredits):
            self._ledger.returned(gateway.source, message.num_credits)
        else:
            self._submit(gateway.source, message, payload)
        self._grant()

    def _answer(self, gateway: GatewayLink, query: Query) -> None:
        is_allowed = gateway.queries.allows(time.monotonic())
        if is_allowed and query.kind == "profile":
            order = self._profile_orders.take(gateway.source, query)
            if isinstance(order, Record):
                self._ranks.send(order)
                return
            reply = order
        else:
            reply = self._records.answer(query, is_allowed=is_allowed)
        gateway.connection.send(self._encode(reply))

    def _submit(self, source: int, message: Submit, payload: bytes) -> None:
        request = message.request
        if len(request.request_id) > MAX_REQUEST_ID_CHARS:
            raise ProtocolError(f"a request id is longer than {MAX_REQUEST_ID_CHARS} characters")
        self._open.submitted(source, request)
        self._records.submitted(request)
        self._ranks.send(FromGateway(source, payload))

    def _grant(self) -> None:
        for source, num_credits in self._ledger.grants(self._load).items():
            self._gateways.send(source, Grant(num_credits))

    async def _relay(self) -> None:
        """Pass on what the step loop reports, until its process ends."""
        try:
            while True:
                self._pass_on(await self._ranks.receive())
        except ConnectionClosed:
            self._fail(await self._ranks.describe_end())
        except Exception:
            logger.exception("a report of the step loop could not be passed on")
            self._fail("the engine's front failed")

    def _pass_on(self, report: StepReport) -> None:
        self._load = report.load
        if report.is_kept_stored:
            self._kept_stored.set()
        if report.events is not None:
            self._mirror.apply(report.events)
        self._follow(report)
        if report.profile is not None:
            source, reply = self._profile_orders.finished(report.profile)
            self._gateways.send(source, reply)
        self._gateways.pass_on(report.frames, report.load, report.events)
        self._grant()

    def _follow(self, report: StepReport) -> None:
        """Count and record what became of the requests."""
        finished = self._records.follow(report, self._open.follow(report))
        assert self._metrics is not None
        self._metrics.record(report, finished)

    def _fail(self, reason: str) -> None:
        logger.error("%s: %s", self._engine_id, reason)
        self._failure = reason
        self._gateways.close(reason)
