"""Short forms of ``benchmarks.cold_start``: whatever goes wrong on the way, nothing half loaded is
offered, and a chain of nodes goes on when one of them dies.
"""

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cold_start_broadcast import SHORT, measure_broadcast
from benchmarks.cold_start_campaign import run_campaign
from benchmarks.cold_start_faults import FAULTS
from benchmarks.cold_start_links import why_no_links
from benchmarks.cold_start_trials import BOUND_S

pytestmark = pytest.mark.integration


def test_forty_faults_end_in_a_whole_model_or_in_a_clear_word() -> None:
    # A folder with a short name: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        report = run_campaign(40, seed=7, folder=Path(folder))
    assert report.failures == []
    assert len(report.outcomes) == 40
    assert max(outcome.seconds for outcome in report.outcomes) < BOUND_S
    tried = Counter(outcome.fault for outcome in report.outcomes)
    assert {fault.name for fault in FAULTS if not fault.needs_disk} <= tried.keys()


def test_four_nodes_load_together_and_one_may_die() -> None:
    reason = why_no_links()
    if reason is not None:
        pytest.skip(f"no links can be made: {reason}")
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        values = {case.case: case.value for case in measure_broadcast(SHORT, Path(folder))}
    assert values["broadcast_four_nodes_over_one"] < 2.5  # the promise is of longer loads
    assert values["broadcast_one_of_four_killed_over_one"] < 6
