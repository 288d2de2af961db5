"""Libraries are compiled once, and anew when the cache holds what is broken."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from engine.errors import CompiledStepUnavailable
from engine.native.library import StepLibrary
from engine.native.library_cache import LibraryCache, find_libraries, library_key
from engine.native.processor import NEEDED_FLAGS, Processor
from engine.native.toolchain import Compiler
from tests.unit.engine.native.test_toolchain import WRITE, write_script

KEY = "key"


class Machine:
    """A compiler that counts its runs, and a linker that takes what it wrote."""

    def __init__(self, folder: Path, body: str = WRITE) -> None:
        self.runs = folder / "runs"
        self.runs.touch()
        script = write_script(folder, f"echo run >> {self.runs}; {body}")
        self.compiler: Compiler | None = Compiler(str(script), "12.2.0")
        self.refused: set[bytes] = set()

    @property
    def num_runs(self) -> int:
        return len(self.runs.read_text().splitlines())

    def open(self, folder: Path) -> object:
        cache = LibraryCache(folder, KEY, openmp=None, find=self._find, load=self._load)
        return cache.open()

    def _find(self) -> Compiler:
        if self.compiler is None:
            raise CompiledStepUnavailable("there is no g++")
        return self.compiler

    def _load(self, path: Path) -> StepLibrary:
        content = path.read_bytes()[:-32]
        if content in self.refused:
            raise CompiledStepUnavailable("the library can't be loaded (invalid ELF header)")
        return cast(StepLibrary, content)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_second_start_loads_what_the_first_compiled(tmp_path: Path, machine: Machine) -> None:
    folder = tmp_path / "cache"
    assert machine.open(folder) == b"library"
    assert machine.open(folder) == b"library"
    assert machine.num_runs == 1
    assert folder.stat().st_mode & 0o077 == 0
    assert {path.name for path in folder.iterdir()} == {
        "lock",
        *(path.name for path in find_libraries(folder, KEY)),
    }


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize("damage", [cut, flip, lambda _: b""])
def test_a_corrupt_library_is_compiled_anew_with_a_line(
    tmp_path: Path,
    machine: Machine,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine.open(tmp_path / "cache")
    (path,) = find_libraries(tmp_path / "cache", KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert machine.open(tmp_path / "cache") == b"library"
    assert machine.num_runs == 2
    (line,) = caplog.messages
    assert "is compiled anew: it is corrupt" in line


def test_a_whole_library_that_does_not_load_is_compiled_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, WRITE.replace("library", "older"))
    machine.open(tmp_path / "cache")
    write_script(tmp_path, WRITE)
    machine.refused = {b"older"}
    assert machine.open(tmp_path / "cache") == b"library"
    assert "invalid ELF header" in caplog.text


def test_what_does_not_load_is_not_kept(tmp_path: Path, machine: Machine) -> None:
    machine.refused = {b"library"}
    with pytest.raises(CompiledStepUnavailable, match="invalid ELF header"):
        machine.open(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_copied_cache_serves_where_there_is_no_compiler(tmp_path: Path, machine: Machine) -> None:
    machine.open(tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "copy")
    machine.compiler = None
    assert machine.open(tmp_path / "copy") == b"library"
    with pytest.raises(CompiledStepUnavailable, match=r"there is no g\+\+"):
        machine.open(tmp_path / "elsewhere")


def test_of_many_at_once_one_compiles(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"sleep 0.1; {WRITE}")
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(machine.open(tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"library"] * 4
    assert machine.num_runs == 1


def test_without_a_folder_to_write_to_it_is_compiled_each_time(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert machine.open(tmp_path / "file" / "cache") == b"library"
    (line,) = caplog.messages
    assert "is not kept" in line


def test_left_overs_of_a_killed_process_go(tmp_path: Path, machine: Machine) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / ".new-half.so").write_bytes(b"half")
    machine.open(folder)
    assert not (folder / ".new-half.so").exists()


def test_the_key_is_of_the_processor_and_torch() -> None:
    here = Processor("Linux", "x86_64", frozenset(NEEDED_FLAGS))
    larger = Processor("Linux", "x86_64", frozenset((*NEEDED_FLAGS, "avx512_bf16")))
    keys = {library_key(here, "2.13"), library_key(larger, "2.13"), library_key(here, "2.14")}
    assert len(keys) == 3
    assert library_key(here, "2.13") in keys


def test_nothing_is_logged_when_all_is_well(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    machine.open(tmp_path / "cache")
    assert caplog.messages == []
