import mmap
import os
from collections.abc import Iterator

import pytest

from cache_tiers.arena import Arena, ArenaError, ArenaMap

MIB = 1024**2


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(16 * MIB)
    yield arena
    arena.close()


def test_what_one_map_writes_the_other_reads(arena: Arena) -> None:
    engine = ArenaMap(arena.fd, arena.num_bytes)
    offset = arena.allocate(8192)
    assert offset is not None
    engine.memory[offset : offset + 5] = b"bytes"
    assert bytes(arena.memory[offset : offset + 5]) == b"bytes"
    engine.close()


def test_a_map_outlives_the_arena_that_made_it(arena: Arena) -> None:
    engine = ArenaMap(arena.fd, arena.num_bytes)
    arena.memory[:5] = b"bytes"
    arena.close()
    assert bytes(engine.memory[:5]) == b"bytes"
    engine.close()


def test_no_process_can_shrink_the_memory_below_another_ones_map(arena: Arena) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, MIB)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 2 * arena.num_bytes)


def test_closing_with_a_view_given_away_leaves_the_view_usable(arena: Arena) -> None:
    view = arena.memory[:8]
    arena.close()
    arena.close()
    view[:] = b"survives"
    assert bytes(view) == b"survives"


def test_too_little_memory_is_said_before_anything_is_taken() -> None:
    with pytest.raises(ArenaError, match=r"host_bytes is 16777216 .*15 MiB. are free: lower it"):
        Arena(16 * MIB, available_bytes=15 * MIB)


def test_descriptors_that_are_no_sealed_memory_are_refused(arena: Arena) -> None:
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, MIB)
    with pytest.raises(ArenaError, match="fixed size"):
        ArenaMap(unsealed, MIB)
    os.close(unsealed)
    reader, writer = os.pipe()
    with pytest.raises(ArenaError, match="no sealed memory"):
        ArenaMap(reader, MIB)
    os.close(reader)
    os.close(writer)
    with pytest.raises(ArenaError, match="expected"):
        ArenaMap(arena.fd, arena.num_bytes + mmap.PAGESIZE)


def test_slots_begin_at_pages_and_lie_in_the_memory(arena: Arena) -> None:
    image_bytes = 372736
    offsets = [arena.allocate(image_bytes) for _ in range(arena.capacity(image_bytes))]
    found = [offset for offset in offsets if offset is not None]
    assert len(found) == arena.capacity(image_bytes)
    assert arena.allocate(image_bytes) is None
    assert all(offset % mmap.PAGESIZE == 0 for offset in found)
    assert max(found) + image_bytes <= arena.num_bytes
    assert arena.slab_mates(found[0])


def test_pages_are_there_before_they_are_written(arena: Arena) -> None:
    arena_map = ArenaMap(arena.fd, arena.num_bytes)
    arena_map.wait_populated()
    assert os.fstat(arena.fd).st_blocks * 512 == arena.num_bytes
    arena_map.close()
