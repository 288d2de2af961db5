"""SmolLM2 in float32 answers as transformers does, token for token, whatever shares its steps; in
bfloat16 the compiled step answers as it does with each prompt alone.

Freed blocks are poisoned with NaN throughout, so that a read of stale KV breaks the answer.
"""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.checkpoints.store import Checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, LoadView, SamplingParams
from engine.native.processor import this_processor
from engine.native.toolchain import has_compiler
from engine.runner import create_runner
from tests.quickstart import quickstart_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

NUM_TOKENS = 64
BLOCK_SIZE = 16
COMPILED: dict[str, Any] = {"dtype": "bfloat16", "compiled": "require"}
needs_compiled_step = pytest.mark.skipif(
    this_processor().reason_against() is not None or not has_compiler(),
    reason="needs AVX-512 and g++",
)
BLOCK_ELEMENTS = 30 * 2 * 3 * 64 * BLOCK_SIZE
ROOT_KEY = root_key(KeySalt("golden", "float32", BLOCK_SIZE, "test"))
SYSTEM = (
    "<|im_start|>system\nYou are a patient teacher. You answer in plain words, give one example, "
    "and say so when you do not know something.<|im_end|>\n"
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three rivers.",
    "Why is the sky blue?",
    "Write a haiku about snow.",
    "How do I boil an egg?",
    "Count from one to twelve.",
    "Who was Ada Lovelace, and what is she remembered for today?",
    "Translate 'good morning' to Spanish.",
    "What is 17 times 3?",
    "List the planets of the solar system, from the sun outwards, with one fact about each.",
)
RAW_PROMPTS = (
    "Once upon a time",
    "def fibonacci(n):\n",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "SELECT name FROM",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The theory of relativity, in the words of a sailor, says that " * 4,
    '{\n  "name": "Alice",\n  "age":',
    "Q: What do bees make?\nA:",
    "In 1969,",
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return quickstart_checkpoint()


@pytest.fixture(scope="module")
def prompts(checkpoint: Checkpoint) -> list[list[int]]:
    """Half of them share a system prompt of three blocks."""
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    chats = [
        f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for question in QUESTIONS
    ]
    return [tokenizer.encode(text).ids for text in (*chats, *RAW_PROMPTS)]


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint, prompts: list[list[int]]) -> list[list[int]]:
    """One batch, padded on the left."""
    torch.set_num_threads(1)  # as the engine's: two wait for each other when tests share the cores
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    output = model.generate(
        torch.tensor([[0] * pad + ids for pad, ids in zip(padding, prompts, strict=True)]),
        attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding]),
        do_sample=False,
        min_new_tokens=NUM_TOKENS,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    answers: list[list[int]] = output[:, longest:].tolist()
    return answers


class GoldenEngine:
    """An engine of the real model that answers token lists."""

    def __init__(self, checkpoint: Checkpoint, *, num_blocks: int = 512, **config: Any) -> None:
        element = 4 if config.get("dtype", "float32") == "float32" else 2
        settings = EngineConfig(
            **{"dtype": "float32"} | config,
            kv_cache_bytes=num_blocks * BLOCK_ELEMENTS * element,
            debug_poison_freed_blocks=True,
        )
        spec = EngineSpec(model="golden", checkpoint=checkpoint.path, config=settings)
        loaded = create_runner(spec)
        self._engine = Engine(
            settings,
            geometry=loaded.geometry,
            num_blocks=loaded.num_blocks,
            max_model_len=loaded.max_model_len,
            vocab_size=loaded.vocab_size,
            runner=loaded.runner,
        )
        self.load = LoadView()

    def answer(self, prompts: list[list[int]]) -> list[list[int]]:
        answers: dict[str, list[int]] = {}
        sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
        for index, prompt in enumerate(prompts):
            keys: list[bytes] = list(block_keys(ROOT_KEY, prompt, BLOCK_SIZE))
            answers[str(index)] = []
            self._engine.add(EngineRequest(str(index), prompt, ROOT_KEY, keys, sampling, 600.0))
        while self._engine.has_work:
            output = self._engine.step()
            self.load = output.load
            for delta in output.deltas:
                assert delta.error is None
                answers[delta.request_id] += delta.token_ids
        self._engine.check_integrity()
        assert self.load.num_free_blocks == self.load.num_blocks
        return list(answers.values())


def test_alone_and_then_together_with_all_prompts_in_the_prefix_cache(
    checkpoint: Checkpoint, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = GoldenEngine(checkpoint)
    assert [engine.answer([prompt])[0] for prompt in prompts] == expected
    num_cached = engine.load.num_cached_prompt_tokens
    assert engine.answer(prompts) == expected
    assert engine.load.num_cached_prompt_tokens - num_cached > sum(map(len, prompts)) / 2


def test_in_one_batch_without_prefix_cache(
    checkpoint: Checkpoint, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = GoldenEngine(checkpoint, prefix_caching=False)
    assert engine.answer(prompts) == expected
    assert engine.load.num_cached_prompt_tokens == 0


@pytest.mark.parametrize(("budget", "min_chunk"), [(24, 1), (40, 17), (256, 16)])
def test_in_chunks(
    checkpoint: Checkpoint,
    prompts: list[list[int]],
    expected: list[list[int]],
    budget: int,
    min_chunk: int,
) -> None:
    engine = GoldenEngine(
        checkpoint, max_num_batched_tokens=budget, min_prefill_chunk_tokens=min_chunk
    )
    assert engine.answer(prompts) == expected


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_after_preemption(
    checkpoint: Checkpoint,
    prompts: list[list[int]],
    expected: list[list[int]],
    prefix_caching: bool,
) -> None:
    engine = GoldenEngine(
        checkpoint, num_blocks=40, prefix_caching=prefix_caching, kv_admission="optimistic"
    )
    assert engine.answer(prompts) == expected
    assert engine.load.num_preemptions > 0


def test_with_the_reference_attention_and_mapped_weights(
    checkpoint: Checkpoint, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = GoldenEngine(checkpoint, attention="reference", weight_layout="mapped")
    assert engine.answer(prompts[8:12]) == expected[8:12]


@pytest.fixture(scope="module")
def compiled_alone(checkpoint: Checkpoint, prompts: list[list[int]]) -> list[list[int]]:
    engine = GoldenEngine(checkpoint, prefix_caching=False, **COMPILED)
    return [engine.answer([prompt])[0] for prompt in prompts]


@needs_compiled_step
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_num_seqs": 3},
        {"num_threads": 2, "prefix_caching": False},
        {"max_num_batched_tokens": 24, "min_prefill_chunk_tokens": 1, "max_num_seqs": 20},
        {"max_num_batched_tokens": 40, "min_prefill_chunk_tokens": 17, "max_num_seqs": 20},
        {"num_blocks": 40},
    ],
    ids=str,
)
def test_the_compiled_step_answers_as_with_each_prompt_alone(
    checkpoint: Checkpoint,
    prompts: list[list[int]],
    compiled_alone: list[list[int]],
    config: dict[str, Any],
) -> None:
    engine = GoldenEngine(checkpoint, **COMPILED | config)
    assert engine.answer(prompts) == compiled_alone


@needs_compiled_step
def test_the_compiled_step_mostly_answers_as_float32_does(
    compiled_alone: list[list[int]], expected: list[list[int]]
) -> None:
    """Two tokens of nearly one likelihood may change places, and all after them then differ."""
    firsts = [
        next(
            (i for i, pair in enumerate(zip(*both, strict=True)) if pair[0] != pair[1]), NUM_TOKENS
        )
        for both in zip(compiled_alone, expected, strict=True)
    ]
    assert sum(firsts) > 0.6 * NUM_TOKENS * len(firsts)
