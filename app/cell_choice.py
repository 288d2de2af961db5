"""Which part of a large fleet this gateway serves, and which cell of it a request may go to.

All gateways that see the same engines agree on the cells. With one cell nothing is left out.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from app.queue import Job
from app.routing.cells import Cells, assign_cells, cell_pair, choose_cell, served_cells


class CellChoice:
    """The cells of one model's engines."""

    def __init__(self, *, rank: int = 0, num_served: int | None = None) -> None:
        """``rank``: of this gateway, which serves ``num_served`` cells; all without."""
        self._rank = rank
        self._num_served = num_served
        self._is_named = False
        self._cells: Cells = assign_cells(())

    def name_all(self, engine_ids: Iterable[str], num_served: int | None) -> None:
        """Those that discovery knows, whether this gateway is connected to them or not."""
        self._is_named = True
        self._num_served = num_served
        self._cells = assign_cells(engine_ids, before=self._cells)

    def set_connected(self, engine_ids: Iterable[str]) -> None:
        """Where nobody discovers engines there are no others."""
        if not self._is_named:
            self._cells = assign_cells(engine_ids, before=self._cells)

    def serves(self, engine_id: str) -> bool:
        """Whether this gateway is to connect to it."""
        return self._cells.cell_of[engine_id] in self._served

    def num_unreached(self, num_gateways: int) -> int:
        """Cells that none of so many gateways, of consecutive ranks, connects to."""
        if self._num_served is None:
            return 0
        return max(0, len(self._cells) - num_gateways * self._num_served)

    def choose(self, job: Job, load_of: Callable[[str], int | None]) -> Sequence[str] | None:
        """The engines of the cell for ``job``; None: all there are.

        ``load_of``: requests in flight or waiting at an engine; None if it can't take ``job``.
        """
        members = self._cells.members
        if len(members) == 1:
            return None
        pair = cell_pair(_affinity_of(job), self._served)
        loads = {cell: _mean_load(members[cell], load_of) for cell in dict.fromkeys(pair)}
        known = {cell: load for cell, load in loads.items() if load is not None}
        if len(known) == len(loads):
            return members[choose_cell(pair, known)]
        # All engines of a cell are leaving, or have lost it.
        return members[next(iter(known))] if known else None

    @property
    def _served(self) -> Sequence[int]:
        num_cells = len(self._cells)
        if self._num_served is None:
            return range(num_cells)
        return served_cells(num_cells, self._rank, self._num_served)


def _mean_load(engine_ids: Sequence[str], load_of: Callable[[str], int | None]) -> float | None:
    loads = [load for load in map(load_of, engine_ids) if load is not None]
    return fmean(loads) if loads else None


def _affinity_of(job: Job) -> int:
    """Of a request that belongs to no others: by its prompt's beginning, else any."""
    if job.affinity is not None:
        return job.affinity
    keys = job.prompt.index_keys[:1]
    # All request ids begin alike: only a hash tells them apart.
    return int.from_bytes(keys[0][:8], "big") if keys else zlib.crc32(job.request_id.encode())
