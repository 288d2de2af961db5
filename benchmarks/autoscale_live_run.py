"""One contestant, from the start of its Serve to the end of its load: requests and fleet samples.

Must not know what is made of the figures.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml

from benchmarks.autoscale_live_file import contestant_file
from benchmarks.autoscale_live_fleet import FleetSample, FleetSampler
from benchmarks.autoscale_live_load import send_at
from benchmarks.autoscale_live_scenarios import Contestant, Scenario
from benchmarks.http_client import HttpClient
from benchmarks.http_response import HttpError
from benchmarks.load import LoadOutcome, Send
from benchmarks.routing_http_fleet import busy_shares
from benchmarks.serving_server import MeasurementError
from benchmarks.timeline import RequestRecord, StreamRecorder
from deployments.environment import headwater_home
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from engine.checkpoints.store import checkpoint_path

START_TIMEOUT_S = 300.0
END_TIMEOUT_S = 150.0
"""For the answers that are open when the last request has been sent."""
PATH = "/v1/chat/completions"


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What became of one request of the load."""

    at_s: float
    """Of the schedule; before 0: unmeasured."""
    ttft_s: float | None
    """None: failed."""
    tpot_s: float | None
    send_lag_s: float
    error: str | None


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """As `FleetSample`, on the schedule's time."""

    at_s: float
    num_alive: int
    num_serving: int
    num_parked: int


class Run(msgspec.Struct, frozen=True):
    """One contestant in one round."""

    scenario: str
    contestant: str
    round: int
    requests: list[Request]
    num_unfinished: int
    samples: list[Sample]
    machine_cpu_share: float
    git_sha: str


def measure(
    scenario: Scenario, contestant: Contestant, number: int, *, model: str, git_sha: str
) -> Run:
    """Start it, load it, stop it. The round's number seeds the load, which is all contestants'.

    Raises `MeasurementError` if it doesn't start.
    """
    if not checkpoint_path(headwater_home(), model).exists():
        raise MeasurementError(f"{model} is not in the model cache: pull it first")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serve.yaml"
        config = contestant_file(contestant, scenario, model, port)
        file.write_text(yaml.safe_dump(config), "utf-8")
        with LocalServe(file, health_url=f"{url}/health") as local:
            report = local.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
            if report.state is not State.READY:
                raise MeasurementError(f"{contestant.name}: Serve did not start: {report}")
            sampler = FleetSampler(url, model, local.pid)
            return asyncio.run(
                _Measurement(scenario, contestant, number, model, git_sha).run(sampler, port)
            )


class _Measurement:
    """Of a fleet that is there."""

    def __init__(
        self, scenario: Scenario, contestant: Contestant, number: int, model: str, git_sha: str
    ) -> None:
        self._scenario = scenario
        self._contestant = contestant
        self._number = number
        self._model = model
        self._git_sha = git_sha

    async def run(self, sampler: FleetSampler, port: int) -> Run:
        shape, number = self._scenario.shape, self._number
        history = shape.history(self._contestant.kind)
        arrivals_s = [
            *history.arrivals_s(number),
            *(history.duration_s + at_s for at_s in shape.schedule.arrivals_s(number)),
        ]
        # Built beforehand: the cores are the fleet's during the run.
        bodies = self._scenario.workload.bodies(self._model, f"{number}", len(arrivals_s))
        client = HttpClient("127.0.0.1", port)
        start_s = time.perf_counter()
        before = sampler.read_cpu()
        sampling = asyncio.create_task(sampler.run(), name="sample fleet")
        try:
            outcome = await send_at(arrivals_s, start_s, END_TIMEOUT_S, _sender(client, bodies))
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            client.close()
        _, machine = busy_shares(before, sampler.read_cpu())
        zero_s = start_s + history.duration_s
        _warn(self._contestant.name, outcome)
        return Run(
            scenario=self._scenario.name,
            contestant=self._contestant.name,
            round=number,
            requests=[_request(record, zero_s) for record in outcome.records],
            num_unfinished=outcome.num_unfinished,
            samples=[_sample(sample, zero_s) for sample in sampler.samples],
            machine_cpu_share=machine,
            git_sha=self._git_sha,
        )


def _sender(client: HttpClient, bodies: list[bytes]) -> Send:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}

    async def send(index: int, intended_s: float) -> RequestRecord:
        recorder = StreamRecorder(intended_s)
        sent_s = time.perf_counter()
        try:
            status = await client.post(PATH, headers, bodies[index], recorder.on_body)
        except (OSError, HttpError) as error:
            return recorder.fail(sent_s=sent_s, end_s=time.perf_counter(), error=str(error))
        return recorder.finish(sent_s=sent_s, end_s=time.perf_counter(), status=status)

    return send


def _request(record: RequestRecord, zero_s: float) -> Request:
    is_good = record.error is None
    return Request(
        at_s=record.intended_s - zero_s,
        ttft_s=record.ttft_s if is_good else None,
        tpot_s=record.tpot_s if is_good else None,
        send_lag_s=record.send_lag_s,
        error=record.error,
    )


def _sample(sample: FleetSample, zero_s: float) -> Sample:
    at_s = sample.at_s - zero_s
    return Sample(at_s, sample.num_alive, sample.num_serving, sample.num_parked)


def _warn(name: str, outcome: LoadOutcome) -> None:
    errors = [record.error for record in outcome.records if record.error is not None]
    if errors or outcome.num_unfinished:
        print(
            f"benchmarks.autoscale_live: {name}: {len(errors)} errors, "
            f"{outcome.num_unfinished} unfinished; first: {errors[:1]}",
            file=sys.stderr,
        )
