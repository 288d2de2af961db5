"""The weights of one node: takes orders, carries them out, lends what is here to other nodes.

All on one event loop; bytes are moved by threads and a child process. Must not know Ray, who gives
orders, nor how a model runs.
"""

import asyncio
import itertools
import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_messages import ChunkLimits
from cache_tiers.weights.chunk_server import ChunkServer, ChunkServerStats
from cache_tiers.weights.errors import WrongWeights
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import NodeWeightsReport, Stage, WeightsOrder, WeightsState
from engine.weights.disk_models import DiskModels
from engine.weights.followers import Followers
from engine.weights.lender import Lender
from engine.weights.memory_room import MemoryRoom
from engine.weights.model_on_node import ModelOnNode
from engine.weights.named_tasks import NamedTasks
from engine.weights.promoter import Promoter
from engine.weights.staged_models import StagedModel, StagedModels
from engine.weights.upkeep import Upkeep
from engine.weights.weights_counts import WeightsCounts

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GRACE_S = 60.0
"""From being told of a folder to the first lease of it."""
_COMPARE_S = 1.0


class NodeWeights:
    """Call order: ``start``, then anything, ``close``."""

    def __init__(
        self,
        config: WeightsConfig,
        *,
        home: Path,
        folder: Path,
        host: str,
        secret: bytes,
        available_bytes: Callable[[], int],
        port: int = 0,
        limits: ChunkLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``home``: the store of models on the disk. ``folder``: this node's own, where ranks find
        staged models. ``host``, ``port``: where other nodes get them. ``available_bytes``: memory
        that this process may still take."""
        self.counts = WeightsCounts()
        self._config = config
        self._scratch = folder / "weights-scratch"
        self._clock = clock
        self._memory = HostMemory(config.host_bytes, available_bytes=available_bytes)
        self._disk = DiskModels(home, disk_bytes=config.disk_bytes)
        self._staged = StagedModels(
            folder / "weights",
            self._memory,
            home=home,
            trusts_libraries=config.trust_libraries,
        )
        self._models: dict[str, ModelOnNode] = {}
        self._promoter = Promoter(
            config,
            scratch=self._scratch,
            disk=self._disk,
            staged=self._staged,
            memory=self._memory,
            room=MemoryRoom(self._memory, self._staged, self._models, self.counts, clock),
            counts=self.counts,
            limits=limits,
            clock=clock,
        )
        self._lender = Lender(self._models, self._promoter.running, self._staged)
        self._upkeep = Upkeep(
            self._models,
            disk=self._disk,
            staged=self._staged,
            followers=Followers(self._disk, self._staged, self._memory, self.counts),
            lender=self._lender,
            counts=self.counts,
            keep_on_disk=config.keep_on_disk,
        )
        self._server = ChunkServer(self._lender.lend, host, secret, port=port, limits=limits)
        self._tasks = NamedTasks(self._tell)
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._numbers = itertools.count()
        self._tender: asyncio.Task[None] | None = None

    async def start(self) -> PeerAddress:
        """Where other nodes get weights. Raises ``OSError`` if that can't be listened at."""
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        await self._server.start()
        self._tender = asyncio.create_task(self._tend(), name="tend weights")
        return self._server.address

    async def close(self) -> None:
        """Nothing is under way afterwards; what is in memory goes, what is on the disk stays."""
        await self._server.close()
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.wait([self._tender])
        await self._tasks.close()
        self._lender.close()
        self._staged.close()

    def order(self, order: WeightsOrder) -> WeightsState:
        """From now on that is wanted; how it stands at this moment. Raises `WrongWeights` for a
        name that no model can have."""
        model = self._of(order.model)
        model.give(order, self._clock())
        self._tell()  # who waits for other weights waits in vain
        return self._with_progress(model.state())

    async def reach(self, order: WeightsOrder, timeout_s: float) -> WeightsState:
        """As ``order``, for a replica that starts: wait until that rung is reached, or can't be, or
        ``timeout_s`` is over. The state is that of these weights alone: its ``folder`` is what
        can be opened now, for which a lease should be taken within a minute.

        Orders of others count as before. Raises `WrongWeights` for a name that no model can have.
        """
        model, asker = self._of(order.model), f"start {next(self._numbers)}"
        model.ask(asker, order, self._clock())
        self._tell()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._look_after(model, order)
                    while not model.is_settled(order):
                        self._wake.set()
                        await self._changed.wait()
            state = self._with_progress(model.state_for(order))
            if state.folder:
                model.keep(state.folder, self._clock() + _GRACE_S, self._clock())
            return state
        finally:
            model.stop_asking(asker, self._clock())
            self._wake.set()

    def lease(self, model: str, holder: str, ttl_s: float) -> None:
        """What ``holder`` has got by ``reach`` stays in memory for so long, and longer each time
        that it is renewed."""
        found = self._models.get(model)
        if found is None:
            return
        now_s = self._clock()
        staged = self._staged.find(found.lease(holder, now_s + ttl_s, now_s))
        if staged is not None:
            self._adopt(found, staged)
        elif found.on_disk is not None:
            self._disk.note_use(model)

    def release(self, model: str, holder: str) -> None:
        """Fine if it holds nothing."""
        if model in self._models:
            self._models[model].release(holder, self._clock())
            self._wake.set()

    def record_start(self, model: str, stages: Sequence[Stage]) -> None:
        """Of a replica that started here from it."""
        if model in self._models:
            self._models[model].start_stages = tuple(stages)

    def report(self) -> NodeWeightsReport:
        return NodeWeightsReport(
            address=None if self._tender is None else self._server.address,
            host_bytes=self._config.host_bytes,
            used_bytes=self._memory.used_bytes,
            models=tuple(self._with_progress(model.state()) for model in self._models.values()),
        )

    @property
    def lent(self) -> ChunkServerStats:
        """What other nodes took."""
        return self._server.stats

    def _of(self, name: str) -> ModelOnNode:
        if _NAME.fullmatch(name) is None:
            raise WrongWeights(
                f"{name!r} cannot be a model's name: use at most 128 letters, digits, '.', '_', '-'"
            )
        return self._models.setdefault(name, ModelOnNode(name))

    def _with_progress(self, state: WeightsState) -> WeightsState:
        promotion = self._promoter.running.get(state.model)
        if promotion is None:
            return state
        return msgspec.structs.replace(
            state,
            num_bytes=promotion.num_bytes or state.num_bytes,
            num_done_bytes=promotion.num_done_bytes,
        )

    # What is done about it

    async def _tend(self) -> None:
        while True:
            self._wake.clear()
            for model in list(self._models.values()):
                try:
                    self._advance(model)
                except Exception:  # of ours; other models go on
                    logger.exception("%s can't be tended", model.model)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_S)

    def _advance(self, model: ModelOnNode) -> None:
        now_s = self._clock()
        model.expire(now_s)
        for copy in model.take_leaving():
            self._staged.drop(copy.folder)
            self.counts.num_demoted += 1
        if model.should_break_off:
            self._tasks.stop(f"promote {model.model}")
        rung = model.next_promotion(now_s)
        if rung is not None:
            assert model.order is not None
            order = msgspec.structs.replace(model.order, rung=rung)
            model.begin()
            self._tasks.begin(f"promote {model.model}", self._promote(model, order))
        if model.is_idle:
            del self._models[model.model]

    async def _promote(self, model: ModelOnNode, order: WeightsOrder) -> None:
        promotion = await self._promoter.promote(model, order)
        if promotion is not None:
            name = f"follow {model.model} {next(self._numbers)}"
            self._tasks.begin(name, self._upkeep.follow(model, promotion))

    async def _look_after(self, model: ModelOnNode, order: WeightsOrder) -> None:
        """Before a replica starts from it: whether it is still there, and what the source has. Who
        is late with that answer is heard before the next start."""
        await self._upkeep.drop_lost(model)
        if model.reached(order) > Rung.COLD:
            name = f"compare {model.model}"
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks.begin(name, self._upkeep.compare(model, order))
            await asyncio.wait([task], timeout=_COMPARE_S)

    def _adopt(self, model: ModelOnNode, staged: StagedModel) -> None:
        """Look for what ranks have made, one look at a time."""
        name = f"adopt {staged.copy.folder}"
        if name not in self._tasks and self._staged.written_by_ranks(staged):
            self._tasks.begin(name, self._upkeep.adopt(model, staged))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._wake.set()
