"""The compiled step computes what its twin in torch does, for every family, and gives a row the
same result whatever shares its step.

Both round in bfloat16, in other places: each is held against the same weights in float32.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.attention import create_attention
from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.collectives import Collectives
from engine.config import EngineConfig
from engine.errors import CompiledStepUnavailable
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.loader import WeightFiles
from engine.models.loading import load_model
from engine.models.registry import read_model_config
from engine.native.library import StepLibrary
from engine.native.loading import create_native_model, load_weights
from engine.native.processor import this_processor
from engine.native.selection import library_opener
from engine.native.support import compile_cache
from engine.native.toolchain import find_compiler
from engine.step_model import StepModel, TorchStepModel
from engine.workspace import compiled_bytes
from tests.quickstart import HOME
from tests.unit.engine.paged_model import CPU, Chunk, PagedSteps
from tests.unit.engine.thread_ranks import run_ranks
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LENGTH = 150
WINDOW = 9
OpenLibrary = Callable[[], StepLibrary]


class Case(NamedTuple):
    family: str
    config: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default, never changed


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | parameters}


CASES = {
    "llama": Case("llama", {"tie_word_embeddings": False}),
    "llama with biases": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "one head of keys": Case("llama", {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "a head of keys each": Case("llama", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "mistral": Case("mistral", {"sliding_window": WINDOW}),
    "a wide window": Case("mistral", {"sliding_window": 100}),
    "qwen2": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen3": Case("qwen3", {"attention_bias": True, "head_dim": 16}),
    "gemma3": Case(
        "gemma3_text",
        {
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "final_logit_softcapping": 5.0,
        },
    ),
    "wide heads": Case("llama", {"head_dim": 64, "hidden_size": 132, "intermediate_size": 98}),
    "many heads of one": Case(
        "llama",
        {
            "hidden_size": 200,
            "num_attention_heads": 100,
            "num_key_value_heads": 1,
            "head_dim": 4,
        },
    ),
    "narrow heads": Case("llama", {"head_dim": 10}),
    "linear": Case("llama", rope("linear", factor=2.0)),
    "dynamic": Case("llama", rope("dynamic", factor=2.0) | {"max_position_embeddings": 32}),
    "yarn": Case("llama", rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama3": Case(
        "llama",
        rope(
            "llama3",
            factor=4.0,
            original_max_position_embeddings=32,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
}
LENS = (70, LENGTH, 2, 21, 34, 65, 66, 67)
WHOLE = [[Chunk(index, 0, length) for index, length in enumerate(LENS)]]
PARTS = [
    [Chunk(2, 0, 1), Chunk(0, 0, 3), Chunk(1, 0, 64)],
    [Chunk(0, 3, 66), *(Chunk(index, 0, LENS[index] - 1) for index in range(3, len(LENS)))],
    [Chunk(1, 64, 85)],
    # Decodes alone: each takes all heads at once.
    [Chunk(index, length - 1, 1) for index, length in enumerate(LENS)],
]


@pytest.fixture(scope="module")
def open_library() -> OpenLibrary:
    reason = this_processor().reason_against()
    if reason is not None:
        pytest.skip(reason)
    try:
        find_compiler()
    except CompiledStepUnavailable as error:
        pytest.skip(str(error))
    return library_opener(compile_cache(HOME / "models" / "any"))


@pytest.fixture(params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    return make_checkpoint(tmp_path, CASES[request.param])


def make_checkpoint(folder: Path, case: Case, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    reference = make_tiny_model(case.family, **({"initializer_range": 0.15} | case.config))
    return open_checkpoint(write_checkpoint(reference.to(dtype), folder / "checkpoint"))


def random_tokens() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, VOCAB_SIZE, (len(LENS), LENGTH), generator=generator)


def native_steps(
    checkpoint: Checkpoint,
    open_library: OpenLibrary,
    collectives: Collectives | None = None,
    **config: Any,
) -> PagedSteps:
    settings = EngineConfig(max_num_seqs=2, max_num_batched_tokens=16, **config)
    model_config = read_model_config(checkpoint.config)
    calls = open_library()
    loaded = load_weights(settings, model_config, checkpoint, calls, collectives)

    def over(geometry: KvGeometry, pool: KvPool) -> StepModel:
        return create_native_model(settings, loaded, calls, geometry, pool, collectives)

    return PagedSteps(loaded.head, random_tokens(), over, dtype=torch.bfloat16)


def torch_steps(checkpoint: Checkpoint, dtype: torch.dtype) -> PagedSteps:
    model = load_model(
        read_model_config(checkpoint.config),
        WeightFiles(checkpoint.weights_paths),
        dtype=dtype,
        device=CPU,
        layout="mapped",
    )

    def over(geometry: KvGeometry, pool: KvPool) -> StepModel:
        attention = create_attention("cpu", CPU, geometry, scale=model.config.attention_scale)
        return TorchStepModel(model, attention, geometry, pool.layers, CPU)

    return PagedSteps(model.head, random_tokens(), over, dtype=dtype)


@torch.inference_mode()
def run(paged: PagedSteps, steps: Sequence[Sequence[Chunk]]) -> dict[tuple[int, int], Tensor]:
    """Logits in float32 by sequence and position."""
    found: dict[tuple[int, int], Tensor] = {}
    for chunks in steps:
        rows = paged.head.logits(paged.forward(chunks)).float().clone()
        paged.head.finish_rows()
        places = ((seq, start + i) for seq, start, count in chunks for i in range(count))
        found.update(zip(places, rows, strict=True))
    return found


def distance(
    actual: dict[tuple[int, int], Tensor], expected: dict[tuple[int, int], Tensor]
) -> float:
    assert actual.keys() == expected.keys()
    differences = torch.stack([actual[place] - expected[place] for place in expected])
    return float(differences.norm() / torch.stack(list(expected.values())).norm())


def test_it_is_as_near_to_float32_as_its_twin(
    checkpoint: Checkpoint, open_library: OpenLibrary
) -> None:
    expected = run(torch_steps(checkpoint, torch.float32), PARTS)
    twin = distance(run(torch_steps(checkpoint, torch.bfloat16), PARTS), expected)
    own = distance(run(native_steps(checkpoint, open_library), PARTS), expected)
    assert own < max(1.3 * twin, 1e-3)
    assert twin < 0.2


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_rows_do_not_depend_on_chunks_and_neighbours(
    checkpoint: Checkpoint, open_library: OpenLibrary, num_threads: int
) -> None:
    whole = run(native_steps(checkpoint, open_library, num_threads=num_threads), WHOLE)
    parts = run(native_steps(checkpoint, open_library, num_threads=num_threads), PARTS)
    assert whole.keys() == parts.keys()
    assert distance(parts, whole) == 0


@pytest.mark.parametrize(("size", "num_heads", "num_kv_heads"), [(2, 4, 2), (3, 6, 3), (2, 4, 1)])
@pytest.mark.parametrize("name", ["llama with biases", "mistral", "qwen2", "qwen3", "gemma3"])
def test_ranks_compute_what_one_does(
    tmp_path: Path,
    open_library: OpenLibrary,
    name: str,
    size: int,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    case = CASES[name]
    heads = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    checkpoint = make_checkpoint(
        tmp_path, Case(case.family, case.config | heads | {"intermediate_size": 48})
    )
    expected = run(torch_steps(checkpoint, torch.float32), PARTS)
    alone = run(native_steps(checkpoint, open_library), PARTS)

    def run_rank(collectives: Collectives) -> dict[tuple[int, int], Tensor] | None:
        paged = native_steps(checkpoint, open_library, collectives)
        if collectives.rank.rank == 0:
            return run(paged, PARTS)
        with torch.inference_mode():
            for chunks in PARTS:
                paged.head.follow_rows(paged.forward(chunks))
        return None

    together, *others = run_ranks(size, run_rank)
    assert others == [None] * (size - 1)
    assert together is not None
    assert distance(together, expected) < max(1.3 * distance(alone, expected), 1e-3)


@pytest.mark.parametrize("num_threads", [1, 2, 8])
@pytest.mark.parametrize("name", ["llama", "one head of keys", "gemma3", "wide heads"])
def test_the_memory_of_a_step_is_at_most_what_is_reckoned(
    tmp_path: Path, open_library: OpenLibrary, name: str, num_threads: int
) -> None:
    checkpoint = make_checkpoint(tmp_path, CASES[name])
    model_config = read_model_config(checkpoint.config)
    settings = EngineConfig(num_threads=num_threads, max_num_batched_tokens=2000)
    calls = open_library()
    loaded = load_weights(settings, model_config, checkpoint, calls, None)
    geometry = model_config.kv_geometry(block_size_tokens=16, bytes_per_element=2)
    pool = KvPool(geometry, 4, dtype=torch.bfloat16, device=CPU)
    model = create_native_model(settings, loaded, calls, geometry, pool, None)
    reckoned = compiled_bytes(settings, model_config, 2000)
    assert model.num_reserved_bytes <= reckoned <= 3 * model.num_reserved_bytes + 2**24
