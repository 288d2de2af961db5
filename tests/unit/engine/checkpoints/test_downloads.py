import hashlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoints import transfer as transfer_module
from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import (
    CorruptCheckpoint,
    SourceUnavailable,
    StoreUnavailable,
    TransferInterrupted,
)
from engine.checkpoints.remote_file import RemoteFile

PART = 1000
CONTENT = random.Random(0).randbytes(20 * PART + 1)


class Remote:
    """A file somewhere; remembers what was read, and fails as told."""

    def __init__(self, content: bytes = CONTENT, *, failing_reads: int = 0) -> None:
        self.content = content
        self.failing_reads = failing_reads
        self.stop_at: int | None = None
        self.read_bytes = 0
        self._lock = threading.Lock()

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        for position in range(begin, end, 300):
            with self._lock:
                if self.stop_at is not None and position >= self.stop_at:
                    raise SourceUnavailable("the source is gone")
                self.read_bytes += min(end, position + 300) - position
            yield self.content[position : min(end, position + 300)]
            with self._lock:
                if self.failing_reads:
                    self.failing_reads -= 1
                    raise TransferInterrupted("broke off")

    def file(self, name: str = "file", sha256: str | None = None) -> RemoteFile:
        return RemoteFile(name, len(self.content), self.read, sha256)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "_FIRST_PAUSE_S", 0.0)


def fetch(folder: Path, *files: RemoteFile) -> dict[str, bytes]:
    paths = Downloads(folder, part_bytes=PART).fetch(files, title="Test")
    return {name: path.read_bytes() for name, path in paths.items()}


def test_files_of_every_length_arrive_whole_and_recorded(tmp_path: Path) -> None:
    lengths = [0, 1, PART - 1, PART, PART + 1, len(CONTENT)]
    files = [Remote(CONTENT[:length]).file(str(length)) for length in lengths]
    found = fetch(tmp_path, *files)

    assert found == {str(length): CONTENT[:length] for length in lengths}
    records = Downloads(tmp_path).records
    for length in lengths:
        entry = records.find(tmp_path / "complete" / str(length))
        assert entry is not None
        assert entry.sha256 == hashlib.sha256(CONTENT[:length]).hexdigest()


def test_a_file_that_is_complete_is_not_read_again(tmp_path: Path) -> None:
    fetch(tmp_path, Remote().file())
    again = Remote()
    fetch(tmp_path, again.file())
    assert again.read_bytes == 0


def test_a_complete_file_that_was_touched_since_is_read_again(tmp_path: Path) -> None:
    fetch(tmp_path, Remote().file())
    (tmp_path / "complete" / "file").write_bytes(b"something else")
    assert fetch(tmp_path, Remote().file()) == {"file": CONTENT}


def test_a_broken_connection_costs_only_what_was_lost(tmp_path: Path) -> None:
    remote = Remote(failing_reads=5)
    assert fetch(tmp_path, remote.file()) == {"file": CONTENT}
    assert remote.read_bytes == len(CONTENT)


def test_a_source_that_breaks_off_again_and_again_is_given_up(tmp_path: Path) -> None:
    def read(begin: int, end: int) -> Iterator[bytes]:
        raise TransferInterrupted("broke off")

    with pytest.raises(SourceUnavailable, match="again and again"):
        fetch(tmp_path, RemoteFile("file", 10, read))


@pytest.mark.parametrize("piece", [b"", b"12345678901"])
def test_a_source_that_sends_too_little_or_too_much_is_refused(
    tmp_path: Path, piece: bytes
) -> None:
    with pytest.raises(SourceUnavailable):
        fetch(tmp_path, RemoteFile("file", 10, lambda begin, end: iter([piece])))


@pytest.mark.parametrize("stop_at", [0, PART // 2, PART, 7 * PART + 5, 20 * PART])
def test_a_download_goes_on_where_it_was_stopped(tmp_path: Path, stop_at: int) -> None:
    first, second = Remote(), Remote()
    first.stop_at = stop_at
    with pytest.raises(SourceUnavailable, match="is gone"):
        fetch(tmp_path, first.file())
    assert fetch(tmp_path, second.file()) == {"file": CONTENT}
    assert second.read_bytes <= len(CONTENT) - stop_at // PART * PART


def test_a_partial_file_that_was_damaged_is_read_again_from_there(tmp_path: Path) -> None:
    first, second = Remote(), Remote()
    first.stop_at = 10 * PART
    with pytest.raises(SourceUnavailable):
        fetch(tmp_path, first.file())
    partial = tmp_path / "partial" / "file"
    content = bytearray(partial.read_bytes())
    content[5 * PART + 7] ^= 1
    partial.write_bytes(content)

    assert fetch(tmp_path, second.file()) == {"file": CONTENT}
    assert second.read_bytes >= len(CONTENT) - 6 * PART


@pytest.mark.parametrize("journal", [b"", b"\xff\n", b"1000 nonsense\n", b"9" * 30, b"0 0\n-1 0\n"])
def test_a_journal_of_nonsense_is_no_harm(tmp_path: Path, journal: bytes) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "file").write_bytes(b"x" * 3000)
    (tmp_path / "partial" / "file.journal").write_bytes(journal)
    assert fetch(tmp_path, Remote().file()) == {"file": CONTENT}


def test_a_partial_file_longer_than_the_source_is_cut(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "file").write_bytes(CONTENT + b"x" * 3000)
    assert fetch(tmp_path, Remote().file()) == {"file": CONTENT}


def test_wrong_content_is_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="arrived with sha256"):
        fetch(tmp_path, Remote().file(sha256="0" * 64))
    assert list((tmp_path / "partial").iterdir()) == []
    right = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(tmp_path, Remote().file(sha256=right)) == {"file": CONTENT}


def test_one_failure_stops_the_other_files_and_is_the_one_reported(tmp_path: Path) -> None:
    started = threading.Event()

    def endless(begin: int, end: int) -> Iterator[bytes]:
        while True:
            started.set()
            yield b""

    def failing(begin: int, end: int) -> Iterator[bytes]:
        started.wait()
        raise SourceUnavailable("no such file")

    with pytest.raises(SourceUnavailable, match="no such file"):
        fetch(tmp_path, RemoteFile("a", 10, endless), RemoteFile("b", 10, failing))


def test_the_cause_is_reported_even_if_its_consequences_end_first(tmp_path: Path) -> None:
    def read(begin: int, end: int) -> Iterator[bytes]:
        if begin:  # the file can't end before its other parts have
            time.sleep(0.1)
        raise SourceUnavailable("no such file")

    def endless(begin: int, end: int) -> Iterator[bytes]:
        while True:
            yield b""

    with pytest.raises(SourceUnavailable, match="no such file"):
        fetch(tmp_path, RemoteFile("a", 5 * PART, read), RemoteFile("b", 10, endless))


def test_too_little_room_is_said_before_anything_is_read(tmp_path: Path) -> None:
    remote = Remote()
    with pytest.raises(StoreUnavailable, match="room"):
        fetch(tmp_path, RemoteFile("file", 1 << 60, remote.read))
    assert remote.read_bytes == 0


def test_few_parts_are_under_way_at_once(tmp_path: Path) -> None:
    reading: set[int] = set()
    most = 0
    lock = threading.Lock()

    def read(begin: int, end: int) -> Iterator[bytes]:
        nonlocal most
        with lock:
            reading.add(begin)
            most = max(most, len(reading))
        yield CONTENT[begin:end]
        with lock:
            reading.discard(begin)

    fetch(tmp_path, RemoteFile("file", len(CONTENT), read))
    assert 1 <= most <= transfer_module._MAX_PARTS_AHEAD
