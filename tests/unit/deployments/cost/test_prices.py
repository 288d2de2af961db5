"""The project's own prices, files laid over them, and what is refused."""

import json
from pathlib import Path

import pytest

from benchmarks.design_case import DesignCase
from deployments.cost.errors import ClusterFileUnfit, PriceFileUnfit
from deployments.cost.files import read_plan, read_prices


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_a_file_is_laid_over_the_projects_own_key_by_key(tmp_path: Path) -> None:
    over = written(tmp_path, "p.yaml", "instances: {p5.48xlarge: {capacity_block_usd: 31.5}}")
    price = read_prices(over).instances["p5.48xlarge"]
    assert (price.on_demand_usd, price.capacity_block_usd) == (55.04, 31.5)


@pytest.mark.parametrize("usd", [".nan", ".inf", "-1", "much"])
def test_what_is_no_price_is_refused_with_its_place(tmp_path: Path, usd: str) -> None:
    text = f"instances: {{p5.48xlarge: {{on_demand_usd: {usd}}}}}"
    with pytest.raises(PriceFileUnfit, match=r"p\.yaml: instances\.p5\.48xlarge\.on_demand_usd"):
        read_prices(written(tmp_path, "p.yaml", text))


def test_spot_shares_must_rise(tmp_path: Path) -> None:
    with pytest.raises(PriceFileUnfit, match="must rise"):
        read_prices(written(tmp_path, "p.yaml", "spot: {low_share: 0.9}"))


@pytest.mark.parametrize("text", ["instances: {", "- 1", ""])
def test_a_file_that_holds_no_table_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PriceFileUnfit, match=r"p\.yaml"):
        read_prices(written(tmp_path, "p.yaml", text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PriceFileUnfit, match="can't be read"):
        read_prices(tmp_path / "p.yaml")


def test_broken_json_of_a_cluster_is_told(tmp_path: Path) -> None:
    written(tmp_path, "cluster.auto.tfvars.json", '{"name": ')
    with pytest.raises(ClusterFileUnfit, match="is no JSON"):
        read_plan(tmp_path)


def test_a_cluster_without_pools_is_told(tmp_path: Path) -> None:
    written(tmp_path, "cluster.auto.tfvars.json", json.dumps({"name": "river"}))
    with pytest.raises(ClusterFileUnfit, match="Field required"):
        read_plan(tmp_path)


def test_a_folder_without_a_cluster_is_told_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileUnfit, match="terraform/environments/prod"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("instance_type", "device_bytes_per_s"),
    [("p5.48xlarge", 3.35e12), ("p5e.48xlarge", 4.8e12), ("p5en.48xlarge", 4.8e12)],
)
def test_serviceable_tokens_are_those_of_the_capacity_arithmetic(
    instance_type: str, device_bytes_per_s: float
) -> None:
    case = DesignCase(device_bytes_per_s=8 * device_bytes_per_s)
    rate = read_prices().serviceable[instance_type].tokens_per_s
    assert rate == int(case.tokens_per_s / case.num_replicas_needed)
