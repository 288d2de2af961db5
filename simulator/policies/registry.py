"""Every routing policy that can be replayed, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.policies.aibrix import aibrix
from simulator.policies.base import RoutingPolicy
from simulator.policies.consistent_hash import consistent_hash
from simulator.policies.dynamo import dynamo, dynamo_tuned
from simulator.policies.headwater import headwater
from simulator.policies.least_ttft import conductor, least_ttft, least_ttft_with_pull
from simulator.policies.llm_d import llm_d, llm_d_precise
from simulator.policies.load_only import least_requests, power_of_two, round_robin
from simulator.policies.preble import preble
from simulator.policies.ray_prefix import ray_prefix
from simulator.policies.sglang import sglang, sglang_gateway


class RegisteredPolicy(NamedTuple):
    choose: RoutingPolicy
    is_told: bool = False
    """It goes by what was sent before; without cache events."""
    is_published: bool = True
    """Some router ships it; else it is a yardstick or ours."""


POLICIES: Mapping[str, RegisteredPolicy] = MappingProxyType(
    {
        "round_robin": RegisteredPolicy(round_robin),
        "least_requests": RegisteredPolicy(least_requests),
        "power_of_two": RegisteredPolicy(power_of_two),
        "consistent_hash": RegisteredPolicy(consistent_hash),
        "ray_prefix": RegisteredPolicy(ray_prefix, is_told=True),
        "sglang": RegisteredPolicy(sglang, is_told=True),
        "sglang_gateway": RegisteredPolicy(sglang_gateway, is_told=True),
        "aibrix": RegisteredPolicy(aibrix, is_told=True),
        "preble": RegisteredPolicy(preble, is_told=True),
        "llm_d": RegisteredPolicy(llm_d, is_told=True),
        "llm_d_precise": RegisteredPolicy(llm_d_precise),
        "dynamo": RegisteredPolicy(dynamo),
        "dynamo_tuned": RegisteredPolicy(dynamo_tuned),
        "conductor": RegisteredPolicy(conductor),
        "least_ttft": RegisteredPolicy(least_ttft, is_published=False),
        "least_ttft_with_pull": RegisteredPolicy(least_ttft_with_pull, is_published=False),
        "headwater": RegisteredPolicy(headwater, is_published=False),
    }
)


def create_policy(name: str) -> RegisteredPolicy:
    """Raises ValueError for a name that isn't there."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(POLICIES)
        raise ValueError(f"no routing policy {name!r}: choose one of {known}") from None
