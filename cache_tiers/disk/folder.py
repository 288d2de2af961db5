"""One folder of the disk tier: its index, its threads, and what goes wrong with its device.

The index belongs to the event loop; threads only move bytes. Reads have threads of their own, so
that a prompt that waits is not behind what is written. Must not know other folders.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.disk import requests
from cache_tiers.disk.files import Files, is_aligned
from cache_tiers.disk.journal import Journal
from cache_tiers.disk.progress import LONGEST_SILENCE_S, Progress
from cache_tiers.disk.recovery import recover
from cache_tiers.disk.requests import Move, Outcome, ReadResult, Request, plan_requests
from cache_tiers.disk.segment import Segment
from cache_tiers.disk.segment_table import Held, Place, SegmentTable
from cache_tiers.disk.slot_supply import SlotSupply
from cache_tiers.disk.stats import DiskCounters
from cache_tiers.disk.threads import IoThreads
from cache_tiers.disk.upkeep import Upkeep
from cache_tiers.keys import BlockKey
from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)

IsCancelled = Callable[[], bool]

_NUM_READERS = 4
_NUM_WRITERS = 4


class Folder:
    """``recover`` and ``shut`` block; the rest is for the event loop."""

    def __init__(
        self,
        path: Path,
        files: Files,
        max_bytes: int,
        segment_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.max_bytes = max_bytes
        self.counters = DiskCounters()
        self._path = path
        self._files = files
        self._journal = Journal(files)
        self._table = SegmentTable(max_bytes, segment_bytes, self._journal.add)
        self._reading = Backoff(f"reading from {path}", clock=clock)
        self._writing = Backoff(f"storing in {path}", clock=clock)
        self._reads = Progress(clock)
        self._writes = Progress(clock)
        self._readers = IoThreads(_NUM_READERS, "disk-read")
        self._writers = IoThreads(_NUM_WRITERS, "disk-write")
        self._supply = SlotSupply(
            files,
            self._table,
            self._writers,
            Backoff(f"making a segment file in {path}", clock=clock),
        )
        self._upkeep = Upkeep(
            path,
            files,
            self._table,
            self._journal,
            self._writers,
            self._writing,
            self.counters,
            max_bytes,
        )

    def recover(self) -> None:
        """Find what an earlier process left; blocks. Raises ``OSError``."""
        recovered = recover(self._files, self._journal, self._table)
        try:
            if recovered.num_damaged_records:
                self._journal.begin_rewrite()
                self._journal.rewrite(self._table.records())
            self._journal.flush()
        except OSError as error:  # a full device can still be read from
            self._writing.failed(error)
        self._upkeep.adopt(recovered.quarantined)
        self.counters.recovered = self._table.num_images
        self.counters.damaged_records = recovered.num_damaged_records
        self.counters.lost_segments = recovered.num_lost_segments
        if recovered.num_damaged_records or recovered.num_lost_segments:
            logger.warning(
                "%s: %d records of the index were damaged, %d segment files lost or too short; %d "
                "images are left",
                self._path,
                recovered.num_damaged_records,
                recovered.num_lost_segments,
                self._table.num_images,
            )

    def refusal(self) -> str | None:
        """Why nothing is stored for now."""
        if self._writing.is_open and self._writes.is_stalled:
            self._writing.failed(_no_answer())
        return None if self._writing.is_open else self._writing.reason

    @property
    def num_images(self) -> int:
        return self._table.num_images

    @property
    def used_bytes(self) -> int:
        return self._table.used_bytes

    @property
    def journal_records(self) -> int:
        return self._journal.num_records

    def held(self) -> Iterator[Held]:
        """All images."""
        return self._table.held()

    def holds(self, layout: ImageLayout, key: BlockKey) -> bool:
        """Whether an image is here."""
        return self._table.locate(layout, key) is not None

    def free_images(self, layout: ImageLayout) -> int:
        """How many more images there is room for."""
        return self._supply.free_images(layout)

    def neighbours(self, layout: ImageLayout, key: BlockKey) -> list[BlockKey]:
        """All keys of the segment where an image lies: it is free for other layouts once they are
        all evicted.
        """
        place = self._table.locate(layout, key)
        return [] if place is None else [each for each in place.segment.keys if each is not None]

    def evict(self, layout: ImageLayout, key: BlockKey) -> None:
        """Give up an image, if it is here."""
        place = self._table.locate(layout, key)
        if place is not None:
            self._table.drop(place)
            self.counters.evicted += 1

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        """An image that is here is not what it should be: never use its slot again."""
        place = self._table.locate(layout, key)
        if place is not None:
            self._condemn(place)

    async def load(self, images: Sequence[BlockImage], is_cancelled: IsCancelled) -> list[bool]:
        """As ``Tier.load``; returns only when no thread touches the images any more. Nothing is
        asked of a device that hangs. Images that it did not read for a while are still held.
        """
        if self._reads.is_stalled:
            self.counters.failed_loads += len(images)
            raise self._reading.failed(_no_answer())
        found = [(index, self._locate(image), image) for index, image in enumerate(images)]
        moves = [Move(index, place, image) for index, place, image in found if place is not None]
        self.counters.missed += len(images) - len(moves)
        if moves:
            self._check_memory(moves[0].image)
        for move in moves:
            move.place.segment.begin_read(move.place.slot)
        are_loaded = [False] * len(images)
        try:
            planned = plan_requests(moves)
            jobs = [partial(self._read_request, each, is_cancelled) for each in planned]
            with self._reads:
                results = await self._readers.run_all(jobs)
            does_read = any(Outcome.SOUND in result.outcomes for result in results)
            for request, result in zip(planned, results, strict=True):
                self._watch_reading(result)
                for move, outcome in zip(request.moves, result.outcomes, strict=True):
                    are_loaded[move.index] = outcome is Outcome.SOUND
                    self._settle(move, outcome, does_read=does_read)
        finally:
            for move in moves:
                move.place.segment.end_read(move.place.slot)
        if not does_read and any(map(_is_device_at_fault, results)):
            raise TierError(self._reading.reason)
        return are_loaded

    async def store(self, images: Sequence[BlockImage], is_cancelled: IsCancelled) -> None:
        """Keep images of one layout, none of which is held or on its way in, as far as there is
        room. Raises ``TierError`` when none of them is held for another reason.
        """
        layout = images[0].layout
        self._check_memory(images[0])
        with self._writes:
            places = await self._supply.take(layout, len(images))
            self._writes.step()
            self.counters.refused += len(images) - len(places)
            if not places and self._supply.growing.reason:
                raise TierError(self._supply.growing.reason)
            slots = enumerate(zip(places, images, strict=False))  # the first images have one
            moves = [Move(index, place, image) for index, (place, image) in slots]
            await self._write(moves, is_cancelled)
        self._upkeep.rewrite_if_long()

    async def close(self) -> None:
        """Write down what is pending, and let another process have the folder."""
        await self._upkeep.settled()
        try:
            await asyncio.to_thread(self._journal.sync)
        except OSError as error:
            self._writing.failed(error)
        await asyncio.to_thread(self.shut)

    def shut(self) -> None:
        """End the threads and unlock the folder; blocks."""
        self._readers.close()
        self._writers.close()
        self._files.close()

    def _locate(self, image: BlockImage) -> Place | None:
        place = self._table.locate(image.layout, image.key)
        if place is None or place.segment.num_tokens[place.slot] != image.num_tokens:
            return None
        return place

    def _check_memory(self, image: BlockImage) -> None:
        # One for all of a call: they come from the same arena.
        assert len(image.memory) == image.layout.image_bytes, "an image's memory has another size"
        assert not self._files.is_direct or is_aligned(image.memory), "memory must be page-aligned"

    def _watch_reading(self, result: ReadResult) -> None:
        if result.error is not None:
            self._reading.failed(result.error)
        elif Outcome.SOUND in result.outcomes:
            self._reading.succeeded()

    def _settle(self, move: Move, outcome: Outcome, *, does_read: bool) -> None:
        image_bytes = move.image.layout.image_bytes
        match outcome:
            case Outcome.SOUND:
                self.counters.loaded += 1
                self.counters.read_bytes += image_bytes
            case Outcome.GONE:
                self.counters.gone += 1
                self._lose(move.place.segment)
            case Outcome.UNSOUND:
                self._find_bad(move)
            case Outcome.UNREADABLE if does_read:  # all but this
                self._find_bad(move)
            case Outcome.FAILED | Outcome.UNREADABLE:
                self.counters.failed_loads += 1

    def _find_bad(self, move: Move) -> None:
        if self._is_at(move):  # else somebody dropped it meanwhile
            self._condemn(move.place)

    def _lose(self, segment: Segment) -> None:
        """Its file is gone, and all that it held: neither to be read nor to be written again."""
        if segment in self._table.segments:
            self._table.retire(segment)

    def _is_at(self, move: Move) -> bool:
        return self._table.locate(move.image.layout, move.image.key) == move.place

    def _condemn(self, place: Place) -> None:
        self.counters.unsound += 1
        if not place.segment.num_bad:
            logger.warning(
                "%s: an image in %s is not what was stored; such are dropped and their slots not "
                "used again",
                self._path,
                place.segment.name,
            )
        self._table.condemn(place)
        if self._table.is_suspect(place.segment):
            self._upkeep.put_aside(place.segment)
        self._upkeep.flush_soon()

    async def _write(self, moves: Sequence[Move], is_cancelled: IsCancelled) -> None:
        planned = plan_requests(moves)
        jobs = [partial(self._write_request, each, is_cancelled) for each in planned]
        written: list[Move] = []
        last_error: OSError | None = None
        for request, error in zip(planned, await self._writers.run_all(jobs), strict=True):
            last_error = error or last_error
            for move in request.moves:
                if error is None and self._fill(move):
                    written.append(move)
                else:
                    self._give_back(move.place, error)
        try:
            await self._writers.run_all([self._journal.flush])
        except OSError as error:
            last_error = error
            for move in filter(self._is_at, written):
                self._table.drop(move.place)
            written.clear()
        self._record_stores(moves, written, last_error)

    def _record_stores(
        self, moves: Sequence[Move], written: Sequence[Move], error: OSError | None
    ) -> None:
        self.counters.stored += len(written)
        self.counters.failed_stores += len(moves) - len(written)
        self.counters.written_bytes += sum(move.image.layout.image_bytes for move in written)
        if error is None:
            if written:
                self._writing.succeeded()
            return
        if not isinstance(error, _Cancelled):
            self._writing.failed(error)
            if not written:
                raise TierError(self._writing.reason) from error

    def _read_request(self, request: Request, is_cancelled: IsCancelled) -> ReadResult:
        result = requests.read(self._files, request, is_cancelled)
        self._reads.step()
        return result

    def _write_request(self, request: Request, is_cancelled: IsCancelled) -> OSError | None:
        if is_cancelled():
            return _Cancelled()
        try:
            # Nothing may be found any more in a slot that is written over.
            self._journal.flush()
            requests.write(self._files, request)
        except OSError as error:
            return error
        finally:
            self._writes.step()
        return None

    def _fill(self, move: Move) -> bool:
        return self._table.fill(move.place, move.image.key, move.image.num_tokens)

    def _give_back(self, place: Place, error: OSError | None) -> None:
        if isinstance(error, FileNotFoundError):
            self._lose(place.segment)
        elif error is not None and requests.is_medium_bad(error):
            # Until the next start only: more often the whole device is away than these sectors bad.
            place.segment.condemn(place.slot)
        else:
            place.segment.release(place.slot)


class _Cancelled(OSError):
    """Not written, since nobody wants it any more."""


def _is_device_at_fault(result: ReadResult) -> bool:
    return Outcome.FAILED in result.outcomes or Outcome.UNREADABLE in result.outcomes


def _no_answer() -> OSError:
    return TimeoutError(f"the device has not answered for {LONGEST_SILENCE_S:.0f} s")
