"""Groups of rank processes whose accelerator is too small for its conversations: what they restore
from the node's cache answers as what they compute.
"""

import tempfile
from pathlib import Path

import msgspec
import pytest

from cache_tiers.config import NodeCacheConfig
from cache_tiers.keys import BlockKey, block_keys
from cache_tiers.messages import Loaded
from engine.config import EngineConfig, EngineSpec
from engine.messages import EngineRequest, SamplingParams, Submit
from engine.rank_group import RankGroup
from engine.rank_messages import FromGateway
from tests.integration.node_engines import eventually
from tests.integration.node_processes import node_process, num_arena_maps
from tests.integration.node_threads import node_thread
from tests.integration.rank_groups import answer, running
from tests.unit.cache_tiers.fake_image_store import FakeImageStore
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

pytestmark = pytest.mark.integration

BLOCK_SIZE = 16
BLOCK_BYTES = 2 * 2 * 6 * 8 * BLOCK_SIZE * 4  # layers, key and value, heads, head_dim, float32
NUM_BLOCKS = 18
NUM_CONVERSATIONS = 4
NUM_TURNS = 3
ROOT_KEY = BlockKey(bytes(16))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model(
        "llama", num_attention_heads=6, num_key_value_heads=6, intermediate_size=48
    )
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "tiny")


def spec_of(checkpoint: Path, size: int, socket_path: Path | None) -> EngineSpec:
    config = EngineConfig(
        dtype="float32",
        tensor_parallel_size=size,
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=NUM_BLOCKS * BLOCK_BYTES,
        max_num_seqs=2,
        debug_poison_freed_blocks=True,
    )
    return EngineSpec(
        model="tiny", checkpoint=checkpoint, config=config, node_cache_socket=socket_path
    )


def submit(group: RankGroup, request_id: str, token_ids: list[int]) -> None:
    keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
    sampling = SamplingParams(max_tokens=12, temperature=0)
    request = EngineRequest(request_id, token_ids, ROOT_KEY, keys, sampling, timeout_s=60)
    group.send(FromGateway(1, msgspec.msgpack.encode(Submit(request))))


async def converse(spec: EngineSpec) -> dict[str, list[int]]:
    """All answers."""
    async with running(spec) as group:
        return await converse_with(group)


async def converse_with(group: RankGroup) -> dict[str, list[int]]:
    """The conversations take turns, so that each has been evicted when it goes on."""
    texts = [
        [3 + (7 * number + place * (number + 3)) % 90 for place in range(90)]
        for number in range(NUM_CONVERSATIONS)
    ]
    answers: dict[str, list[int]] = {}
    for turn in range(NUM_TURNS):
        for number, text in enumerate(texts):
            request_id = f"{number}.{turn}"
            submit(group, request_id, text)
            answers |= await answer(group, 1)
            text += [*answers[request_id], *range(10, 25)]
    return answers


def take_loads(store: FakeImageStore) -> list[Loaded]:
    loads = [call for call in store.calls if isinstance(call, Loaded)]
    store.calls.clear()
    return loads


@pytest.mark.parametrize("size", [1, 3])
async def test_answers_from_restored_kv_are_those_of_computed_kv(
    checkpoint: Path, size: int
) -> None:
    expected = await converse(spec_of(checkpoint, size, None))
    assert len(expected) == NUM_CONVERSATIONS * NUM_TURNS
    with node_thread() as node:
        spec = spec_of(checkpoint, size, node.socket_path)
        assert await converse(spec) == expected
        loads = take_loads(node.store)
        # From the second turn on each conversation comes back.
        assert sum(load.num_images for load in loads) > 5 * NUM_CONVERSATIONS * (NUM_TURNS - 1)
        assert not any(load.bad_keys for load in loads)

        for stored in node.store.images.values():  # in the shard of the last rank
            node.store.arena.memory[stored.offset + BLOCK_BYTES - 1] ^= 1
        assert await converse(spec) == expected
        assert any(load.bad_keys for load in take_loads(node.store))


@pytest.mark.parametrize("size", [1, 3])
async def test_no_rank_keeps_the_memory_of_a_node_that_was_killed(
    checkpoint: Path, size: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        async with (
            node_process(Path(folder), NodeCacheConfig(host_bytes=64 * 1024**2)) as node,
            running(spec_of(checkpoint, size, node.socket_path)) as group,
        ):
            answers = await converse_with(group)
            assert [num_arena_maps(pid) for pid in group.pids] == [1] * size
            await node.kill()
            await eventually(lambda: not any(map(num_arena_maps, group.pids)))
            assert await converse_with(group) == answers
