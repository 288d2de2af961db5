import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.slabs import SlabAllocator

SLAB_BYTES = 1000
SIZES = (100, 240, 1000)


def test_slots_of_one_size_fill_a_slab_before_another_is_begun() -> None:
    slabs = SlabAllocator(2, SLAB_BYTES)
    assert [slabs.allocate(300) for _ in range(4)] == [0, 300, 600, 1000]


def test_a_slab_serves_another_size_only_when_it_is_empty() -> None:
    slabs = SlabAllocator(1, SLAB_BYTES)
    first, second = slabs.allocate(240), slabs.allocate(240)
    assert first is not None
    assert second is not None
    slabs.free(first)
    assert slabs.allocate(100) is None
    slabs.free(second)
    assert slabs.allocate(100) == 0


def test_slab_mates_are_what_keeps_a_slab_from_another_size() -> None:
    slabs = SlabAllocator(2, SLAB_BYTES)
    offsets = [slabs.allocate(240) for _ in range(5)]
    assert offsets == [0, 240, 480, 720, 1000]
    assert slabs.slab_mates(480) == [0, 240, 720]
    assert slabs.slab_mates(1000) == []
    slabs.free(240)
    assert slabs.slab_mates(480) == [0, 720]


def test_a_size_over_a_slab_fits_nowhere() -> None:
    slabs = SlabAllocator(4, SLAB_BYTES)
    assert slabs.capacity(1001) == 0
    assert slabs.allocate(1001) is None
    assert slabs.capacity(240) == 16


def test_giving_back_what_is_not_held_is_noticed() -> None:
    slabs = SlabAllocator(2, SLAB_BYTES)
    offset = slabs.allocate(240)
    assert offset is not None
    slabs.allocate(240)
    with pytest.raises(AssertionError, match="no slot begins"):
        slabs.free(offset + 1)
    slabs.free(offset)
    with pytest.raises(AssertionError, match="twice"):
        slabs.free(offset)
    with pytest.raises(AssertionError, match="nothing is allocated in slab 1"):
        slabs.free(SLAB_BYTES)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=120))
def test_used_slots_never_overlap_and_none_is_lost(steps: list[tuple[bool, int]]) -> None:
    slabs = SlabAllocator(3, SLAB_BYTES)
    used: dict[int, int] = {}
    for is_allocation, choice in steps:
        if is_allocation:
            size = SIZES[choice % len(SIZES)]
            offset = slabs.allocate(size)
            if offset is not None:
                used[offset] = size
        elif used:
            offset = sorted(used)[choice % len(used)]
            del used[offset]
            slabs.free(offset)
        slabs.check_integrity()
        ends = [offset + size for offset, size in sorted(used.items())]
        begins = sorted(used)
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
        assert all(
            begin // SLAB_BYTES == (end - 1) // SLAB_BYTES
            for end, begin in zip(ends, begins, strict=True)
        )
        for offset in used:
            mates = {other for other in used if other // SLAB_BYTES == offset // SLAB_BYTES}
            assert set(slabs.slab_mates(offset)) == mates - {offset}
    for offset in used:
        slabs.free(offset)
    assert slabs.num_empty_slabs == 3
