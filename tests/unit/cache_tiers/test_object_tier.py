import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.config import ObjectStoreConfig
from cache_tiers.keys import BlockKey
from cache_tiers.object.bucket import ClientLimits
from cache_tiers.object_tier import ObjectLimits, ObjectStats, ObjectTier
from cache_tiers.tier import Lookup, TierError
from tests.unit.cache_tiers.object_fakes import FakeClient, refusal

LAYOUT = ImageLayout(make_fingerprint("a model"), 2, 3000, 16)
OTHER = ImageLayout(make_fingerprint("another model"), 2, 3000, 16)


def key_of(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


def name_of(number: int) -> str:
    return f"kv/{LAYOUT.fingerprint.hex()}/{key_of(number).hex()}"


def blank(*numbers: int, layout: ImageLayout = LAYOUT) -> list[BlockImage]:
    return [
        BlockImage(layout, memoryview(bytearray(layout.image_bytes)), key_of(number), 16)
        for number in numbers
    ]


def sealed(*numbers: int) -> list[BlockImage]:
    images = blank(*numbers)
    for number, image in zip(numbers, images, strict=True):
        image.memory[:] = random.Random(number).randbytes(LAYOUT.image_bytes)
        image.write_footer()
        for rank in range(LAYOUT.num_shards):
            image.seal_shard(rank)
    return images


@asynccontextmanager
async def opened(
    client: FakeClient, limits: ObjectLimits | None = None
) -> AsyncIterator[ObjectTier]:
    tier = await ObjectTier.open(
        ObjectStoreConfig(url="s3://bucket/kv"), limits=limits, connect=lambda limits: client
    )
    try:
        yield tier
    finally:
        client.may_answer.set()
        await tier.close()


def impatient() -> ObjectLimits:
    return ObjectLimits(ClientLimits(num_connections=4), load_timeout_s=0.05)


async def test_what_is_stored_is_found_and_loaded() -> None:
    async with opened(FakeClient()) as tier:
        stored = sealed(*range(40))
        assert await tier.store(stored) == [True] * 40
        assert await tier.find(LAYOUT, [key_of(39), key_of(40)]) == [Lookup.HIT, Lookup.MISS]
        images = blank(*range(30, 50))
        assert await tier.load(images) == [True] * 10 + [False] * 10
        assert [image.memory for image in images[:10]] == [image.memory for image in stored[30:]]
        assert tier.stats == ObjectStats(num_loaded=10, num_stored=40, num_missing=10)


async def test_layouts_do_not_meet() -> None:
    async with opened(FakeClient()) as tier:
        await tier.store(sealed(1))
        assert await tier.load(blank(1, layout=OTHER)) == [False]
        assert await tier.find(OTHER, [key_of(1)]) == [Lookup.MISS]


async def test_an_unsound_object_is_counted_and_not_asked_for_again_until_it_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient()
    async with opened(client) as tier:
        await tier.store(sealed(0, 1, 2, 3))
        client.objects[name_of(0)] = client.objects[name_of(1)]
        client.objects[name_of(1)] = client.objects[name_of(1)][:-1]
        spoilt = bytearray(client.objects[name_of(2)])
        spoilt[17] ^= 1
        client.objects[name_of(2)] = bytes(spoilt)
        images = blank(0, 1, 2, 3)
        with caplog.at_level(logging.WARNING):
            assert await tier.load(images) == [False, False, False, True]
        assert ["3 objects are not what they should be" in line for line in caplog.messages] == [
            True
        ]
        assert tier.stats.num_unsound == 3
        assert not any(any(image.memory) for image in images[:3])
        num_requests = client.num_requests
        assert await tier.load(blank(0, 1, 2)) == [False] * 3
        assert await tier.find(LAYOUT, [key_of(0)]) == [Lookup.MISS]
        assert client.num_requests == num_requests
        await tier.store(sealed(0))
        assert await tier.load(blank(0, 1)) == [True, False]


async def test_a_store_that_refuses_is_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient()
    client.error = refusal(403, "AccessDenied")
    async with opened(client, ObjectLimits(ClientLimits(num_connections=1))) as tier:
        with caplog.at_level(logging.WARNING), pytest.raises(TierError, match="AccessDenied"):
            await tier.load(blank(*range(50)))
        assert client.num_requests == 1
        for call in (tier.load(blank(1)), tier.store(sealed(1)), tier.find(LAYOUT, [key_of(1)])):
            with pytest.raises(TierError, match="failed shortly before"):
                await call
        assert client.num_requests == 1
        assert len(caplog.messages) == 1
        assert (tier.stats.num_failures, tier.stats.num_spared) == (1, 3)


async def test_what_came_before_a_failure_is_kept() -> None:
    class Failing(FakeClient):
        def _check(self) -> None:
            super()._check()
            if self.num_requests == 8:
                raise refusal(503, "SlowDown")

    async with opened(Failing(), ObjectLimits(ClientLimits(num_connections=1))) as tier:
        assert await tier.store(sealed(*range(5))) == [True] * 5
        assert await tier.load(blank(*range(5))) == [True] * 2 + [False] * 3
        assert tier.stats.num_failures == 1


async def test_a_load_that_is_late_raises_and_its_memory_stays_as_it_is() -> None:
    client = FakeClient()
    async with opened(client, impatient()) as tier:
        await tier.store(sealed(1, 2))
        client.may_answer.clear()
        images = blank(1, 2)
        with pytest.raises(TierError, match=r"not done within 0\.05 s"):
            await tier.load(images)
        client.may_answer.set()
        await asyncio.sleep(0.02)
        assert not any(any(image.memory) for image in images)
        assert tier.stats.num_loaded == 0


async def test_a_cancelled_load_leaves_the_memory_alone() -> None:
    client = FakeClient()
    async with opened(client) as tier:
        await tier.store(sealed(1))
        client.may_answer.clear()
        images = blank(1)
        load = asyncio.create_task(tier.load(images))
        await asyncio.sleep(0.01)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        client.may_answer.set()
        await asyncio.sleep(0.02)
        assert not any(images[0].memory)
        assert await tier.load(images) == [True]


async def test_nothing_is_asked_for_nothing() -> None:
    client = FakeClient()
    async with opened(client) as tier:
        assert await tier.load([]) == await tier.store([]) == []
        assert await tier.find(LAYOUT, []) == []
        assert client.num_requests == 0


async def test_closing_ends_a_load() -> None:
    client = FakeClient()
    client.may_answer.clear()
    tier = await ObjectTier.open(
        ObjectStoreConfig(url="s3://bucket/kv"), connect=lambda limits: client
    )
    load = asyncio.create_task(tier.load(blank(1)))
    waiting = asyncio.create_task(tier.load(blank(*range(40))))
    await asyncio.sleep(0.01)
    client.error = OSError("closed")
    client.may_answer.set()
    await tier.close()
    results = await asyncio.gather(load, waiting, return_exceptions=True)
    assert all(isinstance(result, TierError) for result in results)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "load", "cancelled load", "cancelled store", "spoil"]),
        st.integers(0, 9),
        st.integers(1, 8),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_whatever_happens_what_is_loaded_is_what_was_stored(
    steps: list[tuple[str, int, int]],
) -> None:
    async def run() -> None:
        client = FakeClient()
        async with opened(client) as tier:
            for name, begin, num in steps:
                numbers = range(begin, begin + num)
                if name == "spoil":
                    if name_of(begin) in client.objects:
                        client.objects[name_of(begin)] = bytes(LAYOUT.image_bytes)
                    continue
                images = sealed(*numbers) if "store" in name else blank(*numbers)
                task = asyncio.create_task(
                    tier.store(images) if "store" in name else tier.load(images)
                )
                if "cancelled" in name:
                    await asyncio.sleep(0)
                    task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    for image in images:  # as if another block used it now
                        image.memory[:] = bytes(LAYOUT.image_bytes)
                    await asyncio.sleep(0.001)
                    assert not any(any(image.memory) for image in images)
                    continue
                for number, image, is_done in zip(numbers, images, task.result(), strict=True):
                    assert not is_done or image.memory == sealed(number)[0].memory

    asyncio.run(run())
