"""The quickstart's model on three ranks says what it says on one."""

from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from engine.config import EngineConfig, EngineSpec
from engine.messages import EngineRequest, SamplingParams, Submit
from engine.native.processor import this_processor
from engine.native.toolchain import has_compiler
from engine.rank_messages import FromGateway
from tests.integration.rank_groups import answer, running
from tests.quickstart import MODEL, quickstart_checkpoint

pytestmark = pytest.mark.integration

NUM_TOKENS = 32
PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
)


needs_compiled_step = pytest.mark.skipif(
    this_processor().reason_against() is not None or not has_compiler(),
    reason="needs AVX-512 and g++",
)


@pytest.mark.parametrize(
    ("engine", "num_same"),
    [
        ({"dtype": "float32"}, len(PROMPTS)),
        # Ranks round their parts of a sum: two tokens of nearly one likelihood may change places.
        pytest.param({"compiled": "require"}, len(PROMPTS) - 1, marks=needs_compiled_step),
    ],
    ids=["torch", "compiled"],
)
async def test_three_ranks_give_the_greedy_tokens_of_one(
    engine: dict[str, Any], num_same: int
) -> None:
    folder = quickstart_checkpoint().path
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sampling = SamplingParams(NUM_TOKENS, temperature=0.0)
    answers = []
    for size in (1, 3):
        config = EngineConfig(
            tensor_parallel_size=size, prefix_caching=False, max_num_seqs=4, **engine
        )
        async with running(EngineSpec(model=MODEL, checkpoint=folder, config=config)) as group:
            for text in PROMPTS:
                token_ids = tokenizer.encode(text).ids  # shorter than a block: no keys
                request = EngineRequest(text, token_ids, b"", [], sampling, timeout_s=60)
                group.send(FromGateway(1, msgspec.msgpack.encode(Submit(request))))
            answers.append(await answer(group, len(PROMPTS)))
    assert set(map(len, answers[0].values())) == {NUM_TOKENS}
    assert sum(answers[0][text] == answers[1][text] for text in PROMPTS) >= num_same
