"""A local Ray Serve with paced engines: as many accelerators as a test wants, on two cores."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.environment import child_environment, headwater_home
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from engine.checkpoints.store import Checkpoint, checkpoint_path
from tests.quickstart import SOURCE, quickstart_checkpoint

START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Model:
    """A paced model: its tokenizer is real, its tokens take the time they are told to."""

    name: str
    num_replicas: int = 1
    step_s: float = 0.02
    max_num_seqs: int = 64
    hand_over_after_s: float = 10.0
    num_ranks: int = 1
    resources: tuple[tuple[str, float], ...] = ()
    max_replicas: int | None = None
    """Autoscaled from ``min_replicas`` to so many, in place of ``num_replicas``."""
    min_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Local:
    """A running one."""

    serve: LocalServe
    pid: int
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deploy(
        self,
        models: list[Model],
        *,
        num_gateways: int = 2,
        autoscaler: dict[str, Any] | None = None,
        deleted: tuple[str, ...] = (),
        **scaled: int,
    ) -> None:
        """What a user does who has edited the file; `scaled` sets replicas without a restart, and
        applications of `deleted` models are gone, though gateways still list them."""
        path = self.folder / "changed.yaml"
        config = serve_config(
            models,
            port=self.port,
            num_gateways=num_gateways,
            autoscaler=autoscaler,
            scaled=scaled,
        )
        config["applications"] = [
            each for each in config["applications"] if each["name"] not in deleted
        ]
        path.write_text(yaml.safe_dump(config), "utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.serve.scripts", "deploy", str(path)),
                *("--address", self.serve.dashboard_url),
            ],
            env=child_environment({"RAY_AUTH_MODE": "token"}),
            check=True,
            capture_output=True,
            timeout=60,
        )


@contextmanager
def running(
    models: list[Model],
    folder: Path,
    *,
    num_gateways: int = 2,
    autoscaler: dict[str, Any] | None = None,
) -> Iterator[Local]:
    """Serve `models` on a free port, ready; `autoscaler`: its `user_config`, if there is one."""
    port = free_port(0)
    path = folder / "serve.yaml"
    config = serve_config(models, port=port, num_gateways=num_gateways, autoscaler=autoscaler)
    path.write_text(yaml.safe_dump(config), "utf-8")
    with LocalServe(path, health_url=f"http://127.0.0.1:{port}/health") as serve:
        report = serve.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
        assert report.state is State.READY, report
        yield Local(serve, serve.pid, port, folder)


def provide(name: str, checkpoint: Checkpoint | None = None) -> None:
    """Put a model, the quickstart's unless told otherwise, into the tests' home under a name."""
    link = checkpoint_path(headwater_home(), name)
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((checkpoint or quickstart_checkpoint()).path)


def serve_config(
    models: list[Model],
    *,
    port: int,
    num_gateways: int,
    autoscaler: dict[str, Any] | None = None,
    scaled: dict[str, int] | None = None,
) -> dict[str, Any]:
    """A `serve run` file, of models that are there."""
    for model in models:
        provide(model.name)
    gateway: dict[str, Any] = {
        "name": "gateway",
        "route_prefix": "/",
        "import_path": "deployments.build:build_gateway",
        "args": {"num_replicas": num_gateways},
        "deployments": [
            {
                "name": "Gateway",
                "user_config": {"models": [{"name": model.name} for model in models]},
            }
        ],
    }
    if autoscaler is not None:
        gateway["args"]["autoscaler"] = True
        gateway["deployments"].append({"name": "Autoscaler", "user_config": autoscaler})
    applications = [gateway, *(_application(model, scaled or {}) for model in models)]
    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "proxy_location": "HeadOnly",
        "applications": applications,
    }


def _application(model: Model, scaled: dict[str, int]) -> dict[str, Any]:
    application: dict[str, Any] = {
        "name": model.name,
        "route_prefix": None,
        "import_path": "deployments.build:build_model",
        "args": {
            "name": model.name,
            "source": SOURCE,
            **_size(model),
            "num_cpus": 0,
            "resources": dict(model.resources),
            "engine": {
                "runner": "paced",
                "kv_cache_bytes": 128 * 1024 * 1024,
                "max_num_seqs": model.max_num_seqs,
                "hand_over_after_s": model.hand_over_after_s,
                "tensor_parallel_size": model.num_ranks,
                "paced": {"step_base_s": model.step_s, "per_decode_s": 0},
            },
        },
    }
    if model.name in scaled:
        application["deployments"] = [{"name": "EngineReplica", "num_replicas": scaled[model.name]}]
    return application


def _size(model: Model) -> dict[str, Any]:
    if model.max_replicas is None:
        return {"num_replicas": model.num_replicas}
    bounds = {"min_replicas": model.min_replicas, "max_replicas": model.max_replicas}
    return {"autoscaling": bounds}
