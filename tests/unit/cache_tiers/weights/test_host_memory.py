"""How much of a node's memory weights have."""

import os
import resource
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile


def files(*sizes: int) -> list[WeightFile]:
    return [WeightFile(f"model-{i}.safetensors", size) for i, size in enumerate(sizes)]


def memory(host_bytes: int, available_bytes: Callable[[], int] = lambda: 10**12) -> HostMemory:
    return HostMemory(host_bytes, available_bytes=available_bytes)


def test_files_are_counted_until_they_are_released() -> None:
    host = memory(1000)
    first, second = host.make_files(files(400, 100)), host.make_files(files(500))
    assert host.used_bytes == 1000
    host.release(first[:1])
    host.release(first)
    assert host.used_bytes == 500
    host.release(second)
    assert host.used_bytes == 0
    assert all(file.fd == -1 for file in (*first, *second))


def test_more_than_host_bytes_is_refused_with_the_sizes_and_the_knob() -> None:
    host = memory(3 * 10**9)
    made = host.make_files(files(2 * 10**9))
    with pytest.raises(NoRoom, match=r"1\.50 GB.* 3\.00 GB, of which 2\.00 GB.* raise host_bytes"):
        host.make_files(files(10**9, 5 * 10**8))
    assert host.used_bytes == 2 * 10**9
    host.release(made)


def test_memory_that_is_promised_but_not_filled_is_not_given_twice() -> None:
    available_bytes = 3 * CHUNK_BYTES
    host = memory(100 * CHUNK_BYTES, lambda: available_bytes)
    [first] = host.make_files(files(2 * CHUNK_BYTES))
    with pytest.raises(NoRoom, match=r"0\.02 GB .* of which 0\.01 GB are free"):
        host.make_files(files(2 * CHUNK_BYTES))
    first.mark(0)
    available_bytes -= CHUNK_BYTES
    with pytest.raises(NoRoom):
        host.make_files(files(2 * CHUNK_BYTES))
    host.release(host.make_files(files(CHUNK_BYTES)))
    host.release([first])


def test_all_files_are_made_or_none() -> None:
    host = memory(10**9)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, _open_fds())) + 3, limits[1]))
    try:
        with pytest.raises(NoRoom, match="raise the limit on open files"):
            host.make_files(files(*[1] * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert host.used_bytes == 0
    assert len(os.listdir("/proc/self/fd")) == num_open


def _open_fds() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_a_model_of_no_bytes_needs_no_room() -> None:
    host = memory(0)
    [empty] = host.make_files(files(0))
    assert empty.is_whole
    host.release([empty])


@given(
    st.lists(st.one_of(st.lists(st.integers(0, 500), max_size=3), st.integers(0, 5)), max_size=20)
)
def test_used_bytes_are_the_sum_of_what_is_held_and_never_above_the_limit(
    steps: Sequence[list[int] | int],
) -> None:
    host = memory(1000)
    held: list[list[ArrivingFile]] = []
    for step in steps:
        used_bytes = sum(file.file.num_bytes for made in held for file in made)
        if isinstance(step, int):
            if step < len(held):
                host.release(held.pop(step))
        elif used_bytes + sum(step) > 1000:
            with pytest.raises(NoRoom):
                host.make_files(files(*step))
        else:
            held.append(host.make_files(files(*step)))
        assert host.used_bytes == sum(file.file.num_bytes for made in held for file in made) <= 1000
    for made in held:
        host.release(made)
