"""The paced runner: profiled time, deterministic tokens and KV, planning faults caught."""

import itertools

import pytest
from msgspec.structs import replace

from cache_tiers.block_image import ImageLayout
from cache_tiers.rung import Rung
from engine.config import PacedConfig
from engine.errors import EngineConfigError, KvMismatchError
from engine.messages import SamplingParams
from engine.paced_runner import PacedRunner
from engine.step import (
    NO_BLOCK,
    Admission,
    BlockCopy,
    ScheduledSequence,
    StepPlan,
    TableUpdate,
)
from tests.unit.engine.arenas import SOCKET_PATH, make_arena, transfer
from tests.unit.engine.fakes import EOS, VOCAB_SIZE, FakeClock, make_runner
from tests.unit.engine.raw_steps import RawSteps

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def admission(
    slot: int, block_ids: tuple[int, ...], sampling: SamplingParams = GREEDY
) -> Admission:
    return Admission(slot, sampling, (block_ids,), num_prompt_tokens=0)


def prefill(slot: int, token_ids: tuple[int, ...], start: int = 0) -> ScheduledSequence:
    return ScheduledSequence(slot, start, token_ids, False, sampling_slots=(slot,))


def decode(slot: int, start: int) -> ScheduledSequence:
    return ScheduledSequence(slot, start, (), True, sampling_slots=(slot,))


def plan(
    *scheduled: ScheduledSequence,
    admissions: tuple[Admission, ...] = (),
    released_slots: tuple[int, ...] = (),
    freed_block_ids: tuple[int, ...] = (),
    block_copies: tuple[BlockCopy, ...] = (),
) -> StepPlan:
    return StepPlan(1, released_slots, freed_block_ids, block_copies, admissions, scheduled)


def run(runner: PacedRunner, step_plan: StepPlan) -> list[int]:
    return [sampled.token_id for sampled in runner.execute(step_plan).sampled]


def first_token(token_ids: tuple[int, ...], sampling: SamplingParams = GREEDY) -> int:
    runner = make_runner(4)
    step = plan(prefill(0, token_ids), admissions=(admission(0, (0, 1), sampling),))
    [token_id] = run(runner, step)
    return token_id


def started(num_blocks: int = 8) -> PacedRunner:
    """A runner whose slot 0 has computed tokens 10 … 15 in blocks 0 and 1."""
    runner = make_runner(num_blocks)
    run(runner, plan(prefill(0, tuple(range(10, 16))), admissions=(admission(0, (0, 1)),)))
    return runner


def kv_of(runner: PacedRunner, block_id: int) -> bytes:
    """Equal bytes mean equal tokens since the start of the sequence."""
    layout = ImageLayout(b"f" * 16, num_shards=1, shard_bytes=40, block_size_tokens=4)
    arena = make_arena(layout, 1)
    runner.attach_arena(arena, layout, SOCKET_PATH)
    RawSteps(runner).execute(stores=[transfer(layout, block_id, slot=0)])
    return bytes(arena[: layout.shard_bytes])


def test_a_step_takes_the_profiled_time_its_bookkeeping_included() -> None:
    sleeps: list[float] = []
    clock = FakeClock()
    config = PacedConfig(step_base_s=1.0, per_decode_s=0.1, per_prefill_token_s=0.01)
    runner = PacedRunner(
        config,
        num_blocks=8,
        block_size_tokens=4,
        vocab_size=9,
        eos_token_ids=[],
        sleep=sleeps.append,
        clock=clock,
    )
    run(runner, plan(prefill(0, (1, 2, 3)), admissions=(admission(0, (0,)),)))
    run(
        runner,
        plan(decode(0, 3), prefill(1, (1, 2, 3, 4, 5)), admissions=(admission(1, (1, 2)),)),
    )

    assert sleeps == [pytest.approx(1.03), pytest.approx(1.15)]


def test_moving_kv_takes_its_time_beside_the_profiled_one() -> None:
    sleeps: list[float] = []
    ticks = itertools.count()
    runner = PacedRunner(
        PacedConfig(step_base_s=100.0),
        num_blocks=8,
        block_size_tokens=4,
        vocab_size=9,
        eos_token_ids=[],
        sleep=sleeps.append,
        clock=lambda: float(next(ticks)),  # every look takes a second
    )
    layout = ImageLayout(b"f" * 16, num_shards=1, shard_bytes=40, block_size_tokens=4)
    runner.attach_arena(make_arena(layout, 1), layout, SOCKET_PATH)
    result = RawSteps(runner).execute(loads=[transfer(layout, 0, slot=0)])
    elapsed_s = 4.0
    assert result.transfer_s == 2.0
    assert sleeps == [100.0 + result.transfer_s - elapsed_s]


def test_contexts_attention_and_padding_take_their_time_too() -> None:
    sleeps: list[float] = []
    config = PacedConfig(
        step_base_s=1.0,
        per_decode_s=0.1,
        per_prefill_token_s=0.01,
        per_context_token_s=0.001,
        per_attended_token_s=0.0001,
        bucket_tokens=8,
    )
    runner = PacedRunner(
        config,
        num_blocks=8,
        block_size_tokens=4,
        vocab_size=9,
        eos_token_ids=[],
        sleep=sleeps.append,
        clock=FakeClock(),
    )
    first = runner.execute(plan(prefill(0, (1, 2, 3)), admissions=(admission(0, (0,)),)))
    second = runner.execute(plan(decode(0, 3)))

    assert [first.num_padding_tokens, second.num_padding_tokens] == [5, 7]
    prefill_s = 1.0 + 8 * 0.01 + 3 * 1.5 * 0.0001
    assert sleeps == [pytest.approx(prefill_s), pytest.approx(1.0 + 8 * 0.1 + 3 * 0.001)]


def test_tokens_depend_on_every_token_before_them() -> None:
    tokens = tuple(range(10, 18))
    changed = [(*tokens[:i], 40, *tokens[i + 1 :]) for i in range(8)]
    assert first_token(tokens) == first_token(tokens)
    assert len({first_token(other) for other in [tokens, *changed]}) > 4


def test_the_seed_matters_unless_greedy() -> None:
    def draws(temperature: float) -> set[int]:
        return {
            first_token((10, 11), SamplingParams(8, temperature=temperature, seed=seed))
            for seed in range(20)
        }

    assert len(draws(0.0)) == 1
    assert len(draws(1.0)) > 5


def test_tokens_cover_the_vocabulary_without_the_end_of_text() -> None:
    drawn = {first_token((a, b)) for a in range(50) for b in range(20)}
    assert drawn == set(range(VOCAB_SIZE)) - {EOS}


def test_a_vocabulary_of_nothing_but_ends_is_refused() -> None:
    with pytest.raises(EngineConfigError, match="end-of-text"):
        PacedRunner(
            PacedConfig(), num_blocks=1, block_size_tokens=4, vocab_size=2, eos_token_ids=[0, 1]
        )


def test_chunks_and_prefix_hits_give_the_same_tokens_and_the_same_kv() -> None:
    tokens = tuple(range(10, 18))
    whole = make_runner(8)
    [expected] = run(whole, plan(prefill(0, tokens), admissions=(admission(0, (0, 1)),)))
    chunked = make_runner(8)
    run(chunked, plan(prefill(0, tokens[:3]), admissions=(admission(0, (5, 6)),)))
    assert run(chunked, plan(prefill(0, tokens[3:], start=3))) == [expected]
    hit = plan(prefill(1, tokens[4:], start=4), admissions=(admission(1, (5, 7)),))
    assert run(chunked, hit) == [expected]

    assert kv_of(whole, 1) == kv_of(chunked, 6) == kv_of(chunked, 7)
    assert kv_of(whole, 0) != kv_of(whole, 1)


def test_a_pending_token_is_the_one_sampled_before() -> None:
    runner = started()
    [token_id] = run(runner, plan(decode(0, 6)))
    explicit = started()
    [first] = run(
        make_runner(8), plan(prefill(0, tuple(range(10, 16))), admissions=(admission(0, (0, 1)),))
    )
    assert run(explicit, plan(prefill(0, (first,), start=6))) == [token_id]


def test_a_copy_can_be_rewritten_without_harm_to_its_source() -> None:
    runner = make_runner(8)
    tokens = tuple(range(10, 18))
    [expected] = run(runner, plan(prefill(0, tokens), admissions=(admission(0, (0, 1)),)))
    before = kv_of(runner, 1)
    copied = plan(
        prefill(1, tokens[7:], start=7),
        admissions=(admission(1, (0, 2)),),
        block_copies=(BlockCopy(1, 2),),
    )
    assert run(runner, copied) == [expected]
    assert kv_of(runner, 1) == before == kv_of(runner, 2)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (plan(decode(0, 5)), "KV of other tokens"),
        (plan(decode(0, 7)), "nothing was written"),
        (plan(freed_block_ids=(1,)), "freed while a running sequence holds it"),
        (plan(block_copies=(BlockCopy(0, 1),)), "overwritten by a copy"),
        (
            plan(prefill(1, (1,), start=4), admissions=(admission(1, (3, 4)),)),
            "nothing was written",
        ),
        (
            plan(prefill(1, (1,), start=2), admissions=(admission(1, (1, 2)),)),
            "does not continue",
        ),
        (plan(prefill(1, (1,), start=0), admissions=(admission(1, (1,)),)), "while others hold it"),
    ],
    ids=["rewound", "skipped", "freed", "copied over", "never written", "misplaced", "shared"],
)
def test_faults_of_planning_are_caught(bad: StepPlan, words: str) -> None:
    with pytest.raises(KvMismatchError, match=words):
        run(started(), bad)


def test_cleared_blocks_hold_nothing() -> None:
    runner = started()
    run(runner, plan(released_slots=(0, 5), freed_block_ids=(1,)))
    stale = plan(prefill(1, (1,), start=6), admissions=(admission(1, (0, 1)),))
    with pytest.raises(KvMismatchError, match="nothing was written"):
        run(runner, stale)


def test_an_admission_forgets_what_the_slot_held() -> None:
    runner = started()
    run(runner, plan(prefill(0, (1,)), admissions=(admission(0, (0,)),)))
    run(runner, plan(prefill(1, (2,)), admissions=(admission(1, (1,)),)))


def fork(slots: tuple[int, ...], token_ids: tuple[int, ...], start: int = 0) -> ScheduledSequence:
    return ScheduledSequence(slots[0], start, token_ids, False, sampling_slots=slots)


def test_samples_part_where_they_draw_and_copy_before_they_write() -> None:
    tokens = tuple(range(10, 16))
    seeds = {slot: SamplingParams(8, seed=slot) for slot in range(3)}
    expected = [first_token(tokens, seeds[slot]) for slot in range(3)]
    runner = make_runner(8)
    step = plan(
        fork((0, 1, 2), tokens),
        admissions=tuple(admission(slot, (0, 1), seeds[slot]) for slot in range(3)),
    )
    assert run(runner, step) == expected

    # Two copy the shared tail, the last one writes in place.
    entries = [
        replace(decode(slot, 6), table_updates=(TableUpdate(0, 1, (block_id,)),))
        for slot, block_id in ((0, 2), (1, 3))
    ]
    copied = plan(*entries, decode(2, 6), block_copies=(BlockCopy(1, 2), BlockCopy(1, 3)))
    after = run(runner, copied)

    for slot in range(3):
        alone = make_runner(4)
        run(alone, plan(prefill(0, tokens), admissions=(admission(0, (0, 1), seeds[slot]),)))
        assert run(alone, plan(decode(0, 6))) == [after[slot]]


def test_a_shared_block_that_is_not_copied_is_caught() -> None:
    runner = make_runner(8)
    admissions = (admission(0, (0, 1)), admission(1, (0, 1)))
    run(runner, plan(fork((0, 1), tuple(range(10, 16))), admissions=admissions))
    with pytest.raises(KvMismatchError, match="while others hold it"):
        run(runner, plan(decode(0, 6)))


def windowed(num_tokens: int) -> PacedRunner:
    """Slot 0 has computed so many tokens, in blocks 0 … 3 and, behind a window of 5, 4 … 7."""
    runner = make_runner(8, windows=(None, 5))
    tables = Admission(0, GREEDY, ((0, 1, 2, 3), (4, 5, 6, 7)), num_prompt_tokens=0)
    run(runner, plan(prefill(0, tuple(range(10, 10 + num_tokens))), admissions=(tables,)))
    return runner


def test_blocks_behind_a_window_can_be_freed_once_it_passed() -> None:
    [expected] = run(windowed(8), plan(decode(0, 8)))
    passed = replace(decode(0, 8), table_updates=(TableUpdate(1, 0, (NO_BLOCK,)),))
    assert run(windowed(8), plan(passed, freed_block_ids=(4,))) == [expected]

    with pytest.raises(KvMismatchError, match="read behind its window"):
        run(windowed(7), plan(replace(passed, start=7), freed_block_ids=(4,)))


def test_log_probabilities_depend_on_the_tokens_alone() -> None:
    tokens = tuple(range(10, 16))
    asks = SamplingParams(8, temperature=0.0, num_logprobs=2, num_prompt_logprobs=1)
    whole = make_runner(8).execute(
        plan(prefill(0, tokens), admissions=(admission(0, (0, 1), asks),))
    )
    runner = make_runner(8)
    chunk = ScheduledSequence(0, 0, tokens[:2], False, following_token_id=tokens[2])
    first = runner.execute(plan(chunk, admissions=(admission(0, (0, 1), asks),)))
    second = runner.execute(plan(prefill(0, tokens[2:], start=2)))

    assert second.sampled == whole.sampled
    chunks = [*first.prompt_logprobs, *second.prompt_logprobs]
    assert [len(chunk.logprobs) for chunk in chunks] == [2, 3]
    [all_] = whole.prompt_logprobs
    assert tuple(entry for chunk in chunks for entry in chunk.logprobs) == all_.logprobs
    assert [entry.top_ids for entry in all_.logprobs] == [[token] for token in tokens[1:]]
    [drawn] = [sampled.logprobs for sampled in whole.sampled]
    assert drawn is not None
    assert len(drawn.top_ids) == 2
    assert 0 > drawn.logprob == drawn.top_logprobs[0] > drawn.top_logprobs[1]


@pytest.mark.parametrize(
    ("started_from", "staged_start_s", "expected_s"),
    [
        (Rung.COLD, 3, [20]),
        (Rung.ON_DISK, 3, [20]),
        (Rung.STAGED, 3, [3]),
        (Rung.PARKED, 3, [3]),
        (Rung.STAGED, 0, []),
        (Rung.STAGED, None, [20]),
    ],
)
def test_a_start_from_memory_takes_its_own_time(
    started_from: Rung, staged_start_s: float | None, expected_s: list[float]
) -> None:
    sleeps: list[float] = []
    PacedRunner(
        PacedConfig(start_s=20, staged_start_s=staged_start_s),
        num_blocks=8,
        block_size_tokens=4,
        vocab_size=50,
        eos_token_ids=[2],
        started_from=started_from,
        sleep=sleeps.append,
    )
    assert sleeps == expected_s


def test_a_start_and_a_wake_take_what_they_are_told_and_kv_is_gone_afterwards() -> None:
    sleeps: list[float] = []
    runner = PacedRunner(
        PacedConfig(start_s=20, wake_s=3),
        num_blocks=8,
        block_size_tokens=4,
        vocab_size=50,
        eos_token_ids=[2],
        sleep=sleeps.append,
        clock=lambda: 0.0,
    )
    assert sleeps == [20]
    runner.execute(plan(prefill(0, (1, 2, 3, 4)), admissions=(admission(0, (1,)),)))
    runner.free_kv()
    sleeps.clear()
    runner.allocate_kv()
    assert sleeps == [3]
    with pytest.raises(KvMismatchError, match="read where nothing was written"):
        runner.execute(plan(prefill(0, (5,), start=4), admissions=(admission(0, (1, 2)),)))
