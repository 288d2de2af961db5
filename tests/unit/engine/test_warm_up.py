import itertools
from collections.abc import Sequence

import pytest

from cache_tiers.block_image import ImageLayout
from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.errors import WarmUpError
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest, SamplingParams
from engine.paced_runner import PacedRunner
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from engine.warm_up import WarmUpRound, warm_up, warm_up_rounds

NUM_BLOCKS = 256
CONFIG = EngineConfig(runner="paced", max_num_seqs=32, max_num_batched_tokens=128)
MAX_LEN = 1000


class Recorder:
    """A runner that remembers the shapes it was asked for."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.prefills: set[int] = set()
        self.decode_batches: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        decodes = [entry for entry in plan.scheduled if entry.is_last_pending]
        self.decode_batches.add(len(decodes))
        self.prefills.add(plan.num_tokens - len(decodes))
        return self._runner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self._runner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self._runner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self._runner.detach_arena()

    def close(self) -> None:
        self._runner.close()


class Broken:
    def execute(self, plan: StepPlan) -> StepResult:
        raise RuntimeError("no such kernel")

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        pass

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        raise AssertionError("no plan here moves KV")

    def detach_arena(self) -> None:
        raise AssertionError("no plan here moves KV")

    def close(self) -> None:
        pass


def paced_runner() -> PacedRunner:
    return PacedRunner(
        PacedConfig(),
        num_blocks=NUM_BLOCKS,
        block_size_tokens=CONFIG.block_size_tokens,
        vocab_size=100,
        eos_token_ids=[0],
        sleep=lambda _: None,
    )


def engine_with(runner: ModelRunner) -> Engine:
    return Engine(
        CONFIG,
        geometry=KvGeometry((KvGroup((0,)),), 1, 1, CONFIG.block_size_tokens, 2),
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_LEN,
        vocab_size=100,
        runner=runner,
    )


def test_covers_long_and_short_prompts_and_several_decode_batches() -> None:
    recorder = Recorder(paced_runner())
    engine = engine_with(recorder)
    warm_up(engine, CONFIG, max_len=MAX_LEN, vocab_size=100, limit_s=60)
    assert {128, 16} <= recorder.prefills
    assert {1, 2, 8, 32} <= recorder.decode_batches


def test_leaves_an_engine_as_if_new_that_knows_its_speed() -> None:
    engine = engine_with(paced_runner())
    load = warm_up(engine, CONFIG, max_len=MAX_LEN, vocab_size=100, limit_s=60)
    assert load.num_free_blocks == load.num_blocks == NUM_BLOCKS
    assert (load.num_prompt_tokens, load.num_generated_tokens) == (0, 0)
    assert load.prefill_tokens_per_s > 0
    engine.add(EngineRequest("r", [1], b"", [], SamplingParams(max_tokens=1), timeout_s=60))
    output = engine.step()
    assert len(output.deltas) == 1
    assert output.events is None
    engine.check_integrity()


def test_starts_no_round_after_its_time_limit() -> None:
    recorder = Recorder(paced_runner())
    engine = engine_with(recorder)
    seconds = itertools.count()
    warm_up(
        engine, CONFIG, max_len=MAX_LEN, vocab_size=100, limit_s=1.5, clock=lambda: next(seconds)
    )
    assert recorder.decode_batches == {0, 1}


def test_a_context_shorter_than_a_chunk_bounds_the_prompts() -> None:
    rounds = warm_up_rounds(CONFIG, max_len=20)
    assert rounds[0] == WarmUpRound(1, 16)
    assert all(round_.prompt_len <= 16 for round_ in rounds)


def test_an_engine_that_fails_on_made_up_requests_does_not_become_ready() -> None:
    with pytest.raises(WarmUpError, match="failed while it warmed up"):
        warm_up(engine_with(Broken()), CONFIG, max_len=MAX_LEN, vocab_size=100, limit_s=60)
