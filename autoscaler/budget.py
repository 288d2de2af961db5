"""Shares out accelerators among models when not all get what they ask for. Pure.

One replica at a time: first the minimums, then whichever model misses the largest share of what it
asks for, weighed by what being late costs it per accelerator; replicas that sleep come last. So the
sleepers of all models make room before anything that serves does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.config import ModelScalingConfig


@dataclass(frozen=True, slots=True)
class Request:
    """What one model asks for."""

    config: ModelScalingConfig
    minimum: int
    """Of ``num_serving``."""
    num_serving: int
    num_parked: int
    current: int
    """Replicas that it has, asleep ones included."""


@dataclass(slots=True)
class Grant:
    """What one model gets."""

    num_serving: int = 0
    num_parked: int = 0


def share_out(requests: Sequence[Request], num_devices: int) -> list[Grant]:
    """In the order of ``requests``. ``num_devices``: those that are left for them."""
    needed = sum(
        (each.num_serving + each.num_parked) * each.config.devices_per_replica for each in requests
    )
    if needed <= num_devices:
        return [Grant(each.num_serving, each.num_parked) for each in requests]
    grants = [Grant() for _ in requests]
    left = num_devices
    minimums = [min(each.minimum, each.num_serving) for each in requests]
    left = _hand_out(requests, grants, minimums, left, are_parked=False)
    left = _hand_out(
        requests, grants, [each.num_serving for each in requests], left, are_parked=False
    )
    _hand_out(requests, grants, [each.num_parked for each in requests], left, are_parked=True)
    return grants


def hold_growth(requests: Sequence[Request]) -> list[Grant]:
    """Nothing grows and nothing is taken away, for a budget of 0."""
    grants = []
    for each in requests:
        total = min(each.current, each.num_serving + each.num_parked)
        num_serving = min(each.num_serving, total)
        grants.append(Grant(num_serving, total - num_serving))
    return grants


def _hand_out(
    requests: Sequence[Request],
    grants: Sequence[Grant],
    wanted: Sequence[int],
    left: int,
    *,
    are_parked: bool,
) -> int:
    """What is left of ``left`` devices."""

    def has(at: int) -> int:
        return grants[at].num_parked if are_parked else grants[at].num_serving

    def value(at: int) -> float:
        config = requests[at].config
        return config.late_cost * (wanted[at] - has(at)) / wanted[at] / config.devices_per_replica

    for at, request in enumerate(requests):
        if request.config.devices_per_replica == 0 and has(at) < wanted[at]:
            _give(grants[at], wanted[at] - has(at), are_parked=are_parked)
    open_ = {at for at in range(len(requests)) if has(at) < wanted[at]}
    while open_:
        at = max(open_, key=lambda each: (value(each), -each))
        num_devices = requests[at].config.devices_per_replica
        if num_devices > left:
            open_.discard(at)
            continue
        left -= num_devices
        _give(grants[at], 1, are_parked=are_parked)
        if has(at) >= wanted[at]:
            open_.discard(at)
    return left


def _give(grant: Grant, num: int, *, are_parked: bool) -> None:
    if are_parked:
        grant.num_parked += num
    else:
        grant.num_serving += num
