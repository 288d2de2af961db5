"""What rounding costs a real model, on 20,000 tokens of prose (see ``tests/data/perplexity``): the
engine's own log probabilities of prompts, with the compiled step where this machine has it."""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.checkpoints.store import Checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, SamplingParams
from engine.quantization.layers import Quantization
from engine.runner import create_runner
from tests.integration.model_steps import (
    compiled_library,
    logits_of,
    native_steps,
    torch_steps,
)
from tests.quickstart import quickstart_checkpoint
from tests.unit.engine.paged_model import Chunk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TEXT = Path(__file__).parents[1] / "data" / "perplexity" / "persuasion.txt"
NUM_TOKENS = 20_480
WINDOW = 512
BLOCK_SIZE = 16
ROOT_KEY = root_key(KeySalt("perplexity", "bfloat16", BLOCK_SIZE, "test"))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return quickstart_checkpoint()


@pytest.fixture(scope="module")
def token_ids(checkpoint: Checkpoint) -> list[int]:
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    ids: list[int] = tokenizer.encode(TEXT.read_text("utf-8")).ids
    assert len(ids) >= NUM_TOKENS
    return ids


def perplexity(
    checkpoint: Checkpoint, quantization: Quantization, token_ids: list[int], num_windows: int
) -> float:
    """Of windows of equal length, spread over the text, each by itself."""
    config = EngineConfig(
        quantization=quantization, prefix_caching=False, kv_cache_bytes=64 * 1024 * 1024
    )
    loaded = create_runner(
        EngineSpec(model="perplexity", checkpoint=checkpoint.path, config=config)
    )
    engine = Engine(
        config,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )
    sampling = SamplingParams(max_tokens=0, temperature=0.0, num_prompt_logprobs=0)
    stride = (NUM_TOKENS - WINDOW) // max(num_windows - 1, 1)
    logprobs: list[float] = []
    for index in range(num_windows):
        window = token_ids[index * stride : index * stride + WINDOW]
        keys: list[bytes] = list(block_keys(ROOT_KEY, window, BLOCK_SIZE))
        engine.add(EngineRequest(str(index), window, ROOT_KEY, keys, sampling, 600.0))
        while engine.has_work:
            for delta in engine.step().deltas:
                assert delta.error is None
                logprobs += [token.logprob for token in delta.prompt_logprobs or ()]
    assert len(logprobs) == num_windows * (WINDOW - 1)
    return math.exp(-sum(logprobs) / len(logprobs))


@pytest.mark.parametrize(
    "num_windows",
    [
        pytest.param(8, id="a fifth of the text"),
        pytest.param(NUM_TOKENS // WINDOW, id="all of the text", marks=pytest.mark.soak),
    ],
)
def test_8_bits_cost_one_percent_of_perplexity_at_most_and_4_bits_five(
    checkpoint: Checkpoint, token_ids: list[int], num_windows: int
) -> None:
    none, int8, int4 = (
        perplexity(checkpoint, quantization, token_ids, num_windows)
        for quantization in ("none", "int8", "int4")
    )
    assert 15 < none < 60
    assert int8 < 1.01 * none
    assert int4 < 1.05 * none


def test_bfloat16_gives_nearly_the_distributions_of_float32(
    checkpoint: Checkpoint, token_ids: list[int]
) -> None:
    length, num_windows = 256, 8
    windows = torch.tensor(token_ids[: length * num_windows]).view(num_windows, length)
    exact = torch_steps(checkpoint, torch.float32, windows)
    rounded = native_steps(checkpoint, compiled_library(), windows)
    total = 0.0
    for index in range(num_windows):
        chunk = Chunk(index, 0, length)
        expected, actual = (
            logits_of(paged, chunk).log_softmax(dim=-1) for paged in (exact, rounded)
        )
        total += float(kl_divergence(expected, actual).sum())
    mean = total / windows.numel()
    assert 0 < mean < 1e-3


def kl_divergence(expected: Tensor, actual: Tensor) -> Tensor:
    """[num_rows], of logarithms [num_rows, vocab_size]."""
    return (expected.exp() * (expected - actual)).sum(dim=-1)
