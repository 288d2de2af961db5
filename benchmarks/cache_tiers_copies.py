"""Restoring from the node's arena to the pool, beside copying as many bytes from the arena."""

import ctypes
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.cache_tiers_images import GEOMETRY, LAYOUT
from benchmarks.cache_tiers_pairs import Pairs
from benchmarks.result import CaseResult
from cache_tiers.arena import Arena
from engine import huge_pages
from engine.kv_images import RankImages
from engine.kv_pool import KvPool
from engine.kv_transfer import KvTransfer
from engine.step import BlockTransfer

_THREADS = (1, 2)
_POOL_FACTOR = 2
"""Blocks of the pool for each image: they go to places of their own, in no order."""


class Memcpy:
    """The limit: the images' bytes from the arena to other memory, by several threads."""

    def __init__(self, source: memoryview, num_bytes: int, num_threads: int) -> None:
        self._target = huge_pages.empty((num_bytes,), torch.uint8).fill_(1)
        self._source = torch.frombuffer(source, dtype=torch.uint8)
        self._num_bytes = num_bytes
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads)

    def seconds(self) -> float:
        part = self._num_bytes // self._num_threads
        started_s = time.perf_counter()
        list(self._threads.map(self._copy, range(0, part * self._num_threads, part)))
        return time.perf_counter() - started_s

    def close(self) -> None:
        self._threads.shutdown()

    def _copy(self, begin: int) -> None:
        part = self._num_bytes // self._num_threads
        target, source = self._target.data_ptr(), self._source.data_ptr()
        ctypes.memmove(target + begin, source + begin, part)  # without the GIL


def measure_copies(num_images: int, num_pairs: int) -> list[CaseResult]:
    """``cpu_restore_over_memcpy``, and the same with one thread on each side."""
    num_bytes = num_images * LAYOUT.shard_bytes
    arena = Arena((num_images + 128) * LAYOUT.image_bytes)
    pool = KvPool(
        GEOMETRY, _POOL_FACTOR * num_images, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    transfers = _transfers(arena, num_images)
    images = RankImages(arena.memory, LAYOUT, 0)
    results = []
    for num_threads in _THREADS:
        transfer = KvTransfer(pool, images, num_threads=num_threads)
        transfer.store(transfers)
        memcpy = Memcpy(arena.memory, num_bytes, num_threads)
        load = _loading(transfer, transfers)
        Pairs().add(load, memcpy.seconds)  # once to warm up
        pairs = Pairs()
        for _ in range(num_pairs):
            pairs.add(load, memcpy.seconds)
        suffix = "" if num_threads == max(_THREADS) else f"_{num_threads}_thread"
        results.append(pairs.rates(num_bytes, f"cpu_restore_over_memcpy{suffix}", "memcpy"))
        memcpy.close()
        transfer.close()
    return results


def _loading(transfer: KvTransfer, transfers: list[BlockTransfer]) -> Callable[[], float]:
    def seconds() -> float:
        started_s = time.perf_counter()
        bad = transfer.load(transfers)
        ended_s = time.perf_counter()
        assert not bad
        return ended_s - started_s

    return seconds


def _transfers(arena: Arena, num_images: int) -> list[BlockTransfer]:
    draw = random.Random(0)
    block_ids = draw.sample(range(_POOL_FACTOR * num_images), num_images)
    transfers = []
    for block_id in block_ids:
        offset = arena.allocate(LAYOUT.image_bytes)
        assert offset is not None
        key = block_id.to_bytes(16, "little")
        transfers.append(BlockTransfer(block_id, offset, key, LAYOUT.block_size_tokens))
    return transfers
