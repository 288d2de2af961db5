"""Torch serves wherever the compiled step can't be had, for all ranks alike."""

import errno
import logging
import os
from pathlib import Path
from typing import Any, cast

import pytest

from engine.collectives import Collectives
from engine.config import EngineConfig
from engine.errors import CompiledStepUnavailable, EngineConfigError
from engine.models.registry import read_model_config
from engine.native.library import StepLibrary
from engine.native.selection import choose_library, loaded_openmp
from engine.native.support import reason_against
from tests.unit.engine.native.test_support import LLAMA
from tests.unit.engine.thread_ranks import run_ranks

LIBRARY = cast(StepLibrary, "library")
MODEL = read_model_config(LLAMA | {"intermediate_size": 48})


def good() -> StepLibrary:
    return LIBRARY


def broken() -> StepLibrary:
    raise CompiledStepUnavailable("g++ failed with exit status 1: api.h:3: error")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where a library lies, so that no compiler is needed."""
    (tmp_path / "step-1-2.so").touch()
    if reason_against(EngineConfig(), MODEL, tmp_path) is not None:
        pytest.skip("this machine can't run the compiled step")
    return tmp_path


def test_it_is_used_where_it_can_be(cache: Path) -> None:
    assert choose_library(EngineConfig(), MODEL, cache, None, good) is LIBRARY


def test_torch_serves_after_a_compiler_failed_and_a_line_says_why(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_library(EngineConfig(), MODEL, cache, None, broken) is None
    (line,) = caplog.messages
    assert line.startswith("torch runs the layers, not the compiled step: g++ failed with exit")


def test_torch_serves_where_the_disk_fails(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full() -> StepLibrary:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert choose_library(EngineConfig(), MODEL, cache, None, full) is None
    assert "Input/output error" in caplog.text


@pytest.mark.parametrize("config", [{"compiled": "never"}, {"dtype": "float32"}])
def test_what_the_configuration_asks_for_is_no_warning(
    cache: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert choose_library(EngineConfig(**config), MODEL, cache, None, good) is None
    assert caplog.messages == []


@pytest.mark.parametrize("config", [{}, {"dtype": "float32"}])
def test_required_but_not_there_is_refused(cache: Path, config: dict[str, Any]) -> None:
    required = EngineConfig(compiled="require", **config)
    with pytest.raises(EngineConfigError, match="Set compiled to 'auto' to do without"):
        choose_library(required, MODEL, cache, None, broken)


def test_ranks_agree_on_torch_if_one_of_them_has_no_library(cache: Path) -> None:
    config = EngineConfig(tensor_parallel_size=2)

    def choose(collectives: Collectives, *, is_second_broken: bool) -> StepLibrary | None:
        is_broken = is_second_broken and collectives.rank.rank == 1
        return choose_library(config, MODEL, cache, collectives, broken if is_broken else good)

    assert run_ranks(2, lambda rank: choose(rank, is_second_broken=True)) == [None, None]
    assert run_ranks(2, lambda rank: choose(rank, is_second_broken=False)) == [LIBRARY] * 2


def test_torchs_openmp_is_found_among_what_is_loaded(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0-7f1 r-xp 00000000 fe:00 12  /a place/libgomp-24e2.so.1\n7f2-7f3 rw-p 0 0 0\n"
    )
    assert loaded_openmp(maps) == Path("/a place/libgomp-24e2.so.1")
    maps.write_text("")
    assert loaded_openmp(maps) is None
