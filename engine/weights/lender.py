"""What a node lends to others: models in its memory or on its disk, and those on their way here.

Must not know how they are sent.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Ask, Lent
from cache_tiers.weights.errors import OriginFailed
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints.manifest import MANIFEST_NAME
from engine.weights.manifests import decode_manifest, stamp_of
from engine.weights.model_on_node import Copy, ModelOnNode
from engine.weights.promotion import Promotion
from engine.weights.staged_models import StagedModels


class Lender:
    """``lend`` is a ``chunk_server.Lend``. Owner of the files that it opens on the disk."""

    def __init__(
        self,
        models: Mapping[str, ModelOnNode],
        promotions: Mapping[str, Promotion],
        staged: StagedModels,
    ) -> None:
        self._models = models
        self._promotions = promotions
        self._staged = staged
        self._on_disk: dict[str, tuple[Copy, Lent]] = {}

    def lend(self, ask: Ask) -> Lent | None:
        model = self._models.get(ask.model)
        if model is None:
            return None
        order = WeightsOrder(
            ask.model, ask.source, Rung.STAGED, ask.source_sha256, ask.weights_sha256
        )
        if model.in_memory is not None and model.in_memory.is_what(order):
            staged = self._staged.find(model.in_memory.folder)
            return None if staged is None else staged.lent
        promotion = self._promotions.get(ask.model)
        if promotion is not None and promotion.can_be_lent(order):
            return promotion.lent
        if model.on_disk is not None and model.on_disk.is_what(order):
            return self._from_disk(ask.model, model.on_disk)
        return None

    def forget(self, model: str) -> None:
        """Its files on the disk were replaced, or go."""
        _, lent = self._on_disk.pop(model, (None, None))
        if lent is not None:
            _close(lent)

    def close(self) -> None:
        for model in list(self._on_disk):
            self.forget(model)

    def _from_disk(self, model: str, copy: Copy) -> Lent | None:
        known = self._on_disk.get(model)
        if known is not None and known[0] == copy:
            return known[1]
        self.forget(model)
        with suppress(OSError, OriginFailed):  # it is gone, or can't be opened for others
            lent = _open(Path(copy.folder))
            self._on_disk[model] = (copy, lent)
            return lent
        return None


def _open(folder: Path) -> Lent:
    encoded = (folder / MANIFEST_NAME).read_bytes()
    manifest = decode_manifest(encoded)
    files: list[ArrivingFile] = []
    try:
        for name, entry in manifest.files.items():
            # The constructor alone leaves the file's time as it is.
            fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
            file = ArrivingFile(WeightFile(name, entry.bytes, entry.sha256), fd, is_in_memory=False)
            files.append(file)
            file.mark_until(entry.bytes)
            file.seal()
    except BaseException:
        _close(Lent("", files, None))
        raise
    return Lent(stamp_of(manifest), tuple(files), encoded)


def _close(lent: Lent) -> None:
    for file in lent.files:
        file.close()
