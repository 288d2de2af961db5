"""A file that is read while it arrives."""

import hashlib
import mmap
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, OriginFailed
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile

SIZE = 2 * CHUNK_BYTES + 4097
CONTENT = bytes(range(251)) * (SIZE // 251 + 1)


@pytest.fixture
def arriving() -> Iterator[ArrivingFile]:
    file = ArrivingFile.in_memory(WeightFile("model.safetensors", SIZE))
    yield file
    file.close()


def put(file: ArrivingFile, index: int) -> None:
    begin = index * CHUNK_BYTES
    with file.chunk(index) as memory:
        memory[:] = CONTENT[begin : begin + len(memory)]
    file.mark(index)


def test_it_is_whole_once_every_chunk_is_marked(arriving: ArrivingFile) -> None:
    for index in (2, 0):
        put(arriving, index)
        assert not arriving.is_whole
    assert arriving.num_arrived_bytes == CHUNK_BYTES + 4097
    assert [arriving.has(index) for index in range(3)] == [True, False, True]
    put(arriving, 1)
    put(arriving, 1)
    assert arriving.is_whole
    assert arriving.num_arrived_bytes == SIZE


def test_hashing_follows_what_arrives_in_any_order(arriving: ArrivingFile) -> None:
    found: list[str] = []
    hashing = threading.Thread(target=lambda: found.append(arriving.sha256(silence_s=10)))
    hashing.start()
    for index in (2, 1, 0):
        put(arriving, index)
    hashing.join()
    assert found == [hashlib.sha256(CONTENT[:SIZE]).hexdigest()]


def test_hashing_gives_up_when_nothing_comes(arriving: ArrivingFile) -> None:
    put(arriving, 0)
    with pytest.raises(OriginFailed, match=r"nothing came for 0\.05 s"):
        arriving.sha256(silence_s=0.05)


def test_who_waits_learns_of_a_failure_but_keeps_what_is_there(arriving: ArrivingFile) -> None:
    put(arriving, 0)
    failing = threading.Timer(0.02, arriving.fail, [OriginFailed("the source is gone")])
    failing.start()
    with pytest.raises(OriginFailed, match="the source is gone"):
        arriving.wait_for(1, timeout_s=10)
    assert arriving.wait_for(0, timeout_s=0)
    failing.join()


def test_digests_are_told_or_computed_also_after_sealing(arriving: ArrivingFile) -> None:
    arriving.mark(0, b"told")
    put(arriving, 1)
    put(arriving, 2)
    arriving.seal()
    assert arriving.digest(0) == b"told"
    assert arriving.digest(2) == xxhash.xxh3_128_digest(CONTENT[2 * CHUNK_BYTES : SIZE])
    assert arriving.digest(2) is arriving.digest(2)


def test_what_is_sealed_changes_no_more_and_is_mapped_by_others(arriving: ArrivingFile) -> None:
    for index in range(3):
        put(arriving, index)
    arriving.seal()
    for change in (
        lambda: os.pwrite(arriving.fd, b"x", 0),
        lambda: os.ftruncate(arriving.fd, 1),
        lambda: os.ftruncate(arriving.fd, SIZE + 1),
    ):
        with pytest.raises(PermissionError):
            change()
    with Path(f"/proc/{os.getpid()}/fd/{arriving.fd}").open("rb") as other:
        mapped = mmap.mmap(other.fileno(), SIZE, access=mmap.ACCESS_READ)
        arriving.close()
        assert mapped[:] == CONTENT[:SIZE]
        mapped.close()


def test_a_chunk_in_use_outlives_closing(arriving: ArrivingFile) -> None:
    with arriving.chunk(0) as memory:
        arriving.close()
        arriving.close()
        memory[:3] = b"abc"
        assert bytes(memory[:3]) == b"abc"


def test_who_reads_it_never_reads_another_file_once_it_is_closed(
    arriving: ArrivingFile, tmp_path: Path
) -> None:
    put(arriving, 0)
    number = arriving.fd
    with arriving.opened() as fd:
        arriving.close()
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        try:
            assert other == number, "the number is given to the next one"
            assert os.pread(fd, 9, 0) == CONTENT[:9]
            with pytest.raises(OriginFailed, match="was let go"):
                arriving.digest(0)
        finally:
            os.close(other)


def test_too_many_open_files_are_a_failure_of_the_reader_alone(arriving: ArrivingFile) -> None:
    put(arriving, 0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (arriving.fd, limits[1]))
    try:
        with pytest.raises(OriginFailed, match="can't be opened: Too many open files"):
            arriving.digest(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert arriving.digest(0) == xxhash.xxh3_128_digest(CONTENT[:CHUNK_BYTES])


def test_an_empty_file_is_whole_at_once(tmp_path: Path) -> None:
    for file in (
        ArrivingFile.in_memory(WeightFile("empty", 0)),
        ArrivingFile.on_disk(WeightFile("empty", 0), tmp_path / "empty"),
    ):
        assert file.is_whole
        assert file.num_chunks == 0
        assert file.sha256(silence_s=0) == hashlib.sha256().hexdigest()
        file.mark_until(0)
        file.seal()
        file.close()


def test_a_file_on_disk_keeps_what_was_there_and_gets_its_size(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"abc")
    file = ArrivingFile.on_disk(WeightFile("model.safetensors", 10_000), path)
    with file.chunk(0) as memory:
        assert bytes(memory[:4]) == b"abc\0"
        memory[3:] = b"d" * 9_997
    file.mark(0)
    file.seal()
    file.close()
    assert path.read_bytes() == b"abc" + b"d" * 9_997


def test_no_room_is_told_with_the_size(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match=r"vast \(9000000000.00 GB\) in this node's memory"):
        ArrivingFile.in_memory(WeightFile("vast", 9 * 10**18))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(NoRoom, match="in this node's disk: File too large"):
            ArrivingFile.on_disk(WeightFile("large", 8192), tmp_path / "large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_cannot_be_written_is_no_lack_of_room(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArrivingFile.on_disk(WeightFile("x", 1), tmp_path / "missing" / "x")


def test_a_file_that_is_on_its_way_to_another_node_is_sealed(arriving: ArrivingFile) -> None:
    for index in range(3):
        put(arriving, index)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        num_sent = os.sendfile(sender.fileno(), arriving.fd, 0, 4096)  # nobody reads it yet
        arriving.seal()
        with pytest.raises(PermissionError):
            mmap.mmap(arriving.fd, SIZE)
        assert receiver.recv(num_sent) == CONTENT[:num_sent]


NUM_CHUNKS = 5
LAST_BYTES = 77
TOTAL = (NUM_CHUNKS - 1) * CHUNK_BYTES + LAST_BYTES
MARKS = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), st.integers(0, NUM_CHUNKS - 1)),
        st.tuples(st.just("until"), st.integers(0, TOTAL + 10)),
        st.tuples(
            st.just("until"),
            st.integers(0, NUM_CHUNKS).map(lambda index: index * CHUNK_BYTES),
        ),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(marks=MARKS)
def test_marks_count_each_chunk_once_and_only_whole_ones(marks: list[tuple[str, int]]) -> None:
    file = ArrivingFile.in_memory(WeightFile("model.safetensors", TOTAL))
    try:
        expected: set[int] = set()
        for kind, value in marks:
            if kind == "mark":
                file.mark(value)
                expected.add(value)
            else:
                file.mark_until(value)
                ends = [min(TOTAL, (i + 1) * CHUNK_BYTES) for i in range(NUM_CHUNKS)]
                expected |= {i for i, end in enumerate(ends) if end <= value}
            assert {i for i in range(NUM_CHUNKS) if file.has(i)} == expected
            assert file.num_arrived_bytes == sum(map(file.chunk_bytes, expected))
            assert file.is_whole is (len(expected) == NUM_CHUNKS)
            assert all(file.wait_for(i, 0) is (i in expected) for i in range(NUM_CHUNKS))
    finally:
        file.close()


def test_leading_chunks_are_those_before_the_first_that_is_missing() -> None:
    file = ArrivingFile.in_memory(WeightFile("a", 3 * CHUNK_BYTES))
    counts = [file.num_leading_chunks]
    for index in (1, 0, 2):
        file.mark(index)
        counts.append(file.num_leading_chunks)
    file.close()
    assert counts == [0, 0, 2, 3]
