"""The KV tiers beside what they are bound by: ``python -m benchmarks.cache_tiers --out FILE``.

- ``copies``: from the node's arena to the accelerator's pool, beside ``memcpy``.
- ``disk``: the disk tier beside plain sequential reads and writes, all with ``O_DIRECT``.
- ``peer``: another process's images beside raw TCP over as many streams.
- ``index``: what the node remembers of each block, and how quickly it finds them.
- ``idle``: what tiers that have nothing to do add to planning a step.
- ``ttft_cpu``, ``ttft_nvme``, ``ttft_peer``: time to first token of a long prompt of a real model,
  restored from that tier alone, beside computing it and beside what the medium takes.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache_tiers_copies import measure_copies
from benchmarks.cache_tiers_disk import measure_disk
from benchmarks.cache_tiers_engine import TierModel
from benchmarks.cache_tiers_idle import measure_idle
from benchmarks.cache_tiers_index import measure_index
from benchmarks.cache_tiers_peer import measure_peer
from benchmarks.cache_tiers_scenes import SCENES
from benchmarks.cache_tiers_ttft import TtftCase
from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.statistics import MIN_PAIRS
from cache_tiers.tier import TierError
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import MIB, EngineConfig
from engine.errors import EngineError

_MODEL = "smollm2-135m-instruct"
_SEED = 0
_POOL_BYTES = 128 * MIB
"""Room for one prompt and its answer."""
_MAX_NUM_SEQS = 4
CASES = ("copies", "disk", "peer", "index", "idle", *(f"ttft_{tier}" for tier in SCENES))


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    num_images: int
    num_indexed_blocks: int
    prompt_len: int


FULL = Size(num_images=256, num_indexed_blocks=100_000, prompt_len=4096)
SHORT = Size(num_images=16, num_indexed_blocks=5120, prompt_len=512)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    config = EngineConfig(
        num_threads=options.threads, kv_cache_bytes=_POOL_BYTES, max_num_seqs=_MAX_NUM_SEQS
    )
    try:
        results = [*_measure_parts(options), *_measure_ttft(options, config)]
        BenchmarkResult.of_this_machine(
            name="cache_tiers",
            config={
                "cases": options.case,
                "pairs": options.pairs,
                "short": options.short,
                "checkpoint": options.checkpoint.name,
                "engine": config.model_dump(mode="json"),
            },
            seed=_SEED,
            results=results,
        ).write(options.out)
    except (EngineError, ResultError, TierError, OSError) as error:
        print(f"benchmarks.cache_tiers: {error}", file=sys.stderr)
        return 1
    return 0


def _measure_parts(options: argparse.Namespace) -> list[CaseResult]:
    size: Size = SHORT if options.short else FULL
    pairs: int = options.pairs
    measures: Mapping[str, Callable[[], list[CaseResult]]] = {
        "copies": lambda: measure_copies(size.num_images, pairs),
        "disk": lambda: measure_disk(size.num_images, pairs, options.folder),
        "peer": lambda: measure_peer(size.num_images, pairs),
        "index": lambda: measure_index(size.num_indexed_blocks, pairs),
        "idle": lambda: measure_idle(options.checkpoint, pairs),
    }
    return [
        result for case, measure in measures.items() if case in options.case for result in measure()
    ]


def _measure_ttft(options: argparse.Namespace, config: EngineConfig) -> list[CaseResult]:
    tiers = [tier for tier in SCENES if f"ttft_{tier}" in options.case]
    if not tiers:
        return []
    size: Size = SHORT if options.short else FULL
    model = TierModel(options.checkpoint, config)
    return [
        result
        for tier in tiers
        for result in TtftCase(model, tier, size.prompt_len).measure(options.pairs, options.folder)
    ]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache_tiers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument(
        "--case", nargs="+", choices=CASES, default=list(CASES), help="only these; all if left out"
    )
    parser.add_argument("--pairs", type=int, default=2 * MIN_PAIRS, help="interleaved A/B pairs")
    parser.add_argument("--short", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the engine")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="on the disk that is measured",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the model's folder",
    )
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    if options.threads < 1:
        parser.error("--threads must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
