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
from cache_tiers.disk.progress import Progress, no_answer
from cache_tiers.disk.recovery import recover
from cache_tiers.disk.requests import IsCancelled, Move, Outcome, ReadResult, Request, plan_requests
from cache_tiers.disk.segment_table import Held, Place, SegmentTable
from cache_tiers.disk.stats import DiskCounters
from cache_tiers.disk.threads import IoThreads
from cache_tiers.disk.upkeep import Upkeep
from cache_tiers.disk.writer import Writer
from cache_tiers.keys import BlockKey
from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)

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
        self._storing = Backoff(f"storing in {path}", clock=clock)
        self._reads = Progress(clock)
        self._readers = IoThreads(_NUM_READERS, "disk-read")
        self._writers = IoThreads(_NUM_WRITERS, "disk-write")
        self._writer = Writer(
            path,
            files,
            self._table,
            self._journal,
            self._writers,
            self._storing,
            self.counters,
            clock,
        )
        self._upkeep = Upkeep(
            path,
            files,
            self._table,
            self._journal,
            self._writers,
            self._storing,
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
            self._storing.failed(error)
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
        return self._writer.refusal()

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
        return self._writer.free_images(layout)

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
            raise self._reading.failed(no_answer())
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
        """As of ``Writer``."""
        self._check_memory(images[0])
        await self._writer.store(images, is_cancelled)
        self._upkeep.rewrite_if_long()

    async def close(self) -> None:
        """Write down what is pending, and let another process have the folder."""
        await self._upkeep.settled()
        try:
            await asyncio.to_thread(self._journal.sync)
        except OSError as error:
            self._storing.failed(error)
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
                self._table.lose(move.place.segment)
            case Outcome.UNSOUND:
                self._find_bad(move)
            case Outcome.UNREADABLE if does_read:  # all but this
                self._find_bad(move)
            case Outcome.FAILED | Outcome.UNREADABLE:
                self.counters.failed_loads += 1

    def _find_bad(self, move: Move) -> None:
        if self._table.is_at(move.place, move.image):  # else somebody dropped it meanwhile
            self._condemn(move.place)

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

    def _read_request(self, request: Request, is_cancelled: IsCancelled) -> ReadResult:
        result = requests.read(self._files, request, is_cancelled)
        self._reads.step()
        return result


def _is_device_at_fault(result: ReadResult) -> bool:
    return Outcome.FAILED in result.outcomes or Outcome.UNREADABLE in result.outcomes
