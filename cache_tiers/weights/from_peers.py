"""Bring a model's weights from other nodes, chunk by chunk, also while these still receive them.

Parents are used one after the other, nearest first; what is missing when one fails comes from the
next. Beside the one in use another is looked at from time to time, with one chunk at the most, and
taken instead if it is much quicker. Must not know what is in the files.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from cache_tiers.peer.messages import PeerFailed
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Ask, ChunkLimits, Offer, PeerCounts, PeerResult
from cache_tiers.weights.chunk_parent import (
    Parent,
    ParentAbsent,
    ParentBusy,
    ParentLied,
    ParentNotNow,
    ParentStalled,
    ParentStream,
    ParentWaits,
)
from cache_tiers.weights.errors import OriginFailed
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from cache_tiers.weights.missing_chunks import MissingChunks

_CHILD_BYTES = 16

OpenFiles = Callable[[Sequence[WeightFile]], Sequence[ArrivingFile]]
OnOffer = Callable[[str, bytes | None], None]


async def bring_from_peers(
    order: WeightsOrder,
    *,
    open_files: OpenFiles,
    on_offer: OnOffer | None = None,
    limits: ChunkLimits | None = None,
    counts: PeerCounts | None = None,
) -> PeerResult:
    """Fill the files that ``open_files`` makes (called at most once, on the event loop; chunks that
    are already in them aren't asked for again). ``on_offer`` gets the revision's stamp and, once
    known, its manifest: called before ``open_files``, and again when the manifest comes, so that
    this node can lend both while it receives.

    However it ends, cancellation included, nothing is written to the files afterwards, and what
    has arrived stays marked. Raises `OriginFailed` in one line when no parent is left, and what
    ``open_files`` raises.
    """
    limits = limits or ChunkLimits()
    with ThreadPoolExecutor(limits.num_streams + 1, "weights-from-peers") as executor:
        bringing = _Bringing(order, open_files, on_offer, limits, counts or PeerCounts(), executor)
        try:
            return await bringing.run()
        finally:
            bringing.count()


class _Bringing:
    """One promotion. Owner: ``bring_from_peers``."""

    def __init__(
        self,
        order: WeightsOrder,
        open_files: OpenFiles,
        on_offer: OnOffer | None,
        limits: ChunkLimits,
        counts: PeerCounts,
        executor: ThreadPoolExecutor,
    ) -> None:
        self._model = order.model
        self._ask = Ask(
            order.model,
            order.source,
            order.source_sha256,
            order.weights_sha256,
            os.urandom(_CHILD_BYTES),
        )
        self._open_files = open_files
        self._on_offer = on_offer
        self._limits = limits
        self._counts = counts
        self._executor = executor
        self._parents = [Parent(address) for address in order.parents]
        """In the order in which they are asked."""
        self._begin_s = time.monotonic()
        self._offer: Offer | None = None
        """What all parents must agree with."""
        self._files: Sequence[ArrivingFile] = ()
        self._missing = MissingChunks(())
        self._manifest: bytes | None = None

    async def run(self) -> PeerResult:
        """Raises `OriginFailed`."""
        while True:
            await self._ask_all()
            if self._offer is not None and self._manifest is not None and self._missing.is_done:
                return PeerResult(self._offer.stamp, self._manifest, self._files)
            if all(parent.is_dropped for parent in self._parents):
                raise self._failure("")
            if (silence_s := self._silence_s) > self._limits.starve_s:
                raise self._failure(f" for {silence_s:.0f} s")
            self._missing.forgive()
            await asyncio.sleep(self._limits.retry_s)

    def count(self) -> None:
        """Add what came to the node's counts."""
        self._counts.num_chunks += self._missing.num_brought
        self._counts.num_bytes += self._missing.num_brought_bytes
        self._counts.num_corrupt += self._missing.num_spoiled

    @property
    def _is_complete(self) -> bool:
        return self._missing.is_done and self._manifest is not None

    @property
    def _silence_s(self) -> float:
        """Since a chunk came from anybody."""
        return time.monotonic() - max(self._begin_s, self._missing.last_arrival_s)

    def _failure(self, how_long: str) -> OriginFailed:
        parents = "; ".join(f"{parent}: {parent.why}" for parent in self._parents)
        return OriginFailed(
            f"no other node gives {self._model}{how_long}: {parents or 'none is known'}"
        )

    async def _ask_all(self) -> None:
        """Each parent once, until all is here."""
        num_asked = 0
        while num_asked < len(self._parents) and not self._is_complete:
            parent = self._parents[num_asked]
            num_asked += 1
            if parent.is_dropped or not self._is_needed(parent):
                continue
            try:
                quicker = await self._use(parent)
            except PeerFailed as error:
                self._note_failure(parent, error)
                if self._is_worth_waiting(error):
                    await asyncio.sleep(self._limits.retry_s)
                    num_asked -= 1
                continue
            if quicker is not None:
                self._counts.num_slow += 1
                self._parents.remove(quicker)
                self._parents.insert(0, quicker)
                num_asked = 0

    def _is_worth_waiting(self, error: PeerFailed) -> bool:
        """Before those further away are asked: if all went to the one that has it already, it would
        have to send it to all."""
        waited_s = time.monotonic() - self._begin_s
        if isinstance(error, ParentWaits):
            return waited_s < self._limits.patience_s
        return isinstance(error, ParentAbsent) and waited_s < self._limits.absent_s

    def _is_needed(self, parent: Parent) -> bool:
        """It is of no use to ask one for nothing but what it has spoiled."""
        return self._offer is None or self._missing.is_done or self._missing.has_for(parent)

    def _note_failure(self, parent: Parent, error: PeerFailed) -> None:
        parent.failed(error)
        if isinstance(error, ParentStalled):
            self._counts.num_stalled += 1
        elif isinstance(error, ParentBusy):
            self._counts.num_busy += 1
        elif not isinstance(error, ParentNotNow):
            self._counts.num_lost += 1
        if isinstance(error, ParentAbsent):
            has_had_time = time.monotonic() - self._begin_s > self._limits.absent_s
            parent.is_dropped = parent.is_dropped or has_had_time

    async def _use(self, parent: Parent) -> Parent | None:
        """Until it has nothing more that is needed, or another one is quicker, which is returned.
        Raises ``PeerFailed``."""
        async with self._stream_to(parent) as stream:
            self._accept(await stream.ask(self._limits.later_s))
            quicker = await self._take(parent, stream)
            while quicker is None and self._missing.has_for(parent):
                # What another one was tried with, and hadn't sent when the rest was here.
                quicker = await self._take(parent, stream)
            if quicker is None and self._missing.is_done:
                await self._wait_for_manifest(stream)
            return quicker

    def _stream_to(self, parent: Parent) -> AbstractAsyncContextManager[ParentStream]:
        return ParentStream.to(parent, self._ask, self._limits, self._executor)

    def _accept(self, offer: Offer) -> None:
        """The first offer says what is wanted, the others must say the same. Raises ``PeerFailed``,
        and what ``open_files`` raises."""
        if self._offer is None:
            if self._on_offer is not None:
                self._on_offer(offer.stamp, offer.manifest)
            self._files = self._open_files(offer.files)
            self._missing = MissingChunks(self._files)
            self._offer = offer
            self._manifest = offer.manifest
        elif not _are_same(self._offer, offer):
            raise ParentLied("it offers another revision than the others")
        elif self._manifest is None and offer.manifest is not None:
            self._manifest = offer.manifest
            if self._on_offer is not None:
                self._on_offer(offer.stamp, offer.manifest)

    async def _take(self, parent: Parent, stream: ParentStream) -> Parent | None:
        """Bring chunks by several streams. Returns as ``_use`` does."""
        takers: list[asyncio.Task[Any]] = [asyncio.create_task(stream.take(self._missing))]
        takers += [
            asyncio.create_task(self._take_beside(parent))
            for _ in range(min(self._limits.num_streams, self._missing.num_unclaimed) - 1)
        ]
        looking = asyncio.create_task(self._find_quicker(parent))
        try:
            pending = {*takers, looking}
            while pending != {looking}:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task is looking:
                        return looking.result()
                    task.result()
            return None
        finally:
            await _end([*takers, looking])

    async def _take_beside(self, parent: Parent) -> None:
        """By one more stream; a parent that has none to spare is used without."""
        async with AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(self._stream_to(parent))
                self._accept(await stream.ask())
            except PeerFailed:
                return
            await stream.take(self._missing)

    async def _wait_for_manifest(self, stream: ParentStream) -> None:
        begin_s = time.monotonic()
        while self._manifest is None:
            if time.monotonic() - begin_s > self._limits.starve_s:
                raise ParentStalled("it has all files, but never says that they are right")
            self._accept(await stream.ask(self._limits.later_s, wants_manifest=True))

    async def _find_quicker(self, current: Parent) -> Parent:
        """Return when one is. Raises ``PeerFailed`` when nobody has sent anything for too long."""
        period_s = self._limits.scout_s
        num_periods = 0
        rates: deque[float] = deque(maxlen=2)
        while True:
            before_bytes = self._missing.num_here_bytes
            await asyncio.sleep(period_s)
            rates.append((self._missing.num_here_bytes - before_bytes) / period_s)
            rate = max(rates)  # one slow period is a hiccup, or the beginning
            if self._silence_s > self._limits.starve_s:
                raise ParentNotNow(f"no chunk came for {self._silence_s:.0f} s")
            others = [
                parent
                for parent in self._parents
                if parent is not current and not parent.is_dropped
            ]
            is_measured = len(rates) == rates.maxlen
            if is_measured and others and self._missing.num_left_bytes > rate * period_s:
                other = others[num_periods % len(others)]
                num_periods += 1
                if await self._is_quicker(other, rate):
                    current.why = "it was slow"
                    return other

    async def _is_quicker(self, other: Parent, rate: float) -> bool:
        """Only one that is well ahead is tried: a chain that waits for its source is no reason to
        leave it."""
        try:
            async with self._stream_to(other) as stream:
                offer = await stream.ask()
                self._accept(offer)
                lead_bytes = offer.num_arrived_bytes - self._missing.num_here_bytes
                if lead_bytes <= 2 * rate * self._limits.scout_s:
                    return False
                begin_s = time.monotonic()
                num_bytes = await stream.take(self._missing, max_chunks=1)
                taken_s = time.monotonic() - begin_s
                return num_bytes > self._limits.slow_factor * rate * taken_s
        except PeerFailed as error:
            self._note_failure(other, error)
            return False


def _are_same(one: Offer, other: Offer) -> bool:
    """Whether chunks of both fit together."""
    if one.stamp != other.stamp or len(one.files) != len(other.files):
        return False
    return all(
        (a.name, a.num_bytes) == (b.name, b.num_bytes)
        and (a.sha256 == b.sha256 or a.sha256 is None or b.sha256 is None)
        for a, b in zip(one.files, other.files, strict=True)
    )


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them; none runs any more when this returns, or is cancelled itself."""
    pending = set(tasks)
    for task in pending:
        task.cancel()
    is_cancelled = False
    while pending:
        try:
            done, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            is_cancelled = True
        else:
            for task in done:
                task.cancelled() or task.exception()  # marks it as seen
    if is_cancelled:
        raise asyncio.CancelledError
