"""`headwater check` of what the autoscaler lists against what the models allow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.autoscaling_check import check_autoscaling
from deployments.serve_file import ServeFile, read_serve_file

CONFIGS = Path(__file__).parents[3] / "configs"
BOUNDS = {"min_replicas": 1, "max_replicas": 3}
OWN = "applications[1].args.autoscaling"
LISTED = "applications[0].deployments[1].user_config.models[0]"


def read(
    folder: Path,
    *,
    listed: object = ({"name": "m"},),
    model: dict[str, Any] | None = None,
    gateway: dict[str, Any] | None = None,
    engines: dict[str, Any] | None = None,
    scaling: dict[str, Any] | None = None,
    num_gateways: int = 1,
) -> ServeFile:
    """A file with one model, and an autoscaler unless `gateway` says otherwise."""
    applications: list[dict[str, Any]] = [
        {
            "name": f"gateway-{number}",
            "route_prefix": "/" if number == 0 else f"/{number}",
            "import_path": "deployments.build:build_gateway",
            "args": {"autoscaler": True} if gateway is None else gateway,
            "deployments": [
                {"name": "Gateway", "user_config": {"models": [{"name": "m"}]}},
                {"name": "Autoscaler", "user_config": {"models": listed, **(scaling or {})}},
            ][: 1 if listed is None else 2],
        }
        for number in range(num_gateways)
    ]
    args = {"name": "m", "source": "x", **({"autoscaling": BOUNDS} if model is None else model)}
    applications.append(
        {
            "name": "m",
            "route_prefix": None,
            "import_path": "deployments.build:build_model",
            "args": args,
            "deployments": [] if engines is None else [{"name": "EngineReplica", **engines}],
        }
    )
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": applications}), "utf-8")
    return read_serve_file(path)


def faults(file: ServeFile) -> list[str]:
    return [str(fault) for fault in file.faults or check_autoscaling(file)]


def test_the_example_has_no_fault_and_is_sized_by_its_most_replicas() -> None:
    file = read_serve_file(CONFIGS / "autoscale.yaml")
    assert faults(file) == []
    assert [model.num_replicas for model in file.models] == [3]
    assert len(file.autoscalers) == 1


def test_files_without_an_autoscaler_need_none() -> None:
    assert faults(read_serve_file(CONFIGS / "quickstart.yaml")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"listed": [{"name": "other"}], "model": {}},
            f"{LISTED}.name: no application serves the model 'other': add it",
        ),
        (
            {"model": {"num_replicas": 2}},
            f"{LISTED}.name: 'm' has a fixed size: give its args autoscaling bounds",
        ),
        (
            {"listed": None, "gateway": {}},
            (
                f"{OWN}: nobody sizes the model 'm', it would keep its first "
                "size for ever: set autoscaler: true in the gateway's args, and list it there"
            ),
        ),
        (
            {"listed": []},
            (
                f"{OWN}: nobody sizes the model 'm', it would keep its first "
                "size for ever: list it in the autoscaler's user_config"
            ),
        ),
        (
            {"listed": [{"name": "m", "max_replicas": 4}]},
            f"{LISTED}.max_replicas: is 4, but the model's own args allow 3",
        ),
        (
            {"listed": [{"name": "m", "max_replicas": 2, "num_replicas": 3}]},
            f"{LISTED}.num_replicas: is 3, but there are at most 2",
        ),
        (
            {
                "listed": [
                    {
                        "name": "m",
                        "schedules": [{"min_replicas": 9, "begin": "08:00", "end": "09:00"}],
                    }
                ]
            },
            f"{LISTED}.schedules[0].min_replicas: is 9, but there are at most 3",
        ),
        (
            {"listed": [{"name": "m", "min_replicas": 3, "max_replicas": 2}]},
            (
                f"{LISTED}: min_replicas is 3, more than max_replicas, 2: raise the one or "
                "lower the other"
            ),
        ),
        (
            {"listed": [{"name": "m", "max_replica": 2}]},
            f"{LISTED}.max_replica: unknown key, did you mean 'max_replicas'?",
        ),
        (
            {"model": {"autoscaling": {"min_replicas": 3, "max_replicas": 2}}},
            (
                f"{OWN}: min_replicas is 3, more than max_replicas, 2: raise the one or "
                "lower the other"
            ),
        ),
        (
            {"gateway": {}},
            (
                "applications[0].deployments[1].name: there is none without autoscaler: true in "
                "the gateway's args"
            ),
        ),
        (
            {"engines": {"num_replicas": 2}},
            (
                "applications[1].deployments[0].num_replicas: args.autoscaling says how many: "
                "remove it"
            ),
        ),
        (
            {
                "listed": [{"name": "m"}],
                "scaling": {"devices_per_node": 4},
                "model": {"autoscaling": BOUNDS, "num_gpus": 1},
            },
            (
                "applications[0].deployments[1].user_config.devices_per_node: replicas of 'm' keep "
                "GPUs of their own while they sleep, so that no node is shared: remove it"
            ),
        ),
        ({"num_gateways": 2}, "applications[1].args.autoscaler: is a second autoscaler"),
    ],
)
def test_a_fault_is_one_line_with_its_place(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (line,) = faults(read(tmp_path, **changes))
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("weights", "rungs"),
    [
        (None, {"on_disk_start_s": "node_cache.weights", "staged_start_s": "node_cache.weights"}),
        ({}, {"staged_start_s": "node_cache.weights.host_bytes"}),
        ({"host_bytes": 1}, {}),
    ],
    ids=["no weights", "on disks", "in memory"],
)
def test_leads_of_rungs_that_no_node_reaches(
    tmp_path: Path, weights: dict[str, int] | None, rungs: dict[str, str]
) -> None:
    listed = [{"name": "m", "on_disk_start_s": 20, "staged_start_s": 3}]
    node_cache = {} if weights is None else {"node_cache": {"weights": weights}}
    found = faults(read(tmp_path, listed=listed, model={"autoscaling": BOUNDS, **node_cache}))
    assert len(found) == len(rungs)
    for fault, (name, what) in zip(found, rungs.items(), strict=True):
        assert f"{LISTED}.{name}" in fault
        assert f"give its args {what}, or remove it" in fault
