"""Corrupt and hostile model folders, from `headwater models pull` to a served model.

What each reader refuses, its own tests say; here, that nothing of it reaches a user as more than
one line, nor takes the memory or time of the machine.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.checkpoints.manifest import MANIFEST_NAME
from engine.checkpoints.pull import pull
from engine.checkpoints.store import checkpoint_path
from engine.config import EngineConfig, EngineSpec, PacedConfig
from engine.errors import EngineStartError
from engine.front import EngineFront
from tests.unit.engine.checkpoints.published import CONFIG, edit_json, publish

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MAX_PULL_S = 10
MAX_RSS_MIB = 400
"""The command's libraries take a good part of it."""

Corrupt = Callable[[Path], object]


def truncated(name: str, num_bytes: int) -> Corrupt:
    return lambda folder: os.truncate(folder / name, num_bytes)


def replaced(name: str, content: bytes) -> Corrupt:
    return lambda folder: (folder / name).write_bytes(content)


def config(**changes: object) -> Corrupt:
    return lambda folder: edit_json(folder / "config.json", **changes)


NESTED = b"[" * 1_000_000
NOISE = random.Random(0).randbytes(5000)
LONG_HEADER = (2**62).to_bytes(8, "little") + b"{}"
DEEP_HEADER = len(NESTED).to_bytes(8, "little") + NESTED
INFINITE = json.dumps(CONFIG).replace('"num_hidden_layers": 2', '"num_hidden_layers": 1e400')
OUTSIDE = b'{"weight_map": {"weight": "../../../etc/passwd"}}'
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CORRUPT: dict[str, tuple[Corrupt, str]] = {
    "weights cut off": (truncated(WEIGHTS, 100), WEIGHTS),
    "no weights in the file": (truncated(WEIGHTS, 0), WEIGHTS),
    "noise for weights": (replaced(WEIGHTS, NOISE), WEIGHTS),
    "a header of exabytes": (replaced(WEIGHTS, LONG_HEADER), WEIGHTS),
    "a header that nests": (replaced(WEIGHTS, DEEP_HEADER), WEIGHTS),
    "weights elsewhere": (replaced(INDEX, OUTSIDE), INDEX),
    "a config that is a list": (replaced("config.json", b"[]"), "config.json"),
    "a config that nests": (replaced("config.json", NESTED), "config.json"),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "NaN layers": (config(num_hidden_layers=float("nan")), "config.json"),
    "infinite layers": (replaced("config.json", INFINITE.encode()), "config.json"),
    "a vocabulary of 4,000 digits": (config(vocab_size=10**4000), "vocab_size"),
    "an empty tokenizer": (replaced("tokenizer.json", b"{}"), "tokenizer.json"),
    "noise for a tokenizer": (replaced("tokenizer.json", NOISE), "tokenizer.json"),
    "a tokenizer that nests": (replaced("tokenizer.json", NESTED), "tokenizer.json"),
    "a tokenizer of 200 MB": (truncated("tokenizer.json", 200_000_000), "tokenizer.json"),
    "a template that is a number": (
        replaced("tokenizer_config.json", b'{"chat_template": 5}'),
        "chat_template",
    ),
    "a hot temperature": (replaced("generation_config.json", b'{"temperature":"hot"}'), "'hot'"),
    "ends that are none": (replaced("generation_config.json", b'{"eos_token_id":{}}'), "eos_token"),
}


class Run(NamedTuple):
    """One run of the command."""

    status: int
    output: str
    errors: str
    duration_s: float
    max_rss_mib: float


MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[2:]).returncode
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
"""
"""A new process counts the memory of the one that started it, so a small one must."""


def headwater(home: Path, *arguments: str) -> Run:
    """In a process of its own, for its memory."""
    started_s = time.perf_counter()
    rss_file = home.with_suffix(".rss")
    command = [sys.executable, "-m", "deployments.cli", *arguments]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(rss_file), *command],
        env={**os.environ, "HEADWATER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Run(
        ended.returncode,
        ended.stdout,
        ended.stderr,
        time.perf_counter() - started_s,
        int(rss_file.read_text()) / 1024,
    )


def test_a_sound_folder_is_pulled(tmp_path: Path) -> None:
    run = headwater(tmp_path / "home", "models", "pull", str(publish(tmp_path / "model")))
    assert (run.status, run.errors) == (0, "")
    assert run.max_rss_mib < MAX_RSS_MIB


@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupt_folder_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    corrupt, named = CORRUPT[name]
    folder = publish(tmp_path / "model")
    corrupt(folder)
    run = headwater(tmp_path / "home", "models", "pull", str(folder))
    assert (run.status, run.output) == (1, "")
    assert run.errors.count("\n") == 1
    assert len(run.errors) < 1000
    assert named in run.errors
    assert run.duration_s < MAX_PULL_S
    assert run.max_rss_mib < MAX_RSS_MIB
    assert not checkpoint_path(tmp_path / "home", "model").exists()


def scrambled(name: str) -> Corrupt:
    """As long as it was."""
    return lambda folder: (folder / name).write_bytes(NOISE[: (folder / name).stat().st_size])


DAMAGED: dict[str, Corrupt] = {
    WEIGHTS: truncated(WEIGHTS, 100),
    "config.json": replaced("config.json", b"[]"),
    "tokenizer.json": scrambled("tokenizer.json"),
    "chat_template.jinja": scrambled("chat_template.jinja"),
    MANIFEST_NAME: replaced(MANIFEST_NAME, NESTED),
}
"""After the pull, as by a failing disk."""
PACED = EngineConfig(
    runner="paced",
    kv_cache_bytes=16 * 1024 * 1024,
    paced=PacedConfig(step_base_s=0.0, per_decode_s=0.0, per_prefill_token_s=0.0),
)


@pytest.mark.parametrize("name", DAMAGED)
async def test_a_model_that_was_damaged_does_not_start(tmp_path: Path, name: str) -> None:
    checkpoint = pull(str(publish(tmp_path / "model")), home=tmp_path / "home")
    DAMAGED[name](checkpoint.path)
    front = EngineFront(
        EngineSpec(model="model", checkpoint=checkpoint.path, config=PACED),
        engine_id="model/0",
        secret=b"secret",
        host="127.0.0.1",
        unix_dir=None,
    )
    try:
        with pytest.raises(EngineStartError) as refused:
            await asyncio.wait_for(front.start(), MAX_PULL_S)
    finally:
        await front.close()
    message = str(refused.value)
    assert name in message
    assert "pull the model again" in message
    assert "\n" not in message
