"""Answers with KV tiers beside answers without: ``python -m benchmarks.tier_fuzz --out FILE``.

Random conversations on a random model with two layers in float32, whose greedy answers are exact.
Two engines of one rank on two nodes that are each other's peers, then a group of three ranks on one
node, each with an accelerator, an arena and a disk that are far too small. Requests are aborted;
nodes are killed and frozen, engines killed and restarted, bits flipped in arenas and files, disks
fill up. Every token is compared with what an engine without tiers says.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.tier_fuzz_campaign import Campaign, Report, Side
from benchmarks.tier_fuzz_engines import FuzzEngine, GroupEngine, LocalEngine
from benchmarks.tier_fuzz_model import write_random_model
from benchmarks.tier_fuzz_nodes import FuzzNode
from benchmarks.tier_fuzz_talk import BLOCK_SIZE
from engine.config import EngineConfig, EngineSpec
from engine.errors import EngineError

_BLOCK_BYTES = 2 * 2 * 6 * 32 * BLOCK_SIZE * 4
"""Layers, key and value, heads, their size, tokens, float32."""
_NUM_BLOCKS = 90
"""Of the accelerator: two long requests."""
_NUM_REFERENCE_BLOCKS = 2000
_GROUP_DIVISOR = 10
"""Part of the cycles that a group of ranks does: its steps take longer."""
_GROUP_SIZE = 3
_EVENT_WEIGHTS = {
    "flip_in_arena": 10.0,
    "flip_on_disk": 6.0,
    "stored_all": 4.0,
    "engine_killed": 2.0,
    "engine_closed": 1.0,
    "disk_full": 1.0,
    "node_frozen": 0.6,
    "node_killed": 0.8,
}
_GROUP_EVENT_WEIGHTS = _EVENT_WEIGHTS | {"engine_killed": 0.1, "engine_closed": 0.05}
"""Of a group whose processes take seconds to start."""


def make_spec(checkpoint: Path, size: int, num_blocks: int, socket_path: Path | None) -> EngineSpec:
    config = EngineConfig(
        dtype="float32",
        tensor_parallel_size=size,
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=num_blocks * _BLOCK_BYTES,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        debug_poison_freed_blocks=True,
    )
    return EngineSpec(
        model="fuzz",
        checkpoint=checkpoint,
        config=config,
        node_cache_socket=socket_path,
        load_timeout_s=0.5,
    )


async def fuzz(folder: Path, size: int, num_cycles: int, seed: int) -> Report:
    """With ``size`` ranks; ``folder`` is empty, with a short path. Raises ``ResultError`` or
    ``EngineError`` if a process ends that nobody ended.
    """
    draw = random.Random(seed)
    checkpoint = write_random_model(folder / "model")
    make: type[LocalEngine] | type[GroupEngine] = LocalEngine if size == 1 else GroupEngine
    reference = make(make_spec(checkpoint, size, _NUM_REFERENCE_BLOCKS, None))
    nodes = [FuzzNode(folder / f"n{number}", draw) for number in range(2 if size == 1 else 1)]
    sides = [
        Side(make(make_spec(checkpoint, size, _NUM_BLOCKS, node.socket_path)), node)
        for node in nodes
    ]
    engines: list[FuzzEngine] = [reference, *(side.engine for side in sides)]
    started: list[FuzzEngine] = []
    try:
        for node in nodes:
            node.start()
        for engine in engines:
            await engine.start()
            started.append(engine)
        weights = _EVENT_WEIGHTS if size == 1 else _GROUP_EVENT_WEIGHTS
        report = await Campaign(reference, sides, draw, event_weights=weights).run(num_cycles)
        while started:
            await started.pop().close()
        for node in nodes:
            node.check_at_rest()
            node.close()
        return report
    finally:
        for engine in started:
            await engine.close()
        for node in nodes:
            node.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every token was right and a result was written, 1 if not."""
    options = _parse_options(argv)
    logging.basicConfig(level=logging.CRITICAL)  # what goes wrong here is meant to
    sizes = {1: options.cycles - options.cycles // _GROUP_DIVISOR}
    sizes[_GROUP_SIZE] = options.cycles // _GROUP_DIVISOR
    reports = {}
    try:
        for size, num_cycles in sizes.items():
            with tempfile.TemporaryDirectory(prefix="hw-") as folder:
                reports[size] = asyncio.run(fuzz(Path(folder), size, num_cycles, options.seed))
            print(f"{size} ranks: {reports[size]}", flush=True)
    except (EngineError, ResultError) as error:
        print(f"benchmarks.tier_fuzz: {error}", file=sys.stderr)
        return 1
    BenchmarkResult.of_this_machine(
        name="tier_fuzz",
        config={"cycles": options.cycles},
        seed=options.seed,
        results=[case for size, report in reports.items() for case in _cases(size, report)],
    ).write(options.out)
    return int(any(report.num_mismatched + report.num_errors for report in reports.values()))


def _cases(size: int, report: Report) -> list[CaseResult]:
    counts = [
        ("cycles", report.num_cycles, "requests"),
        ("tokens", report.num_tokens, "tokens"),
        ("mismatched_tokens", report.num_mismatched, "tokens"),
        ("errors", report.num_errors, "requests"),
        ("unsound_blocks", report.unsound_blocks, "blocks"),
        *((f"restored_{kind}", num, "tokens") for kind, num in report.restored_tokens.items()),
        *((name, num, "times") for name, num in sorted(report.events.items())),
    ]
    return [CaseResult(case=f"tp{size}_{name}", value=num, unit=unit) for name, num, unit in counts]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_fuzz", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--cycles", type=int, default=10_000, help="requests of all engines")
    parser.add_argument("--seed", type=int, default=0, help="another one asks and breaks others")
    options = parser.parse_args(argv)
    if options.cycles < _GROUP_DIVISOR:
        parser.error(f"--cycles must be at least {_GROUP_DIVISOR}")
    return options


if __name__ == "__main__":
    sys.exit(main())
