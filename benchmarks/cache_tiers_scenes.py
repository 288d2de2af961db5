"""Nodes whose caches hold prompts in one tier, and how fast the medium below it is by itself.

The arena of a scene is larger than one prompt and smaller than two: of prompts that take turns the
next one lies behind it. Must not know engines or clocks of answers.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache_tiers_copies import Memcpy
from benchmarks.cache_tiers_disk import PlainDisk
from benchmarks.cache_tiers_images import aligned_memory
from benchmarks.cache_tiers_node import CacheNode, running_node
from benchmarks.cache_tiers_peer import raw_tcp
from cache_tiers.config import DiskConfig, NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.tier import TierKind

MIB = 1024**2
_LEAST_BYTES = 16 * MIB
_DISK_BYTES = 2048 * MIB
_SMALL_ARENA = 1.6
"""Prompts that fit, with the slots that the engine writes next."""
_LARGE_ARENA = 6.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the engine's prompts lie when they are asked for."""

    kind: TierKind
    node: CacheNode
    """The engine's."""
    peer: CacheNode | None
    """Who holds the prompts instead."""
    medium_s: Callable[[], float]
    """Seconds that the medium takes for the bytes of one prompt, measured now."""

    @property
    def holder(self) -> CacheNode:
        """Where prompts are stored at first."""
        return self.peer or self.node

    @property
    def peer_address(self) -> PeerAddress | None:
        return None if self.peer is None else self.peer.address

    def num_brought(self) -> int:
        """Images that the node has brought from the tier so far, by its own count."""
        return self.node.stats().store.loads[self.kind].num_loaded


@contextmanager
def cpu_scene(_: Path, prompt_bytes: int) -> Iterator[Scene]:
    """Everything fits into the arena, and there is nothing below."""
    memcpy = Memcpy(aligned_memory(prompt_bytes), prompt_bytes, num_threads=2)
    with _node(_arena_bytes(_LARGE_ARENA * prompt_bytes)) as node:
        yield Scene(TierKind.HOST, node, None, memcpy.seconds)
    memcpy.close()


@contextmanager
def nvme_scene(parent: Path, prompt_bytes: int) -> Iterator[Scene]:
    """The arena drops prompts to the disk, which is read without the page cache."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        disk = DiskConfig(path=Path(folder), max_bytes=_DISK_BYTES)
        plain = PlainDisk(disk.path)
        with _node(_arena_bytes(_SMALL_ARENA * prompt_bytes), disk) as node:
            yield Scene(TierKind.DISK, node, None, lambda: plain.read_s(prompt_bytes))


@contextmanager
def peer_scene(_: Path, prompt_bytes: int) -> Iterator[Scene]:
    """The arena drops prompts for good, and another node holds them in its own."""
    with ExitStack() as stack:
        raw = stack.enter_context(raw_tcp(prompt_bytes))
        peer = stack.enter_context(_node(_arena_bytes(_LARGE_ARENA * prompt_bytes)))
        node = stack.enter_context(_node(_arena_bytes(_SMALL_ARENA * prompt_bytes)))
        yield Scene(TierKind.PEER, node, peer, raw.seconds)


SCENES = {"cpu": cpu_scene, "nvme": nvme_scene, "peer": peer_scene}


def _arena_bytes(wanted: float) -> int:
    return max(_LEAST_BYTES, int(wanted))


@contextmanager
def _node(host_bytes: int, *disks: DiskConfig) -> Iterator[CacheNode]:
    config = NodeCacheConfig(host_bytes=host_bytes, disks=disks)
    # A folder with a short name: socket paths are limited.
    with (
        tempfile.TemporaryDirectory(prefix="hw-") as folder,
        running_node(config, Path(folder) / "node.sock") as node,
    ):
        yield node
