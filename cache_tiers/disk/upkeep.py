"""Work on a folder's files that no call waits for: a journal that got long, records that nothing
else writes soon, segments that are put aside.

On the event loop, with the folder's threads. Must not know images.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cache_tiers.backoff import Backoff
from cache_tiers.disk.files import Files
from cache_tiers.disk.journal import Journal
from cache_tiers.disk.quarantine import Quarantine
from cache_tiers.disk.segment import Segment
from cache_tiers.disk.segment_table import SegmentTable
from cache_tiers.disk.stats import DiskCounters
from cache_tiers.disk.threads import IoThreads

logger = logging.getLogger(__name__)

_REWRITE_FACTOR = 4
_REWRITE_MIN_RECORDS = 4096


class Upkeep:
    """Of one folder; ``storing`` is told when the journal can't be written."""

    def __init__(
        self,
        path: Path,
        files: Files,
        table: SegmentTable,
        journal: Journal,
        threads: IoThreads,
        storing: Backoff,
        counters: DiskCounters,
        max_bytes: int,
    ) -> None:
        self._path = path
        self._table = table
        self._journal = journal
        self._threads = threads
        self._storing = storing
        self._counters = counters
        self._quarantine = Quarantine(files, max_bytes)
        self._moving = asyncio.Lock()
        """One file after the other, since a later move may remove what an earlier one put aside."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_rewriting = False

    def adopt(self, quarantined: Mapping[str, int]) -> None:
        """What an earlier process put aside, as of ``Quarantine.adopt``."""
        self._quarantine.adopt(quarantined)

    def put_aside(self, segment: Segment) -> None:
        """Keep its file to find out what is wrong with it, and forget what it held."""
        logger.warning("%s: %s is put into quarantine", self._path, segment.name)
        self._counters.quarantined_segments += 1
        self._table.retire(segment)
        move = self._quarantine.admit(segment)
        self._table.other_bytes = self._quarantine.num_bytes
        self._start(self._move_file(segment, move))

    def flush_soon(self) -> None:
        """Write the journal's last records."""
        self._start(self._flush())

    def rewrite_if_long(self) -> None:
        """Shorten the journal, if it says much that does not hold any more."""
        limit = _REWRITE_FACTOR * self._table.num_records + _REWRITE_MIN_RECORDS
        if not self._is_rewriting and self._journal.num_records > limit:
            self._is_rewriting = True
            self._journal.begin_rewrite()
            self._start(self._rewrite())

    async def settled(self) -> None:
        """Return when nothing is under way."""
        await asyncio.gather(*self._tasks)

    async def _move_file(self, segment: Segment, move: Callable[[], None]) -> None:
        try:
            async with self._moving:
                await self._threads.run_all([move])
        except OSError as error:
            logger.warning("%s: %s stays behind (%s)", self._path, segment.name, error)

    async def _rewrite(self) -> None:
        job = partial(self._journal.rewrite, self._table.records())
        self._counters.rewrites += await self._has_written(job)
        self._is_rewriting = False

    async def _flush(self) -> None:
        await self._has_written(self._journal.flush)

    async def _has_written(self, job: Callable[[], None]) -> bool:
        try:
            await self._threads.run_all([job])
        except OSError as error:
            self._storing.failed(error)
            return False
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
