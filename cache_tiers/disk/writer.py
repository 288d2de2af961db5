"""Stores images in a folder: finds slots, writes them in requests, and records them.

The order is what a crash must find: that a slot is free, then the image in it, then that it is
held. On the event loop, with threads for the device. Must not know how images are read.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.disk import requests
from cache_tiers.disk.files import Files
from cache_tiers.disk.journal import Journal
from cache_tiers.disk.progress import Progress, no_answer
from cache_tiers.disk.requests import IsCancelled, Move, Request, plan_requests
from cache_tiers.disk.segment_table import Place, SegmentTable
from cache_tiers.disk.slot_supply import SlotSupply
from cache_tiers.disk.stats import DiskCounters
from cache_tiers.disk.threads import IoThreads
from cache_tiers.tier import TierError


class Writer:
    """Of one folder. ``storing`` is told how it goes."""

    def __init__(
        self,
        path: Path,
        files: Files,
        table: SegmentTable,
        journal: Journal,
        threads: IoThreads,
        storing: Backoff,
        counters: DiskCounters,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._table = table
        self._journal = journal
        self._threads = threads
        self._storing = storing
        self._counters = counters
        self._progress = Progress(clock)
        growing = Backoff(f"making a segment file in {path}", clock=clock)
        self._supply = SlotSupply(files, table, threads, growing)

    def refusal(self) -> str | None:
        """Why nothing is stored for now."""
        if self._storing.is_open and self._progress.is_stalled:
            self._storing.failed(no_answer())
        return None if self._storing.is_open else self._storing.reason

    def free_images(self, layout: ImageLayout) -> int:
        """How many more images there is room for."""
        return self._supply.free_images(layout)

    async def store(self, images: Sequence[BlockImage], is_cancelled: IsCancelled) -> None:
        """Keep images of one layout, none of which is held or on its way in, as far as there is
        room. Raises ``TierError`` when none of them is held for another reason.
        """
        with self._progress:
            places = await self._supply.take(images[0].layout, len(images))
            self._progress.step()
            self._counters.refused += len(images) - len(places)
            if not places and self._supply.growing.reason:
                raise TierError(self._supply.growing.reason)
            slots = enumerate(zip(places, images, strict=False))  # the first images have one
            moves = [Move(index, place, image) for index, (place, image) in slots]
            await self._write(moves, is_cancelled)

    async def _write(self, moves: Sequence[Move], is_cancelled: IsCancelled) -> None:
        planned = plan_requests(moves)
        jobs = [partial(self._write_request, each, is_cancelled) for each in planned]
        written: list[Move] = []
        last_error: OSError | None = None
        for request, error in zip(planned, await self._threads.run_all(jobs), strict=True):
            last_error = error or last_error
            for move in request.moves:
                if error is None and self._fill(move):
                    written.append(move)
                else:
                    self._give_back(move.place, error)
        try:
            await self._threads.run_all([self._journal.flush])
        except OSError as error:
            last_error = error
            for move in written:
                if self._table.is_at(move.place, move.image):
                    self._table.drop(move.place)
            written.clear()
        self._count(moves, written, last_error)

    def _count(self, moves: Sequence[Move], written: Sequence[Move], error: OSError | None) -> None:
        self._counters.stored += len(written)
        self._counters.failed_stores += len(moves) - len(written)
        self._counters.written_bytes += sum(move.image.layout.image_bytes for move in written)
        if error is None:
            if written:
                self._storing.succeeded()
        elif not isinstance(error, _Cancelled):
            failure = self._storing.failed(error)
            if not written:
                raise failure from error

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
            self._progress.step()
        return None

    def _fill(self, move: Move) -> bool:
        return self._table.fill(move.place, move.image.key, move.image.num_tokens)

    def _give_back(self, place: Place, error: OSError | None) -> None:
        if isinstance(error, FileNotFoundError):
            self._table.lose(place.segment)
        elif error is not None and requests.is_medium_bad(error):
            # No record says so: more often the whole device is away than these sectors bad.
            place.segment.condemn(place.slot)
        else:
            place.segment.release(place.slot)


class _Cancelled(OSError):
    """Not written, since nobody wants it any more."""
