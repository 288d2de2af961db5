"""What a start of a 70B model under tensor parallelism of 8 would take, projected: not measured.

Its 140 GB over what is measured of a medium here, over what AWS publishes of such nodes, and over
the latter times the share of its medium that each rung reached here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.result import CaseResult

MODEL_BYTES = 140_000_000_000
UNIT = "s, projection"


@dataclass(frozen=True, slots=True)
class Floor:
    """A medium of a node with eight accelerators."""

    rung: str
    """Whose medium it is, as in this benchmark's cases."""
    name: str
    bytes_per_s: float
    """As AWS publishes it."""


FLOORS = (
    Floor("store", "s3_over_100g", 12.5e9),
    Floor("disk", "nvme_of_8_disks", 18e9),
    Floor("peer", "efa_of_3200g", 400e9),
    Floor("staged", "pcie_gen5_of_8", 440e9),
)
"""The first three: AWS's instance types and accelerated computing specifications. The last: 55 GB/s
for each of eight links, an assumed practical rate."""


@dataclass(frozen=True, slots=True)
class Reached:
    """By a rung on this machine."""

    bytes_per_s: float
    share_of_medium: float


def project(reached: Mapping[str, Reached]) -> list[CaseResult]:
    """By rung; those that weren't measured are left out."""
    return [case for floor in FLOORS if floor.rung in reached for case in _cases(floor, reached)]


def _cases(floor: Floor, reached: Mapping[str, Reached]) -> list[CaseResult]:
    ours = reached[floor.rung]
    floor_s = MODEL_BYTES / floor.bytes_per_s
    return [
        CaseResult(
            case=f"projection_70b_tp8_{floor.name}",
            value=floor_s / min(1.0, ours.share_of_medium),
            unit=UNIT,
            limit=floor_s,
        ),
        CaseResult(
            case=f"projection_70b_tp8_{floor.rung}_as_fast_as_here",
            value=MODEL_BYTES / ours.bytes_per_s,
            unit=UNIT,
        ),
    ]
