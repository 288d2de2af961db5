"""Reading a device through memory of large pages."""

import mmap
import os
from pathlib import Path

import pytest

from cache_tiers.arena import has_huge_pages
from cache_tiers.disk.files import Files
from cache_tiers.disk.scratch import Scratch

PAGE = mmap.PAGESIZE


def pages(num: int) -> memoryview:
    return memoryview(mmap.mmap(-1, num * PAGE))


@pytest.mark.parametrize("scratch", [None, Scratch()])
def test_buffers_are_filled_one_after_the_other(tmp_path: Path, scratch: Scratch | None) -> None:
    content = os.urandom(6 * PAGE)
    files = Files(tmp_path, scratch)
    (tmp_path / "segment").write_bytes(content)
    buffers = [pages(2), pages(1), pages(1)]
    assert files.read("segment", buffers, PAGE) == 4 * PAGE
    assert b"".join(buffers) == content[PAGE : 5 * PAGE]


def test_what_the_file_no_longer_has_is_not_made_up(tmp_path: Path) -> None:
    files = Files(tmp_path, Scratch())
    (tmp_path / "segment").write_bytes(os.urandom(3 * PAGE))
    first, second = pages(2), pages(2)
    second[:] = b"\x07" * len(second)
    assert files.read("segment", [first, second], 0) == 3 * PAGE
    assert bytes(second) == b"\x07" * len(second)


def test_a_thread_keeps_its_memory_for_smaller_requests() -> None:
    scratch = Scratch()
    large = scratch._memory(3 * PAGE)
    assert scratch._memory(PAGE).obj is large.obj
    assert len(scratch._memory(PAGE)) == PAGE


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("always within_size advise [never] deny force", False),
        ("always within_size advise never [deny] force", False),
        ("always within_size [advise] never deny force", True),
        ("[always] within_size advise never deny force", True),
    ],
)
def test_the_kernel_says_whether_shared_memory_has_large_pages(
    tmp_path: Path, setting: str, *, expected: bool
) -> None:
    path = tmp_path / "shmem_enabled"
    path.write_text(setting + "\n")
    assert has_huge_pages(path) is expected
    assert not has_huge_pages(tmp_path / "missing")
