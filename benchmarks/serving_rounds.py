"""Rounds of starts: each server is started, warmed up, asked everything and stopped, in turn.

Two servers never run at the same time, so that each has the whole machine. Knows servers as
`Contestant`s only.
"""

from __future__ import annotations

import asyncio
import http.client
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.result import CaseResult
from benchmarks.serving_contestants import Contestant
from benchmarks.serving_log import last_lines
from benchmarks.serving_options import Target
from benchmarks.serving_process import ServerProcess
from benchmarks.serving_server import MeasurementError, Server
from benchmarks.serving_versus_options import VersusOptions
from deployments.environment import child_environment

NUM_LOG_LINES = 20
NUM_ERROR_LINES = 15
WARMUPS_PER_CLIENT = 2
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one start of one server gave."""

    start_s: float
    """Until its first answer; 0 if it ran already."""
    runs: Mapping[int, Sequence[CaseResult]]
    """By concurrency."""
    log_tail: Sequence[str]

    def value(self, concurrency: int, case: str) -> float:
        return next(each.value for each in self.runs[concurrency] if each.case == case)


def measure_rounds(
    contestants: Sequence[Contestant], num_rounds: int, measure: Callable[[Contestant, int], Round]
) -> dict[str, list[Round]]:
    """By name, a `Round` per round; another one begins each, since the machine may drift."""
    rounds: dict[str, list[Round]] = {contestant.name: [] for contestant in contestants}
    for number in range(num_rounds):
        first = number % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            measured = measure(contestant, number)
            rounds[contestant.name].append(measured)
            speeds = ", ".join(
                f"{measured.value(concurrency, 'output_tokens_per_s'):.0f} tok/s "
                f"at concurrency {concurrency}"
                for concurrency in measured.runs
            )
            print(f"round {number + 1}: {contestant.name}: {speeds}", file=sys.stderr)
    return rounds


def measure_start(
    contestant: Contestant, number: int, options: VersusOptions, folder: Path
) -> Round:
    """Start it, ask everything, stop it. `folder` is where it runs and logs.

    Raises MeasurementError or ServerProcessError, and has stopped it then, too.
    """
    target = contestant.target
    if not contestant.command:
        return Round(0.0, asyncio.run(_run_all(target, number, options)), ())
    if _answers(target):
        raise MeasurementError(f"{target.url} answers before {contestant.name} was started")
    log = folder / f"{contestant.name}.log"
    environment = child_environment(contestant.environment)
    with ServerProcess(
        contestant.command, environment=environment, folder=folder, log=log
    ) as process:
        start_s = process.wait_until(lambda: _answers(target), options.start_timeout_s)
        try:
            runs = asyncio.run(_run_all(target, number, options))
        except MeasurementError as error:
            tail = "\n  ".join(last_lines(log, NUM_ERROR_LINES))
            raise MeasurementError(
                f"{contestant.name}: {error}; its last lines:\n  {tail}"
            ) from error
        return Round(start_s, runs, last_lines(log, NUM_LOG_LINES))


async def _run_all(
    target: Target, number: int, options: VersusOptions
) -> dict[int, list[CaseResult]]:
    """All servers are asked the same in the same round, and nothing twice."""
    server = Server(target)
    widest = max(options.concurrencies)
    runs = {}
    try:
        await server.warm_up(
            options.workload, WARMUPS_PER_CLIENT * widest, options.run_timeout_s, widest
        )
        for concurrency in options.concurrencies:
            load = options.load(concurrency)
            run = await server.run(load, options.workload, run=f"c{concurrency}/{number}")
            _check_answers(run, load.num_requests, options.workload.output_tokens)
            runs[concurrency] = run
    finally:
        server.close()
    return runs


def _check_answers(run: Sequence[CaseResult], num_requests: int, output_tokens: int) -> None:
    """Speeds compare only if all was answered, and at the length that was asked for."""
    values = {case.case: case.value for case in run}
    if values["succeeded"] != num_requests:
        raise MeasurementError(f"{values['succeeded']:.0f} of {num_requests} requests succeeded")
    if values["output_tokens"] != num_requests * output_tokens:
        raise MeasurementError(
            f"{values['output_tokens']:.0f} tokens came, not {num_requests} times {output_tokens}: "
            "the server does not heed ignore_eos and min_tokens"
        )


def _answers(target: Target) -> bool:
    """Whether a request for one token is answered."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
    }
    request = urllib.request.Request(
        f"http://{target.host}:{target.port}{target.path}",
        orjson.dumps(body),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:  # noqa: S310  ours
            response.read()
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):  # refused, or an error while a part is starting
        return False
