"""A tiny model, and places that have it, for tests of what a node does with weights."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import WeightsError
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import Origin, Stage, WeightFile, WeightsOrder
from engine.checkpoints.manifest import MANIFEST_NAME
from engine.checkpoints.pull import pull
from engine.checkpoints.store import Checkpoint
from engine.weights.arrival import Arrival
from engine.weights.disk_models import DiskModels
from engine.weights.origins import Brought, OnOffer
from engine.weights.promotion import Place
from engine.weights.staged_models import StagedModels
from tests.unit.engine.checkpoints.published import publish

MODEL = "tiny"
GIB = 1 << 30


@dataclass(frozen=True)
class Tiny:
    """A model of some kilobytes, at its source and as a checkpoint elsewhere."""

    source: Path
    checkpoint: Checkpoint
    manifest: bytes
    contents: dict[str, bytes]

    def order(self, rung: Rung = Rung.STAGED) -> WeightsOrder:
        return WeightsOrder(MODEL, str(self.source), rung)


def make_tiny(folder: Path, *, shard_bytes: int = 4096) -> Tiny:
    source = publish(folder / MODEL, shard_bytes=shard_bytes)
    checkpoint = pull(str(source), name=MODEL, home=folder / "elsewhere")
    path, names = checkpoint.path, checkpoint.manifest.files
    # Read now: the store may have links to the source's files, which a test damages.
    contents = {name: (path / name).read_bytes() for name in names}
    return Tiny(source, checkpoint, (path / MANIFEST_NAME).read_bytes(), contents)


@dataclass
class FakeOrigin:
    """Has ``contents``, or fails after the first file with ``failure``."""

    manifest: bytes
    contents: Mapping[str, bytes]
    kind: Origin = "peer"
    failure: WeightsError | None = None
    num_asked: int = 0
    hashes: bool = False
    sha256s: Mapping[str, str] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    """It waits for that after the first file."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def bring(self, order: WeightsOrder, arrival: Arrival, on_offer: OnOffer) -> Brought:
        self.num_asked += 1
        on_offer("stamp", self.manifest)
        wanted = [
            WeightFile(name, len(content), self.sha256s.get(name))
            for name, content in self.contents.items()
        ]
        for file, content in zip(arrival.open_files(wanted), self.contents.values(), strict=True):
            fill(file, content)
            self.has_begun.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.failure is not None:
                raise self.failure
        return Brought(self.manifest, (Stage("bring", 0.1, arrival.num_bytes),))


def fill(file: ArrivingFile, content: bytes) -> None:
    for index in range(file.num_chunks):
        with file.chunk(index) as chunk:
            chunk[:] = content[: len(chunk)]
        content = content[file.chunk_bytes(index) :]
        file.mark(index)


@dataclass
class Node:
    """What a promotion works with."""

    home: Path
    memory: HostMemory
    staged: StagedModels
    disk: DiskModels
    place: Place


def make_node(
    folder: Path,
    *,
    host_bytes: int = GIB,
    make_files: Callable[[Sequence[WeightFile]], list[ArrivingFile]] | None = None,
) -> Node:
    home = folder / "home"
    memory = HostMemory(host_bytes, available_bytes=lambda: 8 * GIB)
    staged = StagedModels(folder / "node" / "weights", memory, home=home)
    disk = DiskModels(home, disk_bytes=None)
    place = Place(disk, staged, make_files or memory.make_files, memory.release)
    return Node(home, memory, staged, disk, place)
