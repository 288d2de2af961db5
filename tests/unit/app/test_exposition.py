"""Merging metrics pages: every series keeps its replica's name, and no page can spoil another."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.exposition import Page, merge_pages


def page_of(count: int) -> str:
    registry = CollectorRegistry()
    Counter("headwater:x", "X.", ["model_name"], registry=registry).labels('a"b\\').inc(count)
    Histogram("headwater:y_seconds", "Y.", registry=registry, buckets=(1.0,)).observe(0.5)
    return generate_latest(registry).decode()


def samples_of(*pages: Page) -> dict[tuple[str, str], float]:
    families = list(text_string_to_metric_families(merge_pages(pages).decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "one HELP and TYPE per family"
    return {(s.name, s.labels["replica"]): s.value for f in families for s in f.samples}


def test_each_series_carries_its_replica() -> None:
    samples = samples_of(Page("r1", "gateway", page_of(1)), Page("r2", "engine", page_of(2)))
    assert samples["headwater:x_total", "r1"] == 1
    assert samples["headwater:x_total", "r2"] == 2
    assert samples["headwater:y_seconds_count", "r2"] == 1


def test_a_replica_that_did_not_answer_is_down_and_the_others_are_there() -> None:
    samples = samples_of(Page("r1", "gateway", page_of(1)), Page("r2", "engine", None))
    assert samples["headwater:scrape_up", "r1"] == 1
    assert samples["headwater:scrape_up", "r2"] == 0
    assert samples["headwater:x_total", "r1"] == 1


@pytest.mark.parametrize(
    "line",
    [
        'headwater:x_total{replica="r1"} 5',
        'headwater:x_total{model_name="a"b"} 5',
        'headwater:x_total{model_name="a"} five',
        "headwater:undeclared 5",
        "process_cpu_seconds 5",
        'headwater:x_total{model_name="' + "a" * 5000 + '"} 5',
        'headwater:x_total{model_name="a" 5',
    ],
)
def test_a_line_that_is_not_understood_is_dropped_and_counted(line: str) -> None:
    hostile = "# TYPE headwater:x_total counter\n" + line + "\n"
    samples = samples_of(Page("r1", "gateway", page_of(1)), Page("r2", "engine", hostile))
    assert samples["headwater:scrape_dropped_lines", "r2"] == 1
    assert samples["headwater:x_total", "r1"] == 1
    assert ("headwater:x_total", "r2") not in samples


def test_a_family_of_another_kind_is_dropped() -> None:
    other = "# TYPE headwater:x_total gauge\nheadwater:x_total 9\n"
    samples = samples_of(Page("r1", "gateway", page_of(1)), Page("r2", "engine", other))
    assert ("headwater:x_total", "r2") not in samples


def test_a_series_that_comes_twice_counts_once() -> None:
    twice = "# TYPE headwater:g gauge\nheadwater:g 1\nheadwater:g 2\n"
    samples = samples_of(Page("r", "engine", twice))
    assert samples["headwater:g", "r"] == 1
    assert samples["headwater:scrape_dropped_lines", "r"] == 1
