"""Ranks that share the arena of a real node cache: each moves its shard, and all agree on what came
back.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout, make_fingerprint
from cache_tiers.messages import Open
from cache_tiers.node_client import connect
from cache_tiers.tier import TierError
from engine.broadcast_runner import BroadcastRunner
from engine.config import PacedConfig
from engine.follower_arena import FollowerArena
from engine.follower_loop import FollowerLoop
from engine.paced_runner import PacedRunner
from engine.step import BlockTransfer
from tests.integration.node_threads import node_thread
from tests.unit.engine.raw_steps import RawSteps
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

pytestmark = pytest.mark.integration

NUM_RANKS = 3
BLOCK_SIZE = 4
LAYOUT = ImageLayout(make_fingerprint("paced"), NUM_RANKS, 50_000, BLOCK_SIZE)
PROMPT = list(range(10, 19))


def make_runner(rank: int) -> PacedRunner:
    return PacedRunner(
        PacedConfig(step_base_s=0, per_decode_s=0, per_prefill_token_s=0),
        num_blocks=16,
        block_size_tokens=BLOCK_SIZE,
        vocab_size=1000,
        eos_token_ids=[2],
        rank=rank,
    )


def follow(rank: int, leader: socket.socket, front: socket.socket) -> None:
    """What the process of a rank does until rank 0 is gone."""
    loop = FollowerLoop(
        make_runner(rank),
        leader=SyncPipe(leader),
        front=SyncPipe(front),
        arena=FollowerArena(rank, "m"),
    )
    with pytest.raises(ConnectionClosed):
        loop.run()


@pytest.fixture
def runner() -> Iterator[BroadcastRunner]:
    """Rank 0's; the others run in threads."""
    with ExitStack() as stack, ThreadPoolExecutor(NUM_RANKS) as pool:

        def pair() -> tuple[socket.socket, socket.socket]:
            left, right = socket.socketpair()
            return stack.enter_context(left), stack.enter_context(right)

        links = [pair() for _ in range(1, NUM_RANKS)]
        fronts = [pair() for _ in range(1, NUM_RANKS)]
        runner = BroadcastRunner(make_runner(0), [ours for ours, _ in links])
        followers = [
            pool.submit(follow, rank, leader, front)
            for rank, ((_, leader), (_, front)) in enumerate(zip(links, fronts, strict=True), 1)
        ]
        try:
            yield runner
        finally:
            runner.close()
            for follower in followers:
                follower.result(timeout=10)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with node_thread() as node:
        yield node.socket_path


def attach(runner: BroadcastRunner, socket_path: Path) -> memoryview:
    link = connect(socket_path, Open(LAYOUT, 0, "m", 8), timeout_s=5.0)
    runner.attach_arena(link.arena.memory, LAYOUT, str(socket_path))
    link.pipe.close()  # nothing is said of slots here
    return link.arena.memory


def move(block_id: int, index: int) -> BlockTransfer:
    """Between a block and one of a few images."""
    return BlockTransfer(
        block_id, index * LAYOUT.image_bytes, index.to_bytes(16, "little"), BLOCK_SIZE
    )


def test_kv_comes_back_on_all_ranks_unless_one_shard_is_bad(
    socket_path: Path, runner: BroadcastRunner
) -> None:
    arena = attach(runner, socket_path)
    steps = RawSteps(runner)
    expected = steps.compute(PROMPT, range(4), num_answer_tokens=3)
    steps.execute(stores=[move(0, 0), move(1, 1)], freed_block_ids=range(4))
    loads = [move(8, 0), move(9, 1)]
    assert steps.execute(loads=loads).failed_loads == ()
    assert steps.compute(PROMPT, range(8, 12), start=8, num_answer_tokens=3) == expected
    arena[loads[1].offset + 2 * LAYOUT.shard_bytes] ^= 1  # of rank 2
    assert steps.execute(loads=loads).failed_loads == (1,)


def test_ranks_that_reach_no_node_stay_in_step(socket_path: Path, runner: BroadcastRunner) -> None:
    arena = attach(runner, socket_path)
    with pytest.raises(TierError, match="rank 1 can't use the arena: no node cache at"):
        runner.attach_arena(arena, LAYOUT, f"{socket_path}.gone")
    steps = RawSteps(runner)
    assert len(steps.compute(PROMPT, range(4), num_answer_tokens=3)) == 3
    attach(runner, socket_path)
    steps.execute(stores=[move(0, 0)])
    assert steps.execute(loads=[move(8, 0)]).failed_loads == ()
