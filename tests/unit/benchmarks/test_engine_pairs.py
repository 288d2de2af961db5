import pytest

from benchmarks.engine_cases import Case, decode_case
from benchmarks.engine_pairs import IdleUse, measure_in_turn
from benchmarks.engine_timing import Speed


class Turns:
    """A clock and the order of turns, shared by the engines."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.names: list[str] = []


class FakeContestant:
    """Each turn takes 2 s; while it waits it uses a share of a core."""

    def __init__(self, name: str, turns: Turns, idle_cores: float = 0.0) -> None:
        self.name = name
        self._turns = turns
        self._idle_cores = idle_cores

    def measure(self, case: Case) -> Speed:
        self._turns.names.append(self.name)
        self._turns.now_s += 2.0
        return Speed(float(len(self._turns.names)), 0.1)

    def cpu_time_s(self) -> float:
        return self._turns.now_s * self._idle_cores


def test_engines_alternate_and_the_first_round_does_not_count() -> None:
    turns = Turns()
    engines = [FakeContestant("a", turns), FakeContestant("b", turns)]
    speeds = measure_in_turn(decode_case("d", 1), engines, 2, IdleUse(), lambda: turns.now_s)
    assert turns.names == ["a", "b"] * 3
    assert [speed.tokens_per_s for speed in speeds["a"]] == [3.0, 5.0]
    assert [speed.tokens_per_s for speed in speeds["b"]] == [4.0, 6.0]


def test_what_waiting_engines_use_is_counted_over_their_waits() -> None:
    turns, idle = Turns(), IdleUse()
    engines = [FakeContestant("a", turns), FakeContestant("b", turns, idle_cores=0.75)]
    for _ in range(2):
        measure_in_turn(decode_case("d", 1), engines, 2, idle, lambda: turns.now_s)
    assert idle.cores() == pytest.approx({"a": 0.0, "b": 0.75})
