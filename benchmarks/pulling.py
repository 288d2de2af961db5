"""How fast models are pulled, beside curl and cp: `python -m benchmarks.pulling --out FILE`.

One model, two safetensors files of random bytes, comes from an object store on loopback, behind a
link of a given bandwidth and without one, and from a folder on another file system. A pull hashes,
flushes and commits; the peers copy and flush (`fsync`). The figures are bytes of the model per
second; without a link, store and client share this machine's processors, which are then the limit.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import orjson
from botocore.config import Config
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.object_store import BUCKET, object_store
from benchmarks.result import BenchmarkResult, CaseResult, paired_ratio
from benchmarks.statistics import MIN_PAIRS
from engine.checkpoints.local import FolderSource
from engine.checkpoints.pull import pull_from
from engine.checkpoints.s3 import S3Source
from engine.checkpoints.source import Source
from engine.checkpoints.transfer import NUM_READERS

MB = 1_000_000
NUM_SHARDS = 2
OTHER_FILE_SYSTEM = Path("/dev/shm")  # noqa: S108  a memory disk, in a folder of our own

Seconds = Callable[[Path], float]
"""Brings the model into a folder that isn't there yet, and says how long it took."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One way for a model to come, and who else goes it."""

    case: str
    ours: Seconds
    peer: str
    theirs: Seconds
    limit_mb_per_s: float | None = None


def write_model(folder: Path, num_megabytes: int) -> int:
    """Write the model; its size in bytes."""
    config = {
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_bytes(orjson.dumps(config))
    unknown = "<unk>"
    tokenizer = Tokenizer(WordLevel({unknown: 0}, unk_token=unknown))
    tokenizer.save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(0)
    weight_map = {}
    for shard in range(NUM_SHARDS):
        name = f"model-{shard + 1:05}-of-{NUM_SHARDS:05}.safetensors"
        values = random.integers(0, 256, num_megabytes * MB // NUM_SHARDS, np.uint8)
        save_file({f"weight.{shard}": values}, folder / name)
        weight_map[f"weight.{shard}"] = name
    index = orjson.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_bytes(index)
    return sum(path.stat().st_size for path in folder.iterdir())


def pulling(create: Callable[[], Source]) -> Seconds:
    def measure(target: Path) -> float:
        started_s = time.perf_counter()
        pull_from(create(), name="model", home=target)
        return time.perf_counter() - started_s

    return measure


def running(command: Callable[[Path], list[str]]) -> Seconds:
    def measure(target: Path) -> float:
        target.mkdir()
        started_s = time.perf_counter()
        subprocess.run(command(target), check=True)
        for path in target.rglob("*"):
            flush(path)
        return time.perf_counter() - started_s

    return measure


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def from_store(case: str, url: str, model: Path, limit_mb_per_s: float | None) -> Contest:
    def connect() -> Any:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106  the store asks for nothing
            config=Config(max_pool_connections=NUM_READERS),
        )

    def curl(target: Path) -> list[str]:
        names = [path.name for path in model.iterdir()]
        files = [
            part
            for name in names
            for part in ("-o", str(target / name), f"{url}/{BUCKET}/model/{name}")
        ]
        return ["curl", "--silent", "--show-error", "--no-progress-meter", "--parallel", *files]

    return Contest(
        case,
        pulling(lambda: S3Source.parse(f"//{BUCKET}/model", connect=connect)),
        "curl --parallel, fsync",
        running(curl),
        limit_mb_per_s,
    )


def from_folder(model: Path) -> Contest:
    return Contest(
        "folder_on_another_file_system",
        pulling(lambda: FolderSource(model)),
        "cp -r, fsync",
        running(lambda target: ["cp", "-r", str(model), str(target)]),
    )


def measure(contest: Contest, num_pairs: int, num_bytes: int, folder: Path) -> CaseResult:
    """Medians over interleaved pairs; who goes first changes."""
    ours: list[float] = []
    theirs: list[float] = []
    for pair in range(num_pairs):
        turns = [(contest.ours, ours), (contest.theirs, theirs)]
        for seconds, rates in reversed(turns) if pair % 2 else turns:
            target = folder / "target"
            rates.append(num_bytes / seconds(target) / MB)
            shutil.rmtree(target)
        print(f"{contest.case} {pair + 1}: {ours[-1]:.0f} MB/s, {contest.peer} {theirs[-1]:.0f}")
    return CaseResult(
        case=contest.case,
        value=statistics.median(ours),
        unit="MB/s",
        peer=contest.peer,
        peer_value=statistics.median(theirs),
        ratio=paired_ratio(ours, theirs),
        limit=contest.limit_mb_per_s,
    )


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="interleaved A/B pairs")
    parser.add_argument("--megabytes", type=int, default=512, help="size of the model")
    parser.add_argument("--link-mbit", type=int, default=2000, help="bandwidth of the link")
    args = parser.parse_args(argv)
    if args.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    return args


def main() -> None:
    args = parse_options()
    link_bytes_per_s = args.link_mbit * MB / 8
    with (
        tempfile.TemporaryDirectory(dir=OTHER_FILE_SYSTEM) as source,
        tempfile.TemporaryDirectory() as target,
    ):
        model, folder = Path(source), Path(target)
        num_bytes = write_model(model, args.megabytes)
        with (
            object_store(model, bytes_per_s=link_bytes_per_s) as linked,
            object_store(model) as direct,
        ):
            contests = [
                from_store("object_store_behind_link", linked, model, link_bytes_per_s / MB),
                from_store("object_store_on_loopback", direct, model, None),
                from_folder(model),
            ]
            results = [measure(contest, args.pairs, num_bytes, folder) for contest in contests]
    BenchmarkResult.of_this_machine(
        name="pulling",
        config={
            "pairs": args.pairs,
            "megabytes": args.megabytes,
            "link_mbit": args.link_mbit,
            "num_shards": NUM_SHARDS,
        },
        seed=0,
        results=results,
    ).write(args.out)


if __name__ == "__main__":
    main()
