"""The rank processes of a replica: they compute the same, start together and end together."""

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from cache_tiers.block_image import ImageLayout
from engine.broadcast_runner import BroadcastRunner
from engine.config import EngineConfig, EngineSpec, PacedConfig, RankSpec
from engine.errors import EngineStartError
from engine.rank_group import STOPPED_SILENCE_S, RankGroup
from engine.rank_messages import Loaded
from engine.rank_process import RankProcess
from engine.step import SampledToken, ScheduledSequence, StepPlan, StepResult
from tests.integration.paced_front import FOREVER, write_paced_checkpoint
from tests.integration.rank_groups import MAX_LOSS_S, answer, reason_of_loss, running, submit
from wire.errors import ConnectionClosed

pytestmark = pytest.mark.integration

NUM_SEQS = 8


def spec_of(checkpoint: Path, size: int, per_decode_s: float = 0.0002) -> EngineSpec:
    config = EngineConfig(
        runner="paced",
        tensor_parallel_size=size,
        max_num_seqs=NUM_SEQS,
        paced=PacedConfig(step_base_s=0, per_decode_s=per_decode_s, per_prefill_token_s=0),
    )
    return EngineSpec(model="tiny", checkpoint=checkpoint, config=config)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


async def test_any_number_of_ranks_gives_the_same_tokens(checkpoint: Path) -> None:
    answers = []
    for size in (1, 2, 4):
        async with running(spec_of(checkpoint, size)) as group:
            assert len(group.pids) == size
            for number in range(2 * NUM_SEQS):
                submit(group, f"r{number:02}", max_tokens=5 + number)
            answers.append(await answer(group, 2 * NUM_SEQS))
    assert answers[0] == answers[1] == answers[2]
    assert [len(tokens) for _, tokens in sorted(answers[0].items())] == [*range(5, 21)]


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_killed_rank_ends_the_group_at_once(
    checkpoint: Path, victim: int, is_busy: bool
) -> None:
    async with running(spec_of(checkpoint, 4)) as group:
        if is_busy:
            submit(group, "r", FOREVER)
            await group.receive()
        os.kill(group.pids[victim], signal.SIGKILL)
        reason, loss_s = await reason_of_loss(group)
        assert reason.startswith(f"the process of rank {victim} was killed")
        assert loss_s < 1
        await asyncio.sleep(0.1)
        assert not any(rank_runs(pid) for pid in group.pids)


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_stopped_rank_ends_the_group_within_seconds(
    checkpoint: Path, victim: int, is_busy: bool
) -> None:
    async with running(spec_of(checkpoint, 4)) as group:
        if is_busy:
            submit(group, "r", FOREVER)
            await group.receive()
        os.kill(group.pids[victim], signal.SIGSTOP)
        reason, loss_s = await reason_of_loss(group)
        assert reason == f"the process of rank {victim} was stopped (SIGSTOP)"
        assert loss_s < MAX_LOSS_S


async def test_a_rank_stopped_in_a_long_step_is_told_from_the_ones_that_compute(
    checkpoint: Path,
) -> None:
    async with running(spec_of(checkpoint, 2, per_decode_s=0.6)) as group:
        for number in range(NUM_SEQS):
            submit(group, f"r{number}", FOREVER)
        await group.receive()
        await asyncio.sleep(STOPPED_SILENCE_S + 1)  # of the 4.8 s that the next step takes
        assert group.silence_s > STOPPED_SILENCE_S
        assert group.is_running
        os.kill(group.pids[1], signal.SIGSTOP)
        reason, loss_s = await reason_of_loss(group)
        assert reason == "the process of rank 1 was stopped (SIGSTOP)"
        assert loss_s < MAX_LOSS_S


async def test_all_ranks_of_an_idle_group_show_life(checkpoint: Path) -> None:
    async with running(spec_of(checkpoint, 2), max_silence_s=1.6) as group:
        await asyncio.sleep(3)
        assert group.is_running
        assert group.silence_s < 1.5


async def test_a_rank_that_fails_a_step_says_why_in_one_line(checkpoint: Path) -> None:
    """Of a slot that nobody was admitted to, sent by a rank 0 that is this test."""
    ours, theirs = socket.socketpair()
    rank = RankProcess(RankSpec(1, 2))
    try:
        with theirs:
            rank.spawn([theirs])
        assert isinstance(await rank.load(spec_of(checkpoint, 2)), Loaded)
        scheduled = ScheduledSequence(5, 0, (1,), is_last_pending=False)
        BroadcastRunner(FakeRunner(), [ours]).execute(StepPlan(1, (), (), (), (), (scheduled,)))
        with pytest.raises(ConnectionClosed):
            await rank.receive()
        assert await rank.describe_end() == "rank 1: a step failed: KeyError: 5"
    finally:
        await rank.stop(grace_s=1)
        ours.close()


async def test_a_rank_that_cannot_start_stops_the_others_and_says_why(checkpoint: Path) -> None:
    spec = spec_of(checkpoint, 4)
    too_long = spec.config.model_copy(update={"max_model_len": 50_000})
    with pytest.raises(EngineStartError, match=r"^tiny: rank \d: max_model_len is 50000, but "):
        async with running(spec.model_copy(update={"config": too_long})):
            pass


async def test_a_rank_killed_while_it_loads_fails_the_start(checkpoint: Path) -> None:
    group = RankGroup()
    start = asyncio.create_task(group.start(spec_of(checkpoint, 4)))
    try:
        await asyncio.sleep(0.05)
        os.kill(group.pids[2], signal.SIGKILL)
        with pytest.raises(EngineStartError, match="tiny: the process of rank 2 was killed"):
            await start
    finally:
        await group.stop()
    assert not any(map(psutil.pid_exists, group.pids))


async def test_nothing_is_left_of_a_group_that_is_stopped_amid_its_work(
    checkpoint: Path, tmp_path: Path
) -> None:
    async with running(spec_of(checkpoint, 2), folder=tmp_path) as group:
        submit(group, "r", FOREVER)
        await group.receive()
        [rendezvous] = os.listdir(tmp_path)
        assert os.stat(tmp_path / rendezvous).st_mode & 0o077 == 0
    assert os.listdir(tmp_path) == []


class FakeRunner:
    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, ())

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        pass

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        raise AssertionError("no plan here moves KV")

    def detach_arena(self) -> None:
        raise AssertionError("no plan here moves KV")

    def free_kv(self) -> None:
        raise AssertionError("nobody sleeps here")

    def allocate_kv(self) -> None:
        raise AssertionError("nobody sleeps here")

    def close(self) -> None:
        pass


def rank_runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
