"""Short forms of ``benchmarks.tier_fuzz``: with KV tiers that are killed and damaged all the time,
engines answer as without any.
"""

import tempfile
from pathlib import Path

import pytest

from benchmarks.tier_fuzz import fuzz
from benchmarks.tier_fuzz_campaign import Report

pytestmark = pytest.mark.integration


async def run(size: int, num_cycles: int) -> Report:
    # A folder with a short name: socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        report = await fuzz(Path(folder), size, num_cycles, seed=7)
    assert report.num_mismatched == report.num_errors == 0, report.failures
    assert report.num_cycles >= num_cycles
    return report


async def test_two_engines_answer_as_without_their_nodes() -> None:
    report = await run(1, 160)
    assert report.restored_tokens["host"] > 0
    assert report.events["aborted"] > 0
    assert report.events["flip_in_arena"] > 0


async def test_a_group_of_ranks_answers_as_without_its_node() -> None:
    report = await run(3, 24)
    assert report.num_tokens > 0
