"""Which model `headwater models warm` means, and why one can't be warmed."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cache_tiers.rung import Rung
from deployments.warm_model import WarmError, model_of, models_of_file


class Application(NamedTuple):
    args: Any


def args(name: str = "m", **weights: int) -> dict[str, Any]:
    return {"name": name, "source": "s3://bucket/m", "node_cache": {"weights": weights}}


def file_with(tmp_path: Path, *models: dict[str, Any]) -> Path:
    applications = [
        {
            "name": model["name"],
            "route_prefix": None,
            "import_path": "deployments.build:build_model",
            "args": model,
        }
        for model in models
    ]
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": applications}), "utf-8")
    return path


def test_a_deployed_model_is_found_by_its_name() -> None:
    found = model_of("m", {"m": Application(args(host_bytes=1))}, Rung.STAGED)
    assert found.source == "s3://bucket/m"


@pytest.mark.parametrize(
    ("applications", "why"),
    [
        ({}, r"no model 'm' is deployed \(nothing is\): name its file"),
        ({"a": Application({})}, r"no model 'm' is deployed \(a is\)"),
        ({"m": Application({"num_replicas": 1})}, "the application 'm' is no model's: name: is"),
        ({"m": Application({**args(), "node_cache": None})}, "m: its nodes hold no weights: add"),
        ({"m": Application(args())}, "m: its nodes have no memory for weights: raise"),
    ],
)
def test_what_can_not_be_warmed_is_said(applications: dict[str, Application], why: str) -> None:
    with pytest.raises(WarmError, match=why):
        model_of("m", applications, Rung.STAGED)


def test_without_memory_disks_can_be_warmed() -> None:
    assert model_of("m", {"m": Application(args())}, Rung.ON_DISK).name == "m"


def test_of_a_file_those_models_are_meant_whose_nodes_hold_weights(tmp_path: Path) -> None:
    without = {**args("without"), "node_cache": None}
    path = file_with(tmp_path, args("a", host_bytes=1), without, args("b", host_bytes=1))
    assert [found.name for found in models_of_file(path, Rung.STAGED)] == ["a", "b"]


def test_a_file_without_such_a_model_says_so_of_each(tmp_path: Path) -> None:
    path = file_with(tmp_path, {**args("a"), "node_cache": None}, args("b"))
    with pytest.raises(WarmError) as caught:
        models_of_file(path, Rung.STAGED)
    assert str(caught.value).splitlines() == [
        f"{path}: a: its nodes hold no weights: add node_cache.weights to its args",
        f"{path}: b: its nodes have no memory for weights: raise node_cache.weights.host_bytes",
    ]


def test_what_is_wrong_with_a_file_comes_first(tmp_path: Path) -> None:
    path = file_with(tmp_path, {**args("a", host_bytes=1), "num_replica": 1})
    with pytest.raises(WarmError, match="unknown key, did you mean 'num_replicas'"):
        models_of_file(path, Rung.STAGED)
