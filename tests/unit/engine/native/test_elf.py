"""A library that was cut short is told from a whole one before the linker dies of it."""

import _ctypes
import sys
from pathlib import Path

import pytest

from engine.errors import CompiledStepUnavailable
from engine.native.elf import is_cut_short
from engine.native.library import StepLibrary

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libraries are ELF on Linux")


@pytest.fixture(scope="module")
def library() -> bytes:
    """Some shared library of this machine."""
    return Path(_ctypes.__file__).read_bytes()


def test_a_whole_one_is_not_and_what_follows_it_does_no_harm(library: bytes) -> None:
    assert not is_cut_short(library)
    assert not is_cut_short(library + bytes(32))


@pytest.mark.parametrize("num_bytes", [16, 40, 64, 300, 4096, 20_000])
def test_one_without_its_end_is_never_loaded(
    tmp_path: Path, library: bytes, num_bytes: int
) -> None:
    assert is_cut_short(library[:num_bytes])
    path = tmp_path / "step.so"
    path.write_bytes(library[:num_bytes])
    with pytest.raises(CompiledStepUnavailable, match="is cut short"):
        StepLibrary(path)


@pytest.mark.parametrize("content", [b"", b"library", b"\x7fELF\x01\x01 of 32 bits"])
def test_what_is_no_library_is_left_to_the_linker(tmp_path: Path, content: bytes) -> None:
    assert not is_cut_short(content)
    path = tmp_path / "step.so"
    path.write_bytes(content)
    with pytest.raises(CompiledStepUnavailable, match="can't be loaded"):
        StepLibrary(path)
