"""A packed file is written once, found again, and replaced when it isn't the one that is needed."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.native.file_lock import held_lock
from engine.native.pack_file import Bytes, PackedWeights, PackLayout, lay_out, open_packed

SECTIONS = {"a": 100, "b": 64, "c": 1}
FACTS: dict[str, str | int] = {"weights": "abc", "rank": 0}


class Packer:
    """Sections of which each byte is known."""

    def __init__(self) -> None:
        self.num_times = 0

    def __call__(self) -> Iterator[tuple[str, Bytes]]:
        self.num_times += 1
        for index, (name, num_bytes) in enumerate(SECTIONS.items()):
            yield name, np.full(num_bytes, index + 1, dtype=np.uint8)


def check(packed: PackedWeights, *, is_mapped: bool = True) -> None:
    assert packed.is_mapped is is_mapped
    for index, (name, num_bytes) in enumerate(SECTIONS.items()):
        address = packed.address(name)
        assert address % 64 == 0 or not is_mapped
        assert ctypes.string_at(address, num_bytes) == bytes([index + 1]) * num_bytes


@pytest.fixture
def layout() -> PackLayout:
    return lay_out(SECTIONS, FACTS)


def test_the_second_process_maps_what_the_first_wrote(tmp_path: Path, layout: PackLayout) -> None:
    packer, path = Packer(), tmp_path / "packed"
    check(open_packed(path, layout, packer))
    check(open_packed(path, layout, packer))
    assert packer.num_times == 1
    assert path.stat().st_size == layout.num_bytes


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"",
        lambda content: b"HWPACKEX" + content[8:],
        lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
    ],
)
def test_a_broken_file_is_written_anew_with_a_line(
    tmp_path: Path,
    layout: PackLayout,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "packed"
    check(open_packed(path, layout, Packer()))
    path.write_bytes(damage(path.read_bytes()))
    check(open_packed(path, layout, Packer()))
    assert "is written anew" in caplog.text


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_costs_a_line(
    tmp_path: Path,
    layout: PackLayout,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], None],
) -> None:
    path = tmp_path / "packed"
    make(path)
    check(open_packed(path, layout, Packer()), is_mapped=path.is_file())
    assert "is no file" in caplog.text


@pytest.mark.parametrize("change", [{"weights": "abd"}, {"rank": 1}, {"dtype": "int8"}])
def test_weights_of_another_model_or_rank_are_not_used(
    tmp_path: Path, layout: PackLayout, change: dict[str, str | int]
) -> None:
    path = tmp_path / "packed"
    open_packed(path, lay_out(SECTIONS, FACTS | change), Packer())
    packer = Packer()
    check(open_packed(path, layout, packer))
    assert packer.num_times == 1


def test_without_a_place_to_write_memory_holds_them(
    tmp_path: Path, layout: PackLayout, caplog: pytest.LogCaptureFixture
) -> None:
    check(open_packed(tmp_path / "absent" / "packed", layout, Packer()), is_mapped=False)
    (line,) = caplog.messages
    assert "of this process's own memory" in line


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, layout: PackLayout, caplog: pytest.LogCaptureFixture
) -> None:
    packer = Packer()

    def contents() -> Iterator[tuple[str, Bytes]]:
        for number, section in enumerate(packer()):
            if number == 1 and packer.num_times == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield section

    check(open_packed(tmp_path / "packed", layout, contents), is_mapped=False)
    assert "No space left on device" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [".packed.lock"]


def test_a_file_too_large_for_the_disk_is_not_begun(tmp_path: Path) -> None:
    huge = lay_out({"a": 2**62}, FACTS)
    with pytest.raises((OSError, ValueError, MemoryError, OverflowError)):
        open_packed(tmp_path / "packed", huge, lambda: iter(()))  # nor does memory hold it
    assert [path.name for path in tmp_path.iterdir()] == [".packed.lock"]


def test_left_overs_of_a_killed_process_go(tmp_path: Path, layout: PackLayout) -> None:
    (tmp_path / ".packed.new-x").write_bytes(b"half")
    check(open_packed(tmp_path / "packed", layout, Packer()))
    assert not (tmp_path / ".packed.new-x").exists()


def test_without_the_lock_another_process_keeps_what_it_is_writing(
    tmp_path: Path, layout: PackLayout
) -> None:
    other = tmp_path / ".packed.new-x"
    other.write_bytes(b"half")
    with held_lock(tmp_path / ".packed.lock", limit_s=0):
        check(open_packed(tmp_path / "packed", layout, Packer(), lock_limit_s=0))
    assert other.exists()


@pytest.mark.parametrize("is_other_done", [False, True])
def test_a_file_that_is_cleared_away_while_it_is_written_is_done_without(
    tmp_path: Path, layout: PackLayout, *, is_other_done: bool
) -> None:
    path, packer = tmp_path / "packed", Packer()
    open_packed(tmp_path / "of another process", layout, Packer())

    def contents() -> Iterator[tuple[str, Bytes]]:
        yield from packer()
        for new in tmp_path.glob(".packed.new-*"):
            new.unlink()
            if is_other_done:
                (tmp_path / "of another process").rename(path)

    check(open_packed(path, layout, contents), is_mapped=is_other_done)
    assert packer.num_times == 1 + (not is_other_done)
