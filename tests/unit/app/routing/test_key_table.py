"""Bits of keys, the order in which keys are forgotten, and sweeps."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.routing.key_table import KeyTable
from cache_tiers.keys import KEY_BYTES


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


@given(
    held=st.dictionaries(st.integers(0, 9), st.integers(1, 3)),
    more=st.dictionaries(st.integers(0, 9), st.integers(1, 3)),
    asked=st.lists(st.integers(0, 9)),
    max_keys=st.sampled_from([1000, 1]),
)
def test_runs_are_the_bits_of_the_keys_up_to_the_first_without_any(
    held: dict[int, int], more: dict[int, int], asked: list[int], max_keys: int
) -> None:
    table = KeyTable()
    table.fit(max_keys)
    for number, bits in held.items():
        table.add(bits, [key(number)])
    kept = held if max_keys > 1 else dict(list(held.items())[-1:])
    expected = [kept.get(number, 0) | more.get(number, 0) for number in asked]
    more_of = {key(number): bits for number, bits in more.items()}
    runs = list(table.runs([key(number) for number in asked], more_of))
    first_without = next((i for i, bits in enumerate(expected) if not bits), len(expected))
    assert [bits for bits, num_keys in runs for _ in range(num_keys)] == expected[:first_without]
    assert all(run[0] != after[0] for run, after in pairwise(runs))
    table.check_integrity(3)


def test_a_smaller_bound_drops_the_keys_used_longest_ago() -> None:
    table = KeyTable()
    table.fit(100)
    table.add(1, [key(number) for number in range(60)])
    table.fit(40)
    assert len(table) == 30
    assert list(table.runs([key(29)], {})) == []
    assert list(table.runs([key(30)], {})) == [(1, 1)]
    assert list(table.runs([key(number) for number in range(42, 60)], {})) == [(1, 18)]


def test_retired_bits_are_gone_from_all_keys_after_a_sweep_in_slices() -> None:
    table = KeyTable()
    table.fit(4000)
    table.add(1, [key(number) for number in range(1000)])
    table.add(2, [key(number) for number in range(500, 1500)])
    table.retire(1)
    num_slices = 0
    while table.retired_bits:
        table.sweep_on(10)
        num_slices += 1
    assert num_slices > 5
    assert len(table) == 1000
    table.check_integrity(2)
