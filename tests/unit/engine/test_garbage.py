import gc
import weakref
from collections.abc import Iterator

import pytest

from engine.garbage import FULL_PERIOD_S, YOUNG_OBJECTS, GarbageCollector


class Node:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def make_garbage() -> "weakref.ref[Node]":
    return weakref.ref(Node())


class Clock:
    """Goes on by a tenth of a second with every look at it."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """So that each test need not walk what others left behind."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def garbage(clock: Clock) -> Iterator[GarbageCollector]:
    collector = GarbageCollector(clock)
    collector.take_over()
    yield collector
    gc.enable()


def test_nothing_is_collected_by_itself(garbage: GarbageCollector) -> None:
    one = make_garbage()
    kept = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
    assert one() is not None
    assert len(kept) == 50_000
    assert garbage.totals.num_pauses == 0


def test_new_objects_are_looked_through_when_there_are_many(garbage: GarbageCollector) -> None:
    one = make_garbage()
    garbage.collect_between_steps()
    assert one() is not None, "a few are not worth a pause"
    kept = [[] for _ in range(YOUNG_OBJECTS)]  # type: ignore[var-annotated]
    garbage.collect_between_steps()
    garbage.collect_between_steps()
    assert one() is None
    assert len(kept) == YOUNG_OBJECTS
    assert garbage.totals.num_pauses == 1
    assert garbage.totals.pause_s == pytest.approx(0.1)
    assert garbage.totals.longest_pause_s == pytest.approx(0.1)


def test_what_became_garbage_when_it_was_old_goes_when_there_is_nothing_to_do(
    garbage: GarbageCollector,
) -> None:
    node = Node()
    old = weakref.ref(node)
    kept = [[] for _ in range(YOUNG_OBJECTS)]  # type: ignore[var-annotated]
    garbage.collect_between_steps()
    del node
    kept += [[] for _ in range(YOUNG_OBJECTS)]
    garbage.collect_between_steps()
    assert old() is not None, "it is not among the new ones any more"
    garbage.collect_idle()
    assert old() is None
    num_pauses = garbage.totals.num_pauses
    garbage.collect_idle()
    assert garbage.totals.num_pauses == num_pauses, "nothing is new"


def test_under_load_everything_is_looked_through_once_in_a_while(
    garbage: GarbageCollector, clock: Clock
) -> None:
    node = Node()
    old = weakref.ref(node)
    gc.collect(0)
    del node
    clock.now_s += FULL_PERIOD_S - 1
    garbage.collect_between_steps()
    assert old() is not None
    clock.now_s += 1
    garbage.collect_between_steps()
    assert old() is None
    garbage.collect_between_steps()
    assert garbage.totals.num_pauses == 1


def test_what_is_alive_at_the_start_is_never_looked_at(garbage: GarbageCollector) -> None:
    assert gc.get_freeze_count() > 10_000
    assert not gc.isenabled()


def test_leaves_a_process_alone_that_it_did_not_take_over() -> None:
    collector = GarbageCollector()
    kept = [[] for _ in range(YOUNG_OBJECTS)]  # type: ignore[var-annotated]
    collector.collect_idle()
    collector.collect_between_steps()
    assert len(kept) == YOUNG_OBJECTS
    assert collector.totals.num_pauses == 0
