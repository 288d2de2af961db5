"""The audit of a running engine: leaks are found, named and repaired; healthy engines have none."""

import pytest

from engine.block_audit import BlockAudit, LeakedBlock
from engine.engine import Engine
from engine.messages import FinishReason, TokenDelta
from engine.sequence import Sequence
from tests.unit.engine.fakes import FakeClock, make_engine, make_request, run_to_end
from tests.unit.engine.scheduler_harness import Harness, answer, prompt


def run_audit(harness: Harness, slice_blocks: int = 3) -> list[LeakedBlock]:
    """A whole one, with a step between any two slices while there is something to do."""
    audit = BlockAudit(
        harness.blocks, harness.scheduler.running, period_s=0.0, slice_blocks=slice_blocks
    )
    leaks = []
    audit.advance(0.0)
    while audit.is_under_way:
        leak = audit.advance(0.0)
        if leak is not None:
            leaks.append(leak)
            harness.blocks.give_back(leak.block_id, leak.num_references)
        if harness.scheduler.num_running or harness.scheduler.num_waiting:
            plan = harness.scheduler.plan()
            assert plan is not None
            harness.scheduler.commit(plan, answer(plan))
    return leaks


def drop_release(harness: Harness, sequence: Sequence, index: int) -> int:
    """Take ``sequence`` out and forget to release one of its blocks."""
    block_id = sequence.block_tables[0][index]
    harness.blocks._pool.share([block_id], 1)
    harness.scheduler.finish(sequence)
    return block_id


@pytest.mark.parametrize("index", [0, 1, 2], ids=["cached", "cached too", "not cached"])
def test_a_leaked_block_is_found_named_and_given_back(index: int) -> None:
    harness = Harness()
    others = [harness.add(f"other {i}", prompt(i, 9)) for i in range(3)]
    leaking = harness.add("leaking", prompt(7, 11))
    harness.step()
    block_id = drop_release(harness, leaking, index)

    leaks = run_audit(harness)

    assert leaks == [LeakedBlock(block_id, 1, "leaking")]
    harness.scheduler.check_integrity()
    for sequence in others:
        harness.scheduler.finish(sequence)
    assert harness.blocks.num_free_blocks == 64
    assert run_audit(harness) == []


def test_one_leaked_reference_of_a_block_that_others_hold_is_found() -> None:
    harness = Harness()
    leaking = harness.add("leaking", prompt(1, 9))
    harness.step()
    harness.add("sharing", prompt(1, 9))
    harness.step()
    block_id = drop_release(harness, leaking, 0)

    assert run_audit(harness) == [LeakedBlock(block_id, 1, "sharing")]
    harness.scheduler.check_integrity()


def test_many_leaks_are_all_found() -> None:
    harness = Harness()
    sequences = [harness.add(f"r{index}", prompt(index, 9)) for index in range(5)]
    harness.step()
    dropped = {drop_release(harness, s, index % 3) for index, s in enumerate(sequences)}

    assert {leak.block_id for leak in run_audit(harness)} == dropped
    assert harness.blocks.num_free_blocks == 64


def test_a_block_that_is_used_but_counted_free_fails_loudly() -> None:
    harness = Harness()
    sequence = harness.add("victim", prompt(1, 9))
    harness.step()
    block_id = sequence.block_tables[0][1]
    harness.blocks._pool.release([block_id])

    with pytest.raises(AssertionError, match=f"block {block_id} is used by request victim"):
        run_audit(harness)


def test_a_block_with_fewer_references_than_holders_fails_loudly() -> None:
    harness = Harness()
    samples = harness.add_samples("r", prompt(1, 10), num_samples=3)
    harness.step()
    block_id = samples[0].block_tables[0][0]
    harness.blocks._pool.release([block_id])

    with pytest.raises(AssertionError, match=f"block {block_id} is held 3 times and counted 2"):
        run_audit(harness)


def test_an_audit_waits_for_its_time_and_goes_on_in_slices() -> None:
    harness = Harness(num_blocks=20)
    audit = BlockAudit(harness.blocks, harness.scheduler.running, slice_blocks=5)

    def goes_on(now_s: float) -> bool:
        audit.advance(now_s)
        return audit.is_under_way

    assert not goes_on(100.0)
    assert not goes_on(129.9)
    assert [goes_on(130.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert not goes_on(159.9)
    assert goes_on(160.0)


def leak_block(engine: Engine, request_id: str) -> None:
    [sequence] = engine._live.samples_of(request_id)
    engine._blocks._pool.share(sequence.block_tables[0][:1], 1)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_running_engine_repairs_a_leak_and_counts_it(
    is_idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.step()
    engine.add(make_request("leaking", range(10, 19), 4))
    engine.step()
    leak_block(engine, "leaking")
    run_to_end_unchecked(engine)
    assert engine.step().load.num_free_blocks == 63

    clock.now_s = 31.0
    if is_idle:
        while engine.audit_slice():
            pass
    else:
        engine.add(make_request("other", range(20, 29), 12))
        run_to_end_unchecked(engine)

    end = engine.step()
    assert end.stats.num_leaked_blocks == 1
    assert end.stats.num_failed_steps == 0
    assert end.load.num_free_blocks == 64
    assert "request leaking took it last" in caplog.text
    engine.check_integrity()


def run_to_end_unchecked(engine: Engine) -> list[TokenDelta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step().deltas
    return deltas


def test_a_block_counted_free_fails_the_step_and_later_requests_are_served() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.step()
    engine.add(make_request("victim", range(10, 19), 40, timeout_s=1000.0))
    engine.step()
    [sequence] = engine._live.samples_of("victim")
    engine._blocks._pool.release([sequence.block_tables[0][1]])

    clock.now_s = 31.0
    *_, last = run_to_end_unchecked(engine)

    assert last.finish_reason is FinishReason.ERROR
    assert engine.step().stats.num_failed_steps == 1
    engine.add(make_request("later", range(10, 19), 4))
    assert run_to_end(engine)["later"].finish_reason is FinishReason.LENGTH
