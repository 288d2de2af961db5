"""Peak memory of one rank while it loads its part of a checkpoint, in a process of its own.

Pages of the mapped file are counted once all weights have been used, packed heads twice: packed,
and as rows to look up."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.checkpoints.safetensors_file import TensorSpec, write_bfloat16
from engine.config import RankSpec
from engine.layers.linear import can_pack
from engine.models.registry import read_model_config
from engine.models.shard import shard_model, shard_parameters

pytestmark = pytest.mark.integration

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 8001,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "attention_bias": True,
}
"""About 0.4 GB in bfloat16."""

SMALL = (
    CONFIG
    | {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 64}
    | {"num_hidden_layers": 1}
)
"""Loaded first: the code that runs for the first time is no part of the shard."""

_SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from engine.config import RankSpec
from engine.heap import hand_back_freed_memory
from engine.layers.linear import limit_shape_caches
from engine.loader import WeightFiles
from engine.models.loading import load_model
from engine.models.registry import read_model_config

rank, size, layout, *models = sys.argv[1:]

class Alone:
    rank = RankSpec(int(rank), int(size))
    def all_reduce_(self, tensor): pass
    def broadcast_(self, tensor): pass
    def gather(self, part, widths): return part

def load(path, config):
    return load_model(
        read_model_config(json.loads(config)),
        WeightFiles([Path(path)]),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        layout=layout,
        collectives=Alone() if Alone.rank.size > 1 else None,
    )

def use(model):
    def attend(query, new_kv, kv): return query.flatten(1)
    num_layers = model.config.num_layers
    for ids in torch.arange(0, model.config.vocab_size, 4).split(50):  # of every page
        hidden = model.forward(ids, ids, [torch.empty(0)] * num_layers, [attend] * num_layers)
        model.head.logits(hidden[:1])
        model.head.exact_logits(hidden[:1], ids.unsqueeze(0))

def status_mb(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(key))

def mapped_mb(path):
    name = os.path.realpath(path)  # what a link opens has that name there
    regions = Path("/proc/self/smaps").read_text().split(name)[1:]
    return sum(int(region.partition("Rss:")[2].split()[0]) * 1024 / 1e6 for region in regions)

hand_back_freed_memory()
limit_shape_caches()
torch.set_num_threads(1)
with torch.inference_mode():
    use(load(*models[:2]))
    before_mb = status_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    model = load(*models[2:])
    growth_mb = status_mb("VmHWM") - before_mb
    growth_mb -= mapped_mb(models[2])
    use(model)
    print(growth_mb + mapped_mb(models[2]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Path and configuration of both."""
    folder = tmp_path_factory.mktemp("models")
    values = np.random.default_rng(0).standard_normal(2048, dtype=np.float32) * 0.02

    def read_rows(spec: TensorSpec) -> Iterator[NDArray[np.float32]]:
        yield np.resize(values, spec.shape)

    arguments: list[str] = []
    for name, config in (("small", SMALL), ("large", CONFIG)):
        path = folder / f"{name}.safetensors"
        specs = [TensorSpec(*item) for item in read_model_config(config).tensor_shapes()]
        write_bfloat16(path, specs, read_rows)
        arguments += [str(path), json.dumps(config)]
    yield arguments
    shutil.rmtree(folder)


def peak_mb(models: list[str], rank: RankSpec, layout: str) -> float:
    """The process's growth for the model."""
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, rank), layout, *models],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(ended.stdout)


@pytest.mark.parametrize("layout", ["mapped", "packed"])
@pytest.mark.parametrize("rank", [RankSpec(1, 2), RankSpec(0, 4), RankSpec()], ids=str)
def test_a_rank_never_takes_more_memory_than_its_shard(
    models: list[str], rank: RankSpec, layout: str
) -> None:
    if layout == "packed" and not can_pack(torch.bfloat16):
        pytest.skip("this CPU has no packed layout")
    config = read_model_config(CONFIG)
    shard_mb = 2 * shard_parameters(config, shard_model(config, rank)) / 1e6
    assert 0.97 * shard_mb < peak_mb(models, rank, layout) < 1.05 * shard_mb
