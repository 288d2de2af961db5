"""The plan's lower rungs on a real Ray: nobody asks for the weights, and the next replica finds
them in memory."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.cli import main
from deployments.environment import child_environment
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from tests.cluster.local import START_TIMEOUT_S, Model, serve_config
from tests.cluster.processes import engine_of, replicas, wait_until
from tests.quickstart import quickstart_checkpoint

MODEL = Model("ladder", min_replicas=0, max_replicas=1)
_MIB = 1024**2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def config(port: int, num_replicas: int) -> dict[str, Any]:
    """By an operator's word so many replicas, whatever comes."""
    scaling = {
        "name": MODEL.name,
        "num_replicas": num_replicas,
        "max_parked": 0,
        "capacity": {"requests_per_s": 2},
    }
    config = serve_config([MODEL], port=port, num_gateways=1, autoscaler={"models": [scaling]})
    args: dict[str, Any] = config["applications"][1]["args"]
    args["source"] = str(quickstart_checkpoint().path.resolve())
    args["node_cache"] = {"host_bytes": 16 * _MIB, "weights": {"host_bytes": 512 * _MIB}}
    return config


def has(url: str, pattern: str) -> bool:
    """Whether the fleet's page has such a line."""
    try:
        page = httpx.get(f"{url}/metrics", timeout=10).text
    except httpx.HTTPError:
        return False
    return re.search(pattern, page, re.MULTILINE) is not None


def test_what_the_plan_wants_in_memory_is_there_when_a_replica_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port(0)
    url = f"http://127.0.0.1:{port}"
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config(port, 0)), "utf-8")
    with LocalServe(path, health_url=f"{url}/health") as serve:
        report = serve.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
        assert report.state is State.READY, report
        labels = f'model_name="{MODEL.name}",rung="staged"'
        wait_until(
            lambda: has(url, rf"^headwater:autoscaler_warm_rooms\{{{labels}.*\}} [1-9]"),
            timeout_s=90,
            what="the weights are in memory",
        )
        assert replicas(serve.pid, engine_of(MODEL.name)) == []
        assert main(["autoscale", "explain", "--url", url]) == 0
        assert re.search(r"node \w+: staged, room for", capsys.readouterr().out)

        path.write_text(yaml.safe_dump(config(port, 1)), "utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.serve.scripts", "deploy", str(path)),
                *("--address", serve.dashboard_url),
            ],
            env=child_environment({"RAY_AUTH_MODE": "token"}),
            check=True,
            capture_output=True,
            timeout=60,
        )
        wait_until(
            lambda: has(url, r'^headwater:start_seconds\{.*rung="staged"'),
            timeout_s=90,
            what="the replica began with the weights in memory",
        )
