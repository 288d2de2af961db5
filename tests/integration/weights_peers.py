"""A node's weights for tests of peers: a shelf that lends, and a server for it."""

import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Ask, ChunkLimits, Lent, PeerCounts
from cache_tiers.weights.chunk_server import ChunkServer
from cache_tiers.weights.from_peers import bring_from_peers
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile, WeightsOrder

SECRET = b"the secret of the cluster"
STAMP = "revision 1"
MANIFEST = b'{"files": []}'
MIB = 1024**2
QUICK = ChunkLimits(
    connect_timeout_s=0.5,
    silence_s=0.6,
    chunk_s=1.5,
    later_s=0.1,
    starve_s=1.5,
    absent_s=0.2,
    patience_s=0.8,
    retry_s=0.05,
    scout_s=0.4,
    num_streams=3,
)
"""For tests on one machine."""


def content_of(name: str, num_bytes: int) -> bytes:
    """The same for the same name."""
    block = random.Random(name).randbytes(MIB + 1)
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


def fill(file: ArrivingFile, index: int) -> None:
    """One chunk with what belongs there."""
    content = content_of(file.file.name, file.file.num_bytes)
    with file.chunk(index) as memory:
        memory[:] = content[index * CHUNK_BYTES :][: len(memory)]
    file.mark(index)


def sizes(*num_bytes: int) -> list[WeightFile]:
    return [WeightFile(f"file-{index}", size) for index, size in enumerate(num_bytes)]


@dataclass
class Shelf:
    """What one node has of one model."""

    files: Sequence[ArrivingFile] = ()
    stamp: str = STAMP
    manifest: bytes | None = None
    is_coming: bool = False
    """Nothing yet, but it will."""
    num_asks: int = 0
    counts: PeerCounts = field(default_factory=PeerCounts)

    @classmethod
    def whole(cls, files: Sequence[WeightFile]) -> "Shelf":
        shelf = cls([ArrivingFile.in_memory(file) for file in files], manifest=MANIFEST)
        for file in shelf.files:
            content = content_of(file.file.name, file.file.num_bytes)
            for index in range(file.num_chunks):
                with file.chunk(index) as memory:
                    memory[:] = content[index * CHUNK_BYTES :][: len(memory)]
                file.mark(index)
        return shelf

    def lend(self, ask: Ask) -> Lent | None:
        self.num_asks += 1
        if not self.files and not self.is_coming:
            return None
        return Lent(self.stamp, self.files, self.manifest)

    def open_files(self, files: Sequence[WeightFile]) -> Sequence[ArrivingFile]:
        self.files = [ArrivingFile.in_memory(file) for file in files]
        return self.files

    def on_offer(self, stamp: str, manifest: bytes | None) -> None:
        self.stamp, self.manifest = stamp, manifest

    async def bring(
        self, parents: Sequence[PeerAddress], limits: ChunkLimits = QUICK
    ) -> Sequence[ArrivingFile]:
        """Raises as ``bring_from_peers`` does; however that ends, nobody writes afterwards."""
        self.is_coming = True
        order = WeightsOrder("a-model", "hf:a/model", Rung.STAGED, parents=tuple(parents))
        result = await bring_from_peers(
            order,
            open_files=self.open_files,
            on_offer=self.on_offer,
            limits=limits,
            counts=self.counts,
        )
        assert result.manifest == MANIFEST
        return result.files

    def are_right(self) -> bool:
        return all(
            file.is_whole
            and file.sha256(1.0)
            == hashlib.sha256(content_of(file.file.name, file.file.num_bytes)).hexdigest()
            for file in self.files
        )

    def close(self) -> None:
        for file in self.files:
            file.close()


@asynccontextmanager
async def serving(
    shelf: Shelf, limits: ChunkLimits = QUICK, host: str = "127.0.0.1"
) -> AsyncIterator[ChunkServer]:
    server = ChunkServer(shelf.lend, host, SECRET, limits=limits)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        assert server.stats.num_children == 0
        assert server.stats.num_connections == 0
