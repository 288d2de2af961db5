"""The start-up benchmark: who is measured when, and what is made of it."""

import socket
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.startup import Contestant, measure_pairs, parse_options, results_of

OURS, BARE = Contestant(Path("ours"), "/", None), Contestant(Path("bare"), "/", None)


def test_who_goes_first_changes_from_pair_to_pair() -> None:
    order: list[Contestant] = []

    def measure(contestant: Contestant) -> float:
        order.append(contestant)
        return 10.0 + len(order) if contestant is OURS else 1.0 * len(order)

    ours_s, bare_s = measure_pairs(OURS, BARE, 3, measure)
    assert order == [OURS, BARE, BARE, OURS, OURS, BARE]
    assert (ours_s, bare_s) == ([11.0, 14.0, 15.0], [2.0, 3.0, 6.0])


def test_how_much_later_is_the_median_of_the_pairs_differences() -> None:
    first_answer, later = results_of([10.0, 12.0, 11.0, 30.0, 12.0], [4.0, 5.0, 4.0, 20.0, 6.0])
    assert (first_answer.value, first_answer.peer_value) == (12.0, 5.0)
    assert (later.value, later.limit) == (7.0, 8.0)


def test_too_few_pairs_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--out", "x.json", "--pairs", "4"])
    assert "at least 5" in capsys.readouterr().err


def test_a_server_that_is_there_already_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(startup, "PORT", other.getsockname()[1])
        with pytest.raises(RuntimeError, match="is in use"):
            startup.measure(startup.echo(tmp_path))
