"""Runners whose KV leaves for the arena and comes back: answers are those of KV that stayed."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout
from engine.checkpoints.store import open_checkpoint
from engine.collectives import Collectives
from engine.config import EngineConfig, EngineSpec, PacedConfig, RankSpec
from engine.errors import KvMismatchError
from engine.kv_images import image_layout
from engine.model_card import model_root_key
from engine.models.registry import read_model_config
from engine.runner import create_runner
from engine.sizing import engine_geometry
from engine.step import BlockCopy, BlockTransfer, ModelRunner
from tests.unit.engine.arenas import SOCKET_PATH, make_arena, transfer
from tests.unit.engine.raw_steps import RawSteps
from tests.unit.engine.thread_ranks import RankThreads
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

BLOCK_SIZE = 4
PROMPT = [5, 17, 33, 8, 60, 2, 91, 14, 7, 7, 45, 70, 23, 11]
NUM_FULL = 3
TABLE = range(8)
LATER_TABLE = range(8, 16)
NUM_ANSWER_TOKENS = 12

on_all = pytest.mark.parametrize("case", ["torch", "torch on 3 ranks", "paced"], indirect=True)


@dataclass(frozen=True, slots=True)
class Case:
    runner: ModelRunner
    steps: RawSteps
    arena: memoryview
    layout: ImageLayout

    def transfers(self, table: range) -> list[BlockTransfer]:
        """Of the prompt's full blocks in ``table``."""
        return [transfer(self.layout, table[index], index) for index in range(NUM_FULL)]

    def answer(self, table: range, *, start: int = 0) -> list[int]:
        return self.steps.compute(PROMPT, table, start=start, num_answer_tokens=NUM_ANSWER_TOKENS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model(
        "llama", num_attention_heads=6, num_key_value_heads=6, intermediate_size=48
    )
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "checkpoint")


@pytest.fixture(params=["torch", "paced"])
def case(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Case]:
    kind, _, ranks = request.param.partition(" on ")
    config = EngineConfig(
        runner=kind,
        dtype="float32",
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=2**20,
        debug_poison_freed_blocks=True,
        tensor_parallel_size=int(ranks[0]) if ranks else 1,
        paced=PacedConfig(step_base_s=0, per_decode_s=0, per_prefill_token_s=0, block_bytes=999),
    )
    made = make_case(EngineSpec(model="tiny", checkpoint=checkpoint, config=config))
    yield made
    made.runner.close()


def make_case(spec: EngineSpec) -> Case:
    opened = open_checkpoint(spec.checkpoint)
    geometry = engine_geometry(spec.config, read_model_config(opened.config))
    layout = image_layout(spec.config, geometry, model_root_key(spec.config, opened))
    arena = make_arena(layout, NUM_FULL + 1)

    def create(collectives: Collectives | None) -> ModelRunner:
        rank = RankSpec() if collectives is None else collectives.rank
        return create_runner(spec, rank, collectives).runner

    size = spec.config.tensor_parallel_size
    runner = create(None) if size == 1 else RankThreads(size, create)
    runner.attach_arena(arena, layout, SOCKET_PATH)
    return Case(runner, RawSteps(runner), arena, layout)


@on_all
def test_answers_are_the_same_after_kv_left_and_came_back(case: Case) -> None:
    expected = case.answer(TABLE)
    # In one plan: what is freed is stored first.
    stored = case.steps.execute(stores=case.transfers(TABLE), freed_block_ids=TABLE)
    loaded = case.steps.execute(loads=case.transfers(LATER_TABLE))
    assert loaded.failed_loads == ()
    assert stored.transfer_s > 0
    assert loaded.transfer_s > 0
    assert case.answer(LATER_TABLE, start=NUM_FULL * BLOCK_SIZE) == expected


@on_all
def test_an_image_that_changed_is_told_and_computed_again(case: Case) -> None:
    expected = case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE), freed_block_ids=TABLE)
    # In the last rank's shard.
    case.arena[case.layout.image_bytes + case.layout.num_shards * case.layout.shard_bytes - 1] ^= 1
    loaded = case.steps.execute(loads=case.transfers(LATER_TABLE))
    assert loaded.failed_loads == (1,)
    assert case.answer(LATER_TABLE, start=BLOCK_SIZE) == expected


def test_a_block_is_loaded_after_it_is_freed_and_copied_after_it_is_loaded(case: Case) -> None:
    expected = case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE))
    case.steps.execute(freed_block_ids=TABLE, loads=case.transfers(TABLE))
    copies = [BlockCopy(TABLE[index], LATER_TABLE[index]) for index in range(NUM_FULL)]
    case.steps.execute(freed_block_ids=LATER_TABLE, block_copies=copies)
    assert case.answer(LATER_TABLE, start=NUM_FULL * BLOCK_SIZE) == expected


def test_kv_computed_again_is_compared_with_its_image_after_the_step(case: Case) -> None:
    case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE), freed_block_ids=TABLE)
    own = case.transfers(LATER_TABLE)
    case.steps.compute(PROMPT, LATER_TABLE, chunk=3, comparisons=own)
    assert not case.steps.differing
    foreign = replace(own[0], offset=own[1].offset, key=own[1].key)
    case.steps.compute(PROMPT, LATER_TABLE, comparisons=[own[0], foreign])
    assert case.steps.differing == (1,)


def test_the_last_block_of_a_prompt_is_moved_though_it_is_not_full(case: Case) -> None:
    expected = case.answer(TABLE)
    num_tokens = len(PROMPT) - 1 - NUM_FULL * BLOCK_SIZE
    last = transfer(case.layout, TABLE[NUM_FULL], NUM_FULL, num_tokens=num_tokens)
    case.steps.execute(stores=[*case.transfers(TABLE), last], freed_block_ids=TABLE)
    last = transfer(case.layout, LATER_TABLE[NUM_FULL], NUM_FULL, num_tokens=num_tokens)
    loaded = case.steps.execute(loads=[*case.transfers(LATER_TABLE), last])
    assert loaded.failed_loads == ()
    assert case.answer(LATER_TABLE, start=len(PROMPT) - 1) == expected


def test_an_arena_that_was_let_go_of_can_be_unmapped(case: Case) -> None:
    mapping = mmap.mmap(-1, len(case.transfers(TABLE)) * case.layout.image_bytes)
    case.runner.attach_arena(memoryview(mapping), case.layout, SOCKET_PATH)
    case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE))
    case.steps.execute(loads=case.transfers(LATER_TABLE))
    case.steps.compute(PROMPT, LATER_TABLE, comparisons=case.transfers(LATER_TABLE))
    case.runner.detach_arena()
    mapping.close()  # raises while somebody has a view


def test_another_arena_takes_the_place_of_the_first(case: Case) -> None:
    expected = case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE))
    other = make_arena(case.layout, NUM_FULL + 1)
    case.runner.attach_arena(other, case.layout, SOCKET_PATH)
    assert case.steps.execute(loads=case.transfers(LATER_TABLE)).failed_loads == (0, 1, 2)
    case.steps.execute(stores=case.transfers(TABLE), freed_block_ids=TABLE)
    assert case.steps.execute(loads=case.transfers(LATER_TABLE)).failed_loads == ()
    assert case.answer(LATER_TABLE, start=NUM_FULL * BLOCK_SIZE) == expected


@pytest.mark.parametrize("case", ["paced"], indirect=True)
@pytest.mark.parametrize("index", [0, 1])
def test_a_paced_runner_finds_a_load_that_brought_another_block(case: Case, index: int) -> None:
    case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE), freed_block_ids=TABLE)
    loads = case.transfers(LATER_TABLE)
    swapped = replace(loads[2], block_id=loads[index].block_id)  # sound, but not what was there
    case.steps.execute(loads=[*loads, swapped])
    with pytest.raises(KvMismatchError):
        case.answer(LATER_TABLE, start=NUM_FULL * BLOCK_SIZE)


@pytest.mark.parametrize("case", ["paced"], indirect=True)
def test_a_paced_runner_stores_nothing_that_was_not_written(case: Case) -> None:
    with pytest.raises(KvMismatchError, match="stored where nothing was written"):
        case.steps.execute(stores=case.transfers(TABLE))


@pytest.mark.parametrize("case", ["torch"], indirect=True)
def test_a_load_that_failed_is_poisoned_where_stale_kv_is_to_show(case: Case) -> None:
    case.answer(TABLE)
    case.steps.execute(stores=case.transfers(TABLE))
    case.arena[0] ^= 1
    assert case.steps.execute(loads=case.transfers(LATER_TABLE)).failed_loads == (0,)
    # A token that could not be drawn: NaN was read.
    assert case.answer(LATER_TABLE, start=NUM_FULL * BLOCK_SIZE)[0] == -1
