"""The torch runner under the real scheduler, with random weights: its answers are transformers'."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from transformers import PreTrainedModel

from cache_tiers.keys import KeySalt, block_keys, root_key
from cache_tiers.rung import Rung
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.errors import RunnerError
from engine.messages import EngineRequest, SamplingParams
from engine.runner import LoadedRunner, create_runner
from engine.sleeper import Sleeper
from engine.step import (
    Admission,
    BlockCopy,
    ScheduledSequence,
    StepPlan,
    TableUpdate,
)
from tests.unit.engine.fakes import run_to_end
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

BLOCK_SIZE = 4
LAYER_BLOCK_BYTES = 2 * 2 * 8 * BLOCK_SIZE * 4  # K and V, KV heads, head_dim, tokens, float32
ROOT_KEY = root_key(KeySalt("tiny", "float32", BLOCK_SIZE, "test"))
GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
ALL_WAYS = (
    GREEDY,
    SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=7),
    SamplingParams(max_tokens=20, temperature=1.0, repetition_penalty=1.2, seed=8),
)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 9},
    "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 9, "sliding_window_pattern": 3},
}


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_tiny_model(request.param, **MODELS[request.param])


@pytest.fixture(scope="module")
def checkpoint(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(reference, tmp_path_factory.mktemp("model") / "checkpoint")


def load(checkpoint: Path, *, num_blocks: int = 400, **config: Any) -> tuple[LoadedRunner, Engine]:
    settings = EngineConfig(
        dtype="float32",
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=num_blocks * LAYER_BLOCK_BYTES,
        debug_poison_freed_blocks=True,
        kv_admission="optimistic",  # what happens without a free block is to happen
        **config,
    )
    loaded = create_runner(EngineSpec(model="tiny", checkpoint=checkpoint, config=settings))
    engine = Engine(
        settings,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )
    return loaded, engine


def make_requests(*samplings: SamplingParams) -> list[EngineRequest]:
    """Prompts of 3 to 38 tokens, each sampled in the next way; the even ones share their first
    10."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(3, VOCAB_SIZE, (10,), generator=generator).tolist()
    requests = []
    for index in range(8):
        own = torch.randint(3, VOCAB_SIZE, (3 + 4 * index,), generator=generator).tolist()
        token_ids = own if index % 2 else shared + own
        keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
        sampling = samplings[index % len(samplings)]
        requests.append(EngineRequest(str(index), token_ids, ROOT_KEY, keys, sampling, 60.0))
    return requests


def answer(engine: Engine, requests: list[EngineRequest]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    answers = run_to_end(engine)
    assert all(a.error is None for a in answers.values())
    return {request_id: a.token_ids for request_id, a in answers.items()}


def answer_alone(checkpoint: Path, *samplings: SamplingParams) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    for request in make_requests(*samplings):
        _, engine = load(checkpoint)
        answers |= answer(engine, [request])
    return answers


def expected_logprobs(reference: Any, token_ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits.log_softmax(dim=-1)


def test_greedy_answers_equal_transformers(checkpoint: Path, reference: Any) -> None:
    expected = {}
    for request in make_requests(GREEDY):
        prompt = torch.tensor([request.token_ids])
        output = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=20,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected[request.request_id] = output[0, prompt.shape[1] :].tolist()
    _, engine = load(checkpoint)
    assert answer(engine, make_requests(GREEDY)) == expected


CONFIGS: list[dict[str, Any]] = [
    {},
    {"prefix_caching": False},
    {"max_num_batched_tokens": 7, "min_prefill_chunk_tokens": 2},
    {"max_num_seqs": 3},
    {"attention": "reference"},
    {"weight_layout": "mapped"},
]


@pytest.mark.parametrize("reference", ["llama", "gemma3_text"], indirect=True)
def test_answers_do_not_depend_on_batch_chunks_cache_or_preemption(checkpoint: Path) -> None:
    expected = answer_alone(checkpoint, *ALL_WAYS)
    loaded, _ = load(checkpoint)
    has_windows = any(group.window for group in loaded.geometry.groups)
    # Enough for the longest alone; windows let more run in less.
    small_pool = {"num_blocks": 24 if has_windows else 34}
    for config in [*CONFIGS, small_pool]:
        _, engine = load(checkpoint, **config)
        assert answer(engine, make_requests(*ALL_WAYS)) == expected, config
        # Again, with whatever the prefix cache has kept.
        view = engine.step().load
        assert answer(engine, make_requests(*ALL_WAYS)) == expected, config
        if config == small_pool and not has_windows:
            assert view.num_preemptions > 0
        if config == {}:
            assert engine.step().load.num_cached_prompt_tokens > view.num_cached_prompt_tokens


def plan_of(
    step_id: int,
    *,
    scheduled: tuple[ScheduledSequence, ...] = (),
    admissions: tuple[Admission, ...] = (),
    copies: tuple[BlockCopy, ...] = (),
    freed: tuple[int, ...] = (),
) -> StepPlan:
    return StepPlan(
        step_id=step_id,
        released_slots=(),
        freed_block_ids=freed,
        block_copies=copies,
        admissions=admissions,
        scheduled=scheduled,
    )


class Tables:
    """One table per KV group, each with blocks of its own: block ``i`` stands for ``i * groups``
    and those behind it."""

    def __init__(self, loaded: LoadedRunner) -> None:
        self.num_groups = len(loaded.geometry.groups)

    def blocks(self, index: int) -> tuple[int, ...]:
        return tuple(self.num_groups * index + group for group in range(self.num_groups))

    def admission(self, slot: int, *blocks: int, sampling: SamplingParams = GREEDY) -> Admission:
        tables = tuple(zip(*map(self.blocks, blocks), strict=True))
        return Admission(slot, sampling, tables, num_prompt_tokens=3)

    def growth(self, start: int, block: int) -> tuple[TableUpdate, ...]:
        return tuple(TableUpdate(g, start, (b,)) for g, b in enumerate(self.blocks(block)))

    def copies(self, src: int, dst: int) -> tuple[BlockCopy, ...]:
        return tuple(map(BlockCopy, self.blocks(src), self.blocks(dst)))


def test_a_copied_block_serves_like_its_source_and_a_freed_one_does_not(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    tables = Tables(loaded)
    prompt = ScheduledSequence(0, 0, (5, 6, 7), False, sampling_slots=(0,))
    (first,) = loaded.runner.execute(
        plan_of(1, scheduled=(prompt,), admissions=(tables.admission(0, 9),))
    ).sampled
    # Slot 1 goes on from a copy of the block; the last token is computed again.
    again = ScheduledSequence(1, 2, (7,), False, sampling_slots=(1,))
    plan = plan_of(
        2,
        scheduled=(again,),
        admissions=(tables.admission(1, 3),),
        copies=tables.copies(9, 3),
        freed=tables.blocks(3),
    )
    (second,) = loaded.runner.execute(plan).sampled
    assert (second.slot, second.token_id) == (1, first.token_id)
    # A sequence that reads a freed block gets no token; the others of its batch do.
    healthy = ScheduledSequence(0, 2, (7,), False, sampling_slots=(0,))
    broken, sound = loaded.runner.execute(
        plan_of(3, scheduled=(again, healthy), freed=tables.blocks(3))
    ).sampled
    assert (broken.token_id, sound.token_id) == (-1, first.token_id)
    # It may be scheduled once more before the planner knows.
    pending = ScheduledSequence(1, 3, (), True, sampling_slots=(1,))
    assert loaded.runner.execute(plan_of(4, scheduled=(pending,))).sampled[0].token_id == -1


def test_samples_part_from_one_row_with_their_own_seeds(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    tables = Tables(loaded)
    seeded = [SamplingParams(max_tokens=9, temperature=3.0, seed=seed) for seed in (1, 2, 1)]
    admissions = tuple(
        tables.admission(slot, 5, sampling=sampling) for slot, sampling in enumerate(seeded)
    )
    prompt = ScheduledSequence(0, 0, (5, 6, 7), False, sampling_slots=(0, 1, 2))
    sampled = loaded.runner.execute(plan_of(1, scheduled=(prompt,), admissions=admissions)).sampled
    assert [token.slot for token in sampled] == [0, 1, 2]
    assert sampled[0].token_id == sampled[2].token_id != sampled[1].token_id
    # Each goes on from its own token: two with blocks of their own, one in the shared block.
    goes_on = tuple(
        ScheduledSequence(
            slot, 3, (), True, table_updates=tables.growth(0, 6 + slot), sampling_slots=(slot,)
        )
        for slot in range(3)
    )
    copies = tuple(copy for slot in range(3) for copy in tables.copies(5, 6 + slot))
    following = loaded.runner.execute(plan_of(2, scheduled=goes_on, copies=copies)).sampled
    alone = [seeded[0], seeded[1]]
    for slot, sampling in enumerate(alone):
        token_ids = (5, 6, 7, sampled[slot].token_id)
        whole = ScheduledSequence(3, 0, token_ids, False, sampling_slots=(3,))
        admission = tables.admission(3, 9, sampling=sampling)
        plan = plan_of(3 + slot, scheduled=(whole,), admissions=(admission,))
        assert loaded.runner.execute(plan).sampled[0].token_id == following[slot].token_id
    assert following[0].token_id == following[2].token_id


def test_log_probabilities_of_prompt_and_answer_equal_transformers(
    checkpoint: Path, reference: Any
) -> None:
    sampling = SamplingParams(20, temperature=0.0, num_logprobs=2, num_prompt_logprobs=3)
    request = make_requests(sampling)[6]
    _, engine = load(checkpoint, max_num_batched_tokens=7, min_prefill_chunk_tokens=2)
    engine.add(request)
    answered = run_to_end(engine)[request.request_id]
    token_ids = request.token_ids + answered.token_ids
    expected = expected_logprobs(reference, token_ids)
    assert answered.prompt_logprobs is not None
    reported = [*answered.prompt_logprobs, *answered.logprobs]
    assert len(reported) == len(token_ids) - 1
    for position, logprobs in enumerate(reported, start=1):
        row = expected[position - 1]
        top = row.topk(len(logprobs.top_ids))
        assert logprobs.logprob == pytest.approx(row[token_ids[position]].item(), abs=1e-4)
        assert logprobs.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-4)
        assert logprobs.top_ids == top.indices.tolist()


@pytest.mark.parametrize("change", [{"token_ids": (5,) * 5}, {"start": 4}], ids=str)
def test_a_plan_beyond_the_block_table_is_refused(checkpoint: Path, change: dict[str, Any]) -> None:
    loaded, _ = load(checkpoint)
    inside = ScheduledSequence(0, 0, (5,) * 4, False, sampling_slots=(0,))
    admissions = (Tables(loaded).admission(0, 9),)
    loaded.runner.execute(plan_of(1, scheduled=(inside,), admissions=admissions))
    with pytest.raises(RunnerError, match="beyond the block table"):
        loaded.runner.execute(plan_of(2, scheduled=(replace(inside, **change),)))


def test_tables_that_do_not_fit_the_model_are_refused(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    tables = Tables(loaded)
    admission = Admission(0, GREEDY, ((1,),) * (tables.num_groups + 1), num_prompt_tokens=3)
    with pytest.raises(RunnerError, match="KV groups"):
        loaded.runner.execute(plan_of(1, admissions=(admission,)))
    gap = ScheduledSequence(0, 0, (5,), False, table_updates=tables.growth(2, 3))
    with pytest.raises(RunnerError, match="a gap"):
        loaded.runner.execute(plan_of(2, admissions=(tables.admission(0, 9),), scheduled=(gap,)))


def test_a_plan_without_sequences_only_applies_its_deltas(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    assert loaded.runner.execute(plan_of(4, freed=(1, 2))).sampled == ()
    loaded.runner.close()


def test_answers_are_the_same_after_sleep_and_read_nothing_of_the_pool_before(
    checkpoint: Path,
) -> None:
    """Windows, sampling state and penalties included; a pool that is new is poisoned, too."""
    loaded, engine = load(checkpoint)
    sleeper = Sleeper(engine, loaded.runner)
    answers = []
    for _ in range(3):
        answers.append(answer(engine, make_requests(*ALL_WAYS)))
        assert sleeper.sleep().rung is Rung.PARKED
        assert sleeper.wake().rung is Rung.SERVING
    assert answers[0] == answers[1] == answers[2]
    engine.close()
