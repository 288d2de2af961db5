"""Ranks that start from a staged model: they say the same, and take no more memory."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
import torch
from tokenizers import Tokenizer

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.disk_reader import read_from_disk
from cache_tiers.weights.messages import WeightFile
from engine.config import EngineConfig, EngineSpec, RankSpec
from engine.layers.linear import can_pack
from engine.messages import EngineRequest, SamplingParams, Submit
from engine.models.registry import read_model_config
from engine.models.shard import shard_model, shard_parameters
from engine.rank_messages import FromGateway
from tests.integration.node_weights_process import NodeWeightsProcess
from tests.integration.rank_groups import answer, running
from tests.integration.test_quickstart_ranks import NUM_TOKENS, PROMPTS
from tests.integration.test_shard_memory import CONFIG, models, peak_mb
from tests.quickstart import HOME, MODEL, SOURCE, WHEEL_SHA256, quickstart_checkpoint

pytestmark = pytest.mark.integration

__all__ = ["models"]  # a fixture

NUM_RANKS = 3


async def answers(folder: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = EngineConfig(tensor_parallel_size=NUM_RANKS, prefix_caching=False, max_num_seqs=4)
    async with running(EngineSpec(model=MODEL, checkpoint=folder, config=config)) as group:
        for text in PROMPTS:
            sampling = SamplingParams(NUM_TOKENS, temperature=0.0)
            request = EngineRequest(
                text, tokenizer.encode(text).ids, b"", [], sampling, timeout_s=60
            )
            group.send(FromGateway(1, msgspec.msgpack.encode(Submit(request))))
        return await answer(group, len(PROMPTS))


async def test_three_ranks_of_a_staged_model_say_what_those_from_the_disk_say(
    tmp_path: Path,
) -> None:
    checkpoint = quickstart_checkpoint()
    order = {"model": MODEL, "source": SOURCE, "rung": 2, "source_sha256": WHEEL_SHA256}
    with NodeWeightsProcess(tmp_path, home=HOME) as node:
        state = node.reach(order)
        assert (state["rung"], state["origin"]) == (2, "disk"), state
        node.lease(MODEL, "replica")
        staged = await answers(Path(state["folder"]))
    assert staged == await answers(checkpoint.path)
    assert set(map(len, staged.values())) == {NUM_TOKENS}


@pytest.mark.parametrize("layout", ["mapped", "packed"])
@pytest.mark.parametrize("rank", [RankSpec(1, 2), RankSpec(0, 4)], ids=str)
def test_a_rank_takes_no_more_memory_than_its_shard_of_a_staged_model(
    models: list[str], tmp_path: Path, rank: RankSpec, layout: str
) -> None:
    if layout == "packed" and not can_pack(torch.bfloat16):
        pytest.skip("this CPU has no packed layout")
    on_disk = Path(models[2])
    file = ArrivingFile.in_memory(WeightFile(on_disk.name, on_disk.stat().st_size))
    asyncio.run(read_from_disk(on_disk.parent, [file]))
    file.seal()
    link = tmp_path / on_disk.name
    link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fd}")
    config = read_model_config(CONFIG)
    shard_mb = 2 * shard_parameters(config, shard_model(config, rank)) / 1e6
    staged = [*models[:2], str(link), models[3]]
    assert 0.97 * shard_mb < peak_mb(staged, rank, layout) < 1.05 * shard_mb
    file.close()
