"""The prefix index of a gateway, and a decision by it: ``python -m benchmarks.index --out FILE``.

One process on one core; nothing else of a gateway runs in it. Three questions:

- How many keys does it take in and look up per second? Caches of a cell (64 replicas), of the two
  cells that a gateway of a large fleet serves, and of 700 replicas without cells; chat turns of 24
  keys: an engine stores a chain and evicts another, and a prompt is looked up.
- How long does a prompt of 131,072 tokens take, 1,024 keys, over 32 replicas? Looked up (each of
  them holds it up to another place, or has gaps all over it), decided by the gateway's fleet
  (looked up, made candidates of, and chosen among by the policy) and counted as sent. All of that
  holds up the gateway's loop.
- How much memory does a key take? As ``tracemalloc`` counts, and at most, as the index counts.

Times are of the processor, as others may run on this core; ``core_share_of_others`` says how much
did while decisions were timed, and of those the time on the wall is reported, too.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.queue import Job
from app.routing.cells import MAX_CELL_REPLICAS, assign_cells, served_cells
from app.routing.index import PrefixIndex
from benchmarks.index_fleet import NUM_ENGINES, NUM_PROMPT_KEYS, LongPromptFleet
from benchmarks.index_workload import CHAIN_KEYS, CacheTraffic, decode_snapshot
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.statistics import percentile
from benchmarks.wire_core import CoreReading

FLEET_REPLICAS = 700

GOAL_KEYS_PER_S = 200_000.0
MAX_DECISION_MS = 1.0
"""The goal for the 99th percentile."""
_TIGHT_BYTES = 1 << 26
_ROOM_BYTES = 1 << 32
"""No key of these caches is forgotten: their memory is to be measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    num_rounds: int
    steps_per_round: int
    keys_per_replica: int
    """A full cache: 3 million tokens are 23,437 keys."""
    num_decisions: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one index and all its keys."""

    num_keys: int
    """Different ones."""
    num_bytes: int
    """Allocated."""
    max_bytes: int
    """As the index counts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    scale = Scale(
        options.rounds, options.steps_per_round, options.keys_per_replica, options.decisions
    )
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    cases = measure_all(scale, seed=options.seed)
    try:
        BenchmarkResult.of_this_machine(
            name="index",
            config={
                "core": core,
                "rounds": scale.num_rounds,
                "steps_per_round": scale.steps_per_round,
                "keys_per_replica": scale.keys_per_replica,
                "decisions": scale.num_decisions,
                "replicas_of_decisions": NUM_ENGINES,
                "long_prompt_keys": NUM_PROMPT_KEYS,
                "chain_keys": CHAIN_KEYS,
            },
            seed=options.seed,
            results=cases,
        ).write(options.out)
    except OSError as error:
        print(f"benchmarks.index: {error}", file=sys.stderr)
        return 1
    for case in cases:
        limit = "" if case.limit is None else f"{case.limit:>14.2f}  {case.of_limit:.3f}"
        print(f"{case.case:<40}{case.value:>14.2f} {case.unit:<10}{limit}")
    return 0


def measure_all(scale: Scale, *, seed: int) -> list[CaseResult]:
    """All cases, one after the other."""
    cells = assign_cells(f"engine-{number}" for number in range(FLEET_REPLICAS))
    num_served = sum(len(cells.members[cell]) for cell in served_cells(len(cells), 0, 2))
    full = scale.keys_per_replica
    cases = [
        CaseResult(case="cells_of_700_replicas", value=len(cells), unit="cells"),
        measure_bound(CacheTraffic(MAX_CELL_REPLICAS, full, seed=seed)),
    ]
    for name, traffic in {
        "cell": CacheTraffic(MAX_CELL_REPLICAS, full, seed=seed),
        "two_cells": CacheTraffic(num_served, full, seed=seed),
        # Full caches of all of them would take 8 GB; the bytes of a key are the same.
        "flat": CacheTraffic(FLEET_REPLICAS, full // 10, seed=seed),
    }.items():
        cases += measure_traffic(name, traffic, scale)
    before = CoreReading.of_pinned()
    cases += measure_long_prompt("prefixes", scale, is_fragmented=False, seed=seed)
    cases += measure_long_prompt("fragments", scale, is_fragmented=True, seed=seed)
    others = CoreReading.of_pinned().use_since(before).others
    cases.append(CaseResult(case="core_share_of_others", value=others, unit="cores"))
    return cases


def measure_bound(traffic: CacheTraffic) -> CaseResult:
    """What the index of a cell takes with a bound that is too small for all its keys."""
    _, memory = _fill(traffic, _TIGHT_BYTES)
    return CaseResult(
        case="cell_memory_bounded",
        value=memory.num_bytes / 2**20,
        unit="MiB",
        limit=_TIGHT_BYTES / 2**20,
    )


def measure_traffic(name: str, traffic: CacheTraffic, scale: Scale) -> list[CaseResult]:
    """Keys per second, median of rounds, and memory."""
    index, memory = _fill(traffic, _ROOM_BYTES)
    rates: dict[str, list[float]] = {"events": [], "matches": [], "all": []}
    for _ in range(scale.num_rounds):
        steps = traffic.steps(scale.steps_per_round)
        gc.collect()
        gc.freeze()  # as a gateway does
        started_s = time.thread_time()
        for step in steps:
            index.apply(step.engine_id, step.events)
        applied_s = time.thread_time()
        for step in steps:
            index.match(step.prompt)
        ended_s = time.thread_time()
        gc.unfreeze()
        num_all = sum(step.num_keys for step in steps)
        num_matched = sum(len(step.prompt) for step in steps)
        rates["events"].append((num_all - num_matched) / (applied_s - started_s))
        rates["matches"].append(num_matched / (ended_s - applied_s))
        rates["all"].append(num_all / (ended_s - started_s))
    return [
        CaseResult(case=f"{name}_replicas", value=len(traffic.engine_ids), unit="replicas"),
        *(
            CaseResult(
                case=f"{name}_{kind}",
                value=percentile(per_round, 50.0),
                unit="keys/s",
                limit=GOAL_KEYS_PER_S if kind == "all" else None,
            )
            for kind, per_round in rates.items()
        ),
        CaseResult(case=f"{name}_keys", value=memory.num_keys, unit="keys"),
        CaseResult(
            case=f"{name}_memory",
            value=memory.num_bytes / 2**20,
            unit="MiB",
            limit=memory.max_bytes / 2**20,
        ),
        CaseResult(
            case=f"{name}_memory_per_key",
            value=memory.num_bytes / memory.num_keys,
            unit="bytes",
            limit=memory.max_bytes / memory.num_keys,
        ),
    ]


def _fill(traffic: CacheTraffic, max_bytes: int) -> tuple[PrefixIndex, Memory]:
    """Decoding is traced, too: whatever of a message the index keeps was allocated there."""
    messages = list(traffic.snapshots())
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(max_bytes)
    for engine_id, payload in messages:
        index.seed(engine_id, decode_snapshot(payload))
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return index, Memory(len(index), num_bytes, index.num_bytes)


def measure_long_prompt(
    name: str, scale: Scale, *, is_fragmented: bool, seed: int
) -> list[CaseResult]:
    """Milliseconds to look up the prompt, to decide on it, and to count it as sent."""
    bench = LongPromptFleet(is_fragmented=is_fragmented, seed=seed)
    calls: dict[str, Callable[[Job], object]] = {
        "match": lambda job: bench.fleet.index.match(job.prompt.index_keys),
        "decision": bench.choose,
        "send": bench.send,
    }
    times_ms: dict[str, list[float]] = {call: [] for call in (*calls, "decision_wall")}
    gc.collect()
    gc.freeze()
    for _ in range(scale.num_decisions):
        for call, function in calls.items():
            job = bench.arrive()
            began_s, started_s = time.perf_counter(), time.thread_time()
            function(job)
            times_ms[call].append((time.thread_time() - started_s) * 1e3)
            if call == "decision":
                times_ms["decision_wall"].append((time.perf_counter() - began_s) * 1e3)
            bench.settle(job)
    gc.unfreeze()
    return [
        CaseResult(
            case=f"{name}_{call}_p{percent}",
            value=percentile(times, percent),
            unit="ms",
            limit=MAX_DECISION_MS if (call, percent) == ("decision", 99) else None,
        )
        for call, times in times_ms.items()
        for percent in (50, 99)
    ]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps-per-round", type=int, default=4000)
    parser.add_argument("--keys-per-replica", type=int, default=23_437)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
