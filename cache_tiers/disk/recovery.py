"""Opening a folder that an earlier process used, and may have left in the middle of anything.

Blocking. Our own leftovers are removed, others' files are left alone. Must not know threads.
"""

import re
from dataclasses import dataclass

from cache_tiers.disk import journal as journal_file
from cache_tiers.disk import quarantine
from cache_tiers.disk.files import Files
from cache_tiers.disk.journal import Journal
from cache_tiers.disk.segment_table import SegmentTable

_SEGMENT_NAME = re.compile(rf"(?:{quarantine.PREFIX})?segment-([0-9a-f]{{8}})\.kv")
_OTHER_JOURNAL = re.compile(r"headwater-index-\d+\.wal(?:\.new)?|headwater-probe\.new")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was wrong, and what else is there."""

    num_damaged_records: int
    num_lost_segments: int
    quarantined: dict[str, int]
    """Names of files, oldest first, and their bytes."""


def recover(files: Files, journal: Journal, table: SegmentTable) -> Recovered:
    """Fill an empty ``table``, whose log is ``journal``. Raises ``OSError``."""
    num_damaged = 0
    for record in journal.replay():
        if record is None:
            num_damaged += 1
        else:
            table.apply(record)
    torn = [each for each in table.segments if (files.num_bytes(each.name) or 0) < each.num_bytes]
    for segment in torn:
        table.retire(segment)
    quarantined = _clean(files, table)
    table.other_bytes = sum(quarantined.values())
    while (excess := table.excess()) is not None:
        table.retire(excess)
        files.remove(excess.name)
    return Recovered(num_damaged, len(torn), quarantined)


def _clean(files: Files, table: SegmentTable) -> dict[str, int]:
    known = {segment.name for segment in table.segments}
    quarantined: dict[str, int] = {}
    for name in sorted(files.names()):
        match = _SEGMENT_NAME.fullmatch(name)
        if match:
            table.skip_numbers(int(match.group(1), 16))
            if name.startswith(quarantine.PREFIX):
                quarantined[name] = files.num_bytes(name) or 0
            elif name not in known:
                files.remove(name)
        elif _OTHER_JOURNAL.fullmatch(name) and name != journal_file.NAME:
            files.remove(name)
    return quarantined
