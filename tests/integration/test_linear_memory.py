"""Memory of the packed linear layer in a process of its own, as batches of all sizes come by."""

import os
import subprocess
import sys

import pytest

from engine.layers.linear import can_pack

pytestmark = pytest.mark.integration

MAX_GROWTH_MB = 150

_SCRIPT = """
import random, sys
import psutil, torch
from engine.layers.linear import create_linear, limit_shape_caches
if sys.argv[1] == "limited":
    limit_shape_caches()
torch.set_num_threads(1)
draw = random.Random(1)
layer = create_linear([torch.randn(1536, 576)], layout="packed")
x = torch.randn(512, 576)
def resident_mb():  # now: the peak begins at that of the process which forked this one
    return psutil.Process().memory_info().rss / 1e6
for num_tokens in (1, 512):
    layer(x[:num_tokens])
before_mb = resident_mb()
for num_tokens in draw.sample(range(1, 513), 400):
    layer(x[:num_tokens])
print(resident_mb() - before_mb)
"""


def _growth_mb(mode: str) -> float:
    command = [sys.executable, "-c", _SCRIPT, mode]
    # An engine that another test loaded into this process has set its limits here.
    environment = {
        name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name
    }
    ended = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    return float(ended.stdout)


def test_batches_of_all_sizes_do_not_fill_the_memory() -> None:
    import torch

    if not can_pack(torch.float32):
        pytest.skip("this CPU has no packed layout")
    limited_mb, unlimited_mb = _growth_mb("limited"), _growth_mb("unlimited")
    assert limited_mb < MAX_GROWTH_MB
    assert limited_mb < unlimited_mb / 2
