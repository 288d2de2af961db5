"""Measure an OpenAI-compatible server over real HTTP: `python -m benchmarks.serving --help`.

Servers that run already are known by URL only, whoever wrote them. With `--peer` it starts them
itself, ours among them: `python -m benchmarks.serving --peer vllm-server --help`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.serving_options import ServingOptions, parse_options
from benchmarks.serving_server import MeasurementError, Server
from benchmarks.serving_summary import compare
from benchmarks.serving_versus import run_versus
from benchmarks.serving_versus_options import names_a_peer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    arguments = sys.argv[1:] if argv is None else argv
    if names_a_peer(arguments):
        return run_versus(arguments)
    options = parse_options(arguments)
    try:
        cases = asyncio.run(_measure(options))
        BenchmarkResult.of_this_machine(
            name="serving",
            config=options.describe(),
            seed=options.workload.seed,
            results=cases,
        ).write(options.out)
    except (MeasurementError, OSError) as error:
        print(f"benchmarks.serving: {error}", file=sys.stderr)
        return 1
    _print_cases(cases)
    print(f"written to {options.out}")
    return 0


async def _measure(options: ServingOptions) -> list[CaseResult]:
    server = Server(options.target)
    peer = Server(options.peer) if options.peer else None
    servers = [server, peer] if peer else [server]
    try:
        for each in servers:
            await each.warm_up(
                options.workload, options.num_warmup_requests, options.load.timeout_s
            )
        if peer is None:
            return await server.run(options.load, options.workload, run="0")
        return await _measure_pairs(options, server, peer)
    finally:
        for each in servers:
            each.close()


async def _measure_pairs(options: ServingOptions, server: Server, peer: Server) -> list[CaseResult]:
    """A/B, B/A, A/B, ...: a machine that slows down or warms up favours neither side.

    No prompt is asked twice, so that no run finds the other's in a prefix cache they share.
    """
    pairs = []
    for pair in range(options.num_pairs):
        order = (server, peer) if pair % 2 == 0 else (peer, server)
        first = await order[0].run(options.load, options.workload, run=f"{pair}a")
        second = await order[1].run(options.load, options.workload, run=f"{pair}b")
        pairs.append((first, second) if pair % 2 == 0 else (second, first))
        print(f"pair {pair + 1} of {options.num_pairs} done", file=sys.stderr)
    return compare(pairs, options.peer_name)


def _print_cases(cases: Sequence[CaseResult]) -> None:
    for case in cases:
        line = f"{case.case:<22}{case.value:>12.3f} {case.unit:<8}"
        if case.peer_value is not None:
            line += f"  {case.peer} {case.peer_value:.3f}"
        if case.ratio is not None:
            line += f"  ratio {case.ratio.median:.3f} [{case.ratio.q1:.3f}, {case.ratio.q3:.3f}]"
        print(line)


if __name__ == "__main__":
    sys.exit(main())
