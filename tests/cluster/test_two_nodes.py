"""Gateway and engine on two raylets: over TCP alone, with nothing shared but the network."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from deployments.environment import child_environment, headwater_home
from deployments.local_environment import free_port
from engine.checkpoints.pull import pull
from tests.cluster.local import SOURCE, Model, serve_config
from tests.cluster.processes import GATEWAY, engine_of, listening_ports, replicas, wait_until
from tests.cluster.streams import Stream

MODEL = Model("alpha", resources=(("engine_node", 1.0),))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@dataclass(frozen=True, slots=True)
class TwoNodes:
    url: str
    pid: int
    """Of the process that both raylets are below."""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    pull(SOURCE, name=MODEL.name, home=headwater_home())
    port = free_port()
    config = serve_config([MODEL], port=port, num_gateways=1)
    config["applications"][0]["args"]["resources"] = {"gateway_node": 1.0}
    path = tmp_path_factory.mktemp("serve") / "serve.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=2, resources={"gateway_node": 1})
        cluster.add_node(num_cpus=2, resources={"engine_node": 1})
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.serve.scripts", "run", str(path)),
                *("--address", cluster.address, "--non-blocking"),
            ],
            env=child_environment({}),
            check=True,
            capture_output=True,
            timeout=120,
        )
        yield TwoNodes(f"http://127.0.0.1:{port}", os.getpid())
    finally:
        cluster.shutdown()


def test_an_answer_crosses_from_node_to_node_by_tcp(two_nodes: TwoNodes) -> None:
    def both_run() -> bool:
        names = (GATEWAY, engine_of("alpha"))
        return all(replicas(two_nodes.pid, name) for name in names)

    wait_until(both_run, timeout_s=90, what="gateway and engine run")
