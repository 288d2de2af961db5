"""What the disk tier counts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(slots=True)
class DiskCounters:
    """Of one folder since it was opened; images unless units are named."""

    loaded: int = 0
    """Read and found sound."""
    missed: int = 0
    """Asked for and not held."""
    unsound: int = 0
    """Read, and not what was stored: dropped."""
    gone: int = 0
    """Their file had vanished."""
    failed_loads: int = 0
    """Not read for another reason, cancelled ones included; still held."""
    stored: int = 0
    refused: int = 0
    """For want of a free slot."""
    failed_stores: int = 0
    """Not written or not recorded, cancelled ones included."""
    evicted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    recovered: int = 0
    """Found when the folder was opened."""
    lost_segments: int = 0
    """Recorded, but not there or too short when the folder was opened."""
    damaged_records: int = 0
    """Of the journal, when the folder was opened."""
    quarantined_segments: int = 0
    rewrites: int = 0
    """Of the journal."""


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Of all folders together."""

    num_images: int
    used_bytes: int
    """Of segment files, quarantined ones included."""
    max_bytes: int
    journal_records: int
    num_folders: int
    num_accepting: int
    """Folders that take images now."""
    counters: DiskCounters


def total(counters: Sequence[DiskCounters]) -> DiskCounters:
    """The sum of several folders'."""
    return DiskCounters(
        **{
            field.name: sum(getattr(each, field.name) for each in counters)
            for field in fields(DiskCounters)
        }
    )
