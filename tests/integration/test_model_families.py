"""Random small models of every family against transformers: any layout of heads, window, scaling of
the rotary embedding, cut into chunks, and prefix.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.unit.engine.paged_model import BLOCK_SIZE, Chunk, PagedModel, load_tiny
from tests.unit.engine.tiny_models import MAX_LEN, VOCAB_SIZE, make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

MAX_LENGTH = 60

windows = st.integers(2, 40)


@st.composite
def ropes(draw: st.DrawFn) -> dict[str, Any]:
    theta = {"rope_theta": draw(st.floats(100, 1e6))}
    factor = {"factor": draw(st.floats(1.5, 8))}
    original = {"original_max_position_embeddings": draw(st.sampled_from([16, 64, MAX_LEN]))}
    kind = draw(st.sampled_from(["default", "linear", "dynamic", "yarn", "llama3"]))
    event(f"scaling: {kind}")
    extra: dict[str, Any] = {
        "default": {},
        "linear": factor,
        "dynamic": factor,
        "yarn": factor | original | {"truncate": draw(st.booleans())},
        "llama3": factor | original | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }[kind]
    return {"rope_type": kind} | theta | extra


@st.composite
def models(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    model_type = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]))
    event(f"family: {model_type}")
    num_kv_heads = draw(st.integers(1, 4))
    num_heads = num_kv_heads * draw(st.integers(1, 4))
    num_layers = draw(st.integers(1, 5))
    config: dict[str, Any] = {
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": draw(st.sampled_from([4, 8, 10, 16])),
        # Norms over fewer dimensions amplify rounding beyond what is compared.
        "hidden_size": num_heads * draw(st.sampled_from([8, 12])),
        "num_hidden_layers": num_layers,
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "rope_parameters": draw(ropes()),
    }
    if model_type == "llama":
        config |= {"mlp_bias": draw(st.booleans())}
    elif model_type == "mistral":
        config |= {"sliding_window": draw(st.none() | windows)}
    else:
        types = st.sampled_from(["full_attention", "sliding_attention"])
        config |= {
            "use_sliding_window": True,
            "sliding_window": draw(windows),
            "layer_types": draw(st.lists(types, min_size=num_layers, max_size=num_layers)),
        }
    if model_type == "gemma3_text":
        full = config["rope_parameters"]
        full.pop("truncate", None)  # transformers 5 doesn't look for it below a layer's type
        config["rope_parameters"] = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": draw(st.floats(100, 1e5))},
        }
        config |= {"query_pre_attn_scalar": draw(st.integers(1, 64))}
    return model_type, config


@st.composite
def chunkings(draw: st.DrawFn) -> list[Chunk]:
    """Two sequences cut into chunks that meet in the same steps, decodes among them."""
    chunks: list[Chunk] = []
    for sequence in range(2):
        length = draw(st.integers(1, MAX_LENGTH))
        start = 0
        while start < length:
            size = (
                draw(st.sampled_from([1, 1, 3, 7, 30])) if start else draw(st.integers(1, length))
            )
            chunks.append(Chunk(sequence, start, min(size, length - start)))
            start += chunks[-1].num_tokens
    return chunks


def steps_of(chunks: list[Chunk]) -> list[list[Chunk]]:
    """The n-th chunks of both sequences make one step, decodes first."""
    by_sequence = [[chunk for chunk in chunks if chunk.sequence == index] for index in range(2)]
    num_steps = max(map(len, by_sequence))
    steps = [[own[index] for own in by_sequence if index < len(own)] for index in range(num_steps)]
    return [sorted(step, key=lambda chunk: chunk.num_tokens > 1) for step in steps]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=models(),
    chunks=chunkings(),
    attention=st.sampled_from(["reference", "cpu"]),
    num_shared_blocks=st.integers(0, MAX_LENGTH // BLOCK_SIZE),
)
def test_logits_equal_transformers(
    model: tuple[str, dict[str, Any]], chunks: list[Chunk], attention: str, num_shared_blocks: int
) -> None:
    torch.set_num_threads(1)
    model_type, config = model
    reference = make_tiny_model(model_type, **config)
    generator = torch.Generator().manual_seed(len(chunks))
    token_ids = torch.randint(3, VOCAB_SIZE, (3, MAX_LENGTH), generator=generator)
    # The third sequence begins as the first one.
    first_len = sum(chunk.num_tokens for chunk in chunks if chunk.sequence == 0)
    num_shared_blocks = min(num_shared_blocks, first_len // BLOCK_SIZE)
    num_shared = num_shared_blocks * BLOCK_SIZE
    token_ids[2, :num_shared] = token_ids[0, :num_shared]
    with torch.inference_mode():
        expected = reference(token_ids).logits
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_tiny(reference, Path(folder))
    paged = PagedModel(loaded, token_ids, attention=attention)
    paged.share_prefix(0, 2, num_shared_blocks)  # so that no window takes it away
    for step in steps_of(chunks):
        for (sequence, start, count), rows in zip(step, paged.step(step), strict=True):
            assert_close(rows, expected[sequence, start : start + count])
    if num_shared < MAX_LENGTH:
        (rows,) = paged.step([Chunk(2, num_shared, MAX_LENGTH - num_shared)])
        assert_close(rows, expected[2, num_shared:])


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
