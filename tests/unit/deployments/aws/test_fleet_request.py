"""An offer in CreateFleet's words."""

import pytest

from deployments.aws.fleet_request import fleet_request, offer_places
from deployments.aws.launch_config import LaunchTemplate, Market, Offer


def offer(market: Market) -> Offer:
    return Offer(
        market=market,
        launch_template=LaunchTemplate(id="lt-0a", version="3"),
        instance_types=("p5en.48xlarge", "p5.48xlarge"),
        subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
    )


@pytest.mark.parametrize(
    ("market", "target", "spot", "on_demand"),
    [
        (Market.CAPACITY_BLOCK, "capacity-block", None, None),
        (
            Market.RESERVATION,
            "on-demand",
            None,
            {
                "AllocationStrategy": "prioritized",
                "CapacityReservationOptions": {"UsageStrategy": "use-capacity-reservations-first"},
            },
        ),
        (Market.SPOT, "spot", {"AllocationStrategy": "price-capacity-optimized"}, None),
        (Market.ON_DEMAND, "on-demand", None, {"AllocationStrategy": "prioritized"}),
    ],
)
def test_each_market_is_asked_in_its_way(
    market: Market, target: str, spot: object, on_demand: object
) -> None:
    asked = offer(market)
    request = fleet_request(asked, offer_places(asked), 2, {"k": "v"}, "token")
    assert request["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 2,
        "DefaultTargetCapacityType": target,
    }
    assert request.get("SpotOptions") == spot
    assert request.get("OnDemandOptions") == on_demand
    assert request["TagSpecifications"][0]["Tags"] == [{"Key": "k", "Value": "v"}]


def test_only_the_places_named_are_asked_for_the_preferred_type_first() -> None:
    asked = offer(Market.ON_DEMAND)
    request = fleet_request(asked, offer_places(asked)[1:3], 1, {}, "token")
    assert request["LaunchTemplateConfigs"][0]["Overrides"] == [
        {"InstanceType": "p5en.48xlarge", "SubnetId": "subnet-b", "Priority": 0.0},
        {"InstanceType": "p5.48xlarge", "SubnetId": "subnet-a", "Priority": 1.0},
    ]


@pytest.mark.parametrize(("num_places", "count"), [(0, 1), (4, 0)])
def test_nothing_is_not_asked_for(num_places: int, count: int) -> None:
    asked = offer(Market.SPOT)
    with pytest.raises(ValueError, match="nothing to ask for"):
        fleet_request(asked, offer_places(asked)[:num_places], count, {}, "token")
