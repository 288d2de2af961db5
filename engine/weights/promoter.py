"""Runs promotions of a node's models, and puts down what they came to.

Must not know when one is due.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from cache_tiers.config import WeightsConfig
from cache_tiers.weights.chunk_messages import ChunkLimits
from cache_tiers.weights.errors import OriginFailed, WeightsError
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import WeightsOrder
from engine.weights.disk_models import DiskModels
from engine.weights.memory_room import MemoryRoom
from engine.weights.model_on_node import ModelOnNode, Promoted
from engine.weights.origins import PeerOrigin, SourceOrigin, WeightsOrigin
from engine.weights.promotion import Place, Promotion
from engine.weights.staged_models import StagedModels
from engine.weights.weights_counts import WeightsCounts

logger = logging.getLogger(__name__)


class Promoter:
    """On one event loop."""

    def __init__(
        self,
        config: WeightsConfig,
        *,
        scratch: Path,
        disk: DiskModels,
        staged: StagedModels,
        memory: HostMemory,
        room: MemoryRoom,
        counts: WeightsCounts,
        limits: ChunkLimits | None,
        clock: Callable[[], float],
    ) -> None:
        """``scratch``: a folder of its own."""
        self.running: dict[str, Promotion] = {}
        """By model."""
        self._config = config
        self._scratch = scratch
        self._disk = disk
        self._staged = staged
        self._memory = memory
        self._room = room
        self._counts = counts
        self._limits = limits
        self._clock = clock
        self._source_turn = asyncio.Lock()

    async def promote(self, model: ModelOnNode, order: WeightsOrder) -> Promotion | None:
        """To ``order.rung``, which ``model`` has begun. None if that has failed."""
        place = Place(
            self._disk,
            self._staged,
            make_files=lambda files: self._room.make(model, files),
            release_files=self._memory.release,
        )
        promotion = Promotion(order, place)
        self.running[model.model] = promotion
        try:
            promoted = await promotion.run(self._origins(promotion))
        except asyncio.CancelledError:
            model.break_off()
            self._counts.num_broken_off += 1
            raise
        except WeightsError as error:
            self._fail(model, error)
            return None
        except BaseException as error:
            model.fail(OriginFailed(f"a fault of this program: {error!r}"), self._clock())
            raise
        finally:
            del self.running[model.model]
            self._counts.num_failed_origins.update(promotion.failed_origins)
        self._succeed(model, promoted)
        return promotion

    def _origins(self, promotion: Promotion) -> tuple[WeightsOrigin, ...]:
        from_source = SourceOrigin(
            home=self._disk.home,
            scratch=self._scratch / promotion.order.model,
            keep_on_disk=self._config.keep_on_disk,
            max_bytes_per_s=self._config.max_bytes_per_s,
            on_progress=promotion.note_progress,
            turn=self._source_turn,
        )
        return PeerOrigin(limits=self._limits, counts=self._counts.peers), from_source

    def _fail(self, model: ModelOnNode, error: WeightsError) -> None:
        self._counts.num_failures[type(error).__name__] += 1
        logger.warning("%s stays %s: %s", model.model, model.rung.name, error)
        model.fail(error, self._clock())

    def _succeed(self, model: ModelOnNode, promoted: Promoted) -> None:
        if promoted.copy != model.on_disk:  # else it was there, and memory is still short
            self._counts.num_promotions[promoted.rung.name, promoted.origin] += 1
            self._counts.num_promoted_bytes[promoted.origin] += promoted.copy.num_bytes
        if promoted.failure is not None:
            self._counts.num_failures[type(promoted.failure).__name__] += 1
            logger.warning(
                "%s reaches %s only: %s", model.model, promoted.rung.name, promoted.failure
            )
        model.succeed(promoted, self._clock())
