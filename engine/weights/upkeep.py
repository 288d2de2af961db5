"""Keeps what a node has of its models in step: memory with the disk, both with the source, and with
what ranks make.

Must not know orders of others than the one it is asked about.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsOrder
from engine.weights.disk_models import DiskModels, has_moved
from engine.weights.followers import Followers
from engine.weights.lender import Lender
from engine.weights.model_on_node import Copy, ModelOnNode
from engine.weights.promotion import Promotion
from engine.weights.staged_models import StagedModel, StagedModels
from engine.weights.weights_counts import WeightsCounts

logger = logging.getLogger(__name__)

_ASK_SOURCE_S = 30.0


class Upkeep:
    """On one event loop. All of it may be cancelled at any time."""

    def __init__(
        self,
        models: Mapping[str, ModelOnNode],
        *,
        disk: DiskModels,
        staged: StagedModels,
        followers: Followers,
        lender: Lender,
        counts: WeightsCounts,
        keep_on_disk: bool,
    ) -> None:
        self._models = models
        self._disk = disk
        self._staged = staged
        self._followers = followers
        self._lender = lender
        self._counts = counts
        self._keeps_on_disk = keep_on_disk

    async def follow(self, model: ModelOnNode, promotion: Promotion) -> None:
        """What comes after a promotion, for which nobody waits."""
        staged = promotion.staged
        folder = "" if staged is None else staged.copy.folder
        model.leases.pin(folder)
        try:
            if await self._keep_on_disk(model, promotion):
                await self._note_on_disk(model, promotion.order)
            if staged is not None:
                if (stored := _stored(model, staged)) is not None:
                    await self._followers.take_packed(staged, stored)
                await self._keep_packed(model, staged)
        finally:
            model.leases.unpin(folder)

    async def adopt(self, model: ModelOnNode, staged: StagedModel) -> None:
        """What ranks have made in its folder."""
        model.leases.pin(staged.copy.folder)
        try:
            await self._followers.adopt(staged)
            await self._keep_packed(model, staged)
        finally:
            model.leases.unpin(staged.copy.folder)

    async def drop_lost(self, model: ModelOnNode) -> None:
        """Forget what somebody has removed or changed."""
        copy = model.in_memory
        if copy is not None and not self._staged.is_sound(copy.folder):
            logger.warning("somebody has removed or changed %s: it is made anew", copy.folder)
            model.lose(copy.folder)
            self._staged.drop(copy.folder)
        copy = model.on_disk
        if copy is None or await asyncio.to_thread(self._disk.is_there, copy):
            return
        if model.on_disk is copy:  # and not replaced meanwhile
            self._lender.forget(model.model)
            model.lose(copy.folder)

    async def compare(self, model: ModelOnNode, order: WeightsOrder) -> None:
        """With what the source has by now."""
        stamp = await self._stamp(model, order)
        if stamp is not None and await has_moved(order, stamp, _ASK_SOURCE_S):
            self._counts.num_outdated += 1
            model.outdate()

    async def _keep_on_disk(self, model: ModelOnNode, promotion: Promotion) -> bool:
        """Whether the disk may hold something new."""
        if promotion.rest is not None:
            kept = await self._followers.kept_by(promotion.rest, model.model)
            return kept and self._keeps_on_disk
        if promotion.origin == "disk":
            return True
        if promotion.staged is None:
            await asyncio.to_thread(self._disk.note_brought, model.model)
            return True
        if promotion.origin == "peer":
            return self._keeps_on_disk and await self._followers.keep_on_disk(promotion.staged)
        return True

    async def _keep_packed(self, model: ModelOnNode, staged: StagedModel) -> None:
        """After the disk has got the model, and after ranks have made something: whichever is later
        finds both."""
        stored = _stored(model, staged)
        if stored is not None and self._keeps_on_disk:
            await self._followers.keep_packed(staged, stored)

    async def _note_on_disk(self, model: ModelOnNode, order: WeightsOrder) -> None:
        stored = await asyncio.to_thread(self._disk.open, order)
        self._lender.forget(model.model)
        model.on_disk = None if stored is None else stored.copy
        used = {name for name, each in self._models.items() if each.is_used}
        for name in await asyncio.to_thread(self._disk.trim, used.__contains__):
            self._counts.num_removed += 1
            if name in self._models:
                self._lender.forget(name)
                self._models[name].on_disk = None

    async def _stamp(self, model: ModelOnNode, order: WeightsOrder) -> str | None:
        """Of the source, when what is here of ``order`` was brought."""
        copy: Copy | None = model.in_memory
        if model.reached(order) is Rung.STAGED and copy is not None:
            staged = self._staged.find(copy.folder)
            return None if staged is None else staged.manifest.source_stamp
        stored = await asyncio.to_thread(self._disk.open, order)
        return None if stored is None else stored.manifest.source_stamp


def _stored(model: ModelOnNode, staged: StagedModel) -> Path | None:
    """The folder on the disk with the same weights."""
    on_disk = model.on_disk
    if on_disk is None or on_disk.weights_sha256 != staged.copy.weights_sha256:
        return None
    return Path(on_disk.folder)
