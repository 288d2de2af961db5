"""What pools tell Ray's node provider and the cluster's card is what those read."""

from pathlib import Path

import pytest
import yaml
from ray.autoscaler.v2.instance_manager.config import FileConfigReader

from deployments.aws.cluster_card import PoolCard
from deployments.aws.launch_config import LaunchConfig, Market
from tests.terraform.mocked_modules import mocked_runs

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(300)]

POOL_RUNS = (
    "spot_and_on_demand_share_one_template_over_all_types_and_zones",
    "with_efa_all_cards_get_adapters_and_each_zone_its_group",
    "reserved_capacity_binds_zone_and_type",
    "a_pool_without_gpus_offers_none",
)


@pytest.mark.parametrize("run", POOL_RUNS)
def test_a_pool_makes_a_node_type_and_a_card(run: str) -> None:
    outputs = mocked_runs("gpu_pool", "offers.tftest.hcl")[run].outputs
    node_type = outputs["node_type"]
    config = LaunchConfig.model_validate(node_type["node_config"])
    card = PoolCard.model_validate(outputs["card"])
    assert set(node_type) == {"resources", "labels", "min_workers", "max_workers", "node_config"}
    assert (node_type["min_workers"], node_type["max_workers"]) == (card.min_nodes, card.max_nodes)
    assert node_type["resources"].get("GPU", 0) == card.num_devices
    assert tuple(dict.fromkeys(offer.market for offer in config.offers)) == card.markets
    assert {type_ for offer in config.offers for type_ in offer.instance_types} == set(
        card.instance_types
    )


def test_reserved_capacity_is_tried_first_and_in_its_own_zone() -> None:
    run = mocked_runs("gpu_pool", "offers.tftest.hcl")["reserved_capacity_binds_zone_and_type"]
    offers = LaunchConfig.model_validate(run.outputs["node_type"]["node_config"]).offers
    assert [(offer.market, dict(offer.subnets)) for offer in offers[:2]] == [
        (Market.CAPACITY_BLOCK, {"us-east-1b": "subnet-0b"}),
        (Market.RESERVATION, {"us-east-1a": "subnet-0a"}),
    ]


def test_the_autoscaler_file_holds_launch_configs() -> None:
    run = mocked_runs("head", "head.tftest.hcl")[
        "the_autoscaler_file_has_all_that_rays_monitor_reads"
    ]
    file = yaml.safe_load(run.outputs["autoscaler_yaml"])
    pools = {name: kind for name, kind in file["available_node_types"].items() if name != "head"}
    assert list(pools) == ["h100"]
    offers = LaunchConfig.model_validate(pools["h100"]["node_config"]).offers
    assert offers[0].instance_types == ("p5.48xlarge", "p5e.48xlarge")


def test_ray_reads_the_autoscaler_file(tmp_path: Path) -> None:
    run = mocked_runs("head", "head.tftest.hcl")[
        "the_autoscaler_file_has_all_that_rays_monitor_reads"
    ]
    path = tmp_path / "autoscaler.yaml"
    path.write_text(run.outputs["autoscaler_yaml"], encoding="utf-8")
    config = FileConfigReader(str(path)).get_cached_autoscaling_config()
    pool = config.get_node_type_configs()["h100"]
    assert (pool.resources, pool.labels) == ({"CPU": 160, "GPU": 8}, {"headwater.pool": "h100"})
    assert (pool.min_worker_nodes, pool.max_worker_nodes) == (0, 4)
    assert config.get_idle_timeout_s() == 90
    assert config.get_max_num_worker_nodes() == 4
    assert config.get_head_node_type() == "head"
