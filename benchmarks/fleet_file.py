"""The `serve run` file of two fleets side by side: the product's, and as many of the same engines
behind a router of Serve's own (`benchmarks.serve_peer`).

Must not know what is asked of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from benchmarks.machine import REPOSITORY
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path

PEER_PATH = "/peer"


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Of each of the two."""

    model: str
    """In the model cache. Ours serves it by this name, the peer by those of its routers."""
    num_replicas: int
    num_gateways: int
    engine: Mapping[str, Any]
    routers: tuple[str, ...] = ("power_of_two",)
    """Of the peer."""


def fleets_file(shape: FleetShape, port: int) -> dict[str, Any]:
    quickstart = yaml.safe_load((REPOSITORY / "configs" / "quickstart.yaml").read_text("utf-8"))
    source = quickstart["applications"][1]["args"]["source"]
    checkpoint = str(checkpoint_path(headwater_home(), shape.model))
    shared = {
        "name": shape.model,
        "num_replicas": shape.num_replicas,
        "engine": dict(shape.engine),
    }
    gateway = {
        "name": "gateway",
        "route_prefix": "/",
        "import_path": "deployments.build:build_gateway",
        "args": {"num_replicas": shape.num_gateways},
        "deployments": [{"name": "Gateway", "user_config": {"models": [{"name": shape.model}]}}],
    }
    model = {
        "name": shape.model,
        "route_prefix": None,
        "import_path": "deployments.build:build_model",
        "args": {**shared, "source": source, "num_cpus": 0},
    }
    peer = {
        "name": "peer",
        "route_prefix": PEER_PATH,
        "import_path": "benchmarks.serve_peer:build",
        "args": {
            **shared,
            "checkpoint": checkpoint,
            "num_gateways": shape.num_gateways,
            "routers": list(shape.routers),
        },
    }
    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "proxy_location": "HeadOnly",
        "applications": [gateway, model, peer],
    }
