"""Batching policies on one engine: ``python -m benchmarks.batching --out FILE``.

Static batches, a dynamic window with padding, and continuous batching (see
`benchmarks.batching_policies`) answer the same seeded asks: outputs of 8 to 800 tokens, prompts of
16 to 256, both log-uniform.

- tok/s and useful slots: a queue that never dries up. In turns, each policy works for a while and
  to the end of its batch; only tokens that were asked for count.
- TTFT: Poisson arrivals at 80 % of what static batches were just seen to bear, so that no policy
  drowns; from the arrival to the first token.

Two columns for history, each beside continuous batching under the same conditions:

- ``no_kv_cache``: every token computes its whole sequence again (`run_without_kv_cache`). That is
  so slow that its asks are fewer and shorter; the reference answers the same ones.
- ``contiguous_kv``: the KV of a sequence is one stretch of the longest length that may come, here
  the longest prompt with the longest answer. In the same small pool fewer places fit, and that is
  all that differs: both run continuously and read their KV by the same kernel.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.batching_columns import FULL, SHORT, BatchingColumns
from benchmarks.batching_engine import SharedRunner
from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import MIB, EngineConfig
from engine.errors import EngineError

_MODEL = "smollm2-135m-instruct"
_KV_CACHE_BYTES = 1024 * MIB
"""Every row may grow to the longest request: where batching is compared, no policy lacks KV."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    scale = SHORT if options.short else FULL
    config = EngineConfig(
        num_threads=options.threads,
        max_num_seqs=scale.batch_size,
        kv_cache_bytes=_KV_CACHE_BYTES,
    )
    try:
        shared = SharedRunner(options.checkpoint, config, seed=options.seed)
        columns = BatchingColumns(shared, config, scale, seed=options.seed)
        results = [_shown(case) for case in columns.measure()]
        BenchmarkResult.of_this_machine(
            name="batching",
            config={
                "short": options.short,
                "checkpoint": options.checkpoint.name,
                "engine": config.model_dump(mode="json"),
                **columns.facts,
            },
            seed=options.seed,
            results=results,
        ).write(options.out)
    except (EngineError, ResultError, OSError) as error:
        print(f"benchmarks.batching: {error}", file=sys.stderr)
        return 1
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--short", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the engine")
    parser.add_argument("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the model's folder",
    )
    options = parser.parse_args(argv)
    if options.threads < 1:
        parser.error("--threads must be at least 1")
    return options


def _shown(case: CaseResult) -> CaseResult:
    beside = "" if case.peer is None else f"  {case.peer}: {case.peer_value:.2f}"
    print(f"{case.case:32} {case.value:10.2f} {case.unit}{beside}", flush=True)
    return case


if __name__ == "__main__":
    sys.exit(main())
