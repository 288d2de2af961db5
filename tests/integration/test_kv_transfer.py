"""SmolLM2's KV leaves for an arena and comes back: the same text; and KV that was computed again in
other chunks is told from that of other tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from tokenizers import Tokenizer

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from engine.config import EngineConfig, EngineSpec
from engine.kv_images import image_layout
from engine.model_card import model_root_key
from engine.runner import create_runner
from engine.step import BlockTransfer, ModelRunner
from tests.integration.test_golden_greedy import RAW_PROMPTS, SYSTEM
from tests.quickstart import quickstart_checkpoint
from tests.unit.engine.arenas import SOCKET_PATH, make_arena, transfer
from tests.unit.engine.raw_steps import RawSteps

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BLOCK_SIZE = 16
TEXT = SYSTEM + " ".join(RAW_PROMPTS)
MAX_PROMPT_TOKENS = 300
NUM_ANSWER_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Case:
    runner: ModelRunner
    steps: RawSteps
    prompt: list[int]
    layout: ImageLayout
    arena: memoryview

    @property
    def num_full(self) -> int:
        return (len(self.prompt) - 1) // BLOCK_SIZE

    @property
    def table(self) -> range:
        return range(self.num_full + 4)

    @property
    def later_table(self) -> range:
        return range(len(self.table), 2 * len(self.table))

    def transfers(self, table: range) -> list[BlockTransfer]:
        return [transfer(self.layout, table[index], index) for index in range(self.num_full)]

    def store(self) -> None:
        """Compute the prompt's KV and have it leave."""
        self.steps.compute(self.prompt, self.table)
        self.steps.execute(stores=self.transfers(self.table), freed_block_ids=self.table)

    def image(self, stored: BlockTransfer) -> BlockImage:
        memory = self.arena[stored.offset : stored.offset + self.layout.image_bytes]
        return BlockImage(self.layout, memory, BlockKey(stored.key), stored.num_tokens)


@pytest.fixture(scope="module", params=["auto", "never"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    checkpoint = quickstart_checkpoint()
    config = EngineConfig(
        compiled=request.param, kv_cache_bytes=2**26, debug_poison_freed_blocks=True
    )
    loaded = create_runner(EngineSpec(model="m", checkpoint=checkpoint.path, config=config))
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    prompt = tokenizer.encode(TEXT).ids[:MAX_PROMPT_TOKENS]
    layout = image_layout(config, loaded.geometry, model_root_key(config, checkpoint))
    arena = make_arena(layout, len(prompt) // BLOCK_SIZE)
    loaded.runner.attach_arena(arena, layout, SOCKET_PATH)
    yield Case(loaded.runner, RawSteps(loaded.runner), prompt, layout, arena)
    loaded.runner.close()


def test_greedy_text_is_the_same_after_kv_left_and_came_back(case: Case) -> None:
    prompt = case.prompt
    expected = case.steps.compute(prompt, case.table, num_answer_tokens=NUM_ANSWER_TOKENS)
    case.steps.execute(stores=case.transfers(case.table), freed_block_ids=case.table)
    assert case.steps.execute(loads=case.transfers(case.later_table)).failed_loads == ()
    answer = case.steps.compute(
        prompt,
        case.later_table,
        start=case.num_full * BLOCK_SIZE,
        num_answer_tokens=NUM_ANSWER_TOKENS,
    )
    assert answer == expected


@pytest.mark.parametrize("chunk", [37, 16])
def test_kv_computed_in_other_chunks_is_the_same(case: Case, chunk: int) -> None:
    case.store()
    images = case.transfers(case.later_table)
    case.steps.compute(case.prompt, case.later_table, chunk=chunk, comparisons=images)
    assert not case.steps.differing


def test_kv_of_other_tokens_differs(case: Case) -> None:
    case.store()
    own = case.transfers(case.later_table)
    following = [
        replace(block, offset=image.offset, key=image.key)
        for block, image in itertools.pairwise(own)
    ]
    case.steps.compute(case.prompt, case.later_table, comparisons=following)
    assert case.steps.differing == tuple(range(len(following)))


def test_one_other_token_in_a_block_differs(case: Case) -> None:
    case.store()
    changed = list(case.prompt)
    changed[5 * BLOCK_SIZE + 3] = changed[0]
    images = case.transfers(case.later_table)
    case.steps.compute(changed, case.later_table, comparisons=images)
    assert 5 in case.steps.differing
    assert not set(range(5)).intersection(case.steps.differing)


def test_layers_that_changed_places_differ(case: Case) -> None:
    case.store()
    images = case.transfers(case.later_table)
    mixed = case.image(images[2])
    row_bytes = case.layout.shard_bytes // 30
    shard = mixed.shard(0)
    rows = [bytes(shard[begin : begin + row_bytes]) for begin in (14 * row_bytes, 15 * row_bytes)]
    shard[14 * row_bytes : 16 * row_bytes] = rows[1] + rows[0]
    mixed.seal_shard(0)
    case.steps.compute(case.prompt, case.later_table, comparisons=images)
    assert case.steps.differing == (2,)
