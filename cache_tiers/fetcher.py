"""Answers fetches: what of a prompt is worth bringing is brought into the arena and leased.

plan (``fetch_plan``, ``break_even``), start loads or join them, wait, answer. Must not know how
blocks are evicted, nor engines.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from cache_tiers.block_image import ImageLayout
from cache_tiers.block_index import HOST, LOADING
from cache_tiers.break_even import Choice, Medium, choose
from cache_tiers.fetch_plan import FetchPlan, FetchPlanner, RemoteRun
from cache_tiers.holdings import Holdings
from cache_tiers.image_loads import ImageLoads, Load, Wanted
from cache_tiers.keys import BlockKey
from cache_tiers.load_record import LoadRecord
from cache_tiers.media_rates import MediaRates
from cache_tiers.messages import Fetch, Found
from cache_tiers.tier import Lookup, Tier, TierError, TierKind
from cache_tiers.unsound_keys import UnsoundKeys

logger = logging.getLogger(__name__)

_FIND_SHARE = 0.25
"""Of the timeout: longer nobody is asked what it holds."""
_OBJECT_PROBES = 9
"""A store takes a request for each key, and holds whole prefixes: a few along it tell enough."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a fetch brought."""

    images: Sequence[Found]
    """Leased; leading blocks after those that the engine has, a partial one last."""
    predicted_s: float
    fetch_s: float


class _Lease(NamedTuple):
    """A block of an answer, which may not have come yet."""

    found: Found
    done: asyncio.Future[bool] | None
    """``None``: it was in the arena."""

    @property
    def is_lost(self) -> bool:
        """The lease has ended already."""
        return self.done is not None and self.done.done() and not self.done.result()


class Fetcher:
    """Owner: one node's cache."""

    def __init__(
        self,
        holdings: Holdings,
        loads: ImageLoads,
        rates: MediaRates,
        unsound: UnsoundKeys,
        *,
        disk: Tier | None,
        object_store: Tier | None,
    ) -> None:
        self._holdings = holdings
        self._loads = loads
        self._rates = rates
        self._unsound = unsound
        self._planner = FetchPlanner(holdings, loads)
        self._disk = disk
        self._object_store = object_store
        self._asked: set[asyncio.Task[RemoteRun]] = set()
        self.record = LoadRecord()

    async def fetch(self, layout_number: int, fetch: Fetch, peer: Tier | None) -> FetchResult:
        """Bounded by ``fetch.timeout_s``; cancelled, it leaves no lease."""
        clock = self._holdings.clock
        begin_s = clock()
        tiers = self._tiers(peer)
        remote = await self._find_remote(layout_number, fetch, tiers)
        found_s = clock() - begin_s
        plan = self._planner.plan(layout_number, fetch, remote)
        choice = choose(plan.candidate, self._media(), fetch.cost)
        self.record.num_recomputed_blocks += len(plan.keys) - choice.num_blocks
        leases = self._lease_all(layout_number, plan, choice, tiers)
        answer: list[_Lease] = []
        try:
            pending = [lease.done for lease in leases if lease.done is not None]
            if pending:
                left_s = max(0.0, fetch.timeout_s - (clock() - begin_s))
                await asyncio.wait(pending, timeout=left_s)
            answer = _leading(leases)
        finally:
            self._release(leases[len(answer) :])
        fetch_s = clock() - begin_s
        # What finding took was no prediction any more when the choice was made.
        self._note(leases, choice, fetch_s - found_s, is_late=len(answer) < choice.num_blocks)
        return FetchResult([lease.found for lease in answer], found_s + choice.load_s, fetch_s)

    async def close(self) -> None:
        """Ask nobody any more."""
        for task in self._asked:
            task.cancel()
        if self._asked:
            await asyncio.wait(self._asked)

    def _tiers(self, peer: Tier | None) -> dict[TierKind, Tier]:
        tiers = (self._disk, peer, self._object_store)
        return {tier.kind: tier for tier in tiers if tier is not None}

    def _media(self) -> dict[TierKind, Medium]:
        rates = self._rates
        return {kind: Medium(rates.rate(kind), rates.waiting_s(kind)) for kind in TierKind}

    async def _find_remote(
        self, layout_number: int, fetch: Fetch, tiers: dict[TierKind, Tier]
    ) -> list[RemoteRun]:
        """Nearest first."""
        remote = [tier for kind, tier in tiers.items() if kind is not TierKind.DISK]
        missing = self._planner.missing(layout_number, fetch) if remote else []
        layout = self._holdings.index.layouts[layout_number]
        missing = [key for key in missing if not self._unsound.has(layout.fingerprint, key)]
        if not missing:
            return []
        tasks = []
        for tier in remote:
            if self._may_pay(layout_number, fetch, RemoteRun(tier.kind, frozenset(missing))):
                task = asyncio.create_task(_ask(tier, layout, missing))
                self._asked.add(task)
                task.add_done_callback(self._asked.discard)
                tasks.append(task)
        if not tasks:
            return []
        # One that is late is left to go on: its tier learns that it fails, and is asked less.
        done, _ = await asyncio.wait(tasks, timeout=_FIND_SHARE * fetch.timeout_s)
        return [task.result() for task in tasks if task in done]

    def _may_pay(self, layout_number: int, fetch: Fetch, all_missing: RemoteRun) -> bool:
        """Whether anything would be loaded from there if all that is missing were there: else
        every prompt would wait for an answer about its last, new blocks.
        """
        candidate = self._planner.plan(layout_number, fetch, [all_missing]).candidate
        choice = choose(candidate, self._media(), fetch.cost)
        return all_missing.kind in candidate.kinds[: choice.num_blocks]

    def _lease_all(
        self, layout_number: int, plan: FetchPlan, choice: Choice, tiers: dict[TierKind, Tier]
    ) -> list[_Lease]:
        """Of the blocks chosen those that are here or can come, up to the first for which there is
        no room. What is here is leased first: loads make others leave.
        """
        index = self._holdings.index
        table = index.table(layout_number)
        leases: dict[BlockKey, _Lease] = {}
        positions = {key: number for number, key in enumerate(plan.keys[: choice.num_blocks])}
        absent: list[BlockKey] = []
        for key, position in positions.items():
            entry = table.get(key)
            if entry is not None and index.flags[entry] & (HOST | LOADING):
                is_here = index.flags[entry] & HOST
                done = None if is_here else self._loads.find(entry).done
                leases[key] = self._lease(entry, plan, position, done)
            else:
                absent.append(key)
        while absent:
            for load in self._start(layout_number, plan, [positions[key] for key in absent], tiers):
                key = index.key(load.entry)
                leases[key] = self._lease(load.entry, plan, positions[key], load.done)
            absent = [key for key in absent if key not in leases]
            # What is here of the prompt's end makes room for its beginning.
            here = [key for key, lease in leases.items() if lease.done is None]
            behind = [key for key in here if absent and positions[key] > positions[absent[0]]]
            if not behind:
                break
            num_given_up = max(len(absent), len(behind) // 2)
            self._release([leases.pop(key) for key in behind[-num_given_up:]])
        leading = [leases.pop(key) for key in takewhile(leases.__contains__, positions)]
        self._release(list(leases.values()))
        return leading

    def _start(
        self,
        layout_number: int,
        plan: FetchPlan,
        positions: Sequence[int],
        tiers: dict[TierKind, Tier],
    ) -> list[Load]:
        wanted: dict[TierKind, list[Wanted]] = {}
        for position in positions:
            kind = plan.candidate.kinds[position]
            wanted.setdefault(kind, []).append(plan.wanted(position))
        loads: list[Load] = []
        for kind, images in wanted.items():
            loads += self._loads.start(tiers[kind], layout_number, images)
        return loads

    def _lease(
        self, entry: int, plan: FetchPlan, position: int, done: asyncio.Future[bool] | None
    ) -> _Lease:
        candidate = plan.candidate
        offset = self._holdings.lease(entry)
        found = Found(
            offset, plan.keys[position], candidate.num_tokens[position], candidate.kinds[position]
        )
        return _Lease(found, done)

    def _release(self, leases: Sequence[_Lease]) -> None:
        for lease in leases:
            if not lease.is_lost:
                self._holdings.drop_lease(lease.found.offset)

    def _note(
        self, leases: Sequence[_Lease], choice: Choice, fetch_s: float, *, is_late: bool
    ) -> None:
        kinds = {lease.found.kind for lease in leases} - {TierKind.HOST}
        if kinds:
            media = self._media()
            slowest = max(kinds, key=lambda kind: media[kind].rate.byte_s)
            self.record.note(slowest, choice.load_s, fetch_s, is_late=is_late)


async def _ask(tier: Tier, layout: ImageLayout, missing: Sequence[BlockKey]) -> RemoteRun:
    """What a tier holds of ``missing``; nothing if it fails."""
    keys = missing
    if tier.kind is TierKind.OBJECT:
        keys = missing[:: max(1, len(missing) // _OBJECT_PROBES)]
    try:
        found = await tier.find(layout, keys)
    except TierError:
        found = []
    except Exception:
        logger.exception("asking %s what it holds failed", tier.kind)
        found = []
    hits = [key for key, each in zip(keys, found, strict=False) if each is Lookup.HIT]
    if tier.kind is TierKind.OBJECT and hits:
        hits = list(missing[: missing.index(hits[-1]) + 1])
    return RemoteRun(tier.kind, frozenset(hits))


def _leading(leases: Sequence[_Lease]) -> list[_Lease]:
    """Of leases that follow each other those before the first that has not come."""
    for position, (_, done) in enumerate(leases):
        if done is not None and not (done.done() and done.result()):
            return list(leases[:position])
    return list(leases)
