"""Sliding windows: what a sequence holds, what others find, and that nothing gets stuck."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.keys import BlockKey, block_keys
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest, FinishReason, SamplingParams
from engine.request_limits import max_request_tokens
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import NO_BLOCK
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    answer_alone,
    make_config,
    make_engine,
    make_geometry,
    make_request,
    run_to_end,
)
from tests.unit.engine.scheduler_harness import Harness, answer, prompt

LONG = list(range(10_000))


class LongHarness:
    """One full group and two behind a window of 512, blocks of 16, chunks of up to 512."""

    def __init__(self, num_blocks: int) -> None:
        groups = (KvGroup((0,)), KvGroup((1,), window=512), KvGroup((2,), window=512))
        geometry = KvGeometry(groups, 1, 1, block_size_tokens=16, bytes_per_element=2)
        self.blocks = BlockManager(num_blocks, geometry, prefix_caching=True)
        self.scheduler = Scheduler(EngineConfig(max_num_batched_tokens=512), self.blocks)

    def run(self, token_ids: list[int], max_tokens: int) -> tuple[Sequence, list[list[int]]]:
        """The sequence, and the blocks that each group held in each step."""
        keys = list(block_keys(BlockKey(b""), token_ids, 16))
        request = EngineRequest(
            "r", token_ids, b"", [*keys], SamplingParams(max_tokens=max_tokens), 60.0
        )
        sequence = Sequence(request, deadline_s=1e9, max_len=len(token_ids) + max_tokens)
        self.scheduler.add([sequence])
        held: list[list[int]] = []
        while True:
            plan = self.scheduler.plan()
            if plan is None:
                return sequence, held
            tables = sequence.block_tables
            held.append([sum(b != NO_BLOCK for b in table) for table in tables])
            self.scheduler.commit(plan, answer(plan))
            self.scheduler.check_integrity()


def test_behind_a_window_a_long_sequence_holds_only_the_window_and_its_chunk() -> None:
    harness = LongHarness(num_blocks=800)  # of 3 × 625 that full attention would need
    sequence, held = harness.run(LONG, max_tokens=100)

    assert sequence.num_generated_tokens == 100
    prefill, decode = held[:20], held[21:]
    assert {full for full, _, _ in held[:20]} == {625}
    assert {full for full, _, _ in held} == set(range(625, 633))
    # 511 tokens before the chunk's 512 span at most 65 blocks; before one token 33.
    assert max(window for _, window, _ in prefill) == 64  # these chunks begin at a block's start
    assert {window for _, window, _ in decode} == {33}
    assert all(first == second for _, first, second in held)
    assert harness.blocks.num_free_blocks == 800


def test_a_prompt_is_found_again_with_the_blocks_of_its_last_window() -> None:
    harness = LongHarness(num_blocks=800)
    harness.run(LONG, max_tokens=1)

    sequence, held = harness.run([*LONG[:9_990], 7, 7, 7], max_tokens=2)

    assert sequence.cached_tokens == 9_984
    assert len(held) == 2
    assert held[0] == [625, 33, 33]  # 511 tokens before position 9984 in 32 blocks, and its own


def test_a_prefix_whose_window_was_passed_and_evicted_is_computed_again() -> None:
    harness = LongHarness(num_blocks=800)
    harness.run(LONG, max_tokens=1)
    roomy = LongHarness(num_blocks=2000)
    roomy.run(LONG, max_tokens=1)
    part = [*LONG[:5_000], 7]

    # 800 - 625 blocks hold what two windows passed of about the last 1,400 tokens.
    assert harness.run(part, max_tokens=1)[0].cached_tokens == 0
    assert roomy.run(part, max_tokens=1)[0].cached_tokens == 4_992


def test_blocks_that_a_window_passed_are_announced_and_used_by_others() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8), windows=(None, 5))
    sequence = harness.add("a", prompt(1, 24))

    plans = [harness.step() for _ in range(3)]

    updates = [plan.scheduled[0].table_updates for plan in plans]
    # Tokens 4 to 7 are in the window of token 8: block 0 went.
    assert [(u.group, u.start, len(u.block_ids)) for u in updates[1]] == [(1, 0, 1), (1, 2, 2)]
    assert updates[1][0].block_ids == (NO_BLOCK,)
    assert sequence.block_tables[1][:3] == [NO_BLOCK] * 3
    assert harness.blocks.num_free_blocks == 64 - 6 - 3
    hit = harness.add("b", prompt(1, 10))
    harness.step()
    assert hit.cached_tokens == 8


def test_a_prefill_whose_blocks_decodes_took_goes_on_in_smaller_chunks() -> None:
    harness = Harness(make_config(max_num_batched_tokens=16), num_blocks=40, windows=(None, 9))
    harness.add("old", prompt(1, 4))
    harness.step()
    new = harness.add("new", prompt(2, 60))
    harness.step()
    taken = [harness.blocks._pool.allocate() for _ in range(harness.blocks.num_free_blocks - 1)]

    plan = harness.scheduler.plan()

    assert plan is not None
    [_, chunk] = plan.scheduled
    assert 0 < chunk.num_tokens < 15
    harness.scheduler.commit(plan, answer(plan))
    for block_id in taken:
        harness.blocks._pool.release([block_id])
    while not new.generated_ids:
        harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_a_prefill_that_finds_no_block_gives_way_and_comes_back() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8), num_blocks=40, windows=(None, 40))
    old = harness.add("old", prompt(1, 3))
    harness.step()
    new = harness.add("new", prompt(2, 60))
    harness.step()
    taken = [harness.blocks._pool.allocate() for _ in range(harness.blocks.num_free_blocks)]

    while new.slot is not None:  # its last block is not full at first
        plan = harness.scheduler.plan()
        assert plan is not None
        harness.scheduler.commit(plan, answer(plan))

    assert old.slot is not None
    assert harness.scheduler.totals.num_preemptions == 1
    for block_id in taken:
        harness.blocks._pool.release([block_id])
    while not new.generated_ids:
        harness.step()


def test_a_whole_hit_that_does_not_fit_with_its_copies_is_computed_instead() -> None:
    # Window 5: the token behind a block sees that block alone, its last one two of them; with a
    # copy of the second that is more than the sequence ever needs.
    windows = (5, 5, 5)
    request = make_request("a", prompt(1, 16), max_tokens=3)
    num_blocks = make_geometry(windows).num_blocks_of(18)
    harness = Harness(num_blocks=num_blocks, windows=windows)
    for _ in range(2):
        [sequence] = harness.add_request(request)
        while sequence.finish_reason is None:
            harness.step()
        assert sequence.finish_reason is FinishReason.LENGTH
    assert harness.blocks.num_free_blocks == num_blocks


@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.none() | st.integers(2, 20), min_size=1, max_size=4),
    num_blocks=st.integers(4, 40),
    budget_tokens=st.integers(1, 40),
    prefix_caching=st.booleans(),
)
def test_the_longest_sequence_that_fits_runs_alone_from_any_split(
    windows: list[int | None], num_blocks: int, budget_tokens: int, prefix_caching: bool
) -> None:
    config = make_config(
        max_num_batched_tokens=budget_tokens, prefix_caching=prefix_caching, max_num_seqs=2
    )
    geometry = make_geometry(windows)
    longest = max_request_tokens(geometry, num_blocks=num_blocks, max_model_len=60)
    assert geometry.num_blocks_of(longest) <= num_blocks
    if longest < 60:
        assert geometry.num_blocks_of(longest + 1) > num_blocks
    engine = make_engine(config, num_blocks=num_blocks, max_model_len=60, windows=windows)
    for index, num_prompt_tokens in enumerate((1, longest // 2, longest - 1, longest - 1)):
        if 0 < num_prompt_tokens < longest:
            tokens = [3 + i % 40 for i in range(num_prompt_tokens)]
            request = make_request(f"r{index}", tokens, max_tokens=100)
            engine.add(request)
            answer_ = run_to_end(engine)[f"r{index}"]
            assert answer_.finish_reason is FinishReason.LENGTH
            assert answer_.token_ids == answer_alone(request, longest).token_ids


@pytest.mark.parametrize(
    ("windows", "num_blocks", "longest"),
    [
        ((None,), 10, 40),
        ((None, None), 10, 20),
        ((None, 8), 10, 28),  # 3 blocks for 7 tokens and a new one, 7 for the rest
        ((8,), 3, 1000),
        ((8,), 2, 8),
    ],
)
def test_the_longest_sequence(
    windows: tuple[int | None, ...], num_blocks: int, longest: int
) -> None:
    assert BLOCK_SIZE == 4
    geometry = make_geometry(windows)
    assert max_request_tokens(geometry, num_blocks=num_blocks, max_model_len=1000) == longest
