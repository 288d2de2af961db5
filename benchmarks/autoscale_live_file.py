"""The `serve run` file of one contestant of `benchmarks.autoscale_live`.

Must not know what is asked of it.
"""

from __future__ import annotations

from typing import Any

import yaml

from benchmarks.autoscale_live_scenarios import Contestant, Scenario
from benchmarks.machine import REPOSITORY

PARKED_COST = 0.25
"""Of what a replica costs while it serves; the product's default."""
MAX_WAIT_S = 120.0
"""Nobody is refused for a long wait, nor waits in vain: TTFT shows it all."""


def contestant_file(
    contestant: Contestant, scenario: Scenario, model: str, port: int
) -> dict[str, Any]:
    """One gateway, and the model's replicas. ``model`` is in the model cache."""
    is_ours = contestant.kind == "predictive"
    deployments = [
        {
            "name": "Gateway",
            "user_config": {"models": [{"name": model}], "max_queue_wait_s": MAX_WAIT_S},
        }
    ]
    if is_ours:
        deployments.append(
            {"name": "Autoscaler", "user_config": _autoscaler(contestant, scenario, model)}
        )
    gateway = {
        "name": "gateway",
        "route_prefix": "/",
        "import_path": "deployments.build:build_gateway",
        "args": {"num_replicas": 1, **({"autoscaler": True} if is_ours else {})},
        "deployments": deployments,
    }
    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "proxy_location": "HeadOnly",
        "applications": [gateway, _model(contestant, scenario, model)],
    }


def _autoscaler(contestant: Contestant, scenario: Scenario, model: str) -> dict[str, Any]:
    """What its user would say of the model; all else is learned, or as it is by default."""
    return {
        "models": [
            {
                "name": model,
                "ttft_target_s": scenario.ttft_target_s,
                "tpot_target_s": scenario.tpot_target_s,
                "parked_cost": PARKED_COST,
                "start_s": scenario.start_s,
                "wake_s": scenario.wake_s,
                **contestant.autoscaling,
            }
        ]
    }


def _model(contestant: Contestant, scenario: Scenario, model: str) -> dict[str, Any]:
    quickstart = yaml.safe_load((REPOSITORY / "configs" / "quickstart.yaml").read_text("utf-8"))
    args: dict[str, Any] = {
        "name": model,
        "source": quickstart["applications"][1]["args"]["source"],
        "engine": dict(scenario.engine),
        "num_cpus": 0,
    }
    if contestant.node_cache is not None:
        args["node_cache"] = dict(contestant.node_cache)
    bounds = {
        "min_replicas": 1,
        "initial_replicas": scenario.base_replicas,
        "max_replicas": scenario.max_replicas,
    }
    import_path = "deployments.build:build_model"
    match contestant.kind:
        case "predictive":
            args["autoscaling"] = bounds
        case "static":
            args["num_replicas"] = scenario.peak_replicas
        case "serve":
            import_path = "benchmarks.autoscale_live_rival:build"
            args = {"model": args, "autoscaling_config": {**bounds, **contestant.autoscaling}}
    return {"name": model, "route_prefix": None, "import_path": import_path, "args": args}
