from collections.abc import Sequence

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.messages import PeerAddress
from cache_tiers.peer_pool import MAX_PEERS, PeerPool
from cache_tiers.tier import Lookup, TierKind


class FakePeer:
    kind = TierKind.PEER

    def __init__(self, address: PeerAddress, closed: list[int]) -> None:
        self.address = address
        self._closed = closed

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        return [Lookup.MISS] * len(keys)

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        return [False] * len(images)

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        return [False] * len(images)

    async def close(self) -> None:
        self._closed.append(self.address.port)


def address(port: int) -> PeerAddress:
    return PeerAddress("127.0.0.1", port, b"secret")


async def test_a_peer_is_connected_to_once() -> None:
    closed: list[int] = []
    pool = PeerPool(lambda address: FakePeer(address, closed))
    assert pool.get(address(1)) is pool.get(address(1))
    assert pool.get(address(1)) is not pool.get(address(2))
    await pool.close()
    assert sorted(closed) == [1, 2]


async def test_the_peer_that_was_used_least_lately_is_closed_for_a_new_one() -> None:
    closed: list[int] = []
    pool = PeerPool(lambda address: FakePeer(address, closed))
    for port in range(MAX_PEERS):
        pool.get(address(port))
    pool.get(address(0))
    pool.get(address(MAX_PEERS))
    await pool.close()
    assert closed[0] == 1
    assert len(closed) == MAX_PEERS + 1
