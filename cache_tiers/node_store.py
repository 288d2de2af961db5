"""The hierarchy of one node: arena, local disk, and behind them peers and an object store.

One owner on one event loop; all that waits goes through ``Tier`` objects, all else is done at once.
The parts know each other in this order, and none knows the next:

    block_index, leases, media_events -> holdings -> demoter -> host_room -> image_loads
    -> fetcher, lending, pauses, object_writer -> node_store

Must not know engines or sockets.
"""

import time
from collections.abc import Callable, Sequence

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.block_index import HOST, LOADING, PINNED, BlockIndex
from cache_tiers.config import NodeCacheConfig
from cache_tiers.demoter import Demoter
from cache_tiers.evictable_tier import EvictableTier
from cache_tiers.eviction.create import create_policy
from cache_tiers.fetcher import Fetcher, FetchResult
from cache_tiers.holdings import Holdings, SlotMemory
from cache_tiers.host_room import HostRoom
from cache_tiers.image_loads import ImageLoads
from cache_tiers.keys import BlockKey
from cache_tiers.lending import Lending
from cache_tiers.media_rates import MediaRates
from cache_tiers.messages import Ended, Fetch, Loaded, MediaEvents, Pin, Stored
from cache_tiers.object_writer import ObjectWriter
from cache_tiers.pauses import PauseKeeper
from cache_tiers.pins import PinnedBlock, Pins
from cache_tiers.store_stats import LoadStats, NodeStoreStats
from cache_tiers.tier import Tier, TierKind
from cache_tiers.unsound_keys import UnsoundKeys

_USUAL_IMAGE_BYTES = 256 * 1024
"""Before any model is known: sizes what policies remember."""
_PINNED_DIVISOR = 2
"""All tenants' pinned blocks take no more than this part of the lowest local tier."""


class NodeStore:
    """An ``image_store.ImageStore``. Made on the running event loop that calls it."""

    def __init__(
        self,
        arena: SlotMemory,
        *,
        disk: EvictableTier | None,
        object_store: Tier | None,
        config: NodeCacheConfig,
        clock: Callable[[], float] = time.monotonic,
        key_stride: int = 8,
        image_bytes: int = _USUAL_IMAGE_BYTES,
    ) -> None:
        """``key_stride``: of ``MediaEvents``. ``image_bytes``: of most images, about."""
        disk_bytes = sum(each.max_bytes for each in config.disks)
        num_host, num_disk = arena.num_bytes // image_bytes, disk_bytes // image_bytes
        self._index = BlockIndex(clock())
        self._holdings = Holdings(
            arena,
            self._index,
            create_policy(config.policy, self._index, num_host),
            create_policy(config.policy, self._index, num_disk),
            clock,
            key_stride,
        )

        def make_backoff(name: str) -> Backoff:
            return Backoff(name, clock=clock, is_silent=True)

        self._rates = MediaRates(clock)
        self._demoter = Demoter(self._holdings, disk, make_backoff("writing KV to disk"))
        self._room = HostRoom(self._holdings, self._demoter)
        self._loads = ImageLoads(self._holdings, self._room, self._rates, make_backoff)
        self._unsound = UnsoundKeys()
        self._fetcher = Fetcher(
            self._holdings,
            self._loads,
            self._rates,
            self._unsound,
            disk=disk,
            object_store=object_store,
        )
        self._lending = Lending(self._holdings, self._loads, disk, config.load_timeout_s)
        self._pauses = PauseKeeper(
            self._holdings, self._room, self._demoter, self._loads, self._rates, disk
        )
        self._objects = ObjectWriter(self._holdings, self._loads, object_store, disk)
        lowest_bytes = disk_bytes if disk is not None else arena.num_bytes
        self._pins = Pins(config.pin_quota_bytes, lowest_bytes // _PINNED_DIVISOR)
        store = config.object_store
        self._object_min_ttl_s = float("inf") if store is None else store.min_ttl_s
        self._disk = disk
        self._num_committed = self._num_known = self._num_discarded = 0
        for held in () if disk is None else disk.held():
            self._adopt(held.layout, held.key, held.num_tokens)

    def grant(self, layout: ImageLayout, num: int) -> list[int]:
        """Up to ``num`` slots that an engine may write."""
        offsets = self._room.take(self._index.number_of(layout), num)
        self._room.granted.update(offsets)
        return offsets

    def give_back(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        """Slots that were granted and are not used."""
        for offset in offsets:
            self._room.granted.remove(offset)
            self._holdings.free(offset, layout.image_bytes)

    def commit(self, layout: ImageLayout, stored: Stored) -> bool:
        """A granted slot was filled. False: the slot is free again, since the block is here
        already.
        """
        holdings, index = self._holdings, self._index
        number, key, offset = index.number_of(layout), BlockKey(stored.key), stored.offset
        self._room.granted.remove(offset)
        entry = holdings.find(number, key)
        if entry is not None and index.flags[entry] & (HOST | LOADING):
            holdings.stay_if_leaving(entry)
            holdings.free(offset, layout.image_bytes)
            self._num_known += 1
            return False
        if entry is None:
            entry = holdings.add(
                number, key, stored.num_tokens, stored.chain_len, stored.recompute_s
            )
        holdings.use(entry, stored.chain_len, holdings.clock())
        if PinnedBlock(number, key) in self._pins:
            index.flags[entry] |= PINNED
        holdings.put_in_slot(entry, offset)
        holdings.stay(entry)
        self._num_committed += 1
        return True

    async def fetch(self, layout: ImageLayout, fetch: Fetch, peer: Tier | None) -> FetchResult:
        """Bring what is worth it into the arena, by ``fetch.timeout_s``. Nothing is leased after
        a cancellation.
        """
        number = self._index.number_of(layout)
        self._note_use(number, fetch)
        return await self._fetcher.fetch(number, fetch, peer)

    def release(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        """End leases, one for each offset."""
        for offset in offsets:
            self._holdings.drop_lease(offset)

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        """What is held under ``key`` was found to be bad: nobody gets it again."""
        number = self._index.number_of(layout)
        self._num_discarded += 1
        self._unsound.add(layout.fingerprint, key)
        self._pins.remove(PinnedBlock(number, key))
        entry = self._holdings.find(number, key)
        if entry is not None:
            self._holdings.discard(entry)
        if self._disk is not None:
            self._disk.discard(layout, key)

    def pin(self, layout: ImageLayout, pin: Pin) -> int:
        """How many images are pinned now that were not: leading ones that the node holds, as far
        as quotas allow.
        """
        number = self._index.number_of(layout)
        blocks = []
        for key in map(BlockKey, pin.keys):
            if self._holdings.find(number, key) is None:
                break
            blocks.append(PinnedBlock(number, key))
        expires_s = self._holdings.clock() + pin.ttl_s
        added = self._pins.add(pin.root_key, blocks, layout.image_bytes, expires_s)
        blocks = [block for block in blocks if block in self._pins]
        for block in blocks:  # one that was lost and came back is not marked any more
            self._set_pinned(block, is_pinned=True)
        if pin.ttl_s >= self._object_min_ttl_s:
            self._objects.offer(blocks)
        return len(added)

    def ended(self, layout: ImageLayout, ended: Ended) -> None:
        """An answer is complete; its session may come back. What was stored meanwhile counts as
        used before what the prompt begins with.
        """
        holdings, now_s = self._holdings, self._holdings.clock()
        table = self._index.table(self._index.number_of(layout))
        for position in range(len(ended.keys) - 1, -1, -1):
            if (entry := table.get(BlockKey(ended.keys[position]))) is not None:
                holdings.use(entry, position + 1, now_s)
        self._pauses.begin(self._index.number_of(layout), ended)

    def record_load(self, layout: ImageLayout, loaded: Loaded) -> None:
        """What copying from the arena to the accelerator took."""
        if loaded.num_images > 0 and loaded.load_s > 0:
            num_bytes = loaded.num_images * layout.image_bytes
            predicted_s = self._rates.rate(TierKind.HOST).seconds(num_bytes)
            self._fetcher.record.note(TierKind.HOST, predicted_s, loaded.load_s, is_late=False)
            self._rates.observe(TierKind.HOST, num_bytes, loaded.load_s)

    async def lend(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        """Images in the arena, leased until ``release_lent``, in the order of ``keys``."""
        return await self._lending.lend(self._index.number_of(layout), keys)

    def release_lent(self, images: Sequence[BlockImage]) -> None:
        """End the leases of one ``lend``."""
        self._lending.release(images)

    def take_events(self, layout: ImageLayout) -> list[MediaEvents]:
        """What media gained and lost since the last call."""
        return self._holdings.log(self._index.number_of(layout)).take_events()

    def take_gone(self, layout: ImageLayout) -> list[bytes]:
        """Keys that the node holds nowhere any more."""
        return self._holdings.log(self._index.number_of(layout)).take_gone()

    def held(self, layout: ImageLayout, kind: TierKind) -> list[bytes]:
        """What a router would know of a medium if it had seen all events."""
        return self._holdings.held(layout, kind)

    async def tick(self) -> None:
        """About once a second: pins expire, and blocks of sessions that are due come back."""
        for block in self._pins.expire(self._holdings.clock()):
            self._set_pinned(block, is_pinned=False)
        self._pauses.promote_due()

    async def settled(self) -> None:
        """Return when nothing waits to be written to disk or object store."""
        await self._objects.settled()
        await self._demoter.settled()

    async def close(self) -> None:
        """End all transfers; nobody writes to the arena afterwards. Tiers are the maker's."""
        await self._objects.close()
        await self._fetcher.close()
        await self._loads.close()
        await self._demoter.close()

    def stats(self) -> NodeStoreStats:
        demotions, evictions = self._demoter.counters, self._room.counters
        record = self._fetcher.record
        return NodeStoreStats(
            num_blocks=len(self._index),
            num_leases=len(self._holdings.leases),
            num_granted=len(self._room.granted),
            num_committed=self._num_committed,
            num_known=self._num_known,
            num_evicted=evictions.num_evicted,
            num_dropped=evictions.num_dropped,
            num_demoted=demotions.num_written,
            num_demotions_overflowed=demotions.num_overflowed,
            num_demotions_refused=demotions.num_refused,
            num_disk_evicted=demotions.num_evicted,
            num_discarded=self._num_discarded,
            num_pinned=len(self._pins),
            pinned_bytes=self._pins.used_bytes,
            num_pins_refused=self._pins.num_refused,
            num_early_demotions=self._pauses.num_demoted,
            num_promoted=self._pauses.num_promoted,
            num_recomputed=record.num_recomputed_blocks,
            num_timeouts=record.num_timeouts,
            num_lent=self._lending.num_lent,
            num_objects_written=self._objects.num_written,
            num_objects_failed=self._objects.num_failed,
            loads={kind: self._load_stats(kind) for kind in TierKind},
        )

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` if the books contradict each other."""
        self._holdings.check_integrity(self._room.granted)
        self._pins.check_integrity()

    def _adopt(self, layout: ImageLayout, key: BlockKey, num_tokens: int) -> None:
        """What the disk holds from before; where in prompts it stands, prompts will tell."""
        number = self._index.number_of(layout)
        if self._holdings.find(number, key) is None:
            entry = self._holdings.add(number, key, num_tokens, 0, 0.0)
            self._holdings.put_on_disk(entry)

    def _note_use(self, layout_number: int, fetch: Fetch) -> None:
        """From the end on, so that the beginning counts as used last."""
        holdings, now_s = self._holdings, self._holdings.clock()
        keys = [BlockKey(key) for key in fetch.keys]
        self._pauses.think_time.end(layout_number, keys, now_s)
        table = self._index.table(layout_number)
        for partial in fetch.partials:
            if (entry := table.get(BlockKey(partial.key))) is not None:
                holdings.use(entry, 0, now_s)
        for position in range(len(keys) - 1, -1, -1):
            if (entry := table.get(keys[position])) is not None:
                self._index.count_use(entry)
                holdings.use(entry, position + 1, now_s)

    def _set_pinned(self, block: PinnedBlock, *, is_pinned: bool) -> None:
        entry = self._holdings.find(block.layout_number, block.key)
        if entry is None:
            return
        if is_pinned:
            self._index.flags[entry] |= PINNED
        else:
            self._index.flags[entry] &= ~PINNED

    def _load_stats(self, kind: TierKind) -> LoadStats:
        counters, rate = self._fetcher.record.by_kind[kind], self._rates.rate(kind)
        return LoadStats(
            num_fetches=counters.num_fetches,
            num_as_predicted=counters.num_as_predicted,
            predicted_s=counters.predicted_s,
            fetch_s=counters.fetch_s,
            num_loaded=self._loads.num_loaded[kind],
            num_failed=self._loads.num_failed[kind],
            bytes_per_s=1 / rate.byte_s,
            latency_s=rate.latency_s,
        )
