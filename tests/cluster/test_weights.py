"""Weights of two nodes on real Ray: warmed from the command line, started from, lost and found.

The tests follow one another on one cluster: each leaves to the next what nodes hold.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray.cluster_utils import Cluster

from deployments.environment import child_environment
from deployments.local_environment import free_port
from tests.cluster.local import Model, serve_config
from tests.cluster.processes import engine_of, replicas, wait_until
from tests.quickstart import quickstart_checkpoint

MODEL = Model("weighty", resources=(("engine_node", 1.0),))
NODE_CACHE = "ray::NodeCacheActor"
LOOPBACK = "127.0.0.1"
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray takes 127.0.0.1 for what it is."""
_MIB = 1024**2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # Ray's own test cluster leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Outcome(NamedTuple):
    """Of a command."""

    returncode: int
    stdout: str
    stderr: str


def outcome_of(process: subprocess.Popen[str]) -> Outcome:
    with process:
        try:
            stdout, stderr = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Outcome(process.returncode, stdout, stderr)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two nodes, each with a home of its own, and a gateway on the first."""

    address: str
    port: int
    file: Path

    def begin_to_warm(self, *arguments: str) -> subprocess.Popen[str]:
        """`headwater models warm`."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "deployments.cli", "models", "warm"),
                *("--address", self.address, *arguments),
            ],
            env=child_environment(_ON_LOOPBACK),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def warm(self, *arguments: str) -> Outcome:
        return outcome_of(self.begin_to_warm(*arguments))

    def write(self, num_replicas: int) -> None:
        config = serve_config([MODEL], port=self.port, num_gateways=1)
        gateway, model = config["applications"]
        gateway["args"]["resources"] = {"gateway_node": 1.0}
        args: dict[str, Any] = model["args"]
        args["source"] = str(quickstart_checkpoint().path.resolve())
        args["num_replicas"] = max(1, num_replicas)
        args["node_cache"] = {
            "host_bytes": 16 * _MIB,
            "weights": {"host_bytes": 512 * _MIB, "max_bytes_per_s": 40e6},
        }
        if num_replicas == 0:
            config["applications"].remove(model)
        self.file.write_text(yaml.safe_dump(config), "utf-8")

    def serve(self, num_replicas: int) -> None:
        """So many replicas; without any, the model is gone."""
        self.write(num_replicas)
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.serve.scripts", "run", str(self.file)),
                *("--address", self.address, "--non-blocking"),
            ],
            env=child_environment(_ON_LOOPBACK),
            check=True,
            capture_output=True,
            timeout=120,
        )
        wait_until(
            lambda: len(self.started_from()) == num_replicas,
            timeout_s=60,
            what=f"{num_replicas} engines are there",
        )

    def started_from(self) -> dict[str, str]:
        """The rung on which each engine began."""
        return {labels["engine"]: labels["rung"] for labels, _ in self._samples("start_seconds")}

    def staged_bytes(self) -> list[float]:
        """Of each node that has a cache and an engine."""
        samples = self._samples("weights_bytes")
        return [value for labels, value in samples if labels["state"] == "used"]

    def ask(self) -> None:
        body = {"model": MODEL.name, "prompt": "Once", "max_tokens": 2}
        answer = httpx.post(f"{self._url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text

    @property
    def _url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def _samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        try:
            answer = httpx.get(f"{self._url}/metrics", timeout=10)
        except httpx.TransportError:
            return []
        if answer.status_code != 200:  # nothing is there yet
            return []
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == f"headwater:{name}"
        ]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))  # Ray's Unix sockets: a short path
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("RAY_TMPDIR", "TMPDIR"):  # also where Ray notes the cluster's address
            patch.setenv(variable, str(folder))
        cluster = Cluster()
        try:
            for name, resources in (
                ("first", {"engine_node": 1, "gateway_node": 1}),
                ("second", {"engine_node": 1}),
            ):
                cluster.add_node(
                    node_ip_address=LOOPBACK,
                    num_cpus=2,
                    resources=resources,
                    env_vars={"HEADWATER_HOME": str(folder / name)},
                )
            fleet = Fleet(str(cluster.address), free_port(), folder / "serve.yaml")
            fleet.write(2)
            yield fleet
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def source_readers() -> int:
    """Processes that read models from their sources."""
    return len(replicas(os.getpid(), "engine.weights.source_process"))


def test_nodes_go_on_when_nobody_looks_any_more(fleet: Fleet) -> None:
    warming = fleet.begin_to_warm(str(fleet.file), "--nodes", "2")
    wait_until(lambda: source_readers() > 0, timeout_s=60, what="a node reads from the source")
    warming.send_signal(signal.SIGINT)
    stopped = outcome_of(warming)
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.startswith("stopped looking: nodes go on"), stopped.stderr
    assert source_readers() > 0


def test_one_node_gets_the_weights_from_their_source_and_the_other_one_from_it(
    fleet: Fleet,
) -> None:
    warmed = fleet.warm(str(fleet.file), "--nodes", "2", "--explain")
    assert warmed.returncode == 0, warmed.stderr
    lines = [line for line in warmed.stdout.splitlines() if "in memory" in line]
    assert [line.partition(", from ")[2].partition(")")[0] for line in lines] == [
        "its source",
        "another node",
    ], warmed.stdout
    assert "GB/s" in warmed.stdout
    assert "last start of a replica" in warmed.stdout


def test_repeating_it_brings_nothing_anew(fleet: Fleet) -> None:
    caches = {process.pid for process in replicas(os.getpid(), NODE_CACHE)}
    warmed = fleet.warm(str(fleet.file), "--nodes", "2")
    assert warmed.returncode == 0, warmed.stderr
    assert warmed.stdout.count("in memory") == 2
    assert {process.pid for process in replicas(os.getpid(), NODE_CACHE)} == caches


def test_replicas_start_from_what_is_staged(fleet: Fleet) -> None:
    fleet.serve(2)
    assert list(fleet.started_from().values()) == ["staged", "staged"]
    fleet.ask()
    warmed = fleet.warm(MODEL.name, "--explain")
    assert warmed.returncode == 0, warmed.stderr
    assert "find_weights" in warmed.stdout  # of the replicas' starts


def test_what_replicas_use_stays_though_it_is_ordered_away(fleet: Fleet) -> None:
    cooled = fleet.warm(MODEL.name, "--rung", "cold")
    assert cooled.returncode == 1
    assert cooled.stderr.count("still in memory, 1 replicas use it") == 2
    fleet.ask()


def test_replicas_serve_on_when_the_cache_is_killed_and_the_next_start_works(fleet: Fleet) -> None:
    before = set(fleet.started_from())
    for cache in replicas(os.getpid(), NODE_CACHE):
        cache.kill()
    for _ in range(4):
        fleet.ask()
    assert set(fleet.started_from()) == before

    replicas(os.getpid(), engine_of(MODEL.name))[0].kill()
    wait_until(
        lambda: len(fleet.started_from()) == 2 and set(fleet.started_from()) != before,
        timeout_s=60,
        what="a new replica",
    )
    (new,) = set(fleet.started_from()) - before
    assert fleet.started_from()[new] == "on_disk"
    for _ in range(4):
        fleet.ask()


def test_weights_that_nobody_uses_leave_memory_when_they_are_ordered_away(fleet: Fleet) -> None:
    fleet.serve(0)
    warmed = fleet.warm(str(fleet.file), "--nodes", "2")
    assert warmed.returncode == 1
    assert "has no models" in warmed.stderr
    fleet.write(1)
    assert fleet.warm(str(fleet.file), "--nodes", "2").returncode == 0
    cooled = fleet.warm(str(fleet.file), "--rung", "cold")
    assert cooled.returncode == 0, cooled.stderr
    assert "in memory" not in cooled.stdout


def test_what_can_not_be_warmed_is_said_in_a_line(fleet: Fleet) -> None:
    fleet.write(1)
    too_many = fleet.warm(str(fleet.file), "--nodes", "3")
    assert too_many.returncode == 1
    assert "2 nodes have room for a replica (1 engine_node), not 3" in too_many.stderr
    nowhere = fleet.warm(str(fleet.file), "--address", f"{LOOPBACK}:{free_port()}")
    assert nowhere.returncode == 1
    assert "no Ray cluster can be reached at 127.0.0.1:" in nowhere.stderr
    unknown = fleet.warm("nobody")
    assert unknown.returncode == 1
    assert "no model 'nobody' is deployed" in unknown.stderr
