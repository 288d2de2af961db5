"""A long prompt arrives while streams decode: ``python -m benchmarks.stutter --out FILE``.

16 streams decode, and a prompt of 6,000 tokens arrives. How long do the gaps between their tokens
become until its first token, and how fast is it computed, against its speed alone? Of several
configurations of one engine, in turns:

- ``default``: what a user gets who configures nothing.
- ``unchunked``: steps large enough for the whole prompt: all streams stand still meanwhile.
- ``chunk_N``: always N tokens of the prompt in a step, whatever it does to the streams: the
  trade-off between the two.
- ``stretch_N``: as the default, but a step may become N times longer than its decodes alone.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.batching_engine import SharedRunner
from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.stutter_run import ArrivalRun, Scene
from benchmarks.stutter_summary import (
    TABLE_HEAD,
    Arrival,
    StutterColumn,
    summarize_stutter,
    table_row,
)
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import MIB, EngineConfig
from engine.errors import EngineError

_MODEL = "smollm2-135m-instruct"
_SEED = 0
_KV_CACHE_BYTES = 1024 * MIB
_DEFAULT, _UNCHUNKED = "default", "unchunked"

_FULL_SCENE = Scene(
    num_streams=16,
    stream_prompt_len=128,
    long_prompt_len=6000,
    num_undisturbed_steps=64,
    smallest_chunk=EngineConfig().min_prefill_chunk_tokens,
)
_SHORT_SCENE = Scene(
    num_streams=4,
    stream_prompt_len=16,
    long_prompt_len=300,
    num_undisturbed_steps=4,
    smallest_chunk=EngineConfig().min_prefill_chunk_tokens,
)
_FULL_CHUNKS = (32, 64, 128, 256, 512)
_SHORT_CHUNKS = (64,)
_STRETCHES = (1.5, 3.0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    scene = _SHORT_SCENE if options.short else _FULL_SCENE
    rounds = 1 if options.short else options.rounds
    base = EngineConfig(num_threads=options.threads, kv_cache_bytes=_KV_CACHE_BYTES)
    configs = make_configs(
        base,
        scene,
        chunks=_SHORT_CHUNKS if options.short else _FULL_CHUNKS,
        stretches=() if options.short else _STRETCHES,
    )
    try:
        shared = SharedRunner(options.checkpoint, configs[_UNCHUNKED], seed=_SEED)
        columns = _measure(shared, configs, scene, rounds)
        BenchmarkResult.of_this_machine(
            name="stutter",
            config={
                "short": options.short,
                "rounds": rounds,
                "checkpoint": options.checkpoint.name,
                "num_streams": scene.num_streams,
                "long_prompt_len": scene.long_prompt_len,
                "engine": base.model_dump(mode="json"),
            },
            seed=_SEED,
            results=_summarize(columns),
        ).write(options.out)
    except (EngineError, ResultError, OSError) as error:
        print(f"benchmarks.stutter: {error}", file=sys.stderr)
        return 1
    return 0


def make_configs(
    base: EngineConfig, scene: Scene, *, chunks: Sequence[int], stretches: Sequence[float]
) -> dict[str, EngineConfig]:
    """The configuration of every column.

    Where the size of a step is fixed, no limit follows its time, and what the streams need comes on
    top of it.
    """
    sizes = {_UNCHUNKED: scene.long_prompt_len} | {f"chunk_{chunk}": chunk for chunk in chunks}
    fixed = {
        name: base.model_copy(
            update={
                "max_num_batched_tokens": size + scene.num_streams,
                "max_step_stretch": None,
                "tpot_target_s": None,
            }
        )
        for name, size in sizes.items()
    }
    stretched = {
        f"stretch_{stretch:g}": base.model_copy(update={"max_step_stretch": stretch})
        for stretch in stretches
    }
    return {_DEFAULT: base} | fixed | stretched


def _measure(
    shared: SharedRunner, configs: Mapping[str, EngineConfig], scene: Scene, rounds: int
) -> dict[str, StutterColumn]:
    """In turns, so that all see the same machine."""
    engines = {name: shared.make_engine(config) for name, config in configs.items()}
    arrivals: dict[str, list[Arrival]] = {name: [] for name in configs}
    for _ in range(rounds):
        for name, engine in engines.items():
            arrivals[name].append(ArrivalRun(shared, engine, scene).measure())
    columns = {
        name: StutterColumn.of(of_column, prompt_len=scene.long_prompt_len)
        for name, of_column in arrivals.items()
    }
    print(TABLE_HEAD)
    for name, column in columns.items():
        print(table_row(name, column), flush=True)
    return columns


def _summarize(columns: Mapping[str, StutterColumn]) -> list[CaseResult]:
    """The default next to no chunks at all; the others by themselves."""
    unchunked = columns[_UNCHUNKED]
    results = summarize_stutter(_DEFAULT, columns[_DEFAULT], peer=_UNCHUNKED, beside=unchunked)
    for name, column in columns.items():
        if name != _DEFAULT:
            results += summarize_stutter(name, column)
    return results


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stutter", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--short", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--rounds", type=int, default=2, help="arrivals of each column")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the engine")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the model's folder",
    )
    options = parser.parse_args(argv)
    if options.threads < 1 or options.rounds < 1:
        parser.error("--threads and --rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
