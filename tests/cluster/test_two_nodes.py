"""Gateway and engine on two raylets: over TCP alone, as between two machines."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import psutil
import pytest
import yaml
from ray.cluster_utils import Cluster

from deployments.environment import child_environment
from deployments.local_environment import free_port
from tests.cluster.local import Model, serve_config
from tests.cluster.processes import GATEWAY, engine_of, listening_ports, replicas, wait_until
from tests.cluster.streams import Stream

MODEL = Model("alpha", resources=(("engine_node", 1.0),))
LOOPBACK = "127.0.0.1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # Ray's own test cluster leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a gateway on one node, whose engine is on the other."""
    folder = tempfile.mkdtemp(prefix="hw-", dir="/tmp")  # Ray's Unix sockets need a short path
    for variable in ("RAY_TMPDIR", "TMPDIR"):  # also where Ray notes the cluster's address
        monkeypatch.setenv(variable, folder)
    cluster = Cluster()
    try:
        for resource in ("gateway_node", "engine_node"):
            cluster.add_node(node_ip_address=LOOPBACK, num_cpus=2, resources={resource: 1})
        port = free_port()
        _serve_run(f"{folder}/serve.yaml", str(cluster.address), port)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _serve_run(path: str, address: str, port: int) -> None:
    config = serve_config([MODEL], port=port, num_gateways=1)
    config["applications"][0]["args"]["resources"] = {"gateway_node": 1.0}
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.serve.scripts", "run", path),
            *("--address", address, "--non-blocking"),
        ],
        env=child_environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}),
        check=True,
        capture_output=True,
        timeout=120,
    )


def test_an_answer_crosses_from_node_to_node_by_tcp(url: str) -> None:
    def is_connected() -> bool:
        gateways = replicas(os.getpid(), GATEWAY)
        engines = replicas(os.getpid(), engine_of(MODEL.name))
        return bool(gateways and engines and _tcp_ports_between(gateways[0], engines[0]))

    wait_until(is_connected, timeout_s=90, what="the gateway connects to the engine by TCP")
    stream = Stream(url, MODEL.name, num_tokens=20)
    stream.wait(60)
    assert (stream.error, stream.num_tokens) == (None, 20)
    (gateway,) = replicas(os.getpid(), GATEWAY)
    (engine,) = replicas(os.getpid(), engine_of(MODEL.name))
    assert _raylet_of(gateway) != _raylet_of(engine)


def _tcp_ports_between(client: psutil.Process, server: psutil.Process) -> set[int]:
    """Ports at which `server` listens and `client` is connected."""
    connected = {c.raddr.port for c in client.net_connections("tcp") if c.raddr}
    return connected & listening_ports(server)


def _raylet_of(replica: psutil.Process) -> int | None:
    return replica.ppid()
