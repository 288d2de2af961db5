"""The whole loop without an account: requests at no node bring nodes of a mock EC2, which are
raylets here; a spot node goes away in the middle of an answer; and no node is left at the end.
"""

import logging
from collections.abc import Iterator

import pytest

from benchmarks.aws_loop import (
    FIRST_ANSWER_LIMIT_S,
    REFUSED_LIMIT_S,
    REFUSED_MAX_WAIT_S,
    REFUSED_WATCHED_S,
    TO_ZERO_LIMIT_S,
    cases,
    refused_cases,
)
from benchmarks.aws_loop_cloud import ZONES
from benchmarks.aws_loop_cluster import LoopCluster, loop_cluster
from benchmarks.aws_loop_run import run_loop, run_refused
from tests.quickstart import SOURCE, quickstart_checkpoint

pytestmark = [pytest.mark.terraform, pytest.mark.slow, pytest.mark.timeout(300)]

logger = logging.getLogger(__name__)

MOST_ASKED = 4
"""Of EC2, while it has nothing: each market once, and once more."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopCluster]:
    with loop_cluster(quickstart_checkpoint().path, SOURCE) as cluster:
        assert cluster.cloud.workers() == {}
        yield cluster


def test_nodes_come_for_requests_and_go_and_no_request_fails(cluster: LoopCluster) -> None:
    figures = run_loop(cluster)
    for case in cases(figures):
        logger.info("%s: %.1f %s", case.case, case.value, case.unit)
    assert figures.failed == ()
    assert figures.first_answer_s <= FIRST_ANSWER_LIMIT_S
    assert figures.was_moved
    assert figures.is_same_text
    assert figures.num_nodes == 2
    assert figures.refused_zones == {ZONES[0]}
    assert figures.zones == {ZONES[1]}
    assert figures.to_zero_s <= TO_ZERO_LIMIT_S


def test_without_any_capacity_requests_are_told_when_to_come_back_and_nothing_stays(
    cluster: LoopCluster,
) -> None:
    figures = run_refused(cluster, max_wait_s=REFUSED_MAX_WAIT_S, watched_s=REFUSED_WATCHED_S)
    for case in refused_cases(figures):
        logger.info("%s: %.1f %s", case.case, case.value, case.unit)
    assert figures.outcome.status == 503
    assert figures.outcome.retry_after_s is not None
    assert 1 <= figures.outcome.retry_after_s <= 120
    assert REFUSED_MAX_WAIT_S <= figures.waited_s <= REFUSED_LIMIT_S
    assert 1 <= figures.num_asked <= MOST_ASKED
    assert figures.num_launched == 0
    assert cluster.cloud.workers("pending", "running") == {}
