"""`headwater simulate` on a small trace writes a picture, a page and figures."""

import json
import re
from pathlib import Path

import pytest

from deployments.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROW = '{{"timestamp": {at_ms}, "input_length": 1500, "output_length": 20, "hash_ids": [0, {own}]}}'


def test_policies_are_drawn_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "<trace>.jsonl"
    trace.write_text("\n".join(ROW.format(at_ms=100 * n, own=n + 1) for n in range(60)))
    png, page, figures = (tmp_path / name for name in ("x.png", "x.html", "x.json"))
    arguments = ["--trace", str(trace), "--replicas", "3", "--gpu", "h100-llama2-70b-tp8"]
    written = ["--png", str(png), "--html", str(page), "--json", str(figures)]
    policies = ["--policy", "headwater", "round_robin"]
    assert main(["simulate", *arguments, *policies, *written]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "&lt;trace&gt; on 3 × h100-llama2-70b-tp8" in text
    assert text.count("<tr>") == 3
    assert "<svg" in text
    # Nothing is fetched: no script, style, image or link from elsewhere.
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text) == []
    assert "<script" not in text
    ours, rotated = json.loads(figures.read_text())
    assert (ours["label"], rotated["label"]) == ("headwater", "round_robin")
    assert ours["num_requests"] == rotated["num_requests"] == 60
    # One block of 512 tokens is everybody's.
    assert 0.25 < ours["hit_rate"] < 512 / 1500
    assert ours["cost"] > 0


def test_bad_input_exits_with_2_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", "absent.csv", "--replicas", "1", "--gpu", "teaching"]) == 2
    assert capsys.readouterr().err == "absent.csv cannot be read: No such file or directory\n"
