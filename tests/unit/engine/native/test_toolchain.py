"""A compiler that is missing, refuses, hangs or writes nonsense costs a clear reason, no more."""

import time
import tracemalloc
from pathlib import Path

import pytest

from engine.errors import CompiledStepUnavailable
from engine.native.toolchain import Compiler, compile_library, find_compiler, has_compiler

GNU = "echo 'g++ (Test) 12.2.0'; echo 'Copyright (C) 2022 Free Software Foundation, Inc.'"
WRITE = 'while [ "$1" != -o ]; do shift; done; printf library > "$2"'
"""What a compiler does with its last arguments."""


def write_script(folder: Path, body: str, name: str = "g++") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_machine_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    assert not has_compiler(str(tmp_path))
    with pytest.raises(CompiledStepUnavailable, match=r"no g\+\+ on this machine: install it"):
        find_compiler(str(tmp_path))


def test_the_first_gnu_compiler_is_taken(tmp_path: Path) -> None:
    write_script(tmp_path, "echo clang version 17")
    other = write_script(tmp_path, GNU, "c++")
    assert has_compiler(str(tmp_path))
    assert find_compiler(str(tmp_path)) == Compiler(str(other), "g++ (Test) 12.2.0")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo clang version 17", "is not GNU's"),
        ("exit 3", "failed with exit status 3: it said nothing"),
        ("printf '\\377\\376\\000'; exit 1", "failed with exit status 1"),
        ("kill -9 $$", "failed with exit status -9"),
    ],
)
def test_what_is_no_working_gnu_compiler_is_named(tmp_path: Path, body: str, reason: str) -> None:
    path = write_script(tmp_path, body)
    with pytest.raises(CompiledStepUnavailable, match=reason) as raised:
        find_compiler(str(tmp_path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "g++").write_bytes(b"\x7fELF garbage")
    (tmp_path / "g++").chmod(0o755)
    with pytest.raises(CompiledStepUnavailable, match="can't be started"):
        find_compiler(str(tmp_path))


def compile_with(folder: Path, body: str, limit_s: float = 10.0) -> Path:
    target = folder / "step.so"
    compiler = Compiler(str(write_script(folder, body)), "")
    compile_library(compiler, target, openmp=Path("/lib/libgomp.so.1"), limit_s=limit_s)
    return target


def test_the_library_is_linked_with_torchs_openmp(tmp_path: Path) -> None:
    target = compile_with(tmp_path, f'echo "$@" > {tmp_path}/arguments; {WRITE}')
    assert target.read_text() == "library"
    arguments = (tmp_path / "arguments").read_text()
    assert "layers.cpp" in arguments
    assert arguments.endswith(f" /lib/libgomp.so.1 -o {target}\n")


def test_a_failing_compiler_is_quoted_by_its_first_error(tmp_path: Path) -> None:
    says = "echo 'In file included from x'; echo 'api.h:3: error: no such type'; exit 1"
    with pytest.raises(CompiledStepUnavailable, match=r"exit status 1: api\.h:3: error: no such"):
        compile_with(tmp_path, says)


def test_a_compiler_without_output_is_told(tmp_path: Path) -> None:
    with pytest.raises(CompiledStepUnavailable, match="wrote no library"):
        compile_with(tmp_path, "exit 0")


def test_a_compiler_that_talks_without_end_fills_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CompiledStepUnavailable, match=r"exit status 1: an error"):
            compile_with(tmp_path, "yes an error | head -c 50000000; exit 1")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        with pytest.raises(CompiledStepUnavailable, match=r"took more than 0\.2 s"):
            compile_with(tmp_path, "exec yes an error", limit_s=0.2)
    finally:
        tracemalloc.stop()


def test_a_hanging_compiler_ends_with_all_that_it_started(tmp_path: Path) -> None:
    started_s = time.monotonic()
    with pytest.raises(CompiledStepUnavailable, match=r"took more than 0\.2 s"):
        compile_with(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait", limit_s=0.2)
    assert time.monotonic() - started_s < 5
    child = int((tmp_path / "child").read_text())
    while is_alive(child):
        assert time.monotonic() - started_s < 10
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A process that nobody has waited for yet is not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
