"""How many replicas there are and what they are, second by second, whoever decides on them.

Counted from outside, in the same way for all: a replica costs from the start of its process to the
end of it, whatever it does meanwhile; it serves while the gateway may send it requests.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.routing_http_fleet import CpuReading, read_cpu

PERIOD_S = 1.0
TIMEOUT_S = 5.0
ACCEPTING = "headwater:engines_accepting"
REPLICAS = "headwater:autoscaler_replicas"


@dataclass(frozen=True, slots=True)
class FleetSample:
    """At one time."""

    at_s: float
    """Of `time.perf_counter`."""
    num_alive: int
    """Processes: starting, there, or leaving."""
    num_serving: int
    """Of those, that take requests, by the gateway."""
    num_parked: int
    """Of those, asleep or between sleeping and serving."""


class FleetSampler:
    """Looks once a second until it is cancelled; one gateway, one model."""

    def __init__(self, url: str, model: str, serve_pid: int) -> None:
        self._model = model
        self._title = f"ServeReplica:{model}:"
        self._serve_pid = serve_pid
        self._pages = _pages(url)
        self.samples: list[FleetSample] = []

    async def run(self) -> None:
        """A look that fails (the gateway is busy) is left out; the one before holds on."""
        while True:
            started_s = time.perf_counter()
            try:
                self.samples.append(await asyncio.to_thread(self.look))
            except OSError:
                continue
            finally:
                await asyncio.sleep(max(0.0, started_s + PERIOD_S - time.perf_counter()))

    def look(self) -> FleetSample:
        """Now. Raises `OSError` if the gateway doesn't answer."""
        num_serving, num_parked = count_engines("".join(map(_get, self._pages)), self._model)
        num_alive = sum(self._title in title for title in _titles(self._serve_pid))
        return FleetSample(time.perf_counter(), num_alive, num_serving, num_parked)

    def read_cpu(self) -> CpuReading:
        return read_cpu(self._serve_pid)


def count_engines(pages: str, model: str) -> tuple[int, int]:
    """Engines that take requests, and that are asleep or on the way, by the metrics of the gateway
    and, where there is one, of the autoscaler."""
    num_serving = num_parked = 0
    for family in text_string_to_metric_families(pages):
        for sample in family.samples:
            if sample.labels.get("model_name") != model:
                continue
            if sample.name == ACCEPTING:
                num_serving += int(sample.value)
            elif sample.name == REPLICAS and sample.labels["rung"] == "parked":
                num_parked += int(sample.value)
    return num_serving, num_parked


def _pages(url: str) -> list[str]:
    """Of the one gateway and the autoscaler: `/metrics` behind the proxy asks the whole fleet."""
    targets = json.loads(_get(f"{url}/metrics/targets"))
    roles = [group["labels"]["role"] for group in targets]
    assert roles.count("gateway") == 1, f"one gateway was asked for, there are {roles}"
    return [
        f"http://{address}/metrics"
        for group in targets
        if group["labels"]["role"] in ("gateway", "autoscaler")
        for address in group["targets"]
    ]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310  our own
        text: str = response.read().decode()
    return text


def _titles(pid: int) -> Iterable[str]:
    for process in psutil.Process(pid).children(recursive=True):
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            continue
