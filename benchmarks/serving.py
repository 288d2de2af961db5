"""Measure an OpenAI-compatible server over real HTTP: `python -m benchmarks.serving --help`.

Knows servers by URL only, whoever wrote them. Must not import what it measures.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from benchmarks.http_client import HttpClient
from benchmarks.http_response import HttpError
from benchmarks.load import ClosedLoop, LoadOutcome, OpenLoop, Send, run_load
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.serving_options import AnyWorkload, ServingOptions, Target, parse_options
from benchmarks.serving_summary import compare, first_error, summarize
from benchmarks.timeline import RequestRecord, StreamRecorder

WARMUP_CONCURRENCY = 4


class MeasurementError(Exception):
    """There is nothing to report: the server is away, or answers nothing of use."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
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


class Server:
    """A measured server, and the connections to it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = HttpClient(target.host, target.port)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if target.api_key is not None:
            self._headers["Authorization"] = f"Bearer {target.api_key}"

    async def warm_up(self, workload: AnyWorkload, num_requests: int, timeout_s: float) -> None:
        """Check that the server is there and answers; raises MeasurementError if not."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.check_reachable()
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or error or "no answer"
            raise MeasurementError(
                f"cannot reach {self._target.url} ({reason}): start the server or correct the URL"
            ) from error
        if not num_requests:
            return
        load = ClosedLoop(WARMUP_CONCURRENCY, num_requests, timeout_s)
        outcome = await run_load(load, self._make_send(workload, "warmup", load))
        failure = first_error(outcome) or ("none ended in time" if outcome.num_unfinished else None)
        if failure:
            raise MeasurementError(f"warm-up of {self._target.url} failed: {failure}")

    async def run(
        self, load: OpenLoop | ClosedLoop, workload: AnyWorkload, *, run: str
    ) -> list[CaseResult]:
        """One measured run; raises MeasurementError if no request succeeded."""
        send = self._make_send(workload, run, load)
        cpu_before_s = time.process_time()
        outcome = await run_load(load, send)
        client_cpu_s = time.process_time() - cpu_before_s
        self._warn(outcome)
        try:
            return summarize(outcome, client_cpu_s)
        except ValueError as error:
            raise MeasurementError(f"{self._target.url}: {error}") from error

    def close(self) -> None:
        self._client.close()

    def _make_send(self, workload: AnyWorkload, run: str, load: OpenLoop | ClosedLoop) -> Send:
        # Built beforehand: the cores are the server's during the run.
        bodies = workload.bodies(self._target.model, run, load.num_requests)

        async def send(index: int, intended_s: float) -> RequestRecord:
            recorder = StreamRecorder(intended_s)
            sent_s = time.perf_counter()
            try:
                status = await self._client.post(
                    self._target.path, self._headers, bodies[index], recorder.on_body
                )
            except (OSError, HttpError) as error:
                end_s = time.perf_counter()
                return recorder.fail(sent_s=sent_s, end_s=end_s, error=str(error))
            return recorder.finish(sent_s=sent_s, end_s=time.perf_counter(), status=status)

        return send

    def _warn(self, outcome: LoadOutcome) -> None:
        error = first_error(outcome)
        if error or outcome.num_unfinished:
            num_errors = sum(record.error is not None for record in outcome.records)
            print(
                f"benchmarks.serving: {self._target.url}: {num_errors} errors, "
                f"{outcome.num_unfinished} unfinished; first error: {error}",
                file=sys.stderr,
            )


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
