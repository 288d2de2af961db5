"""A server under measurement: its warm-up, and runs of a load against it.

Knows servers by URL only, whoever wrote them. Must not import what it measures.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.http_client import HttpClient
from benchmarks.http_response import HttpError
from benchmarks.load import ClosedLoop, LoadOutcome, OpenLoop, Send, run_load
from benchmarks.result import CaseResult
from benchmarks.serving_options import AnyWorkload, Target
from benchmarks.serving_summary import first_error, summarize
from benchmarks.timeline import RequestRecord, StreamRecorder

WARMUP_CONCURRENCY = 4


class MeasurementError(Exception):
    """There is nothing to report: the server is away, or answers nothing of use."""


class Server:
    """A measured server, and the connections to it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = HttpClient(target.host, target.port)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if target.api_key is not None:
            self._headers["Authorization"] = f"Bearer {target.api_key}"

    async def warm_up(
        self,
        workload: AnyWorkload,
        num_requests: int,
        timeout_s: float,
        concurrency: int = WARMUP_CONCURRENCY,
    ) -> None:
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
        load = ClosedLoop(concurrency, num_requests, timeout_s)
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
