"""A cluster's head on this machine: Ray with autoscaler v2 and the fleet provider on a mock EC2,
and Headwater's own applications on it. No replica runs until somebody asks.

Knows no scenario.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ray.util import get_node_ip_address

from benchmarks.aws_loop_cloud import CLUSTER, POOL, REGION, MockCloud, mock_cloud
from benchmarks.aws_loop_instances import LABEL, MockInstances, end_all_of, end_group
from deployments.environment import child_environment
from deployments.local_environment import LocalPorts, free_port, local_environment
from engine.checkpoints.store import checkpoint_path

MODEL = "loop-model"
TWIN = "loop-twin"
"""The same paced engine without pauses, on the head: what it says, nobody disturbs."""
STEP_S = 0.05
MAX_WAIT_S = 60.0
_IDLE_S = 6.0
_START_TIMEOUT_S = 90.0
_STOP_S = 5.0
_HEAD_RESOURCE = "head_node"


@dataclass(slots=True)
class LoopCluster:
    """A running one."""

    cloud: MockCloud
    instances: MockInstances
    folder: Path
    dashboard_url: str
    port: int
    environment: dict[str, str]
    source: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, *, max_wait_s: float = MAX_WAIT_S, **scaling: Any) -> None:
        """What a user does who has edited the file; ``scaling``: of the model's autoscaling."""
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(self._file(max_wait_s, scaling)), "utf-8")
        command = ("ray.serve.scripts", "deploy", str(path), "--address", self.dashboard_url)
        subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def wait_until_running(self) -> None:
        """All applications. Raises ``TimeoutError``."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while (states := self._states()) != {"RUNNING"}:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"applications are {states} after {_START_TIMEOUT_S:.0f} s")
            time.sleep(0.5)
        while not _answers(f"{self.url}/health"):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the gateway is not well after {_START_TIMEOUT_S:.0f} s")
            time.sleep(0.2)

    def _states(self) -> set[str]:
        try:
            url = f"{self.dashboard_url}/api/serve/applications/"
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  our own
                applications = json.load(answer)["applications"]
        except OSError:
            return set()
        return {application["status"] for application in applications.values()}

    def _file(self, max_wait_s: float, scaling: dict[str, Any]) -> dict[str, Any]:
        planned = {
            "name": MODEL,
            "start_s": 5,
            "max_parked": 0,
            "capacity": {"requests_per_s": 4},
            **scaling,
        }
        gateway = {
            "name": "gateway",
            "route_prefix": "/",
            "import_path": "deployments.build:build_gateway",
            "args": {"num_replicas": 1, "autoscaler": True, "resources": {_HEAD_RESOURCE: 1}},
            "deployments": [
                {
                    "name": "Gateway",
                    "user_config": {
                        "models": [{"name": MODEL}, {"name": TWIN}],
                        "max_queue_wait_s": max_wait_s,
                    },
                },
                {"name": "Autoscaler", "user_config": {"models": [planned], "node_start_s": 10}},
            ],
        }
        model = self._model(MODEL, STEP_S, {"num_gpus": 1})
        model["args"]["autoscaling"] = {"min_replicas": 0, "max_replicas": 1}
        twin = self._model(TWIN, 0.0, {"resources": {_HEAD_RESOURCE: 1}})
        return {
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "proxy_location": "HeadOnly",
            "applications": [gateway, model, twin],
        }

    def _model(self, name: str, step_s: float, placed: dict[str, Any]) -> dict[str, Any]:
        engine = {
            "runner": "paced",
            "kv_cache_bytes": 64 * 1024 * 1024,
            "max_num_seqs": 64,
            "hand_over_after_s": 1.0,
            "paced": {"step_base_s": step_s, "per_decode_s": 0},
        }
        args = {"name": name, "source": self.source, "num_cpus": 0, "engine": engine, **placed}
        return {
            "name": name,
            "route_prefix": None,
            "import_path": "deployments.build:build_model",
            "args": args,
        }


@contextmanager
def loop_cluster(checkpoint: Path, source: str) -> Iterator[LoopCluster]:
    """``checkpoint``: folder of a model whose tokenizer is used; ``source``: where it came from."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp", ignore_cleanup_errors=True)
            )
        )
        stack.callback(end_all_of, folder)
        cloud = stack.enter_context(mock_cloud())
        ports = LocalPorts.free()
        gcs_address = f"{get_node_ip_address()}:{free_port()}"  # not loopback: nodes join by it
        environment = _environment(cloud, folder, ports)
        for name in (MODEL, TWIN):
            link = checkpoint_path(folder / "home", name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(checkpoint)
        _start_head(stack, cloud, folder, ports, gcs_address, environment)
        instances = stack.enter_context(MockInstances(cloud, gcs_address, environment, folder))
        url = f"http://127.0.0.1:{ports.dashboard}"
        cluster = LoopCluster(cloud, instances, folder, url, free_port(), environment, source)
        cluster.deploy()
        cluster.wait_until_running()
        yield cluster


def _environment(cloud: MockCloud, folder: Path, ports: LocalPorts) -> dict[str, str]:
    """Of all processes of the cluster."""
    ours = {
        **cloud.environment,
        **local_environment(folder, ports),
        "HEADWATER_HOME": str(folder / "home"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    environment = child_environment(ours)
    for name in (
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_ADDRESS",
        "AWS_CA_BUNDLE",
        "AWS_PROFILE",
    ):
        environment.pop(name, None)
    return environment


def _start_head(
    stack: ExitStack,
    cloud: MockCloud,
    folder: Path,
    ports: LocalPorts,
    gcs_address: str,
    environment: dict[str, str],
) -> None:
    path = folder / "autoscaler.yaml"
    path.write_text(yaml.safe_dump(autoscaler_file(cloud)), "utf-8")
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        "--disable-usage-stats",
        *("--port", gcs_address.rpartition(":")[2], "--autoscaling-config", str(path)),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(ports.dashboard)),
        *("--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", "100000000"),
        *("--resources", json.dumps({_HEAD_RESOURCE: 4})),
    ]
    node = {"RAY_CLOUD_INSTANCE_ID": cloud.head_id, "RAY_NODE_TYPE_NAME": "head"}
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            command,
            env=environment | node,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stack.callback(end_group, head, grace_s=_STOP_S)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    url = f"http://127.0.0.1:{ports.dashboard}/api/version"
    while not _answers(url):
        if head.poll() is not None or time.monotonic() > deadline_s:
            text = (folder / "head.log").read_text("utf-8", "replace")
            raise RuntimeError(f"Ray's head does not start: {text[-2000:]}")
        time.sleep(0.3)


def autoscaler_file(cloud: MockCloud) -> dict[str, Any]:
    """As Terraform renders it."""
    pool = {
        "resources": {"CPU": 1, "GPU": 1},
        "labels": {LABEL: POOL},
        "min_workers": 0,
        "max_workers": 3,
        "node_config": cloud.node_config(),
    }
    head = {"resources": {"CPU": 1}, "labels": {}, "max_workers": 0, "node_config": {}}
    head["min_workers"] = 0
    return {
        "cluster_name": CLUSTER,
        "max_workers": 3,
        "idle_timeout_minutes": _IDLE_S / 60,
        "upscaling_speed": 100,
        "head_node_type": "head",
        "provider": {
            "type": "external",
            "module": "deployments.aws.fleet_provider.FleetProvider",
            "region": REGION,
            "use_internal_ips": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "cache_stopped_nodes": False,
        },
        "available_node_types": {POOL: pool, "head": head},
        "auth": {"ssh_user": "none"},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{key: [] for key in _UNUSED},
    }


_UNUSED = (
    "cluster_synced_files",
    "head_setup_commands",
    "head_start_ray_commands",
    "initialization_commands",
    "rsync_exclude",
    "rsync_filter",
    "setup_commands",
    "worker_setup_commands",
    "worker_start_ray_commands",
)
"""Ray's monitor dies without these, though nothing here uses them."""


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  our own
            return bool(answer.status == 200)
    except OSError:
        return False
