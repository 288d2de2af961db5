"""The engine's front: what an engine replica runs beside its step loop.

Owns the connections to the gateways and the credits; forwards requests to the step loop's process
and its frames to the gateways; knows whether that process is alive; drains, and sleeps and wakes as
it is ordered. Must not know tensors, Ray or HTTP. Lives on one event loop.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.cache_mirror import MAX_PART_KEYS, CacheMirror
from engine.checkpoints.store import open_checkpoint
from engine.config import EngineSpec
from engine.credits import CreditLedger
from engine.emptying import SETTLE_S, Emptying
from engine.engine_metrics import EngineMetrics
from engine.errors import CreditError, EngineDeadError, EngineStartError, ProtocolError
from engine.gateway_inbox import GatewayInbox
from engine.gateway_link import GatewayLink
from engine.gateways import Gateways
from engine.messages import Draining, Grant, LoadView, StepFrame
from engine.model_card import NOWHERE, Node, make_model_card
from engine.open_requests import OpenRequests
from engine.query_desk import QueryDesk
from engine.rank_group import MAX_SILENCE_S, RankGroup
from engine.rank_messages import GatewayGone, StepReport
from engine.rank_process import RANK_MODULE
from engine.records import Records
from engine.rung_keeper import RungKeeper
from engine.rung_messages import RungState
from engine.start_stages import ReplicaStart, StageClock
from wire.connection import Connection
from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed
from wire.frames import MAX_FRAME_BYTES
from wire.limits import MIB, Limits
from wire.listener import Listener, listen

logger = logging.getLogger(__name__)

MAX_GATEWAY_BACKLOG_BYTES = 8 * MIB
"""Frames that a gateway has not read; with more, it is cut."""
SNAPSHOT_KEY_BYTES = 40
"""Most that a key takes in a snapshot."""
FAIR_TURN_FRAMES = 64
"""So many frames of one gateway are handled before others get their turn."""
_MAX_GATEWAY_FRAME_BYTES = MAX_FRAME_BYTES - 64
"""A gateway's frame goes on to the step loop inside of another one, which must not be too large."""


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
        node: Node = NOWHERE,
        max_silence_s: float = MAX_SILENCE_S,
        max_gateway_backlog_bytes: int = MAX_GATEWAY_BACKLOG_BYTES,
        rank_module: str = RANK_MODULE,
    ) -> None:
        self._spec = spec.model_copy(update={"checkpoint": spec.checkpoint.absolute()})
        self._engine_id = engine_id
        self._secret = secret
        self._host = host
        self._unix_dir = unix_dir
        self._node = node
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
        self._queries = QueryDesk(self._records, self._gateways, self._ranks.send)
        self._metrics: EngineMetrics | None = None
        self._load = LoadView()
        self._start: ReplicaStart | None = None
        self._card = b""
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._is_draining = False
        self._emptying = Emptying(
            self._ledger,
            self._ranks.send,
            has_node_cache=spec.node_cache_socket is not None,
            can_hand_over=lambda: self._gateways.have_successor,
        )
        self._rung = RungKeeper(
            self._ledger,
            self._emptying,
            self._ranks.send,
            self._tell_rung,
            hand_over_after_s=spec.config.hand_over_after_s,
        )
        self._inbox = GatewayInbox(
            self._ledger,
            self._open,
            self._records,
            self._queries,
            self._rung,
            send=self._ranks.send,
            grant=self._grant,
        )
        self._encode = msgspec.msgpack.Encoder().encode

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

    @property
    def rung(self) -> RungState:
        """As gateways were told."""
        return self._rung.state

    @property
    def start_stages(self) -> tuple[Stage, ...]:
        """What the start took, in order, that of rank 0 included; empty until it is done."""
        return self._start.stages if self._start is not None else ()

    async def start(
        self, *, asked_s: float | None = None, before: Sequence[Stage] = ()
    ) -> Endpoint:
        """Load the model and listen. Raises ``EngineStartError``; ``close`` is due then, too.

        ``asked_s``: when the replica was asked for, by ``time.monotonic``; now if not given.
        ``before``: what it has taken since.
        """
        asked_s = time.monotonic() if asked_s is None else asked_s
        ready = await self._ranks.start(self._spec)
        self._load = ready.load
        stages = StageClock()
        checkpoint = await asyncio.to_thread(open_checkpoint, self._spec.checkpoint)
        card = make_model_card(
            self._spec,
            checkpoint,
            ready,
            engine_id=self._engine_id,
            node=self._node,
            start_s=time.monotonic() - asked_s,
        )
        stages.end("model_card")
        self._start = ReplicaStart(
            card.started_from, card.start_s, (*before, *ready.stages, *stages.stages)
        )
        logger.info(
            "%s: prefills %.0f tokens/s, started in %s",
            self._engine_id,
            ready.load.prefill_tokens_per_s,
            self._start,
        )
        self._metrics = EngineMetrics(
            self._spec,
            ready,
            self._start,
            engine_id=self._engine_id,
            steps=self._records.steps,
            ranks=self._ranks,
            rung=self._rung,
        )
        self._card = self._encode(card)
        self._listener = await self._listen()
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

    async def drain(
        self,
        grace_s: float | None = None,
        *,
        hand_over_after_s: float | None = None,
        has_replacement: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Grant nothing more and wait for the running requests, up to ``grace_s`` if given; whether
        all of them ended. One that sleeps leaves at once.

        With ``hand_over_after_s`` requests that wait inside end with ``MOVED`` at once, and those
        that run after so long, as long as all gateways can go on with them elsewhere and
        ``has_replacement`` says so, too; those that can't be moved are waited for.
        """
        self._is_draining = True
        self._rung.stop()
        self._gateways.tell(Draining())
        is_asleep = self._rung.state.rung is Rung.PARKED
        is_empty = await self._emptying.run(
            hand_over_after_s=hand_over_after_s,
            is_off=lambda: self._failure is not None,
            settle_s=0.0 if is_asleep else SETTLE_S,
            grace_s=grace_s,
            has_replacement=has_replacement,
        )
        if is_empty and not is_asleep:
            await self._emptying.store_kept()
        return is_empty

    async def close(self) -> None:
        """Close all connections and end the step loop's process; fine at any time, even twice."""
        await self._rung.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
        await self._ranks.stop()

    async def _listen(self) -> Listener:
        try:
            return await listen(
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

    async def _serve(self, connection: Connection) -> None:
        """One gateway, from its handshake to its end."""
        gateway = GatewayLink(next(self._sources), connection, self._mirror.snapshot)
        self._gateways.enter(gateway)
        self._ledger.set_demand(gateway.source, (0, 0, 0))
        connection.send(self._card)
        gateway.ask_snapshot()
        connection.send(self._encode(StepFrame([], self._load)))
        self._gateways.tell_number()
        if self._rung.state != RungState(Rung.SERVING):
            connection.send(self._encode(self._rung.state))
        if self._is_draining:
            connection.send(self._encode(Draining()))
        try:
            for num_frames in itertools.count(1):
                if self._failure is not None:
                    break
                self._inbox.take(gateway, await connection.receive())
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

    def _grant(self) -> None:
        for source, num_credits in self._ledger.grants(self._load).items():
            self._gateways.send(source, Grant(num_credits))

    def _tell_rung(self, state: RungState) -> None:
        self._gateways.tell(state)
        self._grant()

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
        if report.kept_stored is not None:
            self._emptying.kept_stored(report.kept_stored)
        if report.rung_change is not None:
            self._rung.changed(report.rung_change)
        if report.events is not None:
            self._mirror.apply(report.events)
        self._follow(report)
        if report.profile is not None:
            self._queries.recorded(report.profile)
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
        self._rung.stop()
        self._gateways.close(reason)
