"""With a model, a cut answer goes on as if it were whole: seeds, penalties, minimum length."""

from pathlib import Path

import pytest

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, SamplingParams
from engine.runner import create_runner
from tests.unit.engine.fakes import run_to_end
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

BLOCK_SIZE = 4
ROOT_KEY = root_key(KeySalt("tiny", "float32", BLOCK_SIZE, "test"))
PROMPT = [5, 60, 17, 33, 8, 21, 90, 4, 71]
SAMPLINGS = {
    "greedy": SamplingParams(12, temperature=0.0),
    "seeded": SamplingParams(12, temperature=0.9, top_p=0.9, seed=7),
    "penalized": SamplingParams(
        12,
        temperature=1.0,
        seed=8,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        logit_bias=((9, 2.0),),
    ),
    "long enough": SamplingParams(
        12, temperature=1.0, seed=9, min_tokens=8, stop_token_ids=tuple(range(48)), num_logprobs=2
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed") / "checkpoint"
    return write_checkpoint(make_tiny_model("llama"), folder)


def start(checkpoint: Path) -> Engine:
    config = EngineConfig(
        dtype="float32",
        block_size_tokens=BLOCK_SIZE,
        kv_cache_bytes=1 << 20,
        max_num_batched_tokens=7,
        min_prefill_chunk_tokens=7,
        debug_poison_freed_blocks=True,
    )
    loaded = create_runner(EngineSpec(model="tiny", checkpoint=checkpoint, config=config))
    return Engine(
        config,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )


def make_request(
    request_id: str, generated_ids: list[int], sampling: SamplingParams
) -> EngineRequest:
    token_ids = [*PROMPT, *generated_ids]
    keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
    return EngineRequest(
        request_id,
        token_ids,
        ROOT_KEY,
        keys,
        sampling,
        timeout_s=60.0,
        num_generated_tokens=len(generated_ids),
    )


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_cut_of_an_answer_is_gone_on_with(checkpoint: Path, name: str) -> None:
    sampling = SAMPLINGS[name]
    engine = start(checkpoint)
    engine.add(make_request("whole", [], sampling))
    whole = run_to_end(engine)["whole"]
    assert len(whole.token_ids) >= 8

    fresh = start(checkpoint)
    cuts = range(1, len(whole.token_ids))
    for cut in cuts:
        fresh.add(make_request(f"cut {cut}", whole.token_ids[:cut], sampling))
    rests = run_to_end(fresh)

    for cut in cuts:
        rest = rests[f"cut {cut}"]
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.finish_reason is whole.finish_reason
        assert len(rest.logprobs) == len(whole.logprobs[cut:])
        assert rest.usage is not None
        assert rest.usage.prompt_tokens == len(PROMPT)
        assert rest.usage.completion_tokens == len(whole.token_ids)
