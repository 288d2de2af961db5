import json

import pytest

from engine.observations import StepRecord
from engine.step_ring import MAX_STEPS, StepRing


def record(step_id: int, started_s: float = 0.0, step_time_s: float = 0.01) -> StepRecord:
    return StepRecord(step_id, started_s, step_time_s, 1, 2, 3, 4, 5, 6, 7, 8, 512, 64)


def ids(payload: bytes) -> list[int]:
    return [step["step_id"] for step in json.loads(payload)]


def test_keeps_the_newest_steps_only() -> None:
    ring = StepRing()
    for step_id in range(MAX_STEPS + 5):
        ring.add(record(step_id))
    assert ids(ring.to_json()) == list(range(5, MAX_STEPS + 5))
    assert ids(ring.to_json(2)) == [MAX_STEPS + 3, MAX_STEPS + 4]
    assert ids(ring.to_json(0)) == []
    assert len(ids(ring.to_json(10**9))) == MAX_STEPS


def test_a_record_has_its_fields_by_name() -> None:
    ring = StepRing()
    ring.add(record(9))
    [step] = json.loads(ring.to_json())
    assert set(step) == set(StepRecord.__struct_fields__)
    assert (step["num_used_blocks"], step["max_tokens"], step["outcome"]) == (8, 512, "ok")


def test_busy_share_counts_steps_within_the_window_only() -> None:
    ring = StepRing()
    ring.add(record(1, started_s=0.0, step_time_s=50.0))
    ring.add(record(2, started_s=89.0, step_time_s=2.0))  # half of it lies in the window
    ring.add(record(3, started_s=95.0, step_time_s=3.0))
    assert ring.busy_share(100.0) == pytest.approx(0.4)
    assert ring.busy_share(1000.0) == 0.0
