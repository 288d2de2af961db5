"""Which replicas form a cell, which cells a gateway serves, and in which of two a request goes.

A large fleet is split so that a gateway need not follow all of it: a channel, cache events and an
index for each replica of its cells only. Pure arithmetic on names and numbers: gateways that see
the same replicas agree without a word.

Replicas go to cells by rendezvous hashing with a bound (Thaler, Ravishankar 1998; Mirrokni et al.:
Consistent Hashing with Bounded Loads, 2018): each prefers the cells in an order of its own, and
takes the first that has room left by those before it. Who joins or leaves moves few others.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from engine.seeds import mix64

MAX_CELL_REPLICAS = 64

_USUAL_FILL = 0.875
"""Of a cell when their number is chosen: room for a fleet that grows, and for uneven hashes."""
_BREATHING_SHARE = 0.1
"""Of a cell: a fleet that grows and shrinks by less keeps its number of cells, as moving costs
prefixes. No more than that, since a gateway that starts now does not know the number before.
"""

_TOLERATED_RATIO = 1.25
_TOLERATED_IN_FLIGHT = 1.0
"""The other cell is taken if the preferred one is busier by more than both: a request that moves
leaves its prefix behind.
"""


class CellPair(NamedTuple):
    """Where requests of one affinity may go; the same cell twice if there is but one."""

    preferred: int
    other: int


@dataclass(frozen=True, slots=True)
class Cells:
    """Numbers of cells, from 0, and who belongs to each."""

    members: tuple[tuple[str, ...], ...]
    cell_of: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.members)


def assign_cells(
    engine_ids: Iterable[str],
    *,
    before: Cells | None = None,
    max_cell_replicas: int = MAX_CELL_REPLICAS,
) -> Cells:
    """Cells for exactly these replicas, in whichever order they are named.

    ``before``: its number of cells is kept as long as it suits, so that a fleet whose size swings
    a little does not change it every time.
    """
    ordered = sorted(set(engine_ids), key=_digest)
    num_cells = _num_cells(len(ordered), max_cell_replicas, 1 if before is None else len(before))
    members: list[list[str]] = [[] for _ in range(num_cells)]
    cell_of: dict[str, int] = {}
    for engine_id in ordered:
        preferred = _preferred_cells(engine_id, num_cells)
        cell = next(cell for cell in preferred if len(members[cell]) < max_cell_replicas)
        members[cell].append(engine_id)
        cell_of[engine_id] = cell
    return Cells(tuple(map(tuple, members)), MappingProxyType(cell_of))


def served_cells(num_cells: int, gateway_rank: int, num_served: int) -> tuple[int, ...]:
    """The cells of the gateway of this rank: with consecutive ranks each cell is served
    by as many gateways as any other, or by one more. If one more gateway comes, all others keep
    theirs.
    """
    first = gateway_rank * num_served
    return tuple(sorted({(first + i) % num_cells for i in range(min(num_served, num_cells))}))


def cell_pair(affinity: int, cells: Sequence[int]) -> CellPair:
    """The two of ``cells`` for requests of this affinity: those that come or go among ``cells``
    change few pairs. Precondition: ``cells`` is not empty.
    """
    ranked = sorted(cells, key=lambda cell: mix64(affinity ^ mix64(cell)), reverse=True)
    return CellPair(ranked[0], ranked[min(1, len(ranked) - 1)])


def choose_cell(pair: CellPair, load_of: Mapping[int, float]) -> int:
    """The power of two choices (Mitzenmacher 2001), with a preference: who belongs together stays
    together unless that cell is clearly busier.

    ``load_of``: requests in flight or waiting, per replica of the cell.
    """
    tolerated = load_of[pair.other] * _TOLERATED_RATIO + _TOLERATED_IN_FLIGHT
    return pair.other if load_of[pair.preferred] > tolerated else pair.preferred


def _num_cells(num_replicas: int, max_cell_replicas: int, num_before: int) -> int:
    def usual(num_replicas: float) -> int:
        if num_replicas <= max_cell_replicas:
            return 1
        return math.ceil(num_replicas / (max_cell_replicas * _USUAL_FILL))

    breath = max_cell_replicas * _BREATHING_SHARE
    suits = usual(num_replicas - breath) <= num_before <= usual(num_replicas + breath)
    if suits and num_replicas <= num_before * max_cell_replicas:
        return num_before
    return usual(num_replicas)


@lru_cache(maxsize=4096)
def _preferred_cells(engine_id: str, num_cells: int) -> tuple[int, ...]:
    digest = _digest(engine_id)
    return tuple(sorted(range(num_cells), key=lambda cell: mix64(digest ^ mix64(cell))))


def _digest(engine_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(engine_id.encode(), digest_size=8).digest(), "little")
