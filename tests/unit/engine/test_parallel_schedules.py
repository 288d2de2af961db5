"""Random schedules on two ranks answer as on one: classes, aborts, log probabilities, preemption.

What all ranks must agree on without a word — block tables, slots, who samples — shows here; that
sums are right shows in `test_parallel_runner`.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from cache_tiers.keys import block_keys
from engine.collectives import Collectives
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, FinishReason, SamplingParams, ServiceClass
from engine.runner import create_runner
from engine.step import ModelRunner
from tests.unit.engine.fakes import Answer, FakeClock, collect, run_to_end
from tests.unit.engine.test_parallel_runner import assert_alike
from tests.unit.engine.test_torch_runner import BLOCK_SIZE, ROOT_KEY
from tests.unit.engine.thread_ranks import RankThreads
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

NUM_REQUESTS = 10
NUM_ABORTED = 3
NUM_STEPS = 14
"""In which requests arrive and are aborted; then all that are left run to their ends."""
MIN_TOKENS = 4
BLOCK_BYTES = 2 * 2 * 2 * 8 * BLOCK_SIZE * 4  # layers, K and V, KV heads, head_dim, tokens, float32
CONFIG = EngineConfig(
    dtype="float32",
    block_size_tokens=BLOCK_SIZE,
    kv_cache_bytes=24 * BLOCK_BYTES,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    kv_admission="optimistic",
    debug_poison_freed_blocks=True,
)


class Arrival(NamedTuple):
    step: int
    """Of the schedule, before which it is there."""
    request: EngineRequest


class Abort(NamedTuple):
    step: int
    request_id: str


@dataclass
class Schedule:
    """Random, but the same for the same seed."""

    arrivals: list[Arrival] = field(default_factory=list)
    aborts: list[Abort] = field(default_factory=list)

    def run(self, engine: Engine) -> tuple[dict[str, Answer], int]:
        """The answers, and how many sequences lost their place."""
        answers: dict[str, Answer] = {}
        for step in range(NUM_STEPS):
            for arrival in self.arrivals:
                if arrival.step == step:
                    engine.add(arrival.request)
            for abort in self.aborts:
                if abort.step == step:
                    engine.abort(abort.request_id)
            collect(answers, engine.step().deltas)
            engine.check_integrity()
        run_to_end(engine, answers)
        return answers, engine.step().load.num_preemptions


def make_schedule(seed: int) -> Schedule:
    pick = random.Random(seed)
    shared = [pick.randrange(3, VOCAB_SIZE) for _ in range(12)]
    schedule = Schedule()
    for index in range(NUM_REQUESTS):
        own = [pick.randrange(3, VOCAB_SIZE) for _ in range(pick.randint(1, 20))]
        prompt = shared[: pick.choice((0, 8, 12))] + own
        sampling = SamplingParams(
            pick.randint(MIN_TOKENS, 20),
            temperature=pick.choice((0.0, 0.7, 1.0)),
            repetition_penalty=pick.choice((1.0, 1.0, 1.2)),
            seed=pick.randrange(2**32),
            num_logprobs=pick.choice((None, None, 2)),
            num_prompt_logprobs=pick.choice((None, None, 1)),
        )
        request = EngineRequest(
            f"r{index}",
            prompt,
            ROOT_KEY,
            list(block_keys(ROOT_KEY, prompt, BLOCK_SIZE)),
            sampling,
            60.0,
            num_samples=pick.choice((1, 1, 2)),
            service_class=pick.choice(list(ServiceClass)),
        )
        schedule.arrivals.append(Arrival(pick.randrange(NUM_STEPS - MIN_TOKENS), request))
    for arrival in pick.sample(schedule.arrivals, NUM_ABORTED):  # all before they can end
        step = arrival.step + pick.randrange(1, MIN_TOKENS)
        schedule.aborts.append(Abort(step, arrival.request.request_id))
    return schedule


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model("llama")
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "checkpoint")


def run_on(size: int, checkpoint: Path, schedule: Schedule) -> tuple[dict[str, Answer], int]:
    alone = EngineSpec(model="tiny", checkpoint=checkpoint, config=CONFIG)
    loaded = create_runner(alone)
    runner: ModelRunner = loaded.runner
    if size > 1:
        config = CONFIG.model_copy(update={"tensor_parallel_size": size})
        spec = alone.model_copy(update={"config": config})

        def create(collectives: Collectives) -> ModelRunner:
            return create_runner(spec, collectives.rank, collectives).runner

        runner = RankThreads(size, create)
    engine = Engine(
        CONFIG,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=runner,
        clock=FakeClock(),  # how long steps take changes the size of later ones
    )
    try:
        return schedule.run(engine)
    finally:
        runner.close()


@pytest.mark.parametrize("seed", range(6))
def test_two_ranks_answer_a_random_schedule_as_one_does(checkpoint: Path, seed: int) -> None:
    schedule = make_schedule(seed)
    expected, num_preempted = run_on(1, checkpoint, schedule)
    answers, num_preempted_together = run_on(2, checkpoint, schedule)
    assert num_preempted_together == num_preempted > 0
    assert answers.keys() == expected.keys()
    for abort in schedule.aborts:
        assert answers[abort.request_id].finish_reason is FinishReason.ABORT
    for name, answer in answers.items():
        whole = expected[name]
        assert answer.error is None
        assert answer.token_ids == whole.token_ids
        assert answer.finish_reason == whole.finish_reason
        assert_alike(answer.logprobs, whole.logprobs)
        assert_alike(answer.prompt_logprobs, whole.prompt_logprobs)
