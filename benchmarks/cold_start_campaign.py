"""A thousand things that go wrong with weights on their way, and what came of each.

Some lanes run trials side by side, each with nodes of its own: most trials wait for something.
Must not know what the things are.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cold_start_faults import FAULTS, Fault
from benchmarks.cold_start_places import small_disk, write_versions
from benchmarks.cold_start_trials import BOUND_S, Lane, Outcome
from benchmarks.result import CaseResult

_NUM_LANES = 4
_MAX_DESCRIPTIONS = 20
_TRIALS_PER_LINE = 50


@dataclass(slots=True)
class Report:
    """What came of all trials."""

    outcomes: list[Outcome] = field(default_factory=list)
    left_out: str | None = None
    """Why some faults were not tried."""

    @property
    def failures(self) -> list[str]:
        """What must not have happened, in words."""
        wrong = [f"{one.fault}: {one.wrong}" for one in self.outcomes if one.wrong is not None]
        return wrong[:_MAX_DESCRIPTIONS]


def run_campaign(num_faults: int, seed: int, folder: Path) -> Report:
    """``folder`` is empty. Raises ``OSError`` and ``ResultError`` for what is no fault's doing."""
    report = Report()
    versions = write_versions(folder / "versions")
    with ExitStack() as stack:
        lanes = []
        for index in range(_NUM_LANES):
            lane = Lane(
                versions,
                folder / f"lane-{index}",
                keep_on_disk=index % 2 == 0,
                seed=seed + index,
            )
            try:
                stack.enter_context(small_disk(lane.home("small_disk")))
            except OSError as error:
                report.left_out = f"no disk can be mounted: {error}"
            lanes.append(stack.enter_context(lane.running()))
        faults = draw_faults(num_faults, seed, has_disk=report.left_out is None)
        is_over = threading.Event()
        threads = stack.enter_context(ThreadPoolExecutor(_NUM_LANES))
        stack.callback(is_over.set)
        parts = threads.map(
            lambda index: _run(lanes[index], faults[index::_NUM_LANES], is_over),
            range(_NUM_LANES),
        )
        report.outcomes = [outcome for part in parts for outcome in part]
    return report


def draw_faults(num: int, seed: int, *, has_disk: bool = True) -> list[Fault]:
    """In random order, as often as they say; each at least once, as long as ``num`` allows it."""
    faults = [fault for fault in FAULTS if has_disk or not fault.needs_disk]
    draw = random.Random(seed)
    total = sum(fault.num_of_1000 for fault in faults)
    drawn = faults[:num]
    for fault in faults:
        drawn += [fault] * (num * fault.num_of_1000 // total - 1)
    drawn += draw.choices(faults, [fault.num_of_1000 for fault in faults], k=num - len(drawn))
    draw.shuffle(drawn)
    return drawn[:num]


def _run(lane: Lane, faults: Sequence[Fault], is_over: threading.Event) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for fault in faults:
        if is_over.is_set():  # another lane failed, or somebody stops it all
            break
        outcome = lane.run(fault.name, fault.prepare)
        if outcome.wrong is not None:
            print(f"{outcome.fault}: {outcome.wrong}", flush=True)
        outcomes.append(outcome)
        if len(outcomes) % _TRIALS_PER_LINE == 0:
            print(f"{len(outcomes)} of {len(faults)} faults of this lane", flush=True)
    return outcomes


def measure_faults(num_faults: int, seed: int, scratch: Path) -> tuple[list[CaseResult], bool]:
    """And whether nothing went wrong beside what was meant to."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        report = run_campaign(num_faults, seed, Path(folder))
    if report.left_out is not None:
        print(report.left_out, flush=True)
    return cases_of(report), not report.failures


def cases_of(report: Report) -> list[CaseResult]:
    outcomes = report.outcomes
    num_wrong = sum(one.wrong is not None for one in outcomes)
    slowest_s = max(one.seconds for one in outcomes)
    cases = [
        CaseResult(case="faults", value=len(outcomes), unit="faults"),
        CaseResult(case="faults_ended_wrongly", value=num_wrong, unit="faults"),
        CaseResult(case="faults_slowest", value=slowest_s, unit="s", limit=BOUND_S),
    ]
    for name in sorted({one.fault for one in outcomes}):
        those = [one for one in outcomes if one.fault == name]
        num_whole = sum(one.is_whole for one in those)
        slowest_s = max(one.seconds for one in those)
        cases += [
            CaseResult(case=f"faults_{name}", value=len(those), unit="faults"),
            CaseResult(case=f"faults_{name}_whole_model", value=num_whole, unit="faults"),
            CaseResult(case=f"faults_{name}_slowest", value=slowest_s, unit="s", limit=BOUND_S),
        ]
    return cases
