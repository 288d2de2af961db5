"""Random lives of a node's hierarchy, with tiers that fail, stall and lie: the books stay right."""

import asyncio
import contextlib
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import BlockImage
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended, Partial, Pin
from cache_tiers.tier import TierError, TierKind
from tests.unit.cache_tiers.node_parts import LAYOUT, WIDE, FakeTier, Node, chain, make_fetch

NAMES = "abcd"
CHAIN_LEN = 6
TENANT = b"tenant".ljust(16)
MOODS = st.sampled_from(["well", "fails", "stalls", "lies"])
PREFIX = st.tuples(st.sampled_from(NAMES), st.integers(1, CHAIN_LEN))
OPERATION = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 4)),
    st.tuples(st.just("give_back"), st.just(None)),
    st.tuples(st.just("commit"), PREFIX),
    st.tuples(st.just("put"), PREFIX),
    st.tuples(st.just("put_wide"), PREFIX),
    st.tuples(st.just("fetch"), PREFIX),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("lend"), PREFIX),
    st.tuples(st.just("pin"), PREFIX),
    st.tuples(st.just("ended"), PREFIX),
    st.tuples(st.just("discard"), PREFIX),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 100.0])),
    st.tuples(st.just("mood"), st.tuples(st.sampled_from(["disk", "peer", "objects"]), MOODS)),
)


class Life:
    """Of a node, with what its engine holds of it."""

    def __init__(self, policy: str, disk_images: int) -> None:
        self.disk = FakeTier(TierKind.DISK, max_images=disk_images)
        self.peer = FakeTier(TierKind.PEER)
        self.objects = FakeTier(TierKind.OBJECT)
        self.node = Node(2, self.disk, self.objects, policy, pin_quota_bytes=5 * LAYOUT.image_bytes)
        self.granted: list[int] = []
        self.fetches: list[asyncio.Task[list[int]]] = []
        self.leased: list[list[int]] = []
        self.lent: list[list[BlockImage]] = []
        self.told: dict[TierKind, set[bytes]] = {TierKind.HOST: set(), TierKind.DISK: set()}

    async def fill_peer(self) -> None:
        """Another node has the beginning of a prompt."""
        other = Node()
        other.put(chain("a", 3))
        lent = await other.store.lend(LAYOUT, chain("a", 3))
        await self.peer.store([image for image in lent if image is not None])

    async def run(self, operations: Sequence[tuple[str, object]]) -> None:
        for name, argument in operations:
            done = getattr(self, name)(argument)
            if done is not None:
                await done
            await asyncio.sleep(0)
            self.node.check()
            self._hear()
        await self._end()

    def grant(self, num: int) -> None:
        self.granted += self.node.store.grant(LAYOUT, num)

    def give_back(self, _: None) -> None:
        self.node.store.give_back(LAYOUT, self.granted)
        self.granted = []

    def commit(self, prefix: tuple[str, int]) -> None:
        name, chain_len = prefix
        if self.granted:
            key = chain(name, chain_len)[-1]
            self.node.commit(LAYOUT, self.granted.pop(), key, chain_len)

    def put(self, prefix: tuple[str, int]) -> None:
        self.node.put(chain(*prefix))

    def put_wide(self, prefix: tuple[str, int]) -> None:
        self.node.put(chain(*prefix), layout=WIDE)

    def fetch(self, prefix: tuple[str, int]) -> None:
        self.fetches.append(asyncio.create_task(self._fetch(chain(*prefix))))

    def cancel(self, number: int) -> None:
        if self.fetches:
            self.fetches[number % len(self.fetches)].cancel()

    def release(self, number: int) -> None:
        if self.leased:
            self.node.store.release(LAYOUT, self.leased.pop(number % len(self.leased)))
        if self.lent:
            self.node.store.release_lent(self.lent.pop(number % len(self.lent)))

    async def lend(self, prefix: tuple[str, int]) -> None:
        with contextlib.suppress(TimeoutError, TierError):
            async with asyncio.timeout(0.001):
                lent = await self.node.store.lend(LAYOUT, chain(*prefix))
                images = [image for image in lent if image is not None]
                assert all(image.is_sound() for image in images)
                self.lent.append(images)

    def pin(self, prefix: tuple[str, int]) -> None:
        self.node.store.pin(LAYOUT, Pin(TENANT, list(chain(*prefix)), 50.0 * prefix[1] ** 3))

    def ended(self, prefix: tuple[str, int]) -> None:
        keys = chain(*prefix)
        self.node.store.ended(LAYOUT, Ended(keys[-1], list(keys), "chat", 90.0))

    def discard(self, prefix: tuple[str, int]) -> None:
        self.node.store.discard(LAYOUT, chain(*prefix)[-1])

    async def wait(self, seconds: float) -> None:
        self.node.now_s += seconds
        await self.node.store.tick()
        for _ in range(5):
            await asyncio.sleep(0)

    def mood(self, change: tuple[str, str]) -> None:
        tier: FakeTier = getattr(self, change[0])
        _set(tier, change[1])

    async def _fetch(self, keys: list[BlockKey]) -> list[int]:
        partial = chain("partial", 1)[0]
        fetch = make_fetch(keys, timeout_s=0.002, partials=[Partial(partial, len(keys), 3)])
        result = await self.node.store.fetch(LAYOUT, fetch, self.peer)
        for found, key in zip(result.images, [*keys, partial], strict=False):
            assert found.key == key, "not a leading run"
            assert self.node.image(LAYOUT, found.offset, key, found.num_tokens).is_sound()
        offsets = [found.offset for found in result.images]
        self.leased.append(offsets)
        return offsets

    def _hear(self) -> None:
        store = self.node.store
        for events in store.take_events(LAYOUT):
            told = self.told[events.kind]
            told -= set(events.evicted)
            told |= set(events.stored)
        for kind, told in self.told.items():
            assert told == set(store.held(LAYOUT, kind)), "routers were told something else"
        gone = set(store.take_gone(LAYOUT))
        assert all(map(gone.isdisjoint, self.told.values()))

    async def _end(self) -> None:
        """All that was held can go, and all that was begun ends."""
        for tier in (self.disk, self.peer, self.objects):
            _set(tier, "well")
        await asyncio.gather(*self.fetches, return_exceptions=True)
        while self.leased or self.lent:
            self.release(0)
        self.give_back(None)
        async with asyncio.timeout(5):
            await self.node.store.settled()
            await self.node.store.close()
        self.node.check()
        assert self.node.store.stats().num_leases == 0
        self._hear()


def _set(tier: FakeTier, mood: str) -> None:
    tier.awake.set()
    tier.awake = asyncio.Event()
    tier.mood = mood


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["value", "lru", "s3fifo", "arc"]),
    st.integers(0, 12),
    st.lists(OPERATION, min_size=5, max_size=60),
)
def test_whatever_happens_slots_leases_and_events_stay_right(
    policy: str, disk_images: int, operations: list[tuple[str, object]]
) -> None:
    async def live() -> None:
        life = Life(policy, disk_images)
        await life.fill_peer()
        await life.run(operations)

    asyncio.run(live())
