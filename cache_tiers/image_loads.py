"""Images on their way from disk, peer or object store into the arena; each once, whoever asks.

What nobody waits for any more is not begun; what has begun and comes late stays in the arena. Must
not know prompts, nor whether a load is worth it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cache_tiers.backoff import Backoff
from cache_tiers.block_index import DISK, LOADING, ORPHAN
from cache_tiers.holdings import Holdings
from cache_tiers.host_room import HostRoom
from cache_tiers.keys import BlockKey
from cache_tiers.media_rates import MediaRates
from cache_tiers.tier import Lookup, Tier, TierError, TierKind

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 16 * 1024**2
"""A timeout in the middle of a load keeps what came until then."""
_CHUNKS_AT_A_TIME = 2
_CLOSING_S = 5.0
"""A device that hangs may never let go."""


class Wanted(NamedTuple):
    """An image to bring."""

    key: BlockKey
    num_tokens: int
    chain_len: int
    """0: of a partial block."""
    recompute_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """One image's, under way."""

    entry: int
    kind: TierKind
    done: asyncio.Future[bool]
    """Whether the image is in its slot; leases on it have ended if not."""
    is_asked: bool
    """It is not begun unless somebody has leased it."""


class ImageLoads:
    """Owner of all loads of one node."""

    def __init__(
        self,
        holdings: Holdings,
        room: HostRoom,
        rates: MediaRates,
        make_backoff: Callable[[str], Backoff],
    ) -> None:
        self._holdings = holdings
        self._room = room
        self._rates = rates
        self._loads: dict[int, Load] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: WeakKeyDictionary[Tier, asyncio.Semaphore] = WeakKeyDictionary()
        """A peer that hangs holds up no other."""
        self._disk_backoff = make_backoff("reading KV from disk")
        self.num_loaded = dict.fromkeys(TierKind, 0)
        self.num_failed = dict.fromkeys(TierKind, 0)

    def find(self, entry: int) -> Load:
        """Of a block that is loading."""
        return self._loads[entry]

    def can_read_disk(self) -> bool:
        """False while it hangs, and for a while after it failed."""
        if self._rates.is_hanging(TierKind.DISK):
            return False
        try:
            self._disk_backoff.check()
        except TierError:
            return False
        return True

    def start(
        self, tier: Tier, layout_number: int, wanted: Sequence[Wanted], *, is_asked: bool = True
    ) -> list[Load]:
        """Bring images that are not in the arena: as many as there is room for, the first first.
        Precondition: of a disk, those that it holds. The caller leases before it awaits anything.
        """
        entries = [self._mark(layout_number, each) for each in wanted]
        offsets = self._room.take(layout_number, len(entries))
        for entry in entries[len(offsets) :]:
            self._unmark(entry)
        loop = asyncio.get_running_loop()
        loads = []
        for entry, offset in zip(entries, offsets, strict=False):
            self._holdings.index.offsets[entry] = offset
            load = Load(entry, tier.kind, loop.create_future(), is_asked)
            self._loads[entry] = load
            loads.append(load)
        image_bytes = self._holdings.index.layouts[layout_number].image_bytes
        per_chunk = max(1, _CHUNK_BYTES // image_bytes)
        for begin in range(0, len(loads), per_chunk):
            self._start_chunk(tier, loads[begin : begin + per_chunk], image_bytes)
        return loads

    async def close(self) -> None:
        """End all loads; nobody writes to the arena afterwards, but a device that hangs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING_S)

    def _mark(self, layout_number: int, wanted: Wanted) -> int:
        """So that no eviction on the way takes it."""
        entry = self._holdings.find(layout_number, wanted.key)
        if entry is None:
            entry = self._holdings.add(layout_number, *wanted)
        self._holdings.index.flags[entry] |= LOADING
        return entry

    def _unmark(self, entry: int) -> None:
        self._holdings.index.flags[entry] &= ~LOADING
        self._holdings.settle(entry)

    def _start_chunk(self, tier: Tier, loads: Sequence[Load], image_bytes: int) -> None:
        num_bytes = len(loads) * image_bytes
        total_bytes = self._rates.begin(tier.kind, num_bytes)
        task = asyncio.create_task(self._run(tier, loads, num_bytes, total_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, tier: Tier, loads: Sequence[Load], num_bytes: int, total_bytes: int
    ) -> None:
        clock = self._holdings.clock
        begin_s = clock()
        seconds: float | None = None
        asked: Sequence[Load] = ()
        came: list[bool] = []
        lost: Collection[Load] = ()
        try:
            async with self._turns.setdefault(tier, asyncio.Semaphore(_CHUNKS_AT_A_TIME)):
                asked = [load for load in loads if self._is_asked(load)]
                if asked:
                    came = await tier.load([self._holdings.image(load.entry) for load in asked])
                    if len(asked) == len(loads) and all(came):
                        seconds = clock() - begin_s
                    if tier.kind is TierKind.DISK:
                        self._disk_backoff.succeeded()
                        lost = await self._lost(tier, asked, came)
        except TierError as error:
            if tier.kind is TierKind.DISK:
                self._disk_backoff.failed(str(error))
        except Exception:
            logger.exception("loading KV from %s failed", tier.kind)
        finally:
            self._rates.end(tier.kind, num_bytes, total_bytes, seconds)
            came += [False] * (len(asked) - len(came))
            self._count(tier.kind, came)
            self._finish_all(loads, dict(zip(asked, came, strict=False)), lost)

    async def _lost(
        self, disk: Tier, asked: Sequence[Load], came: Sequence[bool]
    ) -> Collection[Load]:
        """Those that did not come and are not there any more: others the disk could not read for
        now.
        """
        index = self._holdings.index
        missing = [load for load, is_here in zip(asked, came, strict=True) if not is_here]
        if not missing:
            return ()
        keys = [index.key(load.entry) for load in missing]
        found = await disk.find(index.layout(missing[0].entry), keys)
        return {load for load, each in zip(missing, found, strict=True) if each is Lookup.MISS}

    def _is_asked(self, load: Load) -> bool:
        holdings = self._holdings
        is_orphan = bool(holdings.index.flags[load.entry] & ORPHAN)
        return not is_orphan and (not load.is_asked or holdings.is_leased(load.entry))

    def _count(self, kind: TierKind, came: Sequence[bool]) -> None:
        self.num_loaded[kind] += sum(came)
        self.num_failed[kind] += len(came) - sum(came)

    def _finish_all(
        self, loads: Iterable[Load], came: dict[Load, bool], lost: Collection[Load]
    ) -> None:
        # From the end on, so that a chain's beginning counts as used last.
        for load in reversed(list(loads)):
            if came.get(load, False):
                self._keep(load)
            else:
                self._fail(load, is_lost=load in lost)

    def _keep(self, load: Load) -> None:
        holdings, index = self._holdings, self._holdings.index
        entry = load.entry
        is_orphan = bool(index.flags[entry] & ORPHAN)
        del self._loads[entry]
        if is_orphan:
            index.flags[entry] &= ~LOADING
            holdings.leases.drop_all(index.offsets[entry])
            holdings.settle(entry)
        else:
            holdings.put_in_slot(entry, index.offsets[entry])
            holdings.stay(entry)
        load.done.set_result(not is_orphan)

    def _fail(self, load: Load, *, is_lost: bool) -> None:
        """``is_lost``: the disk has it no more."""
        holdings, index = self._holdings, self._holdings.index
        entry = load.entry
        del self._loads[entry]
        holdings.leases.drop_all(index.offsets[entry])
        index.flags[entry] &= ~LOADING
        holdings.free_slot(entry)
        if is_lost and index.flags[entry] & DISK:
            holdings.leave_disk(entry)
        else:
            holdings.settle(entry)
        load.done.set_result(False)
