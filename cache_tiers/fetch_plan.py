"""Which of a prompt's blocks could be had, and from where: what a fetch chooses from."""

from collections.abc import Sequence
from dataclasses import dataclass

from cache_tiers.block_index import DISK, HOST, LOADING
from cache_tiers.break_even import Candidate
from cache_tiers.holdings import Holdings
from cache_tiers.image_loads import ImageLoads, Wanted
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetch, Partial
from cache_tiers.tier import TierKind


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """Another node or a store holds some of the keys."""

    kind: TierKind
    keys: frozenset[BlockKey]


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Leading blocks after those that the engine has, a partial one last."""

    fetch: Fetch
    candidate: Candidate
    keys: Sequence[BlockKey]
    """One for each kind in ``candidate``."""
    num_full: int
    """Of these, blocks that are whole."""

    def wanted(self, position: int) -> Wanted:
        """What to ask a tier for."""
        cost, num_tokens = self.fetch.cost, self.candidate.num_tokens[position]
        begin = self.candidate.num_before + position * self.candidate.num_tokens[0]
        step_s = cost.step_s / cost.step_tokens if cost.step_tokens else 0.0
        seconds = num_tokens * (cost.token_s + step_s + begin * cost.attended_s)
        is_full = position < self.num_full
        chain_len = self.fetch.num_held + position + 1 if is_full else 0
        return Wanted(self.keys[position], num_tokens, chain_len, seconds)


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
        index = self._holdings.index
        table, flags, layout = index.table(layout_number), index.flags, index.layouts[layout_number]
        kinds: list[TierKind] = []
        keys: list[BlockKey] = []
        can_read_disk = self._loads.can_read_disk()
        for key in map(BlockKey, fetch.keys[fetch.num_held :]):
            entry = table.get(key)
            kind: TierKind | None = TierKind.HOST
            if entry is None or not flags[entry] & HOST:
                kind = self._kind(key, entry, remote, can_read_disk=can_read_disk)
            if kind is None:
                break
            kinds.append(kind)
            keys.append(key)
        num_full = len(kinds)
        num_tokens = [layout.block_size_tokens] * num_full
        for partial in _partials_at(fetch, fetch.num_held + num_full):
            key = BlockKey(partial.key)
            kind = self._kind(key, table.get(key), remote, can_read_disk=can_read_disk)
            if kind is not None:
                kinds.append(kind)
                keys.append(key)
                num_tokens.append(partial.num_tokens)
                break
        most_partial = max((each.num_tokens for each in fetch.partials), default=0)
        candidate = Candidate(
            kinds,
            num_tokens,
            layout.image_bytes,
            fetch.num_held * layout.block_size_tokens,
            len(fetch.keys) * layout.block_size_tokens + most_partial,
        )
        return FetchPlan(fetch, candidate, keys, num_full)

    def _kind(
        self,
        key: BlockKey,
        entry: int | None,
        remote: Sequence[RemoteRun],
        *,
        can_read_disk: bool,
    ) -> TierKind | None:
        """The nearest medium."""
        if entry is None:
            return next((run.kind for run in remote if key in run.keys), None)
        flags = self._holdings.index.flags[entry]
        if flags & HOST:
            return TierKind.HOST
        if flags & LOADING:
            return self._loads.find(entry).kind
        return TierKind.DISK if flags & DISK and can_read_disk else None


def _partials_at(fetch: Fetch, chain_len: int) -> list[Partial]:
    """Those that go on where the full blocks end, the longest first."""
    here = [partial for partial in fetch.partials if partial.chain_len == chain_len]
    return sorted(here, key=lambda partial: -partial.num_tokens)
