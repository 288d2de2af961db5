"""`headwater bench` on a paced engine: the sequences that decode are all there until it ends."""

import argparse
import re
from pathlib import Path

import pytest

from deployments.bench_run import BenchCase, check_case, measure_decode, record_prefill
from deployments.commands.bench import _with_options, add_arguments
from deployments.offline_engine import OfflineEngine
from engine.config import EngineConfig, PacedConfig
from engine.errors import EngineConfigError
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

NO_TIME = PacedConfig(step_base_s=0, per_decode_s=0, per_prefill_token_s=0)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["tiny", *arguments])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "tiny"
    write_checkpoint(make_tiny_model("llama"), folder)
    return folder


def test_nothing_is_limited_for_the_sake_of_streams() -> None:
    served = EngineConfig(tpot_target_s=0.01, max_step_stretch=3.0, max_num_seqs=4)
    config = _with_options(served, options("--batch", "8", "--threads", "3"))
    assert (config.tpot_target_s, config.max_step_stretch) == (None, None)
    assert (config.max_num_seqs, config.num_threads, config.prefix_caching) == (8, 3, False)


def test_an_option_that_no_engine_takes_is_named() -> None:
    with pytest.raises(EngineConfigError, match=r"^--batch: max_num_seqs would be 5000, and.*4096"):
        _with_options(EngineConfig(), options("--batch", "5000"))


@pytest.mark.parametrize("batch", [1, 6, 8])
def test_contexts_longer_than_a_step_are_filled_before_the_first_answer_ends(
    checkpoint: Path, batch: int
) -> None:
    served = EngineConfig(
        runner="paced",
        paced=NO_TIME,
        max_num_batched_tokens=16,
        max_num_seqs=8,
        min_prefill_chunk_tokens=4,
        tpot_target_s=1e-6,
        max_model_len=120,
        kv_cache_bytes=2**22,
    )
    config = _with_options(served, options("--batch", str(batch)))
    engine = OfflineEngine("tiny", checkpoint, config)
    case = BenchCase(batch, context=40, steps=5, prefill=33)
    try:
        check_case(case, engine)
        for _ in range(3):  # estimates of step times would limit the later ones
            assert measure_decode(engine, case).tokens_per_s > 0
        assert record_prefill(engine, case).summary.num_steps == 3
        with pytest.raises(EngineConfigError, match="lower --context") as caught:
            check_case(BenchCase(batch, context=119, steps=5, prefill=33), engine)
        parts = re.search(
            r"--context 119, and (\d+) tokens that.* have (\d+) tokens", str(caught.value)
        )
        assert parts is not None
        assert int(parts[2]) == 119 + int(parts[1])
        with pytest.raises(EngineConfigError, match=r"--prefill 119\) with the 2 of its answer"):
            check_case(BenchCase(1, context=4, steps=5, prefill=119), engine)
    finally:
        engine.close()
