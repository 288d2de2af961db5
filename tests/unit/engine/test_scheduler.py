"""The scheduler: budget, fairness, admission, preemption, slots, copy-on-write."""

from collections.abc import Callable

import pytest

from engine.errors import RunnerError
from engine.messages import FinishReason
from engine.sequence import Sequence
from engine.step import SampledToken, StepPlan, StepResult, TableUpdate
from tests.unit.engine.fakes import BLOCK_SIZE, make_config
from tests.unit.engine.scheduler_harness import Harness, answer, prompt


def num_tokens_of(plan: StepPlan, sequence: Sequence) -> int:
    return sum(entry.num_tokens for entry in plan.scheduled if entry.slot == sequence.slot)


def pending_tokens(harness: Harness) -> int:
    scheduler = harness.scheduler
    return scheduler.num_waiting_tokens + scheduler.num_running_prefill_tokens


def test_no_work_no_plan() -> None:
    assert Harness().scheduler.plan() is None


def test_decodes_come_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    harness = Harness(make_config(max_num_batched_tokens=10))
    decoding = [harness.add(f"d{i}", prompt(i, 3)) for i in range(3)]
    harness.step()
    harness.add("long", prompt(9, 25))

    plans = [harness.step() for _ in range(4)]

    for plan in plans:
        assert [entry.slot for entry in plan.scheduled[:3]] == [s.slot for s in decoding]
        assert all(entry.is_last_pending for entry in plan.scheduled[:3])
    assert [plan.scheduled[3].num_tokens for plan in plans] == [7, 7, 7, 4]
    assert [bool(plan.scheduled[3].sampling_slots) for plan in plans] == [False, False, False, True]
    assert [plan.num_tokens for plan in plans] == [10, 10, 10, 7]


def test_prefill_advances_by_the_floor_when_decodes_fill_the_budget() -> None:
    config = make_config(max_num_batched_tokens=4, min_prefill_chunk_tokens=3)
    harness = Harness(config)
    decoding = [harness.add(f"d{i}", prompt(i, 1)) for i in range(4)]
    harness.step()
    harness.add("long", prompt(9, 9))

    plans = [harness.step() for _ in range(3)]

    for plan in plans:
        assert all(num_tokens_of(plan, sequence) == 1 for sequence in decoding)
        assert plan.scheduled[4].num_tokens == 3
    assert plans[-1].scheduled[4].sampling_slots


def test_one_budget_is_shared_by_several_prompts_in_order_of_arrival() -> None:
    harness = Harness(make_config(max_num_batched_tokens=16))
    first, second, third = (harness.add(f"p{i}", prompt(i, 10)) for i in range(3))

    plan = harness.step()

    assert [num_tokens_of(plan, s) for s in (first, second, third)] == [10, 6, 0]
    assert third.slot is None


def test_never_more_than_max_num_seqs_run() -> None:
    harness = Harness(make_config(max_num_seqs=2))
    sequences = [harness.add(f"p{i}", prompt(i, 3), max_tokens=2) for i in range(5)]
    slots = set()
    while harness.scheduler.num_running or harness.scheduler.num_waiting:
        plan = harness.step()
        assert len(plan.scheduled) <= 2
        slots |= {entry.slot for entry in plan.scheduled}
    assert slots == {0, 1}
    assert all(s.finish_reason is FinishReason.LENGTH for s in sequences)


def test_a_released_slot_is_announced_and_used_again() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    first = harness.add("first", prompt(1, 3), max_tokens=1)
    second = harness.add("second", prompt(2, 3), max_tokens=1)
    harness.step()

    plan = harness.step()

    assert first.finish_reason is FinishReason.LENGTH
    assert second.finish_reason is FinishReason.LENGTH
    assert plan.released_slots == (0,)
    assert [admission.slot for admission in plan.admissions] == [0]


def test_a_prompt_waits_until_it_fits_beside_the_growth_of_the_others() -> None:
    # 6 blocks: the first takes 2; the second needs 2 and a spare block for each of the two.
    harness = Harness(num_blocks=6)
    harness.add("first", prompt(1, 7))
    fits = harness.add("second", prompt(2, 7))
    waits = harness.add("third", prompt(3, 1))

    harness.step()

    assert fits.slot is not None
    assert waits.slot is None
    assert harness.scheduler.totals.num_preemptions == 0


def test_it_says_that_blocks_are_what_the_first_that_waits_lacks() -> None:
    harness = Harness(num_blocks=6)
    first = harness.add("first", prompt(1, 7))
    harness.step()
    said = [harness.scheduler.is_out_of_blocks]  # nobody waits
    harness.add("second", prompt(2, 7))
    harness.add("third", prompt(3, 1))
    said.append(harness.scheduler.is_out_of_blocks)

    harness.step()
    said.append(harness.scheduler.is_out_of_blocks)

    harness.scheduler.finish(first)
    said.append(harness.scheduler.is_out_of_blocks)

    assert said == [False, False, True, False]


def test_arrival_order_is_kept_even_if_a_later_prompt_would_fit() -> None:
    harness = Harness(num_blocks=6)
    harness.add("first", prompt(1, 7))
    harness.add("big", prompt(2, 15))
    small = harness.add("small", prompt(3, 1))

    harness.step()

    assert small.slot is None


def test_admitted_sequences_decode_a_block_length_without_preemption() -> None:
    harness = Harness(make_config(max_num_seqs=64), num_blocks=20)
    for index in range(12):
        harness.add(f"p{index}", prompt(index, 7))

    for _ in range(BLOCK_SIZE):
        harness.step()

    assert harness.scheduler.num_running > 1
    assert harness.scheduler.totals.num_preemptions == 0


def test_the_latest_arrived_gives_way_and_is_computed_again_with_its_tokens() -> None:
    harness = Harness(make_config(prefix_caching=False), num_blocks=6)
    old = harness.add("old", prompt(1, 7))
    new = harness.add("new", prompt(2, 7))
    while not harness.scheduler.totals.num_preemptions:
        plan = harness.step()
    assert old.slot is not None
    assert new.slot is None
    assert plan.released_slots == (1,)
    generated = new.token_ids[7:]
    assert len(generated) >= BLOCK_SIZE

    harness.scheduler.finish(old)
    plan = harness.step()

    [entry] = plan.scheduled
    assert entry.token_ids == (*prompt(2, 7), *generated)
    assert not entry.is_last_pending
    assert entry.sampling_slots == (entry.slot,)
    assert harness.step().scheduled[0].is_last_pending


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_tokens_computed_again_are_counted_once_for_each_time(prefix_caching: bool) -> None:
    harness = Harness(make_config(prefix_caching=prefix_caching))
    sequence = harness.add("a", prompt(1, 9))
    for _ in range(3):
        harness.step()
    assert sequence.num_computed_tokens == 11
    for _ in range(2):
        harness.scheduler._places.preempt(sequence)
        harness.step()
        harness.step()

    # The second time 13 of 14: the first had computed 12 and a new one after them.
    found = (8, 12) if prefix_caching else (0, 0)
    assert harness.scheduler.totals.num_recomputed_tokens == 11 - found[0] + 13 - found[1]


def test_a_preempted_sequence_comes_back_before_later_arrivals() -> None:
    harness = Harness(make_config(prefix_caching=False), num_blocks=6)
    old = harness.add("old", prompt(1, 7))
    new = harness.add("new", prompt(2, 7))
    harness.step()
    later = harness.add("later", prompt(3, 7))
    while not harness.scheduler.totals.num_preemptions:
        harness.step()
    assert [s.slot is None for s in (new, later)] == [True, True]

    harness.scheduler.finish(old)
    harness.step()

    assert [s.slot is None for s in (new, later)] == [False, True]


def test_a_sequence_in_prefill_gives_way_too() -> None:
    config = make_config(max_num_batched_tokens=4, prefix_caching=False)
    harness = Harness(config, num_blocks=8)
    old = harness.add("old", prompt(1, 4))
    harness.step()
    new = harness.add("new", prompt(2, 16))
    harness.step()
    assert 0 < new.num_computed_tokens < 16
    while not harness.scheduler.totals.num_preemptions:
        plan = harness.step()
    assert num_tokens_of(plan, old) == 1
    assert new.slot is None
    assert new.num_computed_tokens == 0


def test_a_cached_prompt_computes_its_last_token_in_a_copy() -> None:
    harness = Harness()
    harness.add("first", prompt(1, 8), max_tokens=1)
    harness.step()
    again = harness.add("again", prompt(1, 8), max_tokens=1)

    plan = harness.step()

    assert again.cached_tokens == 7
    [copy] = plan.block_copies
    [admission] = plan.admissions
    assert admission.block_tables[0][-1] == copy.src
    [entry] = plan.scheduled
    assert entry.table_updates == (TableUpdate(0, 1, (copy.dst,)),)
    assert (entry.start, entry.token_ids) == (7, (1007,))


def test_the_source_of_a_copy_is_not_evicted_by_the_plan_that_copies_it() -> None:
    harness = Harness(num_blocks=5)
    harness.add("first", prompt(1, 16), max_tokens=1)
    harness.step()
    harness.add("again", prompt(1, 16), max_tokens=1)

    plan = harness.step()

    [copy] = plan.block_copies
    assert copy.src not in plan.freed_block_ids
    assert harness.blocks.num_free_blocks == 5


def test_generated_tokens_are_found_again() -> None:
    harness = Harness()
    first = harness.add("first", prompt(1, 6), max_tokens=7)
    while first.finish_reason is None:
        harness.step()
    # 13 tokens; the last was never computed, so 12 are in the pool: three full blocks.
    follow_up = harness.add("follow-up", [*first.token_ids, 5, 5])

    harness.step()

    assert follow_up.cached_tokens == 12


def test_two_equal_prompts_of_one_step_do_not_share_what_is_not_computed() -> None:
    harness = Harness()
    first, second = harness.add("a", prompt(1, 9)), harness.add("b", prompt(1, 9))

    harness.step()

    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    assert set(first.block_tables[0]).isdisjoint(second.block_tables[0])


def test_finishing_while_waiting_or_running_frees_everything() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    running, waiting = harness.add("a", prompt(1, 9)), harness.add("b", prompt(2, 9))
    harness.step()

    harness.scheduler.finish(waiting)
    harness.scheduler.finish(running)

    harness.scheduler.check_integrity()
    assert harness.blocks.num_free_blocks == 64
    assert harness.scheduler.plan() is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda result: StepResult(result.step_id + 1, result.sampled),
        lambda result: StepResult(result.step_id, ()),
        lambda result: StepResult(result.step_id, (*result.sampled, SampledToken(5, 1))),
    ],
    ids=["another step", "a token missing", "a token too many"],
)
def test_a_result_that_does_not_answer_the_plan_is_refused(
    spoil: Callable[[StepResult], StepResult],
) -> None:
    harness = Harness()
    harness.add("a", prompt(1, 9))
    plan = harness.scheduler.plan()
    assert plan is not None
    with pytest.raises(RunnerError, match="one token for each"):
        harness.scheduler.commit(plan, spoil(answer(plan)))


def test_pending_prefill_counts_what_is_not_computed() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8, max_num_seqs=2))
    harness.add("a", prompt(1, 3))
    harness.add("b", prompt(2, 9))
    harness.add("c", prompt(3, 4))
    assert pending_tokens(harness) == 16
    harness.step()
    assert pending_tokens(harness) == 4 + 4


def test_pending_prefill_leaves_out_what_the_cache_holds() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    harness.add("a", prompt(1, 9), max_tokens=3)
    harness.step()
    harness.add("b", prompt(1, 9))

    assert pending_tokens(harness) == 1
