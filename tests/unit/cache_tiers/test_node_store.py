"""The hierarchy of one node: what is found where, what leaves for whom, and what never moves."""

import asyncio
from collections.abc import Sequence

import pytest

from cache_tiers.block_image import BlockImage
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended, Loaded, Partial, Pin, RecomputeCost
from cache_tiers.tier import TierKind
from tests.unit.cache_tiers.node_parts import (
    LAYOUT,
    WIDE,
    FakeTier,
    Node,
    chain,
    make_fetch,
)

TENANT = b"tenant".ljust(16)
HOST, DISK, PEER, OBJECT = TierKind.HOST, TierKind.DISK, TierKind.PEER, TierKind.OBJECT


async def test_finds_the_leading_run_after_what_the_engine_has() -> None:
    node = Node()
    keys = chain("a", 5)
    node.put([*keys[:2], keys[3]])
    result = await node.store.fetch(LAYOUT, make_fetch(keys, num_held=1), None)
    assert [found.key for found in result.images] == [keys[1]]
    node.store.release(LAYOUT, [found.offset for found in result.images])
    node.check()


async def test_a_block_that_is_there_already_is_not_kept_twice() -> None:
    node = Node()
    assert node.put(chain("a", 1)) == [True]
    assert node.put(chain("a", 1)) == [False]
    node.check()


async def test_a_full_arena_demotes_to_disk_and_reads_it_back() -> None:
    node = Node(disk=FakeTier(DISK))
    keys = chain("a", 6)
    node.put(keys)
    for name in "bcd":
        node.put(chain(name, 4))
        await node.store.settled()
    node.check()
    found = await node.get(keys)
    assert DISK in found
    assert node.store.stats().loads[DISK].num_loaded > 0
    assert set(await node.get(keys[: len(found)])) == {HOST}, "what was read stays"


async def test_a_leased_block_never_leaves() -> None:
    node = Node()
    keys = chain("a", 3)
    node.put(keys)
    result = await node.store.fetch(LAYOUT, make_fetch(keys), None)
    assert len(result.images) == 3
    for name in "bcdef":
        node.put(chain(name, 5))
    for found in result.images:
        assert node.image(LAYOUT, found.offset, keys[0], 16).shard(0)[:16] == found.key
    node.store.release(LAYOUT, [found.offset for found in result.images])
    node.check()


async def test_a_slot_is_not_used_again_while_it_is_written_to_disk() -> None:
    disk = FakeTier(DISK, mood="stalls")
    node = Node(num_slabs=8, disk=disk)
    node.put(chain("a", 32))
    for name in "bcd":
        node.put(chain(name, 8))
        await asyncio.sleep(0)
    disk.mood = "well"
    disk.awake.set()
    await node.store.settled()  # the tier asserts that no byte changed
    assert disk.num_stores > 0
    assert node.store.stats().num_demotions_overflowed > 0, "more than a bounded queue takes"
    node.check()


async def test_a_disk_that_keeps_up_gets_all_that_leaves() -> None:
    node = Node(num_slabs=16, disk=FakeTier(DISK))
    for number in range(150):
        node.put(chain(str(number), 2))
        await node.store.settled()
    stats = node.store.stats()
    assert stats.num_dropped <= 2, "before it is known how much room there is"
    assert stats.num_demoted > 200
    node.check()


@pytest.mark.parametrize("mood", ["fails", "lies"])
async def test_a_disk_that_misbehaves_costs_its_blocks_and_nothing_else(mood: str) -> None:
    disk = FakeTier(DISK, mood=mood)
    node = Node(disk=disk)
    for name in "abcd":
        node.put(chain(name, 4))
        await node.store.settled()
    assert DISK not in await node.get(chain("a", 4))
    assert HOST in await node.get(chain("d", 4))
    node.now_s += 100
    disk.mood = "well"
    for name in "efgh":
        node.put(chain(name, 4))
        await node.store.settled()
    assert disk.images, "it is tried again"
    node.check()


@pytest.mark.parametrize("mood", ["fails", "lies"])
async def test_what_a_disk_could_not_read_for_now_is_read_after_a_short_pause(mood: str) -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, keys)
    node = Node(disk=disk)
    for key in keys:
        disk.mood = mood
        assert await node.get([key]) == []
        disk.mood = "well"
        node.now_s += 1.0
        assert await node.get([key]) == [DISK]
    node.check()


async def test_what_did_not_come_in_time_is_left_out_and_stays_when_it_comes() -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, keys)
    node = Node(disk=disk)
    disk.mood = "stalls"
    assert await node.get(keys, timeout_s=0.01) == []
    assert node.store.stats().num_timeouts == 1
    disk.awake.set()
    await asyncio.sleep(0.01)
    assert await node.get(keys) == [HOST] * 3


async def test_fetches_of_the_same_blocks_share_one_load() -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, keys)
    node = Node(disk=disk)
    found = await asyncio.gather(*(node.get(keys) for _ in range(4)))
    assert found == [[DISK] * 3] * 4
    assert disk.num_loads == 3


async def test_a_cancelled_fetch_leaves_no_lease_and_no_load_that_nobody_wants() -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, keys)
    node = Node(disk=disk)
    task = asyncio.create_task(node.store.fetch(LAYOUT, make_fetch(keys), None))
    await asyncio.sleep(0)
    assert node.store.stats().num_leases == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert node.store.stats().num_leases == 0
    await asyncio.sleep(0.01)
    node.check()
    assert await node.get(keys), "and they are found afterwards"


async def test_blocks_come_from_a_peer_and_from_the_object_store() -> None:
    keys = chain("a", 4)
    peer, objects = await _filled(PEER, keys[:2]), await _filled(OBJECT, keys[2:])
    node = Node(object_store=objects)
    assert await node.get(keys, peer=peer) == [PEER, PEER, OBJECT, OBJECT]
    assert await node.get(keys) == [HOST] * 4


async def test_with_little_room_the_beginning_of_a_prompt_wins() -> None:
    """Its end is in the arena, its beginning on disk, and they don't fit in together."""
    keys = chain("a", 12)
    node = Node(disk=await _filled(DISK, keys[:7]))
    node.put(keys[7:], first=8)
    assert (await node.get(keys))[:7] == [DISK] * 7


async def test_a_disk_that_hangs_is_soon_left_alone_and_costs_no_room() -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, [*keys, *chain("b", 3)])
    node = Node(disk=disk)
    disk.mood = "stalls"
    assert await node.get(keys, timeout_s=0.01) == []
    node.now_s += 2.0
    async with asyncio.timeout(5):
        assert await node.get(chain("b", 3), timeout_s=60.0) == []
    assert await node.store.lend(LAYOUT, chain("b", 3)) == [None] * 3
    assert node.put(chain("c", 5)) == [True] * 5
    assert await node.get(chain("c", 5)) == [HOST] * 5
    disk.mood = "well"
    disk.awake.set()
    await asyncio.sleep(0.01)
    assert await node.get(chain("b", 3)) == [DISK] * 3


async def test_a_peer_that_hangs_holds_up_no_other() -> None:
    keys, other = chain("a", 8), chain("b", 3)
    node = Node(num_slabs=8)
    hanging, peer = await _filled(PEER, keys), await _filled(PEER, other)

    async def hang(images: Sequence[BlockImage]) -> list[bool]:
        await asyncio.Event().wait()
        raise AssertionError

    hanging.load = hang  # type: ignore[method-assign]
    stuck = [asyncio.create_task(node.get(keys[:n], peer=hanging, timeout_s=30)) for n in (2, 4, 8)]
    await asyncio.sleep(0.01)
    assert await node.get(other, peer=peer) == [PEER] * 3
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_nobody_is_asked_for_what_is_quicker_to_compute() -> None:
    """Every prompt ends with blocks that nobody has: waiting to hear that would cost each of it."""
    node = Node()
    keys = chain("a", 4)
    node.put(keys[:3])
    silent = FakeTier(PEER, mood="stalls")
    cost = RecomputeCost(step_s=1e-6, step_tokens=4096, token_s=5e-5)
    async with asyncio.timeout(2):
        result = await node.store.fetch(
            LAYOUT, make_fetch(keys, cost=cost, timeout_s=600.0), silent
        )
    assert len(result.images) == 3
    node.store.release(LAYOUT, [found.offset for found in result.images])


@pytest.mark.parametrize("mood", ["fails", "stalls", "lies"])
async def test_a_peer_that_misbehaves_costs_bounded_time(mood: str) -> None:
    node = Node()
    keys = chain("a", 4)
    node.put(keys[:2])
    async with asyncio.timeout(2):
        found = await node.get(keys, peer=FakeTier(PEER, mood=mood), timeout_s=0.05)
    assert found == [HOST, HOST]


async def test_computing_is_chosen_where_it_is_quicker() -> None:
    keys = chain("a", 3)
    disk = await _filled(DISK, keys)
    node = Node(disk=disk)
    quick = RecomputeCost(step_s=1e-7, step_tokens=4096, token_s=1e-9)
    result = await node.store.fetch(LAYOUT, make_fetch(keys, cost=quick), None)
    assert list(result.images) == []
    assert node.store.stats().num_recomputed == 3


async def test_a_partial_block_comes_last() -> None:
    node = Node()
    keys = chain("a", 2)
    (partial,) = chain("partial", 1)
    node.put(keys)
    (offset,) = node.store.grant(LAYOUT, 1)
    node.commit(LAYOUT, offset, partial, 3, num_tokens=5)
    assert len(await node.get(keys, partials=[Partial(partial, 2, 5)])) == 3
    assert len(await node.get(keys, partials=[Partial(partial, 1, 5)])) == 2


async def test_pinned_blocks_survive_eviction_down_to_the_disk_until_they_expire() -> None:
    disk = FakeTier(DISK, max_images=4)
    node = Node(disk=disk)
    keys = chain("a", 3)
    node.put(keys)
    assert node.store.pin(LAYOUT, Pin(TENANT, list(keys), 300.0)) == 3
    for name in "bcdefghi":
        node.put(chain(name, 5))
        await node.store.settled()
    assert len(await node.get(keys)) == 3
    node.now_s += 301
    await node.store.tick()
    for name in "bcdefghi" * 2:
        node.now_s += 10
        node.put(chain(name, 5))
        await node.store.settled()
        await node.get(chain(name, 5))
    assert await node.get(keys) == []


async def test_a_disk_that_holds_one_pinned_block_is_not_emptied_for_another_model() -> None:
    """Segments of a disk hold images of one size: here all of them lie in one."""
    disk = FakeTier(DISK, max_images=4)
    node = Node(num_slabs=8, disk=disk)
    keys = chain("a", 4)
    node.put(keys)
    node.store.pin(LAYOUT, Pin(TENANT, [keys[0]], 300.0))
    for number in range(12):
        node.put(chain(f"b{number}", 4))
        await node.store.settled()
    before = set(disk.images)
    assert len(before) == 4
    assert (LAYOUT.fingerprint, keys[0]) in before
    disk.neighbours = lambda layout, key: [BlockKey(key) for _, key in disk.images]  # type: ignore[method-assign]
    for number in range(12):
        node.put(chain(f"wide{number}", 2), layout=WIDE)
        await node.store.settled()
    assert set(disk.images) == before
    node.check()


async def test_a_quota_bounds_what_a_tenant_pins() -> None:
    node = Node(num_slabs=4, pin_quota_bytes=2 * LAYOUT.image_bytes)
    node.put(chain("a", 3))
    assert node.store.pin(LAYOUT, Pin(TENANT, list(chain("a", 3)), 300.0)) == 2
    assert node.store.pin(LAYOUT, Pin(TENANT, list(chain("a", 3)), 600.0)) == 0
    assert node.store.stats().num_pins_refused == 2
    node.check()


async def test_long_pins_reach_the_object_store() -> None:
    objects = FakeTier(OBJECT)
    node = Node(object_store=objects)
    keys = chain("a", 3)
    node.put(keys)
    node.store.pin(LAYOUT, Pin(TENANT, list(keys), 300.0))
    await node.store.settled()
    assert not objects.images
    node.store.pin(LAYOUT, Pin(TENANT, list(keys), 7200.0))
    await node.store.settled()
    assert len(objects.images) == 3
    assert node.store.stats().num_objects_written == 3


async def test_bad_blocks_are_found_nowhere_again() -> None:
    keys = chain("a", 3)
    disk, peer = await _filled(DISK, keys), FakeTier(PEER, mood="lies")
    node = Node(disk=disk)
    await node.get(keys)
    node.store.discard(LAYOUT, keys[1])
    node.check()
    assert len(await node.get(keys, peer=peer)) == 1
    assert node.store.take_gone(LAYOUT)[-1] == keys[1]
    assert (LAYOUT.fingerprint, keys[1]) not in disk.images
    node.put([keys[1]], first=2)
    assert len(await node.get(keys)) == 3, "computed anew it is as good as any"


async def test_another_model_gets_room_in_whole_slabs() -> None:
    node = Node(num_slabs=2)
    node.put(chain("a", 8))
    assert node.put(chain("wide", 2), layout=WIDE) == [True, True]
    node.check()
    assert len(await node.get(chain("a", 8))) <= 4


async def test_a_likely_long_pause_makes_room_at_once_and_blocks_return_in_time() -> None:
    disk = FakeTier(DISK)
    node = Node(num_slabs=16, disk=disk)
    for name in "bcde":  # things leave after some seconds
        node.put(chain(name, 24))
        await node.store.settled()
        node.now_s += 5
    keys = chain("a", 4)
    node.put(keys)
    await node.store.settled()
    node.store.ended(LAYOUT, Ended(keys[-1], list(keys), "chat", 3600.0))
    await node.store.settled()
    assert node.store.stats().num_early_demotions == 4
    assert not set(keys) & set(node.store.held(LAYOUT, HOST))
    node.now_s += 3000
    await node.store.tick()
    assert node.store.stats().num_promoted == 0
    node.now_s += 599
    await node.store.tick()
    await asyncio.sleep(0.01)
    assert await node.get(keys) == [HOST] * 4
    assert node.store.stats().num_promoted == 4


async def test_a_disk_from_before_is_found_and_told_of_once_prompts_show_where_it_stands() -> None:
    keys = chain("a", 4)
    node = Node(disk=await _filled(DISK, keys))
    assert node.store.take_events(LAYOUT) == []
    assert await node.get(keys) == [DISK] * 4
    assert node.store.held(LAYOUT, DISK) == [keys[1], keys[3]]
    (host, on_disk) = node.store.take_events(LAYOUT)
    assert (host.kind, on_disk.kind) == (HOST, DISK)
    assert sorted(on_disk.stored) == sorted([keys[1], keys[3]])


async def test_lends_from_the_arena_and_from_disk() -> None:
    keys = chain("a", 2)
    node = Node(disk=await _filled(DISK, keys))
    node.put(chain("b", 1))
    images = await node.store.lend(LAYOUT, [*keys, *chain("b", 1), *chain("none", 1)])
    assert [image is not None for image in images] == [True, True, True, False]
    lent = [image for image in images if image is not None]
    assert all(image.is_sound() for image in lent)
    assert node.store.stats().num_leases == 3
    node.store.release_lent(lent)
    assert node.store.stats().num_leases == 0
    node.check()


async def test_learns_how_fast_the_accelerator_is_filled() -> None:
    node = Node()
    for num_images in [500, 10_000] * 50:
        load_s = 1e-3 + num_images * LAYOUT.image_bytes / 5e9
        node.store.record_load(LAYOUT, Loaded(1, num_images, load_s))
    assert node.store.stats().loads[HOST].bytes_per_s == pytest.approx(5e9, rel=0.05)


async def test_closing_ends_what_is_under_way() -> None:
    disk = await _filled(DISK, chain("a", 3))
    node = Node(disk=disk)
    disk.mood = "stalls"
    fetch = asyncio.create_task(node.get(chain("a", 3), timeout_s=30))
    await asyncio.sleep(0.01)
    await node.store.close()
    assert await fetch == []
    node.check()


async def _filled(kind: TierKind, keys: list[BlockKey]) -> FakeTier:
    """A tier that holds a chain."""
    tier, node = FakeTier(kind), Node()
    node.put(keys)
    await tier.store([i for i in await node.store.lend(LAYOUT, keys) if i is not None])
    assert len(tier.images) == len(keys)
    return tier
