"""The short form of the KV tiers' benchmark on the quickstart's model."""

from pathlib import Path

import pytest

from benchmarks import cache_tiers
from benchmarks.result import read_result
from tests.quickstart import quickstart_checkpoint

pytestmark = pytest.mark.integration


def arguments(out: Path, *cases: str) -> list[str]:
    return ["--short", "--pairs", "5", "--threads", "1", "--out", str(out), "--case", *cases]


def test_every_medium_is_held_against_its_limit(tmp_path: Path) -> None:
    out = tmp_path / "media.json"
    assert cache_tiers.main(arguments(out, "copies", "disk", "peer", "index")) == 0
    cases = {case.case: case for case in read_result(out).results}
    for name in (
        "cpu_restore_over_memcpy",
        "cpu_restore_over_memcpy_1_thread",
        "nvme_restore_over_read",
        "nvme_store_over_write",
        "peer_restore_over_tcp",
    ):
        ratio = cases[name].ratio
        assert ratio is not None
        assert ratio.num_pairs == 5
        assert ratio.median > 0.0
    assert 0.0 < cases["metadata_bytes_per_block"].value < 300.0
    assert cases["metadata_lookups_per_s"].value > 0.0


def test_idle_tiers_are_held_against_none(tmp_path: Path) -> None:
    out = tmp_path / "idle.json"
    checkpoint = str(quickstart_checkpoint().path)
    assert cache_tiers.main([*arguments(out, "idle"), "--checkpoint", checkpoint]) == 0
    [case] = read_result(out).results
    assert case.peer_value is not None
    assert 0.0 < case.value < 2.0 * case.peer_value


def test_a_prompt_comes_from_the_tier_named(tmp_path: Path) -> None:
    out = tmp_path / "ttft.json"
    checkpoint = str(quickstart_checkpoint().path)
    tiers = ("cpu", "nvme", "peer")
    cases = [f"ttft_{tier}" for tier in tiers]
    assert cache_tiers.main([*arguments(out, *cases), "--checkpoint", checkpoint]) == 0
    values = {case.case: case.value for case in read_result(out).results}
    for tier in tiers:
        assert values[f"restored_share_{tier}"] >= 0.9
        assert values[f"ttft_{tier}_of_limit"] < values[f"ttft_recompute_over_{tier}"]
    assert values["predicted_load_error_nvme"] >= 0.0
    assert values["predicted_load_error_peer"] >= 0.0


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    missing = ["--checkpoint", str(tmp_path / "none")]
    assert cache_tiers.main([*arguments(out, "ttft_cpu"), *missing]) == 1
    error = capsys.readouterr().err
    assert error.startswith("benchmarks.cache_tiers: ")
    assert error.count("\n") == 1
    assert not out.exists()
