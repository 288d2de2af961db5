import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from cache_tiers.arena import Arena
from cache_tiers.block_image import ImageLayout
from cache_tiers.messages import (
    Cancel,
    Ended,
    Export,
    Exported,
    Fetch,
    Fetched,
    Gone,
    Loaded,
    MediaEvents,
    Open,
    PeerAddress,
    Pin,
    RecomputeCost,
    Store,
    Stored,
    Welcome,
)
from cache_tiers.node_admission import NotAdmitted, admit
from cache_tiers.node_client import connect
from cache_tiers.node_service import LIMITS, NodeService
from cache_tiers.node_socket import listen
from cache_tiers.tier import Tier, TierError, TierKind
from tests.integration.node_engines import eventually, node_engine, random_keys
from tests.unit.cache_tiers.fake_image_store import LAYOUT, FakeImageStore, key_of
from wire.frames import MAX_FRAME_BYTES, encode_frame

pytestmark = pytest.mark.integration

TWO_RANKS = ImageLayout(b"2" * 16, num_shards=2, shard_bytes=8000, block_size_tokens=16)
SOURCE_ROOT = Path(__file__).resolve().parents[2]


def no_peers(address: PeerAddress) -> Tier:
    raise TierError("there are no other nodes")


@dataclass(frozen=True, slots=True)
class Node:
    socket_path: Path
    store: FakeImageStore
    service: NodeService

    async def wait_until_nothing_is_held(self) -> None:
        await eventually(lambda: not self.store.granted and not self.store.leases)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    arena = Arena(16 * 1024**2)
    store = FakeImageStore(arena)
    store.may_fetch.set()
    limits = replace(LIMITS, max_send_queue_bytes=1024**2, flush_timeout_s=0.2)
    service = NodeService(store, arena, folder / "node.sock", no_peers, limits=limits)
    await service.start()
    try:
        yield Node(folder / "node.sock", store, service)
    finally:
        await service.close()
        assert not store.granted
        assert not store.leases
        arena.slabs.check_integrity()
        arena.close()


async def test_what_one_engine_stores_another_one_loads(node: Node) -> None:
    keys = random_keys(3)
    async with (
        node_engine(node.socket_path, LAYOUT) as writer,
        node_engine(node.socket_path, LAYOUT) as reader,
    ):
        await writer.wait_for_slots(3)
        writer.store(keys)
        await eventually(lambda: len(node.store.images) == 3)
        fetch_id = reader.fetch(keys, num_held=1)
        fetched = await reader.receive(Fetched)
        assert fetched.fetch_id == fetch_id
        assert [image.key for image in fetched.images] == keys[1:]
        for found, key in zip(fetched.images, keys[1:], strict=True):
            assert reader.image(found.offset, key).is_sound()
        assert node.store.leases.total() == 2
        reader.send(Loaded(fetch_id, 2, load_s=0.001))
        await eventually(lambda: not node.store.leases)


async def test_an_engine_that_leaves_gives_back_slots_leases_and_fetches(node: Node) -> None:
    keys = random_keys(2)
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(2)
        engine.store(keys)
        engine.fetch(keys)
        await engine.receive(Fetched)
        node.store.may_fetch.clear()
        engine.fetch(keys)
        await eventually(lambda: node.service.stats().num_fetches == 2)
        assert node.service.stats().num_granted_slots == len(node.store.granted) > 0
    await node.wait_until_nothing_is_held()
    assert node.service.stats().num_engines == 0
    assert len(node.store.images) == 2


KILLED = """
import sys, time
from pathlib import Path
import msgspec
from cache_tiers.block_image import ImageLayout
from cache_tiers.messages import NodeToEngine, Open, Slots
from cache_tiers.node_client import connect
layout = ImageLayout(b"f" * 16, 1, 8000, 16)
pipe, arena = connect(Path(sys.argv[1]), Open(layout, 0, "a-model", 8), 5)
while not (frames := pipe.poll(1)):
    pass
slots = msgspec.msgpack.decode(frames[0], type=NodeToEngine).offsets
arena.memory[slots[0] : slots[0] + 4000] = bytes(4000)
print("in the middle", flush=True)
while True:
    arena.memory[slots[0] : slots[0] + 4000] = bytes(4000)
"""


async def test_an_engine_killed_while_it_writes_takes_nothing_with_it(node: Node) -> None:
    async with node_engine(node.socket_path, LAYOUT) as other:
        process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-c", KILLED, str(node.socket_path)],
            cwd=SOURCE_ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"in the middle\n"
        assert node.service.stats().num_engines == 2
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        process.stdout.close()
        await eventually(lambda: node.service.stats().num_engines == 1)
        await eventually(lambda: len(node.store.granted) == node.service.stats().num_granted_slots)
        assert node.store.images == {}
        keys = random_keys(4)
        await other.wait_for_slots(4)
        other.store(keys)
        await eventually(lambda: len(node.store.images) == 4)


async def test_a_cancelled_fetch_is_not_answered(node: Node) -> None:
    node.store.may_fetch.clear()
    async with node_engine(node.socket_path, LAYOUT) as engine:
        first = engine.fetch(random_keys(1))
        engine.send(Cancel(first))
        second = engine.fetch(random_keys(1))
        await eventually(lambda: node.service.stats().num_fetches == 1)
        node.store.may_fetch.set()
        assert (await engine.receive(Fetched)).fetch_id == second


async def test_engines_share_the_slots_and_none_takes_them_all(node: Node) -> None:
    capacity = node.store.arena.capacity(LAYOUT.image_bytes)
    async with (
        node_engine(node.socket_path, LAYOUT) as greedy,
        node_engine(node.socket_path, LAYOUT) as modest,
    ):
        share = capacity // 16
        await modest.wait_for_slots(share)
        await greedy.wait_for_slots(share)
        greedy.store(random_keys(len(greedy.slots)))  # what it was given before the other came
        while len(node.store.images) < capacity // 2:
            await greedy.wait_for_slots(share)
            assert len(greedy.slots) == share
            greedy.store(random_keys(share))
        modest.poll()
        assert len(modest.slots) == share


async def test_an_engine_without_slots_gets_them_when_there_is_room_again(node: Node) -> None:
    node.store.max_granted = 3
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(3)
        await asyncio.sleep(0.15)
        engine.poll()
        assert len(engine.slots) == 3
        node.store.max_granted = 1000
        await engine.wait_for_slots(4)


async def test_slots_of_a_rank_group_are_kept_while_its_other_ranks_may_write(node: Node) -> None:
    async with (
        node_engine(node.socket_path, LAYOUT),
        node_engine(node.socket_path, TWO_RANKS) as engine,
    ):
        await engine.wait_for_slots(1)
        num_granted = len(node.store.granted)
        engine.link.pipe.close()
        await eventually(lambda: node.service.stats().num_engines == 1)
        await asyncio.sleep(0.1)
        assert len(node.store.granted) == num_granted
    # The fixture closes the service, which does not wait for them.


def hostile_frames() -> dict[str, bytes]:
    def frame(message: msgspec.Struct) -> bytes:
        return encode_frame(msgspec.msgpack.encode(message))

    key = bytes(key_of(1))
    return {
        "garbage": encode_frame(b"\xc1 what is this"),
        "not a message": encode_frame(msgspec.msgpack.encode({"type": "store", "images": 1})),
        "a frame over the limit": (MAX_FRAME_BYTES - 1).to_bytes(4, "little"),
        "four gigabytes": b"\xff\xff\xff\xff",
        "a second Open": frame(Open(LAYOUT, 0, "a-model", 8)),
        "what only nodes say": frame(Welcome(1)),
        "a slot never granted": frame(Store([Stored(1, key, 16, 1, 0.1)])),
        "a negative slot": frame(Store([Stored(-4096, key, 16, 1, 0.1)])),
        "a fetch of half a key": frame(Fetch(1, [key[:8]], 0, [], RecomputeCost(), 1.0)),
        "a pin for ever": frame(Pin(key, [key], math.inf)),
        "an end without a key": frame(Ended(b"", [], "chat")),
        "an unknown fetch": frame(Loaded(3, 0, 0.0)),
        "an unknown cancel": frame(Cancel(3)),
    }


@pytest.mark.parametrize("frame", hostile_frames().values(), ids=hostile_frames().keys())
async def test_a_hostile_frame_costs_its_sender_the_connection_and_nobody_else(
    node: Node, frame: bytes
) -> None:
    keys = random_keys(1)
    async with node_engine(node.socket_path, LAYOUT) as good:
        await good.wait_for_slots(1)
        async with node_engine(node.socket_path, LAYOUT) as hostile:
            await hostile.wait_for_slots(1)
            hostile.link.pipe._socket.send(frame)
            await hostile.wait_until_cut()
        await eventually(lambda: len(node.store.granted) == node.service.stats().num_granted_slots)
        good.store(keys)
        good.fetch(keys)
        assert len((await good.receive(Fetched)).images) == 1


async def test_a_slot_used_twice_ends_the_connection_but_the_image_stays(node: Node) -> None:
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(1)
        offset = engine.slots.pop()
        key, other = random_keys(2)
        engine.write(offset, key)
        engine.send(Store([Stored(offset, key, 16, 1, 0.1)]))
        engine.send(Store([Stored(offset, other, 16, 1, 0.1)]))
        await engine.wait_until_cut()
    await node.wait_until_nothing_is_held()
    assert list(node.store.images) == [key]
    assert node.service.stats().num_violations == 1


async def test_an_image_of_more_tokens_than_a_block_is_not_taken(node: Node) -> None:
    async with node_engine(node.socket_path, LAYOUT) as engine:
        offset = engine.slots.pop()
        [key] = random_keys(1)
        engine.send(Store([Stored(offset, key, LAYOUT.block_size_tokens + 1, 1, 0.1)]))
        await engine.wait_until_cut()
    await node.wait_until_nothing_is_held()
    assert node.store.images == {}


async def test_an_engine_that_does_not_read_is_cut(node: Node) -> None:
    async with (
        node_engine(node.socket_path, LAYOUT),
        node_engine(node.socket_path, LAYOUT) as good,
    ):
        for _ in range(40):
            node.store.events.append(
                MediaEvents(TierKind.HOST, stored=[bytes(16)] * 4000, evicted=[])
            )
            await good.receive(MediaEvents)
            if node.service.stats().num_engines == 1:
                break
        assert node.service.stats().num_engines == 1


async def test_a_new_engine_hears_what_is_held_and_then_every_change(node: Node) -> None:
    keys = random_keys(2)
    async with node_engine(node.socket_path, LAYOUT) as first:
        await first.wait_for_slots(2)
        first.store(keys)
        await eventually(lambda: len(node.store.images) == 2)
        before = MediaEvents(TierKind.HOST, stored=list(keys), evicted=[])
        node.store.events.append(before)
        async with node_engine(node.socket_path, LAYOUT) as second:
            assert await second.receive(MediaEvents) == before  # by `held`
            assert await first.receive(MediaEvents) == before
            change = MediaEvents(TierKind.DISK, stored=[], evicted=[keys[0]])
            node.store.events.append(change)
            node.store.gone.append(keys[0])
            for engine in (first, second):
                assert await engine.receive(MediaEvents) == change
                assert await engine.receive(Gone) == Gone([keys[0]])


async def test_engines_hear_of_their_own_layout_only(node: Node) -> None:
    async with (
        node_engine(node.socket_path, LAYOUT) as engine,
        node_engine(node.socket_path, TWO_RANKS) as other,
    ):
        [session] = node.service.sessions(LAYOUT)
        export = asyncio.create_task(session.export(random_keys(1)))
        asked = await engine.receive(Export)
        engine.send(Exported(asked.export_id))
        await asyncio.wait_for(export, 5)
        other.poll()
        assert other.unread == []


async def test_an_export_ends_with_the_engine_that_was_asked(node: Node) -> None:
    async with node_engine(node.socket_path, LAYOUT) as engine:
        [session] = node.service.sessions(LAYOUT)
        export = asyncio.create_task(session.export(random_keys(1)))
        await engine.receive(Export)
    await asyncio.wait_for(export, 5)


async def test_other_ranks_get_the_arena_and_may_say_nothing(node: Node) -> None:
    async with (
        node_engine(node.socket_path, TWO_RANKS) as leader,
        node_engine(node.socket_path, TWO_RANKS, rank=1) as follower,
    ):
        await leader.wait_for_slots(1)
        offset = leader.slots.pop()
        follower.link.arena.memory[offset : offset + 5] = b"shard"
        assert bytes(leader.link.arena.memory[offset : offset + 5]) == b"shard"
        assert node.service.stats().num_engines == 1
        follower.fetch(random_keys(1))
        await follower.wait_until_cut()
        assert node.service.stats().num_engines == 1


async def test_engines_that_can_not_be_served_are_told_why(node: Node) -> None:
    def dial(layout: ImageLayout) -> str:
        with pytest.raises(TierError) as refused:
            connect(node.socket_path, Open(layout, 0, "a-model", 8), 5)
        return str(refused.value)

    async with node_engine(node.socket_path, LAYOUT):
        too_large = ImageLayout(b"x" * 16, 1, 64 * 1024**2, 16)
        assert "raise host_bytes" in await asyncio.to_thread(dial, too_large)
        same_name = msgspec.structs.replace(LAYOUT, block_size_tokens=32)
        assert "has the fingerprint of" in await asyncio.to_thread(dial, same_name)
    assert node.service.stats().num_refused == 2


@pytest.mark.parametrize(
    "said",
    [b"", b"\x05\x00\x00\x00\xc1\xc1\xc1\xc1\xc1", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n"],
)
async def test_strangers_at_the_door_hinder_nobody(node: Node, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(node.socket_path))
        stranger.send(said) if said else None
        async with node_engine(node.socket_path, LAYOUT) as engine:
            await engine.wait_for_slots(1)


async def test_another_users_process_is_turned_away(node: Node) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(NotAdmitted, match="is not the user of this cache"):
            await admit(ours, node.store.arena, lambda opening: None, uid=os.geteuid() + 1)
        assert b"is not the user" in theirs.recv(1000)


def test_an_engine_uses_no_cache_of_another_user(folder: Path) -> None:
    opening = Open(LAYOUT, 0, "m", 8)
    with listen(folder / "node.sock"), pytest.raises(TierError, match="is not this engine's"):
        connect(folder / "node.sock", opening, 5.0, uid=os.geteuid() + 1)


async def test_memory_that_an_engine_mapped_outlives_the_node_cache(node: Node) -> None:
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(1)
        [key] = random_keys(1)
        image = engine.write(engine.slots[0], key)
        await node.service.close()
        assert "closed" in await engine.wait_until_cut()
        assert image.is_sound()
        del image


async def test_engines_that_come_and_go_leave_no_descriptor_behind(node: Node) -> None:
    def num_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def come_and_go() -> None:
        async with node_engine(node.socket_path, LAYOUT) as engine:
            await engine.wait_for_slots(1)
        await eventually(lambda: node.service.stats().num_engines == 0)

    await come_and_go()
    before = num_descriptors()
    for _ in range(20):
        await come_and_go()
    await eventually(lambda: num_descriptors() <= before)


async def test_a_node_is_idle_from_when_the_last_rank_left(node: Node) -> None:
    async with node_engine(node.socket_path, TWO_RANKS, rank=1):
        await asyncio.sleep(0.5)
        assert node.service.idle_s == 0
    await eventually(lambda: node.service.idle_s > 0)
    assert node.service.idle_s < 0.4
    await eventually(lambda: node.service.idle_s > 0.1)


def test_a_node_cache_without_a_socket_is_an_error_that_names_the_path(folder: Path) -> None:
    with pytest.raises(TierError, match=r"no node cache at .*node\.sock"):
        connect(folder / "node.sock", Open(LAYOUT, 0, "a-model", 8), 1)


def test_a_cache_that_says_nothing_is_waited_for_no_longer_than_told(folder: Path) -> None:
    with listen(folder / "node.sock"), pytest.raises(TierError, match="timed out"):
        connect(folder / "node.sock", Open(LAYOUT, 0, "a-model", 8), 0.1)


def test_a_socket_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(TierError, match="mode 0700"):
        listen(folder / "node.sock")


def test_one_cache_listens_at_a_path_and_one_that_was_killed_is_replaced(folder: Path) -> None:
    with listen(folder / "node.sock"), pytest.raises(TierError, match="another node cache"):
        listen(folder / "node.sock")
    assert (folder / "node.sock").is_socket()
    listen(folder / "node.sock").close()


def test_a_socket_path_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(TierError, match="shorter folder"):
        listen(folder / ("x" * 200) / "node.sock")
