"""An offer as arguments of EC2's CreateFleet: one request for all types and zones of a market.

Pure: knows no AWS client.
"""

from collections.abc import Collection, Mapping
from typing import Any

from deployments.aws.capacity_memory import Place
from deployments.aws.launch_config import Market, Offer

_TARGETS = {
    Market.CAPACITY_BLOCK: "capacity-block",
    Market.RESERVATION: "on-demand",
    Market.SPOT: "spot",
    Market.ON_DEMAND: "on-demand",
}


def offer_places(offer: Offer) -> tuple[Place, ...]:
    """All that may be asked of it, in the order of preference."""
    own = offer.market in (Market.CAPACITY_BLOCK, Market.RESERVATION)
    reservation = offer.launch_template.id if own else ""
    return tuple(
        Place(offer.market, instance_type, zone, reservation)
        for instance_type in offer.instance_types
        for zone in offer.subnets
    )


def fleet_request(
    offer: Offer,
    places: Collection[Place],
    count: int,
    tags: Mapping[str, str],
    client_token: str,
) -> dict[str, Any]:
    """At most ``count`` instances, fewer where there is no more. ``places`` are of this offer.

    No least target is set: EC2 knows one only for fleets of a single type or zone.
    Raises ``ValueError`` for nothing to ask for.
    """
    if count < 1 or not places:
        raise ValueError(f"nothing to ask for: {count} instances in {len(places)} places")
    on_demand = _TARGETS[offer.market] == "on-demand"
    overrides = []
    for place in places:
        override: dict[str, Any] = {
            "InstanceType": place.instance_type,
            "SubnetId": offer.subnets[place.zone],
        }
        if on_demand:
            override["Priority"] = float(offer.instance_types.index(place.instance_type))
        overrides.append(override)
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": client_token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": offer.launch_template.id,
                    "Version": offer.launch_template.version,
                },
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": count,
            "DefaultTargetCapacityType": _TARGETS[offer.market],
        },
        # The head may only make what carries the cluster's tag, fleets included.
        "TagSpecifications": [
            {
                "ResourceType": kind,
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
            for kind in ("fleet", "instance")
        ],
    }
    if offer.market is Market.SPOT:
        request["SpotOptions"] = {"AllocationStrategy": "price-capacity-optimized"}
    if on_demand:
        options: dict[str, Any] = {"AllocationStrategy": "prioritized"}
        if offer.market is Market.RESERVATION:
            options["CapacityReservationOptions"] = {
                "UsageStrategy": "use-capacity-reservations-first"
            }
        request["OnDemandOptions"] = options
    return request
