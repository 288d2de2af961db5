"""``python -m benchmarks.wire_engine``: the front of an engine that answers by script.

Reads a ``Script`` as JSON from the first line of stdin, writes where it listens to stdout, and runs
until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from safetensors.numpy import save_file

from engine.checkpoints.manifest import build_manifest, write_manifest
from engine.config import EngineConfig, EngineSpec, PacedConfig
from engine.front import EngineFront
from wire.endpoint import Endpoint

ENGINE_ID = "scripted/1"
_STOP_TIMEOUT_S = 10.0


class Script(msgspec.Struct, frozen=True):
    """What the engine is to do."""

    folder: str
    """Of the run; its own."""
    secret: bytes
    num_streams: int
    """That run at once."""
    step_period_s: float
    """From step to step; 0: as fast as it goes."""


@contextmanager
def scripted_engine(script: Script) -> Iterator[Endpoint]:
    """A front and its rank, each in a process, on the cores that the caller may use.

    Raises ``RuntimeError`` if they do not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire_engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(script) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the engine's front did not start; its log says why")
        yield Endpoint.from_dict(json.loads(line))
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> int:
    script = msgspec.json.decode(sys.stdin.readline(), type=Script)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(script, Path(script.folder)))
    return 0


async def _serve(script: Script, folder: Path) -> None:
    checkpoint = folder / "model"
    checkpoint.mkdir()
    _write_checkpoint(checkpoint)
    config = EngineConfig(
        runner="paced",
        max_num_seqs=script.num_streams,
        paced=PacedConfig(step_base_s=script.step_period_s),
    )
    front = EngineFront(
        EngineSpec(model="scripted", checkpoint=checkpoint, config=config),
        engine_id=ENGINE_ID,
        secret=script.secret,
        host="127.0.0.1",
        unix_dir=folder,
        rank_module="benchmarks.wire_rank",
    )
    try:
        endpoint = await front.start()
        sys.stdout.write(json.dumps(endpoint.to_dict()) + "\n")
        sys.stdout.flush()
        await _end_of_stdin()
    finally:
        await front.close()


async def _end_of_stdin() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    os.set_blocking(fd, False)
    loop.add_reader(fd, ended.set)  # nothing follows the first line
    await ended.wait()
    loop.remove_reader(fd)


def _write_checkpoint(folder: Path) -> None:
    """The least that a model card is made of."""
    config = {"model_type": "llama", "vocab_size": 128_256, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    source = "made for this benchmark"
    manifest = build_manifest(folder, source=source, source_sha256="", source_stamp="")
    write_manifest(folder, manifest)


if __name__ == "__main__":
    sys.exit(main())
