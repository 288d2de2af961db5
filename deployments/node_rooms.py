"""How many replicas find room on which nodes, by the resources that Ray counts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Resources = Mapping[str, float]

MOST_PER_NODE = 100
"""Of replicas that reserve nothing, too."""
_ROUNDING = 1e-6


class ClusterNode(NamedTuple):
    """One that is alive."""

    node_id: str
    total: Resources
    available: Resources
    """What nothing has reserved."""


def num_fitting(resources: Resources, bundle: Resources) -> int:
    """Replicas that each reserve ``bundle``."""
    nums = (
        int(resources.get(name, 0.0) / amount + _ROUNDING)
        for name, amount in bundle.items()
        if amount > 0
    )
    return max(0, min(nums, default=MOST_PER_NODE))


def num_unplaced(bundles: Sequence[Resources], nodes: Iterable[Resources]) -> int:
    """Of ``bundles``, the largest first, those that ``nodes`` have no room for when nothing else
    runs there."""
    left = [dict(node) for node in nodes]
    num_unplaced = 0
    for bundle, number in _kinds(bundles):
        num_left = number
        for node in left:
            num = min(num_left, num_fitting(node, bundle))
            num_left -= num
            for name, amount in bundle.items():
                node[name] = node.get(name, 0.0) - num * amount
        num_unplaced += num_left
    return num_unplaced


def _kinds(bundles: Sequence[Resources]) -> list[tuple[Resources, int]]:
    """How often each is there."""
    kinds: dict[frozenset[tuple[str, float]], tuple[Resources, int]] = {}
    for bundle in bundles:
        key = frozenset(bundle.items())
        kinds[key] = (bundle, kinds[key][1] + 1 if key in kinds else 1)
    return sorted(kinds.values(), key=lambda kind: -max(kind[0].values(), default=0.0))
