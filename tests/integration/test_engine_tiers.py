"""Engine replicas and the cache of their node, each in processes of its own."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cache_tiers.config import NodeCacheConfig
from engine.config import EngineConfig, PacedConfig
from engine.messages import Medium
from tests.integration.node_engines import eventually
from tests.integration.node_processes import node_process, num_arena_maps
from tests.integration.paced_front import Gateway, gateway_at, running, write_paced_checkpoint

pytestmark = pytest.mark.integration

PROMPT_LEN = 801
NUM_CACHED = 800
NODE = NodeCacheConfig(host_bytes=64 * 1024**2)


def slow_prefill(num_ranks: int = 1, kv_cache_bytes: int = 1 << 20) -> EngineConfig:
    """Loading pays: a token takes as long as it does with a large model."""
    return EngineConfig(
        runner="paced",
        max_num_seqs=8,
        tensor_parallel_size=num_ranks,
        kv_cache_bytes=kv_cache_bytes,
        paced=PacedConfig(step_base_s=0.004, per_prefill_token_s=2e-4),
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


@pytest.fixture
def unix_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


async def ask(gateway: Gateway, request_id: str, prompt_len: int = PROMPT_LEN) -> list[int]:
    """Requests whose ids are equally long have the same prompt."""
    await gateway.submit(request_id, max_tokens=8, prompt_len=prompt_len)
    tokens, _ = await gateway.answer(request_id)
    return tokens


def num_restored(gateway: Gateway, request_id: str) -> int:
    usage = gateway.deltas[request_id][-1].usage
    assert usage is not None
    if usage.restored is None:
        return 0
    return usage.restored.host + usage.restored.disk


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_a_replica_that_is_started_again_finds_its_prefixes_on_the_node(
    checkpoint: Path, unix_dir: Path, num_ranks: int
) -> None:
    config = slow_prefill(num_ranks)
    async with node_process(unix_dir, NODE) as node:
        socket_path = node.socket_path
        async with running(checkpoint, config=config, node_cache_socket=socket_path) as (
            front,
            endpoint,
        ):
            async with gateway_at(endpoint) as gateway:
                tokens = await ask(gateway, "a")
                assert num_restored(gateway, "a") == 0
            assert await front.drain(5.0)
        async with (
            running(checkpoint, config=config, node_cache_socket=socket_path) as (front, endpoint),
            gateway_at(endpoint) as gateway,
        ):
            again = await ask(gateway, "b")
            page = front.render_metrics().decode()

    assert again == tokens
    assert num_restored(gateway, "b") == NUM_CACHED
    assert 'headwater:kv_tier_loaded_blocks_total{engine="tiny/1",kind="host"' in page


async def test_gateways_hear_what_the_node_holds_and_that_it_is_gone(
    checkpoint: Path, unix_dir: Path
) -> None:
    async with (
        node_process(unix_dir, NODE) as node,
        running(checkpoint, config=slow_prefill(), node_cache_socket=node.socket_path) as (
            front,
            endpoint,
        ),
        gateway_at(endpoint) as gateway,
    ):
        await ask(gateway, "a")
        await front.drain(5.0)
        keys = gateway.request("a", 1, PROMPT_LEN).block_keys[7::8]
        await gateway.until(lambda: any(e.medium is Medium.HOST for e in gateway.events))
        await node.kill()
        await gateway.until(lambda: any(e.evicted for e in gateway.events))

    stored = {k for e in gateway.events if e.medium is Medium.HOST for k in e.stored}
    evicted = {k for e in gateway.events if e.medium is Medium.HOST for k in e.evicted}
    assert set(keys) <= stored == evicted
    numbers = [events.sequence for events in gateway.events]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


async def test_requests_go_on_when_the_node_is_killed_and_use_the_next_one(
    checkpoint: Path, unix_dir: Path
) -> None:
    config = slow_prefill(kv_cache_bytes=60 * 1024)  # 60 blocks: less than two prompts
    async with node_process(unix_dir, NODE) as node:
        socket_path = node.socket_path
        async with (
            running(checkpoint, config=config, node_cache_socket=socket_path) as (_, endpoint),
            gateway_at(endpoint) as gateway,
        ):
            tokens = await ask(gateway, "a")
            await ask(gateway, "long")
            assert await ask(gateway, "b") == tokens
            assert num_restored(gateway, "b") > 0
            await ask(gateway, "more")
            await gateway.submit("c", max_tokens=8, prompt_len=PROMPT_LEN)
            await node.kill()
            assert (await gateway.answer("c"))[0] == tokens
            async with node_process(unix_dir, NODE), asyncio.timeout(30):
                for name in "defghijklmnopqrstuvwxyz":  # until it is connected
                    await ask(gateway, f"other {name}")
                    assert await ask(gateway, name) == tokens
                    if num_restored(gateway, name) > 0:
                        break
                    await asyncio.sleep(0.3)
                assert num_restored(gateway, name) > 0


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_no_rank_keeps_the_memory_of_a_node_that_was_killed(
    checkpoint: Path, unix_dir: Path, num_ranks: int
) -> None:
    config = slow_prefill(num_ranks, kv_cache_bytes=60 * 1024)
    async with (
        node_process(unix_dir, NODE) as node,
        running(checkpoint, config=config, node_cache_socket=node.socket_path) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        ranks = [child.pid for child in psutil.Process().children(recursive=True)]
        ranks.remove(node.process.pid)
        tokens = await ask(gateway, "a")
        await ask(gateway, "long")
        assert await ask(gateway, "b") == tokens
        assert num_restored(gateway, "b") > 0
        assert sum(map(num_arena_maps, ranks)) == num_ranks
        await node.kill()
        await eventually(lambda: not any(map(num_arena_maps, ranks)))
        assert await ask(gateway, "c") == tokens


async def test_a_node_that_hangs_holds_few_requests_up_and_costs_no_work(
    checkpoint: Path, unix_dir: Path
) -> None:
    config = slow_prefill(kv_cache_bytes=60 * 1024)
    async with node_process(unix_dir, NODE) as node:
        socket_path = node.socket_path
        async with (
            running(
                checkpoint, config=config, node_cache_socket=socket_path, load_timeout_s=1.0
            ) as (front, endpoint),
            gateway_at(endpoint) as gateway,
        ):
            tokens = await ask(gateway, "a")
            await ask(gateway, "long")
            node.freeze()
            times_s = []
            for name in "bcdef":
                started_s = time.monotonic()
                assert await ask(gateway, name) == tokens
                times_s.append(time.monotonic() - started_s)
                await ask(gateway, f"long {name}")
            assert max(times_s) < 2.0  # the time limit, and as long again to compute
            assert max(times_s[2:]) < 1.0  # nobody asks any more
            rank = psutil.Process(front.rank_pid)
            work_s = sum(rank.cpu_times()[:2])
            await asyncio.sleep(1.0)
            assert sum(rank.cpu_times()[:2]) - work_s < 0.2
            node.thaw()
            async with asyncio.timeout(30):
                for name in "ghijklmnopqrstuvwxyz":  # until it is connected
                    assert await ask(gateway, name) == tokens
                    await ask(gateway, f"other {name}")
                    if num_restored(gateway, name) > 0:
                        break
                    await asyncio.sleep(0.3)
            assert num_restored(gateway, name) > 0
