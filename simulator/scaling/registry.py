"""Every scaling policy that can be replayed, by name."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from simulator.errors import FleetSpecError
from simulator.scaling.headwater import Headwater
from simulator.scaling.rivals.aibrix import AibrixApa
from simulator.scaling.rivals.dynamo import DynamoPlanner
from simulator.scaling.rivals.keda import Keda
from simulator.scaling.rivals.knative import Knative
from simulator.scaling.rivals.last_value import LastValue
from simulator.scaling.rivals.max_hour import MaxHour
from simulator.scaling.rivals.ray_default import RayDefault
from simulator.scaling.rivals.static_peak import StaticPeak
from simulator.scaling.view import ScalingPolicy, ScalingSetting

PolicyFactory = Callable[[ScalingSetting], ScalingPolicy]

POLICIES: Mapping[str, PolicyFactory] = MappingProxyType(
    {
        "headwater": Headwater,
        "static_peak": StaticPeak,
        "last_value": LastValue,
        "last_value_1.4": partial(LastValue, margin=1.4),
        "max_hour": MaxHour,
        "ray_default": RayDefault,
        "knative": Knative,
        "aibrix_apa": AibrixApa,
        "dynamo": DynamoPlanner,
        "dynamo_kalman": partial(DynamoPlanner, predictor="kalman"),
        "keda": Keda,
    }
)


def create_scaling_policy(name: str, setting: ScalingSetting) -> ScalingPolicy:
    """Raises ``FleetSpecError`` for a name that isn't there."""
    try:
        factory = POLICIES[name]
    except KeyError:
        known = ", ".join(POLICIES)
        raise FleetSpecError(f"no scaling policy {name!r}: choose one of {known}") from None
    return factory(setting)
