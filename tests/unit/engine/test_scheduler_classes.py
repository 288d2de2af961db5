"""Classes: who goes first, who gives way for whom, and that nobody waits for ever."""

import math

import pytest

from engine.errors import RequestError
from engine.messages import FinishReason, ServiceClass
from engine.request_limits import RequestLimits
from engine.sequence import Sequence
from tests.unit.engine.fakes import BLOCK_SIZE, make_config, make_request
from tests.unit.engine.scheduler_harness import Harness, prompt

INTERACTIVE, STANDARD, BATCH = ServiceClass


def add(
    harness: Harness,
    name: str,
    service_class: ServiceClass,
    *,
    num_tokens: int = 7,
    age_s: float = 0.0,
    num_samples: int = 1,
) -> list[Sequence]:
    return harness.add_request(
        make_request(
            name,
            prompt(sum(map(ord, name)), num_tokens),
            max_tokens=40,
            service_class=service_class,
            age_s=age_s,
            num_samples=num_samples,
        )
    )


def test_the_waiting_start_by_arrival_put_off_by_class() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    names = {
        "batch": (BATCH, 0.0),
        "standard": (STANDARD, 0.0),
        "old batch": (BATCH, 65.0),
        "interactive": (INTERACTIVE, 0.0),
        "old standard": (STANDARD, 9.0),
        "twin": (INTERACTIVE, 0.0),
    }
    waiting = {n: add(harness, n, c, age_s=a)[0] for n, (c, a) in names.items()}
    started: list[str] = []
    while len(started) < len(names):
        harness.step()
        [name] = [n for n, sequence in waiting.items() if sequence.slot is not None]
        started.append(name)
        harness.scheduler.finish(waiting.pop(name))

    assert started == ["old batch", "interactive", "twin", "old standard", "standard", "batch"]


def test_samples_stay_together_when_others_come_before_them() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    samples = add(harness, "batch", BATCH, num_tokens=18, num_samples=3)
    harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE, num_tokens=20)

    plans = [harness.step() for _ in range(4)]

    # The long prompt pauses, then goes on where it was, and its samples part at its end.
    assert [[e.num_tokens for e in p.scheduled] for p in plans] == [[8], [8], [4, 4], [1, 6]]
    assert plans[2].scheduled[0].slot == urgent.slot
    assert len(plans[3].scheduled[1].sampling_slots) == 3
    assert harness.scheduler.running == [urgent, *samples]
    assert harness.scheduler.totals.num_preemptions == 0


def test_without_a_place_the_lowest_class_and_of_it_the_latest_gives_way() -> None:
    harness = Harness(make_config(max_num_seqs=3))
    [standard] = add(harness, "standard", STANDARD)
    first, second = (add(harness, f"batch {i}", BATCH)[0] for i in range(2))
    harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE)

    harness.step()

    running = [s.slot is not None for s in (standard, first, second, urgent)]
    assert running == [True, True, False, True]
    assert second.generated_ids
    harness.scheduler.finish(urgent)
    plan = harness.step()
    assert second.slot is not None
    [chunk] = [e for e in plan.scheduled if not e.is_last_pending]
    assert chunk.start == BLOCK_SIZE  # the prefix cache kept what was a whole block


def test_without_blocks_as_many_lower_ones_give_way_as_are_needed() -> None:
    harness = Harness(num_blocks=14)
    batch = [add(harness, f"batch {i}", BATCH)[0] for i in range(4)]
    harness.step()
    assert all(sequence.slot is not None for sequence in batch)
    [urgent] = add(harness, "urgent", INTERACTIVE, num_tokens=19)

    harness.step()

    assert urgent.slot is not None
    assert [sequence.slot is not None for sequence in batch] == [True, True, False, False]


def test_nobody_gives_way_where_it_would_not_help() -> None:
    harness = Harness(num_blocks=14)
    [same] = add(harness, "same class", INTERACTIVE, num_tokens=19)
    [batch] = add(harness, "batch", BATCH)
    harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE, num_tokens=40)

    harness.step()

    assert [s.slot is not None for s in (same, batch, urgent)] == [True, True, False]


def test_nobody_gives_way_for_blocks_that_others_hold_too() -> None:
    harness = Harness(num_blocks=16)
    sequences = []
    for name, service_class in (("stays", INTERACTIVE), ("shares", BATCH)):
        request = make_request(name, prompt(1, 33), 40, service_class=service_class)
        sequences += harness.add_request(request)
        harness.step()
    stays, shares = sequences
    assert shares.cached_tokens == 32
    [urgent] = add(harness, "urgent", INTERACTIVE, num_tokens=28)

    harness.step()

    assert [s.slot is not None for s in (stays, shares, urgent)] == [True, True, False]
    assert harness.scheduler.totals.num_preemptions == 0


def test_nobody_gives_way_before_the_budget_reaches_who_comes_next() -> None:
    harness = Harness(make_config(max_num_seqs=2, max_num_batched_tokens=8))
    [batch] = add(harness, "batch", BATCH)
    harness.step()
    add(harness, "long", INTERACTIVE, num_tokens=30)
    harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE)

    started = []
    for _ in range(5):
        harness.step()
        started.append((batch.slot is not None, urgent.slot is not None))

    # Seven tokens a step are left beside the decode of the lower class.
    assert started == [(True, False)] * 3 + [(False, True)] * 2


def test_somebody_gives_way_also_where_decodes_use_the_budget_up() -> None:
    harness = Harness(make_config(max_num_seqs=3, max_num_batched_tokens=2))
    add(harness, "a", INTERACTIVE)
    add(harness, "b", INTERACTIVE)
    [batch] = add(harness, "batch", BATCH)
    while harness.scheduler.num_running_prefill_tokens or harness.scheduler.num_waiting:
        harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE)

    harness.step()

    assert (batch.slot, urgent.slot is not None) == (None, True)


def test_nobody_gives_way_for_an_older_one_of_the_same_class() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    [running] = add(harness, "standard", STANDARD)
    harness.step()
    add(harness, "older", STANDARD, age_s=9.0)

    harness.step()

    assert running.slot is not None
    assert harness.scheduler.totals.num_preemptions == 0


def test_what_waited_longer_than_its_class_is_put_off_gives_way_to_nobody() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    [batch] = add(harness, "batch", BATCH, age_s=61.0)
    harness.step()
    add(harness, "urgent", INTERACTIVE)

    harness.step()

    assert batch.slot is not None
    assert harness.scheduler.totals.num_preemptions == 0


def test_a_stream_of_urgent_requests_takes_a_place_once_each() -> None:
    harness = Harness(make_config(max_num_seqs=2))
    batch = [add(harness, f"batch {i}", BATCH)[0] for i in range(2)]
    for index in range(12):
        [urgent] = add(harness, f"urgent {index}", INTERACTIVE)
        for _ in range(3):
            harness.step()
        assert urgent.slot is not None
        harness.scheduler.finish(urgent)
        harness.step()
    assert harness.scheduler.totals.num_preemptions <= 12
    while harness.scheduler.num_running:
        harness.step()
    assert [s.finish_reason for s in batch] == [FinishReason.LENGTH] * 2


def test_memory_is_taken_from_the_last_in_the_order_not_from_who_came_last() -> None:
    harness = Harness(make_config(prefix_caching=False), num_blocks=6)
    [batch] = add(harness, "batch", BATCH)
    harness.step()
    [urgent] = add(harness, "urgent", INTERACTIVE)
    while not harness.scheduler.totals.num_preemptions:
        harness.step()

    assert urgent.slot is not None
    assert batch.slot is None


@pytest.mark.parametrize("age_s", [math.nan, math.inf, -1.0])
def test_an_age_that_would_spoil_the_order_is_refused(age_s: float) -> None:
    limits = RequestLimits(max_len=32, block_size_tokens=BLOCK_SIZE, vocab_size=50)
    with pytest.raises(RequestError, match="age_s"):
        limits.check(make_request("a", [1, 2, 3], age_s=age_s))
