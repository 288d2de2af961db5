"""What a node lends to others: what its tiers hold, and what its engines hold on accelerators.

Must not know how peers are talked to.
"""

import asyncio
from collections.abc import Sequence

from cache_tiers.block_image import BlockImage
from cache_tiers.engine_session import EngineSession
from cache_tiers.image_store import ImageStore
from cache_tiers.keys import BlockKey
from cache_tiers.node_service import NodeService

EXPORT_TIMEOUT_S = 0.3
"""An engine stores in its next step, if it holds anything. Well below what a peer waits for the
first answer (a quarter of a fetch's 2 s), so that it hears of what is here whatever engines do."""


class NodeLender:
    """The ``Lender`` of a ``PeerServer``."""

    def __init__(
        self,
        store: ImageStore,
        service: NodeService,
        export_timeout_s: float = EXPORT_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._service = service
        self._export_timeout_s = export_timeout_s

    async def lend(self, fingerprint: bytes, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        layout = self._service.layout(fingerprint)
        if layout is None:
            return [None] * len(keys)
        lent = list(await self._store.lend(layout, keys))
        missing = [index for index, image in enumerate(lent) if image is None]
        sessions = self._service.sessions(layout)
        if not missing or not sessions:
            return lent
        try:
            wanted = [keys[index] for index in missing]
            await self._export(sessions, wanted)
            exported = await self._store.lend(layout, wanted)
        except BaseException:  # a cancellation too: who asked does not know of these
            self.release([image for image in lent if image is not None])
            raise
        for index, image in zip(missing, exported, strict=True):
            lent[index] = image
        return lent

    def release(self, images: Sequence[BlockImage]) -> None:
        self._store.release_lent(images)

    async def _export(self, sessions: Sequence[EngineSession], keys: Sequence[BlockKey]) -> None:
        """Return when all engines have stored what they hold of ``keys``, or enough was waited."""
        asked = [asyncio.create_task(session.export(keys)) for session in sessions]
        try:
            await asyncio.wait(asked, timeout=self._export_timeout_s)
        finally:
            for task in asked:
                task.cancel()
