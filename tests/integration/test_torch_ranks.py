"""Ranks that compute a model together: processes, collectives and all."""

import os
import signal
from pathlib import Path

import pytest

from engine.config import EngineConfig, EngineSpec
from tests.integration.rank_groups import MAX_LOSS_S, answer, reason_of_loss, running, submit
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

pytestmark = pytest.mark.integration

NUM_REQUESTS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(make_tiny_model("llama"), tmp_path_factory.mktemp("model") / "tiny")


def spec_of(checkpoint: Path, size: int) -> EngineSpec:
    config = EngineConfig(
        dtype="float32",
        tensor_parallel_size=size,
        kv_cache_bytes=2**20,
        max_num_seqs=4,
        max_num_batched_tokens=16,
    )
    return EngineSpec(model="tiny", checkpoint=checkpoint, config=config)


async def test_two_ranks_give_the_tokens_of_one(checkpoint: Path) -> None:
    answers = []
    for size in (1, 2):
        async with running(spec_of(checkpoint, size)) as group:
            for number in range(NUM_REQUESTS):
                submit(group, f"request-{number}", max_tokens=10 + number)
            answers.append(await answer(group, NUM_REQUESTS))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("sign", "what"), [(signal.SIGKILL, "was killed"), (signal.SIGSTOP, "was stopped")]
)
async def test_a_rank_lost_in_the_collectives_of_a_step_is_named(
    checkpoint: Path, sign: signal.Signals, what: str
) -> None:
    async with running(spec_of(checkpoint, 2)) as group:
        submit(group, "request", max_tokens=200)
        await group.receive()
        os.kill(group.pids[1], sign)
        reason, loss_s = await reason_of_loss(group)
        assert reason.startswith(f"the process of rank 1 {what}")
        assert loss_s < MAX_LOSS_S
