"""The torch runner under the real scheduler, with random weights: its answers are transformers'."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.errors import RunnerError
from engine.messages import EngineRequest, SamplingParams
from engine.runner import LoadedRunner, create_runner
from engine.step import Admission, BlockCopy, ScheduledSequence, StepPlan
from tests.unit.engine.fakes import run_to_end
from tests.unit.engine.tiny_llama import VOCAB_SIZE, make_reference, write_checkpoint

BLOCK_SIZE = 4
BLOCK_BYTES = 2 * 2 * 2 * 8 * BLOCK_SIZE * 4
ROOT_KEY = root_key(KeySalt("tiny", "float32", BLOCK_SIZE, "test"))
GREEDY = SamplingParams(max_tokens=20, temperature=0.0)


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    return make_reference()


@pytest.fixture(scope="module")
def checkpoint(reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(reference, tmp_path_factory.mktemp("model") / "checkpoint")


def load(checkpoint: Path, *, num_blocks: int = 64, **config: Any) -> tuple[LoadedRunner, Engine]:
    settings = EngineConfig(
        dtype="float32",
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=num_blocks * BLOCK_BYTES,
        debug_poison_freed_blocks=True,
        **config,
    )
    loaded = create_runner(EngineSpec(model="tiny", checkpoint=checkpoint, config=settings))
    engine = Engine(
        settings,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )
    return loaded, engine


def make_requests(sampling: SamplingParams = GREEDY) -> list[EngineRequest]:
    """Prompts of 3 to 38 tokens; the even ones share their first 10."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(3, VOCAB_SIZE, (10,), generator=generator).tolist()
    requests = []
    for index in range(8):
        own = torch.randint(3, VOCAB_SIZE, (3 + 4 * index,), generator=generator).tolist()
        token_ids = own if index % 2 else shared + own
        keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
        requests.append(EngineRequest(str(index), token_ids, ROOT_KEY, keys, sampling, 60.0))
    return requests


def answer(engine: Engine, requests: list[EngineRequest]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    answers = run_to_end(engine)
    assert all(a.error is None for a in answers.values())
    return {request_id: a.token_ids for request_id, a in answers.items()}


def answer_alone(checkpoint: Path, sampling: SamplingParams) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    for request in make_requests(sampling):
        _, engine = load(checkpoint)
        answers |= answer(engine, [request])
    return answers


def test_greedy_answers_equal_transformers(checkpoint: Path, reference: LlamaForCausalLM) -> None:
    expected = {}
    for request in make_requests():
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
    assert answer(engine, make_requests()) == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"prefix_caching": False},
        {"max_num_batched_tokens": 7, "min_prefill_chunk_tokens": 2},
        {"num_blocks": 17},
        {"max_num_seqs": 3},
        {"attention": "reference"},
        {"weight_layout": "mapped"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=7)],
    ids=["greedy", "seeded"],
)
def test_answers_do_not_depend_on_batch_chunks_cache_or_preemption(
    checkpoint: Path, config: dict[str, Any], sampling: SamplingParams
) -> None:
    expected = answer_alone(checkpoint, sampling)
    _, engine = load(checkpoint, **config)
    assert answer(engine, make_requests(sampling)) == expected
    # Again, with whatever the prefix cache has kept.
    view = engine.step().load
    assert answer(engine, make_requests(sampling)) == expected
    if config == {"num_blocks": 17}:
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


def test_a_copied_block_serves_like_its_source_and_a_freed_one_does_not(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    runner = loaded.runner
    prompt = ScheduledSequence(0, 0, (5, 6, 7), False, (), True)
    (first,) = runner.execute(
        plan_of(1, scheduled=(prompt,), admissions=(Admission(0, GREEDY, (9,)),))
    ).sampled
    # Slot 1 goes on from a copy of the block; the last token is computed again.
    again = ScheduledSequence(1, 2, (7,), False, (), True)
    admit = (Admission(1, GREEDY, (3,)),)
    copies = (BlockCopy(src=9, dst=3),)
    plan = plan_of(2, scheduled=(again,), admissions=admit, copies=copies, freed=(3,))
    (second,) = runner.execute(plan).sampled
    assert (second.slot, second.token_id) == (1, first.token_id)
    with pytest.raises(RunnerError, match="NaN"):
        runner.execute(plan_of(3, scheduled=(again,), freed=(3,)))


def test_a_plan_beyond_the_block_table_is_refused(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    too_long = ScheduledSequence(0, 0, (5,) * 5, False, (), True)
    with pytest.raises(RunnerError, match="beyond the block table"):
        loaded.runner.execute(
            plan_of(1, scheduled=(too_long,), admissions=(Admission(0, GREEDY, (9,)),))
        )


def test_a_plan_without_sequences_only_applies_its_deltas(checkpoint: Path) -> None:
    loaded, _ = load(checkpoint)
    assert loaded.runner.execute(plan_of(4, freed=(1, 2))).sampled == ()
    loaded.runner.close()
