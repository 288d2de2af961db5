"""Libraries are compiled once, and anew when the cache holds what is broken."""

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from engine.errors import CompiledStepUnavailable
from engine.native import library_cache
from engine.native.file_lock import held_lock
from engine.native.library import StepLibrary
from engine.native.library_cache import (
    LibraryCache,
    find_libraries,
    library_key,
    reason_to_distrust,
)
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

    def open(self, folder: Path, lock_limit_s: float = 60.0) -> object:
        cache = LibraryCache(
            folder,
            KEY,
            openmp=None,
            find=self.find,
            load=self._load,
            lock_limit_s=lock_limit_s,
        )
        return cache.open()

    def find(self) -> Compiler:
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
    folder.mkdir(mode=0o700)
    (folder / ".new-half.so").write_bytes(b"half")
    machine.open(folder)
    assert not (folder / ".new-half.so").exists()


def test_without_the_lock_another_process_keeps_what_it_is_compiling(
    tmp_path: Path, machine: Machine
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / ".new-other.so").write_bytes(b"half")
    with held_lock(folder / "lock", limit_s=0):
        assert machine.open(folder, lock_limit_s=0) == b"library"
    assert (folder / ".new-other.so").exists()
    assert len(find_libraries(folder, KEY)) == 1


def test_a_library_that_is_cleared_away_before_it_is_in_place_serves_all_the_same(
    tmp_path: Path, machine: Machine
) -> None:
    folder = tmp_path / "cache"

    def clear(path: Path) -> StepLibrary:
        path.unlink()
        return cast(StepLibrary, "loaded")

    cache = LibraryCache(folder, KEY, openmp=None, find=machine.find, load=clear)
    found: object = cache.open()
    assert found == "loaded"
    assert machine.num_runs == 1


def test_the_key_is_of_the_processor_torch_and_its_openmp() -> None:
    here = Processor("Linux", "x86_64", frozenset(NEEDED_FLAGS))
    larger = Processor("Linux", "x86_64", frozenset((*NEEDED_FLAGS, "avx512_bf16")))
    openmp = Path("/a/libgomp-1.so")
    keys = {
        library_key(here, "2.13", openmp),
        library_key(larger, "2.13", openmp),
        library_key(here, "2.14", openmp),
        library_key(here, "2.13", Path("/a/libgomp-2.so")),
        library_key(here, "2.13", None),
    }
    assert len(keys) == 5
    assert library_key(here, "2.13", Path("/b/libgomp-1.so")) in keys


def test_nothing_is_logged_when_all_is_well(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    machine.open(tmp_path / "cache")
    assert caplog.messages == []


def test_a_broken_library_that_cannot_be_removed_is_done_without(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    machine.open(folder)
    (path,) = find_libraries(folder, KEY)

    def load(new: Path) -> StepLibrary:
        if new == path:  # by the time it is to be removed, it can't be
            path.unlink()
            path.mkdir()
            raise CompiledStepUnavailable("it can't be loaded")
        return cast(StepLibrary, "new")

    cache = LibraryCache(folder, KEY, openmp=None, find=machine.find, load=load)
    found: object = cache.open()
    assert found == "new"
    assert "can't be removed" in caplog.text
    assert "is not kept" in caplog.text


def test_without_any_place_to_compile_there_is_none(tmp_path: Path, machine: Machine) -> None:
    def load(path: Path) -> StepLibrary:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = LibraryCache(tmp_path / "cache", KEY, openmp=None, find=machine.find, load=load)
    with pytest.raises(CompiledStepUnavailable, match="No space left"):
        cache.open()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_costs_a_line_and_one_compilation(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "cache"
    machine.open(folder)
    (path,) = find_libraries(folder, KEY)
    path.unlink()
    make(path)
    assert machine.open(folder) == b"library"
    assert machine.num_runs == 2
    assert "it is no file" in caplog.text
    assert ("is not kept" in caplog.text) == path.is_dir()


def test_a_full_disk_costs_the_cache_alone(
    tmp_path: Path,
    machine: Machine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_cache, "_NEEDED_BYTES", 1 << 62)
    folder = tmp_path / "cache"
    assert machine.open(folder) == b"library"
    assert find_libraries(folder, KEY) == []
    (line,) = caplog.messages
    assert "is not kept" in line
    assert "No space left" in line


def test_a_library_that_others_can_write_is_not_loaded(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    machine.open(folder)
    (path,) = find_libraries(folder, KEY)
    path.write_bytes(b"planted" + hashlib.sha256(b"planted").digest())
    path.chmod(0o775)
    assert machine.open(folder) == b"library"
    assert machine.num_runs == 2
    (line,) = caplog.messages
    assert "is compiled anew" in line
    assert "can be written by other users" in line
    assert machine.open(folder) == b"library"  # what was put in its place is kept
    assert machine.num_runs == 2


def test_nothing_of_a_folder_that_others_can_write_is_loaded(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    machine.open(folder)
    (path,) = find_libraries(folder, KEY)
    path.write_bytes(b"planted" + hashlib.sha256(b"planted").digest())
    folder.chmod(0o1777)
    assert machine.open(folder) == b"library"
    assert "can be written by other users" in caplog.text
    machine.compiler = None
    with pytest.raises(CompiledStepUnavailable, match=r"there is no g\+\+"):
        machine.open(folder)
    assert path.exists()


def test_what_belongs_to_another_user_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.touch()
    path.chmod(0o755)
    assert reason_to_distrust(path) is None
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)  # root itself is trusted
    owner = path.stat().st_uid
    assert reason_to_distrust(path, owner) is None
    assert f"belongs to user {owner}" in str(reason_to_distrust(path, owner + 1))
    assert reason_to_distrust(tmp_path / "absent") is None
