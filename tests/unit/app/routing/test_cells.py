"""Fleets of any size in cells: bounded, balanced, and stable when replicas come and go."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.cells import (
    MAX_CELL_REPLICAS,
    CellPair,
    assign_cells,
    cell_pair,
    choose_cell,
    served_cells,
)


def engine_ids(num_replicas: int) -> list[str]:
    return [f"engine-{number}" for number in range(num_replicas)]


def test_a_small_fleet_is_one_cell() -> None:
    cells = assign_cells(engine_ids(64))
    assert len(cells) == 1
    assert len(cells.members[0]) == 64
    assert assign_cells([]).members == ((),)
    assert cell_pair(7, [0]) == CellPair(0, 0)


def test_seven_hundred_replicas_are_spread_evenly() -> None:
    cells = assign_cells(engine_ids(700))
    sizes = [len(members) for members in cells.members]
    assert len(sizes) == 13
    assert max(sizes) <= MAX_CELL_REPLICAS
    assert min(sizes) >= 0.75 * 700 / 13


@settings(max_examples=25, deadline=None)
@given(
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=30),
    max_cell_replicas=st.integers(1, 20),
)
def test_every_replica_is_in_one_cell_with_room_and_gateways_agree(
    changes: list[tuple[bool, int]], max_cell_replicas: int
) -> None:
    fleet: set[str] = set()
    cells = assign_cells(fleet, max_cell_replicas=max_cell_replicas)
    for is_join, number in changes:
        names = {f"engine-{name}" for name in range(number, number + 7)}
        fleet = fleet | names if is_join else fleet - names
        cells = assign_cells(fleet, before=cells, max_cell_replicas=max_cell_replicas)
        assert {id_ for members in cells.members for id_ in members} == fleet
        assert sum(map(len, cells.members)) == len(fleet)
        assert all(len(members) <= max_cell_replicas for members in cells.members)
        assert all(id_ in cells.members[cell] for id_, cell in cells.cell_of.items())
        shuffled = random.Random(number).sample(sorted(fleet), len(fleet))
        assert assign_cells(shuffled, before=cells, max_cell_replicas=max_cell_replicas) == cells


def test_a_replica_that_comes_or_goes_moves_hardly_any_other() -> None:
    fleet = engine_ids(700)
    cells = assign_cells(fleet)
    num_moved = []
    for number in range(0, 700, 35):
        left = assign_cells(fleet[:number] + fleet[number + 1 :], before=cells)
        joined = assign_cells([*fleet, f"new-{number}"], before=cells)
        num_moved += [
            sum(cells.cell_of.get(id_, cell) != cell for id_, cell in after.cell_of.items())
            for after in (left, joined)
        ]
    assert max(num_moved) <= 4
    assert sum(num_moved) <= len(num_moved)


def test_cells_of_which_many_are_full_still_move_few_replicas() -> None:
    fleet = engine_ids(300)
    cells = assign_cells(fleet, max_cell_replicas=8)
    num_full = sum(len(members) == 8 for members in cells.members)
    assert num_full > len(cells) / 4
    num_moved = []
    for number in range(40):
        left = assign_cells(fleet[:number] + fleet[number + 1 :], before=cells, max_cell_replicas=8)
        num_moved.append(sum(cells.cell_of[id_] != cell for id_, cell in left.cell_of.items()))
    assert sum(num_moved) / len(num_moved) < 1.5


def test_the_number_of_cells_stays_while_a_fleet_breathes() -> None:
    for middle in (64, 280, 672):
        cells = assign_cells(engine_ids(middle + 5))
        num_cells = set()
        for change in [*range(5, -6, -1), *range(-5, 6)]:
            cells = assign_cells(engine_ids(middle + change), before=cells)
            num_cells.add(len(cells))
        assert len(num_cells) == 1


def test_a_fleet_that_grew_has_as_many_cells_as_one_that_starts() -> None:
    cells = assign_cells(())
    for num_replicas in range(0, 701, 5):
        cells = assign_cells(engine_ids(num_replicas), before=cells)
    assert cells == assign_cells(engine_ids(700))
    assert len(assign_cells(engine_ids(30), before=cells)) == 1


def test_one_more_cell_takes_its_share_of_replicas_and_no_more() -> None:
    fleet = engine_ids(500)
    few = assign_cells(fleet)
    many = assign_cells([*fleet, *(f"new-{number}" for number in range(100))])
    assert len(many) == len(few) + 2
    num_moved = sum(few.cell_of[id_] != many.cell_of[id_] for id_ in fleet)
    assert num_moved / len(fleet) < 1.5 * 2 / len(many)


def test_gateways_serve_all_cells_alike() -> None:
    served = Counter(cell for rank in range(40) for cell in served_cells(13, rank, 2))
    assert set(served) == set(range(13))
    assert max(served.values()) - min(served.values()) <= 1
    assert served_cells(13, 3, 2) == (6, 7)
    assert served_cells(3, 5, 8) == (0, 1, 2)
    assert served_cells(13, -1, 2) == (11, 12), "routers count from the other end"


def test_affinities_spread_over_all_pairs_and_stay_when_a_cell_comes() -> None:
    pairs = [cell_pair(affinity, range(6)) for affinity in range(3000)]
    assert all(pair.preferred != pair.other for pair in pairs)
    uses = Counter(pair.preferred for pair in pairs)
    assert max(uses.values()) < 1.25 * min(uses.values())
    assert len(set(pairs)) == 30
    num_moved = sum(
        pair.preferred != cell_pair(affinity, range(7)).preferred
        for affinity, pair in enumerate(pairs)
    )
    assert num_moved / 3000 < 1.2 / 7


def test_a_request_stays_with_its_cell_unless_that_is_clearly_busier() -> None:
    pair = CellPair(2, 5)
    assert choose_cell(pair, {2: 0.0, 5: 0.0}) == 2
    assert choose_cell(pair, {2: 1.0, 5: 0.0}) == 2
    assert choose_cell(pair, {2: 8.0, 5: 6.0}) == 2
    assert choose_cell(pair, {2: 9.0, 5: 6.0}) == 5


def test_two_choices_level_what_a_few_busy_sessions_would_pile_up() -> None:
    """Sessions of very unequal size (Pareto) over 13 cells: the busiest cell is far less so."""
    draw = random.Random(1)
    one, two = Counter[int](), Counter[int]()
    for session in range(1000):
        pair = cell_pair(session, range(13))
        for _ in range(min(int(draw.paretovariate(1.3)), 500)):
            one[pair.preferred] += 1
            two[choose_cell(pair, {cell: float(two[cell]) for cell in pair})] += 1
    mean = one.total() / 13
    assert max(one.values()) / mean > 1.4
    assert max(two.values()) / mean < 1.25
