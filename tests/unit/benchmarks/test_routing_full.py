"""Policies with the production scheduler, on a few conversations."""

from pathlib import Path

import pytest

from benchmarks import routing_full
from benchmarks.routing_workload import CHAT


def test_each_case_stands_beside_every_other_policy() -> None:
    results = routing_full.measure(CHAT.workload("few", 12, 4.0, seed=1))
    cases = {result.case: result for result in results}
    for title in ("6000_exact", "6000_stale", "4600_exact", "4600_stale"):
        for peer in routing_full.POLICIES[1:]:
            ttft = cases[f"conversation_{title}_ttft_mean_beside_{peer}"]
            assert ttft.peer == peer
            assert 0 < ttft.value < 10
    # A prompt takes longer where less is computed per second.
    name = "ttft_mean_beside_conductor"
    slow, fast = (cases[f"conversation_{load}_exact_{name}"] for load in (4600, 6000))
    assert slow.value > fast.value


def test_without_traces_it_says_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWATER_TRACES", str(tmp_path))
    assert routing_full.main(["--out", str(tmp_path / "out.json")]) == 1
    assert "Traces come from" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
