"""The places that a model's files come from, each behind the same few words.

Must not know where the bytes go.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cache_tiers.weights.chunk_messages import ChunkLimits, PeerCounts
from cache_tiers.weights.disk_reader import read_from_disk
from cache_tiers.weights.errors import AbsentError, OriginFailed, WeightsError
from cache_tiers.weights.from_peers import bring_from_peers
from cache_tiers.weights.messages import Origin, Stage, WeightsOrder
from engine.weights.arrival import Arrival
from engine.weights.disk_models import DiskModels, StoredModel, has_moved
from engine.weights.from_source import SourceProgress, SourceResult, bring_from_source
from engine.weights.manifests import decode_manifest, stamp_of

_ASK_SOURCE_S = 5.0

OnOffer = Callable[[str, bytes | None], None]
"""Gets the revision's stamp, empty if there is none yet, and its manifest, once known."""


@dataclass(frozen=True, slots=True)
class Brought:
    """All files of the arrival are whole."""

    manifest: bytes | None
    """None: the model is on the node's disk now, and nowhere else."""
    stages: tuple[Stage, ...] = ()
    is_checked: bool = False
    """Each file's sha256 is the manifest's."""
    rest: "asyncio.Task[None] | None" = None
    """What goes on meanwhile: the copy to the disk."""


class WeightsOrigin(Protocol):
    """One place."""

    @property
    def kind(self) -> Origin: ...

    @property
    def hashes(self) -> bool:
        """Whether it checks each file's sha256 itself."""
        ...

    async def bring(self, order: WeightsOrder, arrival: Arrival, on_offer: OnOffer) -> Brought:
        """Open the arrival's files and fill them. Raises `WeightsError`; nothing writes to them
        then."""
        ...


class DiskOrigin:
    """The node's disk."""

    kind: Origin = "disk"
    hashes = False

    def __init__(self, disk: DiskModels) -> None:
        self._disk = disk
        self._stored: StoredModel | None = None

    def distrust(self) -> None:
        """What was brought last isn't what its manifest says. Blocks."""
        if self._stored is not None:
            self._disk.distrust(self._stored)

    async def find(self, order: WeightsOrder) -> StoredModel:
        """Raises `AbsentError` without a sound copy, or with one that the source has outdated."""
        self._stored = await asyncio.to_thread(self._disk.open, order)
        stored = self._stored
        if stored is None:
            raise AbsentError("there is no copy")
        if await has_moved(order, stored.manifest.source_stamp, _ASK_SOURCE_S):
            raise AbsentError("the copy is older than the source")
        return stored

    async def bring(self, order: WeightsOrder, arrival: Arrival, on_offer: OnOffer) -> Brought:
        stored = await self.find(order)
        on_offer(stamp_of(stored.manifest), stored.encoded)
        began_s = time.monotonic()
        await read_from_disk(stored.path, arrival.open_files(stored.files))
        stage = Stage("read from disk", time.monotonic() - began_s, arrival.num_bytes)
        return Brought(stored.encoded, (stage,))


class PeerOrigin:
    """Other nodes, as the order names them."""

    kind: Origin = "peer"
    hashes = False

    def __init__(self, *, limits: ChunkLimits | None = None, counts: PeerCounts) -> None:
        self._limits = limits
        self._counts = counts

    async def bring(self, order: WeightsOrder, arrival: Arrival, on_offer: OnOffer) -> Brought:
        if not order.parents:
            raise AbsentError("no other node is named")
        began_s = time.monotonic()
        asking: list[asyncio.Task[bool]] = []

        def hear(stamp: str, manifest: bytes | None) -> None:
            on_offer(stamp, manifest)
            if manifest is not None and not asking:
                source_stamp = decode_manifest(manifest).source_stamp
                asking.append(asyncio.create_task(has_moved(order, source_stamp, _ASK_SOURCE_S)))

        try:
            result = await bring_from_peers(
                order,
                open_files=arrival.open_files,
                on_offer=hear,
                limits=self._limits,
                counts=self._counts,
            )
            if asking and await asking[0]:
                raise OriginFailed("they have older weights than the source by now")
        finally:
            for task in asking:
                task.cancel()
        stage = Stage("receive from nodes", time.monotonic() - began_s, arrival.num_bytes)
        return Brought(result.manifest, (stage,))


class SourceOrigin:
    """The model's own source; one model at a time, so that the node's rate holds."""

    kind: Origin = "source"
    hashes = True

    def __init__(
        self,
        *,
        home: Path,
        scratch: Path,
        keep_on_disk: bool,
        max_bytes_per_s: float | None,
        on_progress: Callable[[SourceProgress], None],
        turn: asyncio.Lock,
    ) -> None:
        self._home = home
        self._scratch = scratch
        self._keep_on_disk = keep_on_disk
        self._max_bytes_per_s = max_bytes_per_s
        self._on_progress = on_progress
        self._turn = turn

    async def bring(self, order: WeightsOrder, arrival: Arrival, on_offer: OnOffer) -> Brought:
        on_offer("", None)
        async with self._turn:
            results: list[SourceResult] = []
            is_whole = asyncio.Event()

            async def hear(result: SourceResult) -> None:
                results.append(result)
                is_whole.set()

            rest = asyncio.create_task(self._bring(order, arrival, hear), name="read the source")
            rest.add_done_callback(lambda _: is_whole.set())
            try:
                await is_whole.wait()
            except asyncio.CancelledError:
                await stop(rest)
                raise
        if not results:
            rest.result()
            raise OriginFailed(f"reading {order.source} ended without weights")
        result = results[0]
        if result.is_on_disk_only:
            await rest
            return Brought(None, result.stages, is_checked=True)
        return Brought(result.manifest, result.stages, is_checked=True, rest=rest)

    async def _bring(
        self, order: WeightsOrder, arrival: Arrival, hear: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        await bring_from_source(
            order,
            home=self._home,
            scratch=self._scratch,
            open_files=arrival.open_files,
            keep_on_disk=self._keep_on_disk,
            max_bytes_per_s=self._max_bytes_per_s,
            on_memory=hear,
            on_progress=self._on_progress,
        )


async def stop(rest: "asyncio.Task[None]") -> None:
    """Cancel what goes on and wait until it is over."""
    rest.cancel()
    with suppress(asyncio.CancelledError, WeightsError):
        await rest
