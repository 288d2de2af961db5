"""What a node remembers of each block, and how quickly it finds them. Must not know engines."""

import asyncio
import gc
import random
import time
import tracemalloc

from benchmarks.cache_tiers_images import LAYOUT
from benchmarks.cache_tiers_pairs import single
from benchmarks.result import CaseResult
from cache_tiers.config import NodeCacheConfig
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetch, RecomputeCost, Stored
from cache_tiers.node_store import NodeStore
from cache_tiers.slabs import SlabAllocator

_MIN_LOOKUPS_PER_S = 200_000
_MAX_BYTES_PER_BLOCK = 200
_CHAIN_LEN = 256
_FETCHES_PER_ROUND = 50
_SLAB_BYTES = 32 * 1024**2


class CountedSlots:
    """The ``SlotMemory`` of an arena without its memory: only the books are measured."""

    memory = memoryview(b"")

    def __init__(self, num_slots: int) -> None:
        num_slabs = -(-num_slots // (_SLAB_BYTES // LAYOUT.image_bytes)) + 1
        self.num_bytes = num_slabs * _SLAB_BYTES
        slabs = SlabAllocator(num_slabs, _SLAB_BYTES)
        self.allocate = slabs.allocate
        self.free = slabs.free
        self.slab_mates = slabs.slab_mates


def measure_index(num_blocks: int, num_rounds: int) -> list[CaseResult]:
    """``metadata_bytes_per_block`` and ``metadata_lookups_per_s``."""
    return asyncio.run(_measure(num_blocks // _CHAIN_LEN, num_rounds))


async def _measure(num_chains: int, num_rounds: int) -> list[CaseResult]:
    num_blocks = num_chains * _CHAIN_LEN
    gc.collect()
    tracemalloc.start()
    store = _make_store(num_blocks)
    _fill(store, num_chains)
    gc.collect()
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.stats().num_blocks == num_blocks
    rates = [await _keys_per_s(store, num_chains, seed) for seed in range(num_rounds)]
    await store.close()
    return [
        single("metadata_bytes_per_block", [num_bytes / num_blocks], "bytes", _MAX_BYTES_PER_BLOCK),
        single("metadata_lookups_per_s", rates, "blocks/s", _MIN_LOOKUPS_PER_S),
    ]


def _make_store(num_blocks: int) -> NodeStore:
    slots = CountedSlots(num_blocks)
    config = NodeCacheConfig(host_bytes=slots.num_bytes)
    return NodeStore(
        slots, disk=None, object_store=None, config=config, image_bytes=LAYOUT.image_bytes
    )


def _fill(store: NodeStore, num_chains: int) -> None:
    for chain in range(num_chains):
        offsets = store.grant(LAYOUT, _CHAIN_LEN)
        for position, (key, offset) in enumerate(zip(_keys(chain), offsets, strict=True)):
            stored = Stored(offset, bytes(key), LAYOUT.block_size_tokens, position + 1, 0.006)
            assert store.commit(LAYOUT, stored)
    store.take_events(LAYOUT)


async def _keys_per_s(store: NodeStore, num_chains: int, seed: int) -> float:
    """Of processor time, of whole fetches: they look each block up, count its use and lease it."""
    draw = random.Random(seed)
    cost = RecomputeCost(step_s=0.01, step_tokens=512, token_s=0.0005)
    fetches = []
    for fetch_id in range(_FETCHES_PER_ROUND):
        keys: list[bytes] = list(_keys(draw.randrange(num_chains)))
        fetches.append(Fetch(fetch_id, keys, 0, [], cost, 2.0))
    num_found = 0
    seconds = 0.0
    for fetch in fetches:
        started_s = time.thread_time()
        result = await store.fetch(LAYOUT, fetch, None)
        seconds += time.thread_time() - started_s
        num_found += len(result.images)
        store.release(LAYOUT, [found.offset for found in result.images])
    assert num_found == _FETCHES_PER_ROUND * _CHAIN_LEN
    return num_found / seconds


def _keys(chain: int) -> list[BlockKey]:
    """A chain's own; bytes of their own each time, as from a socket."""
    draw = random.Random(chain)
    return [BlockKey(draw.randbytes(16)) for _ in range(_CHAIN_LEN)]
