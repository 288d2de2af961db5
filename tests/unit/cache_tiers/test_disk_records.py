"""The journal's records and file: nothing damaged is taken for a record, nothing whole is lost."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import ImageLayout
from cache_tiers.disk.files import Files
from cache_tiers.disk.journal import NAME, NEW_NAME, Journal
from cache_tiers.disk.records import (
    RECORD_BYTES,
    Condemned,
    Created,
    Dropped,
    Record,
    Retired,
    Stored,
    decode,
    encode,
)
from cache_tiers.keys import BlockKey

LAYOUT = ImageLayout(b"f" * 16, 2, 4096, 16)
RECORDS: list[Record] = [
    Created(3, 8, LAYOUT),
    Stored(3, 1, BlockKey(b"k" * 16), 16),
    Dropped(3, 1),
    Condemned(3, 1),
    Retired(3),
]
CONTENT = b"".join(map(encode, RECORDS))


def dropped(slot: int) -> Dropped:
    return Dropped(0, slot)


def test_records_are_a_stable_format() -> None:
    """Blocks on disk outlive a release: who changes this must number the journal anew."""
    stored, dropped = (encode(record).hex() for record in RECORDS[1:3])
    assert stored == "5826a3f803000000030000000100000010000000" + 16 * "6b" + 12 * "00"
    assert dropped == "022aefff040000000300000001000000" + 32 * "00"


def test_records_come_back_as_they_were() -> None:
    assert list(decode(CONTENT)) == RECORDS


def test_a_torn_last_record_is_left_out() -> None:
    assert list(decode(CONTENT[:-1])) == RECORDS[:-1]


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
@settings(max_examples=50)
def test_a_flipped_bit_costs_one_record(at: int, bit: int) -> None:
    content = bytearray(CONTENT)
    content[at] ^= 1 << bit

    expected: list[Record | None] = [*RECORDS]
    expected[at // RECORD_BYTES] = None
    assert list(decode(bytes(content))) == expected


@given(st.binary(max_size=500))
@settings(max_examples=30)
def test_garbage_is_no_record(content: bytes) -> None:
    assert not any(decode(content))


def test_a_flushed_journal_is_replayed_in_order(tmp_path: Path) -> None:
    files = Files(tmp_path)
    journal = Journal(files)
    for slot in range(5000):  # more than one chunk
        journal.add(dropped(slot))
        if slot % 1000 == 0:
            journal.flush()
    journal.flush()

    again = Journal(files)
    assert list(again.replay()) == [dropped(slot) for slot in range(5000)]
    assert again.num_records == 5000
    files.close()


def test_a_torn_record_is_written_over(tmp_path: Path) -> None:
    files = Files(tmp_path)
    journal = Journal(files)
    journal.add(dropped(1))
    journal.flush()
    files.put(NAME, b"torn", RECORD_BYTES)

    again = Journal(files)
    assert list(again.replay()) == [dropped(1)]
    again.add(dropped(2))
    again.flush()
    assert list(Journal(files).replay()) == [dropped(1), dropped(2)]
    files.close()


def test_a_rewrite_keeps_what_is_added_meanwhile(tmp_path: Path) -> None:
    files = Files(tmp_path)
    journal = Journal(files)
    for slot in range(100):
        journal.add(dropped(slot))
    journal.flush()
    journal.add(dropped(100))  # pending, and part of the state
    journal.begin_rewrite()
    journal.add(dropped(101))
    journal.flush()
    journal.add(dropped(102))

    journal.rewrite([dropped(99), dropped(100)])
    journal.add(dropped(103))
    journal.flush()

    expected = [dropped(slot) for slot in (99, 100, 101, 102, 103)]
    assert list(Journal(files).replay()) == expected
    assert journal.num_records == len(expected)
    files.close()


class FullFiles(Files):
    """A device that takes nothing while ``is_full``."""

    is_full = False

    def put(self, name: str, content: bytes, offset: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        super().put(name, content, offset)


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    journal = Journal(files)
    journal.add(dropped(1))
    files.is_full = True
    with pytest.raises(OSError, match="no space"):
        journal.flush()
    journal.add(dropped(2))
    files.is_full = False

    journal.flush()

    assert list(Journal(files).replay()) == [dropped(1), dropped(2)]
    files.close()


def test_a_rewrite_that_fails_leaves_the_journal(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    journal = Journal(files)
    journal.add(dropped(1))
    journal.flush()
    journal.begin_rewrite()
    journal.add(dropped(2))
    files.is_full = True
    with pytest.raises(OSError, match="no space"):
        journal.rewrite([dropped(0)])
    files.is_full = False
    journal.flush()

    assert list(Journal(files).replay()) == [dropped(1), dropped(2)]
    assert files.num_bytes(NEW_NAME) is None
    files.close()
