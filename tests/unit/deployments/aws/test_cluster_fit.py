"""Which files a cluster can serve, and what is changed in them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.aws.cluster_card import ClusterCard
from deployments.aws.cluster_fit import check_fit, cluster_document, render
from deployments.serve_file import ServeFile, read_serve_file
from tests.unit.deployments.aws.fake_cluster import CARD


def read(path: Path, *, port: int = 8000, has_gateway: bool = True, **args: Any) -> ServeFile:
    gateway = {
        "name": "gateway",
        "route_prefix": "/",
        "import_path": "deployments.build:build_gateway",
    }
    model = {
        "name": "tiny",
        "route_prefix": None,
        "import_path": "deployments.build:build_model",
        "args": {"name": "tiny", "source": "hf:team/tiny", **args},
    }
    applications = [*([gateway] if has_gateway else []), model]
    document = {"http_options": {"port": port}, "applications": applications}
    file = path / "serve.yaml"
    file.write_text(yaml.safe_dump(document), "utf-8")
    serve_file = read_serve_file(file)
    assert serve_file.faults == []
    return serve_file


def faults(file: ServeFile, card: ClusterCard = CARD) -> list[str]:
    return [str(fault) for fault in check_fit(file, card)]


@pytest.mark.parametrize("args", [{}, {"num_gpus": 4, "num_replicas": 2}, {"num_gpus": 0.5}])
def test_a_file_that_fits_has_no_faults(tmp_path: Path, args: dict[str, Any]) -> None:
    assert faults(read(tmp_path, **args)) == []


def test_a_replica_that_no_node_can_hold_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults(read(tmp_path, num_gpus=8))
    assert fault.startswith("applications[1].args: a replica needs 8 devices of one node")
    assert "at most 4 (l40s 4)" in fault


def test_a_pool_without_nodes_does_not_count(tmp_path: Path) -> None:
    pool = CARD.pools["l40s"].model_copy(update={"max_nodes": 0})
    card = CARD.model_copy(update={"pools": {"l40s": pool}})
    (fault,) = faults(read(tmp_path, num_gpus=1), card)
    assert "nodes with at most 0" in fault


def test_replicas_are_counted_by_whole_nodes(tmp_path: Path) -> None:
    (fault,) = faults(read(tmp_path, num_gpus=3, num_replicas=3))
    assert "3 replicas of 3 devices don't fit, river has room for 2" in fault


def test_an_autoscaled_model_may_want_more_than_there_is(tmp_path: Path) -> None:
    scaled = read(tmp_path, num_gpus=4, autoscaling={"min_replicas": 0, "max_replicas": 9})
    assert faults(scaled) == []


def test_another_port_and_a_missing_gateway_are_faults(tmp_path: Path) -> None:
    no_gateway, port = faults(read(tmp_path, port=9000, has_gateway=False))
    assert no_gateway == "has no gateway, so nothing would answer: add one"
    assert port.startswith("http_options.port: must be 8000, not 9000")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("applications: []", ["http_options.host: 0.0.0.0 in place of 127.0.0.1"]),
        ("http_options: {host: 10.0.0.1}", ["http_options.host: 0.0.0.0 in place of 10.0.0.1"]),
        ("http_options: {host: 0.0.0.0, port: 8000}", []),
    ],
)
def test_serve_listens_where_the_load_balancer_can_reach_it(text: str, changed: list[str]) -> None:
    document, changes = cluster_document(text)
    assert document["http_options"]["host"] == "0.0.0.0"
    assert changes == changed


def test_what_is_rendered_reads_the_same_and_shares_nothing() -> None:
    document, _ = cluster_document("a: &x {k: 'ü'}\nb: *x\n")
    document["a"]["k"] = "changed"
    assert yaml.safe_load(render(document)) == document
    assert json.loads(json.dumps(document))["b"] == {"k": "ü"}


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        cluster_document("a: 2026-01-01")
