"""`headwater cost` from its arguments to what it prints."""

import argparse
import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from deployments.commands import cost
from deployments.cost.bill import fixed_rows
from deployments.cost.cluster_plan import cluster_plan
from deployments.cost.errors import MetricsUnfit
from deployments.cost.files import read_prices
from deployments.cost.report import CostReport
from deployments.cost.served_tokens import num_output_tokens, served_tokens_per_s

CLUSTER = {
    "name": "river",
    "region": "us-east-1",
    "zones": ["us-east-1a"],
    "head": {"instance_types": ["m7i.2xlarge"]},
    "pools": {
        "h100": {
            "instance_types": ["p5.48xlarge", "p5e.48xlarge"],
            "min_nodes": 0,
            "max_nodes": 4,
            "num_devices": 8,
            "markets": [{"market": "on-demand"}],
        }
    },
}
PAGE = """\
# TYPE headwater:tokens_total counter
headwater:tokens_total{{model_name="a",kind="completion"}} {completion}
headwater:tokens_total{{model_name="b",kind="completion"}} 10
headwater:tokens_total{{model_name="a",kind="prompt"}} 9000
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.auto.tfvars.json").write_text(json.dumps(CLUSTER), "utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cost.add_arguments(parser)
    return cost.run(parser.parse_args(["--cluster", str(folder), *arguments]))


def test_json_tells_each_choice_of_nodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--nodes", "h100=2", "--served-tokens-per-s", "3552", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [scene["name"] for scene in told["scenes"]] == [
        "at the least nodes", "at the most nodes", "at the nodes given",
    ]  # fmt: skip
    given = told["scenes"][2]
    assert given["workers_usd_per_hour"]["typical"] == pytest.approx(110.08)
    assert given["utilization"] == pytest.approx(0.5)
    # The head, one gateway, 12 endpoints and the load balancer: 0.4032 + 0.045 + 0.12 + 0.0225.
    assert given["usd_per_hour"]["typical"] == pytest.approx(110.08 + 0.5907)
    assert any("p5e.48xlarge" in warning for warning in told["warnings"])


def test_text_tells_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--nodes", "h100=2", "--served-tokens-per-s", "3552") == 0
    text = capsys.readouterr().out
    assert "110.67" in text
    assert "50.0%" in text


@pytest.mark.parametrize("nodes", ["h100", "h100=two", "l40s=1", "h100=-1"])
def test_nodes_that_can_not_be_are_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], nodes: str
) -> None:
    assert run(folder, "--nodes", nodes) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_old_table_of_another_region_is_warned_of() -> None:
    plan = cluster_plan({**CLUSTER, "region": "eu-west-1"}, "a test")
    prices = read_prices()
    report = CostReport(plan, prices, date(2027, 8, 7), tuple(fixed_rows(plan, prices)), ())
    assert report.warnings[0] == "prices are of 2026-08-06, 366 days old: check them"
    assert "eu-west-1" in report.warnings[1]
    assert "days old" not in " ".join(replace(report, today=date(2027, 8, 6)).warnings)


def test_the_rate_is_of_output_tokens_between_two_looks() -> None:
    pages = iter([PAGE.format(completion=100), PAGE.format(completion=600)])
    times = iter([0.0, 10.0])
    rate = served_tokens_per_s(
        "http://gateway/metrics",
        10.0,
        fetch=lambda url: next(pages),
        sleep=lambda time_s: None,
        clock=lambda: next(times),
    )
    assert rate == 50.0


def test_a_counter_that_fell_is_told() -> None:
    pages = iter([PAGE.format(completion=100), PAGE.format(completion=5)])
    with pytest.raises(MetricsUnfit, match="counted backwards"):
        served_tokens_per_s(
            "http://gateway/metrics",
            10.0,
            fetch=lambda url: next(pages),
            sleep=lambda time_s: None,
            clock=lambda: 0.0,
        )


def test_a_page_without_the_counter_is_told() -> None:
    with pytest.raises(MetricsUnfit, match="after its first answer"):
        num_output_tokens("# TYPE up gauge\nup 1\n")
