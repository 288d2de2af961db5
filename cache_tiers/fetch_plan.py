"""Which of a prompt's blocks could be had, and from where: what a fetch chooses from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cache_tiers.block_index import DISK, HOST, LOADING
from cache_tiers.break_even import Candidate
from cache_tiers.holdings import Holdings
from cache_tiers.image_loads import ImageLoads, Wanted
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetch
from cache_tiers.tier import TierKind


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """Another node or a store holds some of the keys."""

    kind: TierKind
    keys: frozenset[BlockKey]


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Leading blocks after those that the engine has, a partial one last."""

    candidate: Candidate
    wanted: Sequence[Wanted]
    """One for each kind in ``candidate``."""
    num_full: int


@dataclass(slots=True)
class _Run:
    kinds: list[TierKind] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)


class FetchPlanner:
    """Looks only; nothing changes."""

    def __init__(self, holdings: Holdings, loads: ImageLoads) -> None:
        self._holdings = holdings
        self._loads = loads

    def missing(self, layout_number: int, fetch: Fetch) -> list[BlockKey]:
        """Full blocks that only another node or store may have."""
        table = self._holdings.index.table(layout_number)
        return [BlockKey(key) for key in fetch.keys[fetch.num_held :] if key not in table]

    def plan(self, layout_number: int, fetch: Fetch, remote: Sequence[RemoteRun]) -> FetchPlan:
        run = _Run()
        block_size = self._holdings.index.layouts[layout_number].block_size_tokens
        can_read_disk = self._loads.can_read_disk()
        for position in range(fetch.num_held, len(fetch.keys)):
            key = BlockKey(fetch.keys[position])
            kind = self._kind(layout_number, key, remote, can_read_disk=can_read_disk)
            if kind is None:
                break
            seconds = _recompute_s(fetch, position * block_size, block_size)
            run.kinds.append(kind)
            run.wanted.append(Wanted(key, block_size, position + 1, seconds))
        num_full = len(run.kinds)
        self._add_partial(layout_number, fetch, run, remote, can_read_disk=can_read_disk)
        image_bytes = self._holdings.index.layouts[layout_number].image_bytes
        most_partial = max((each.num_tokens for each in fetch.partials), default=0)
        candidate = Candidate(
            run.kinds,
            [each.num_tokens for each in run.wanted],
            image_bytes,
            fetch.num_held * block_size,
            len(fetch.keys) * block_size + most_partial,
        )
        return FetchPlan(candidate, run.wanted, num_full)

    def _add_partial(
        self,
        layout_number: int,
        fetch: Fetch,
        run: _Run,
        remote: Sequence[RemoteRun],
        *,
        can_read_disk: bool,
    ) -> None:
        """The longest that goes on where the full blocks end."""
        chain_len = fetch.num_held + len(run.kinds)
        for partial in sorted(fetch.partials, key=lambda each: -each.num_tokens):
            key = BlockKey(partial.key)
            if partial.chain_len != chain_len:
                continue
            kind = self._kind(layout_number, key, remote, can_read_disk=can_read_disk)
            if kind is not None:
                run.kinds.append(kind)
                seconds = _recompute_s(fetch, 0, partial.num_tokens)
                run.wanted.append(Wanted(key, partial.num_tokens, 0, seconds))
                return

    def _kind(
        self,
        layout_number: int,
        key: BlockKey,
        remote: Sequence[RemoteRun],
        *,
        can_read_disk: bool,
    ) -> TierKind | None:
        """The nearest medium."""
        entry = self._holdings.find(layout_number, key)
        if entry is not None:
            flags = self._holdings.index.flags[entry]
            if flags & HOST:
                return TierKind.HOST
            if flags & LOADING:
                return self._loads.find(entry).kind
            return TierKind.DISK if flags & DISK and can_read_disk else None
        return next((run.kind for run in remote if key in run.keys), None)


def _recompute_s(fetch: Fetch, begin: int, num_tokens: int) -> float:
    cost = fetch.cost
    step_s = cost.step_s / cost.step_tokens if cost.step_tokens else 0.0
    return num_tokens * (cost.token_s + step_s + begin * cost.attended_s)
