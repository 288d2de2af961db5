"""Several samples of one prompt: one prefill, shared blocks, copies at the first write, waves."""

import pytest

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest, FinishReason, SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from tests.unit.engine.fakes import make_config
from tests.unit.engine.scheduler_harness import TOKEN, Harness, answer, prompt


def test_eight_samples_of_1003_tokens_share_62_blocks_and_copy_the_tail_seven_times() -> None:
    geometry = KvGeometry((KvGroup((0,)),), 1, 1, block_size_tokens=16, bytes_per_element=2)
    blocks = BlockManager(200, geometry, prefix_caching=False)
    scheduler = Scheduler(EngineConfig(max_num_seqs=64, max_num_batched_tokens=512), blocks)
    request = EngineRequest(
        "r", list(range(1003)), b"", [b""] * 62, SamplingParams(max_tokens=30), 60.0, num_samples=8
    )
    samples = [Sequence(request, deadline_s=1e9, max_len=1033, index=i) for i in range(8)]
    scheduler.add(samples)

    prefills = []
    while samples[0].num_generated_tokens == 0:
        plan = scheduler.plan()
        assert plan is not None
        prefills.append(plan)
        scheduler.commit(plan, answer(plan))

    # One prefill, and every sample draws from its last row.
    assert [plan.num_tokens for plan in prefills] == [512, 491]
    [entry] = prefills[-1].scheduled
    slots = tuple(sample.slot for sample in samples)
    assert entry.sampling_slots == slots
    assert [admission.slot for admission in prefills[-1].admissions] == list(slots[1:])
    assert len({sample.sampling.seed for sample in samples}) == 8
    # 63 blocks in all, each with eight references.
    assert blocks.num_free_blocks == 200 - 63
    [shared] = {tuple(sample.block_tables[0]) for sample in samples}
    assert [blocks._pool.num_references(block_id) for block_id in shared] == [8] * 63

    decode = scheduler.plan()
    assert decode is not None
    tail = shared[62]
    assert [copy.src for copy in decode.block_copies] == [tail] * 7
    assert [len(entry.table_updates) for entry in decode.scheduled] == [1] * 7 + [0]
    scheduler.commit(decode, answer(decode))
    scheduler.check_integrity()
    assert [blocks._pool.num_references(block_id) for block_id in shared] == [8] * 62 + [1]
    assert len({sample.block_tables[0][62] for sample in samples}) == 8
    assert samples[-1].block_tables[0][62] == tail
    assert blocks.num_free_blocks == 200 - 62 - 8

    later = scheduler.plan()
    assert later is not None
    assert later.block_copies == ()
    assert all(entry.table_updates == () for entry in later.scheduled)


def test_a_chunked_prompt_parts_at_its_end_and_nobody_overtakes() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    samples = harness.add_samples("r", prompt(1, 18), num_samples=3)
    other = harness.add("other", prompt(2, 3))

    plans = [harness.step() for _ in range(3)]

    assert [[e.num_tokens for e in plan.scheduled] for plan in plans] == [[8], [8], [2, 3]]
    assert [len(plan.scheduled[0].sampling_slots) for plan in plans] == [0, 0, 3]
    assert [s.generated_ids for s in [*samples, other]] == [[TOKEN]] * 4
    assert harness.scheduler.running == [*samples, other]


def test_more_samples_than_slots_run_in_waves_that_find_the_prefix() -> None:
    harness = Harness(make_config(max_num_seqs=2))
    samples = harness.add_samples("r", prompt(1, 18), num_samples=5, max_tokens=3)
    num_computed = 0
    for _ in range(50):
        if harness.scheduler.num_running + harness.scheduler.num_waiting == 0:
            break
        plan = harness.step()
        num_computed += sum(len(e.token_ids) for e in plan.scheduled if not e.is_last_pending)

    assert [s.finish_reason for s in samples] == [FinishReason.LENGTH] * 5
    assert [s.generated_ids for s in samples] == [[TOKEN] * 3] * 5
    assert [s.cached_tokens for s in samples] == [0, 0, 16, 16, 16]
    # Each wave of two computes what is not in the cache once.
    assert num_computed == 18 + 2 + 2
    assert harness.blocks.num_free_blocks == 64


def test_usage_of_a_fork_is_that_of_its_leader_and_the_prompt_counts_once() -> None:
    harness = Harness()
    harness.add("first", prompt(1, 9), max_tokens=1)
    harness.step()
    samples = harness.add_samples("r", prompt(1, 18), num_samples=3)
    assert harness.scheduler.num_waiting_tokens == 18 - 8
    harness.step()

    assert [sample.cached_tokens for sample in samples] == [8, 8, 8]
    totals = harness.scheduler.totals
    assert (totals.num_prompt_tokens, totals.num_cached_prompt_tokens) == (9 + 18, 8)


def test_samples_wait_when_their_copies_would_find_no_block() -> None:
    # The prompt takes 3 of 6 blocks: after two forks only a spare block for each is left.
    harness = Harness(num_blocks=6)
    samples = harness.add_samples("r", prompt(1, 10), num_samples=5)

    plan = harness.step()

    assert [sample.slot is not None for sample in samples] == [True, True, True, False, False]
    assert len(plan.scheduled[0].sampling_slots) == 3
    harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_a_copy_without_a_free_block_takes_one_from_the_latest_sample() -> None:
    harness = Harness(make_config(prefix_caching=False), num_blocks=6)
    first, second, third = harness.add_samples("r", prompt(1, 10), num_samples=3)
    harness.step()
    table = harness.blocks._pool
    taken = [table.allocate() for _ in range(harness.blocks.num_free_blocks)]

    plan = harness.scheduler.plan()

    assert plan is not None
    # The third gave way, so that two shared the tail; the second went, too, and the first kept it.
    assert [third.slot, second.slot] == [None, None]
    assert plan.block_copies == ()
    assert [entry.slot for entry in plan.scheduled] == [first.slot]
    harness.scheduler.commit(plan, answer(plan))
    table.release(taken)
    harness.scheduler.finish(first)
    harness.step()
    assert second.generated_ids == [TOKEN] * 2
    harness.scheduler.finish(second)
    harness.step()
    assert third.generated_ids == [TOKEN] * 2


def test_a_preempted_sample_with_tokens_is_nobodys_leader() -> None:
    harness = Harness(make_config(max_num_seqs=3, prefix_caching=False))
    samples = harness.add_samples("r", prompt(1, 10), num_samples=4)
    harness.step()
    harness.step()
    harness.scheduler._places.preempt(samples[2])

    plan = harness.step()

    [entry] = [e for e in plan.scheduled if not e.is_last_pending]
    assert entry.token_ids == (*prompt(1, 10), TOKEN, TOKEN)
    assert entry.sampling_slots == (entry.slot,)
    assert samples[3].slot is None


def test_when_the_leader_leaves_amid_its_prompt_the_next_sample_computes_it() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    leader, second, third = harness.add_samples("r", prompt(1, 18), num_samples=3)
    harness.step()
    harness.scheduler.finish(leader)

    plans = [harness.step(), harness.step()]

    assert plans[0].scheduled[0].start == 8  # found what the leader computed
    assert plans[1].scheduled[-1].sampling_slots == (second.slot, third.slot)


def test_a_sample_can_leave_between_fork_and_first_write() -> None:
    harness = Harness()
    first, second, third = harness.add_samples("r", prompt(1, 10), num_samples=3)
    harness.step()
    harness.scheduler.finish(second)

    plan = harness.step()

    assert len(plan.block_copies) == 1
    assert [s.generated_ids for s in (first, third)] == [[TOKEN, TOKEN]] * 2


def test_without_tokens_to_generate_the_prompt_is_computed_once_for_all() -> None:
    harness = Harness(make_config())
    samples = harness.add_samples("r", prompt(1, 10), num_samples=3, max_tokens=0)
    other = harness.add("other", prompt(2, 3))

    plan = harness.step()

    assert plan.num_tokens == 10
    assert plan.scheduled[0].sampling_slots == ()
    assert [s.finish_reason for s in samples] == [FinishReason.LENGTH] * 3
    assert [s.generated_ids for s in samples] == [[]] * 3
    assert harness.blocks.num_free_blocks == 64
    harness.scheduler.finish(other)
    assert harness.scheduler.plan() is None
    follow_up = harness.add("again", prompt(1, 10))
    harness.step()
    assert follow_up.cached_tokens == 8


@pytest.mark.parametrize("prompt_len", [9, 8])
def test_a_row_without_valid_logits_ends_its_sample_alone(prompt_len: int) -> None:
    harness = Harness()
    bad, good = harness.add_samples("r", prompt(1, prompt_len), num_samples=2)
    other = harness.add("other", prompt(2, prompt_len))
    harness.step()
    assert bad.slot is not None

    harness.step(bad_slots=(bad.slot,))

    assert (bad.finish_reason, bad.error) == (
        FinishReason.ERROR,
        "The model computed no valid logits for this request.",
    )
    assert bad.generated_ids == [TOKEN]
    assert good.generated_ids == other.generated_ids == [TOKEN, TOKEN]
    assert harness.scheduler.totals.num_generated_tokens == 5


def test_what_led_to_invalid_logits_is_not_found_but_older_blocks_are() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    bad = harness.add("bad", prompt(1, 16))
    harness.step()
    assert bad.slot is not None
    harness.step(bad_slots=(bad.slot,))
    assert bad.finish_reason is FinishReason.ERROR
    again = harness.add("again", prompt(1, 16))

    plan = harness.step()

    assert again.cached_tokens == 8
    assert set(plan.freed_block_ids) >= {2, 3}


@pytest.mark.parametrize(
    ("sampling", "is_sent"),
    [
        (SamplingParams(9), False),
        (SamplingParams(9, repetition_penalty=1.1), True),
        (SamplingParams(9, presence_penalty=-1.0), True),
        (SamplingParams(9, frequency_penalty=0.5), True),
    ],
)
def test_earlier_tokens_are_sent_only_for_penalties(
    sampling: SamplingParams, is_sent: bool
) -> None:
    harness = Harness()
    request = EngineRequest("r", prompt(2, 3), b"", [], sampling, 60.0)
    [sequence] = harness.add_request(request)
    [first] = harness.step().admissions
    harness.scheduler._places.preempt(sequence)

    [again] = harness.step().admissions

    assert first.past_token_ids == (tuple(prompt(2, 3)) if is_sent else ())
    assert again.past_token_ids == ((*prompt(2, 3), TOKEN) if is_sent else ())
    assert again.num_prompt_tokens == 3
