"""Samples and log probabilities of random models of three families, with freed blocks poisoned:
equal to those of an engine of their own, whatever is shared, preempted or passed by a window."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import MIB, EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, FinishReason, SamplingParams
from engine.runner import create_runner
from tests.unit.engine.fakes import Answer, run_to_end
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

pytestmark = pytest.mark.integration

BLOCK_SIZE = 4
ROOT_KEY = root_key(KeySalt("tiny", "float32", BLOCK_SIZE, "test"))
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 9, "sliding_window_pattern": 3},
}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    model = make_tiny_model(request.param, **MODELS[request.param])
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "checkpoint")


def make_engine(checkpoint: Path, *, num_spare_blocks: int | None = None, **config: Any) -> Engine:
    """With the blocks of the longest sequence and some to spare, or more than are needed."""
    settings = EngineConfig(
        dtype="float32",
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=MIB,
        debug_poison_freed_blocks=True,
        **config,
    )
    loaded = create_runner(EngineSpec(model="tiny", checkpoint=checkpoint, config=settings))
    num_blocks = loaded.num_blocks
    if num_spare_blocks is not None:
        num_blocks = loaded.geometry.num_blocks_of(loaded.max_model_len) + num_spare_blocks
    return Engine(
        settings,
        geometry=loaded.geometry,
        num_blocks=num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )


def make_requests() -> list[EngineRequest]:
    """With 1 to 4 samples, penalties, log probabilities; prompts share their first 10 tokens."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, VOCAB_SIZE, (100,), generator=generator).tolist()
    samplings = [
        SamplingParams(14, seed=1, num_logprobs=2),
        SamplingParams(20, seed=2, repetition_penalty=1.3, frequency_penalty=0.5),
        SamplingParams(16, seed=3, top_k=20, num_logprobs=0, num_prompt_logprobs=1),
        SamplingParams(0, num_prompt_logprobs=1),
    ]
    requests = []
    for index, sampling in enumerate(samplings):
        token_ids = tokens[:10] + tokens[20 * index : 20 * index + 3 + 5 * index]
        keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
        requests.append(
            EngineRequest(
                f"r{index}", token_ids, ROOT_KEY, keys, sampling, 60.0, num_samples=4 - index
            )
        )
    return requests


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_samples_are_those_of_an_engine_of_their_own(
    checkpoint: Path, prefix_caching: bool
) -> None:
    alone: dict[str, Answer] = {}
    for request in make_requests():
        engine = make_engine(checkpoint, prefix_caching=False)
        engine.add(request)
        alone |= run_to_end(engine)
    crowded = make_engine(
        checkpoint,
        num_spare_blocks=6,
        max_model_len=48,
        max_num_seqs=6,
        max_num_batched_tokens=9,
        min_prefill_chunk_tokens=2,
        kv_admission="optimistic",
        prefix_caching=prefix_caching,
    )
    for request in make_requests():
        crowded.add(request)

    answers = run_to_end(crowded)

    crowded.add(make_requests()[3])
    assert crowded.step().load.num_preemptions > 0
    assert crowded.num_failed_steps == 0
    assert answers.keys() == alone.keys()
    for name, right in alone.items():
        answer = answers[name]
        assert answer.finish_reason is right.finish_reason is FinishReason.LENGTH
        assert answer.token_ids == right.token_ids
        for got, wanted in (
            (answer.logprobs, right.logprobs),
            (answer.prompt_logprobs or [], right.prompt_logprobs or []),
        ):
            assert [entry.logprob for entry in got] == pytest.approx(
                [entry.logprob for entry in wanted], abs=1e-3
            )
    assert len({tuple(alone[name].token_ids) for name in ("r0", "r0#1", "r0#2", "r0#3")}) == 4
    assert len(alone["r2"].prompt_logprobs or []) == len(make_requests()[2].token_ids) - 1


def test_a_sample_is_the_same_however_many_others_there_are(checkpoint: Path) -> None:
    template = make_requests()[0]
    samples: list[list[list[int]]] = []
    for num_samples in (1, 2, 8):
        engine = make_engine(checkpoint, max_num_seqs=5)
        engine.add(msgspec.structs.replace(template, num_samples=num_samples))
        answers = run_to_end(engine)
        names = ["r0", *(f"r0#{index}" for index in range(1, num_samples))]
        samples.append([answers[name].token_ids for name in names])
    one, two, eight = samples
    assert one == two[:1] == eight[:1]
    assert two == eight[:2]
    assert len({tuple(tokens) for tokens in eight}) == 8
