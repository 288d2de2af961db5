"""Runs on an engine without a model: what is computed for each policy, and whose gaps count."""

from pathlib import Path

import pytest

from benchmarks.batching_engine import SharedRunner, step
from benchmarks.batching_outcome import Outcome
from benchmarks.batching_policies import CONTINUOUS, DYNAMIC, STATIC, STATIC_COMPACT, Policy
from benchmarks.batching_run import PolicyRun, run_without_kv_cache
from benchmarks.batching_workload import Ask
from benchmarks.stutter_run import ArrivalRun, Scene
from engine.config import MIB, EngineConfig, PacedConfig
from engine.errors import EngineError
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

ASKS = [Ask(0, 4, 9, 0.0), Ask(1, 8, 3, 0.0)]
NUM_USEFUL_SLOTS = 4 + 8 + 8 + 2  # the first token of each comes of its prompt
CONFIG = EngineConfig(
    runner="paced",
    kv_cache_bytes=MIB,
    max_num_seqs=2,
    prefix_caching=False,
    max_step_stretch=None,
    paced=PacedConfig(step_base_s=0, per_decode_s=0, per_prefill_token_s=0),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(make_tiny_model("llama"), tmp_path_factory.mktemp("m") / "checkpoint")


@pytest.fixture
def shared(checkpoint: Path) -> SharedRunner:
    return SharedRunner(checkpoint, CONFIG, seed=0)


def make_run(shared: SharedRunner, policy: Policy, asks: list[Ask]) -> PolicyRun:
    return PolicyRun(shared, shared.make_engine(CONFIG), policy, asks, batch_size=2)


@pytest.mark.parametrize(
    ("policy", "num_slots"),
    [
        (CONTINUOUS, NUM_USEFUL_SLOTS),
        (STATIC_COMPACT, NUM_USEFUL_SLOTS),
        (STATIC, 4 + 8 + 8 + 8),
        (DYNAMIC, 8 + 8 + 8 + 8),
    ],
)
def test_each_policy_computes_its_slots(
    shared: SharedRunner, policy: Policy, num_slots: int
) -> None:
    outcome = make_run(shared, policy, ASKS).run_to_end()
    assert outcome.num_tokens == 12
    assert (outcome.num_useful_slots, outcome.num_slots) == (NUM_USEFUL_SLOTS, num_slots)
    assert len(outcome.ttfts_s) == 2


def test_a_batch_that_began_ends_before_a_saturated_run_does(checkpoint: Path) -> None:
    slow = CONFIG.model_copy(update={"paced": PacedConfig(step_base_s=0.003)})
    shared = SharedRunner(checkpoint, slow, seed=0)
    asks = [Ask(index, 4, 5, 0.0) for index in range(8)]
    outcome = make_run(shared, STATIC, asks).run_saturated(at_least_s=0.005)
    assert outcome.num_tokens == 10
    amid = make_run(shared, CONTINUOUS, asks).run_saturated(at_least_s=0.005)
    assert 2 <= amid.num_tokens <= 4


def test_arrivals_are_waited_for_and_end_with_the_last_first_token(shared: SharedRunner) -> None:
    asks = [Ask(0, 4, 2, 0.01), Ask(1, 4, 30, 0.03)]
    outcome = make_run(shared, CONTINUOUS, asks).run_arrivals()
    assert outcome.elapsed_s >= 0.03
    assert outcome.num_tokens == 3
    assert all(0.0 < ttft_s < outcome.elapsed_s for ttft_s in outcome.ttfts_s)


def test_a_window_delays_the_first_token(shared: SharedRunner) -> None:
    outcome = make_run(shared, DYNAMIC, [Ask(0, 4, 2, 0.0)]).run_arrivals()
    assert outcome.ttfts_s[0] >= DYNAMIC.window_s


def test_engines_take_turns_on_one_runner(shared: SharedRunner) -> None:
    engines = [shared.make_engine(CONFIG), shared.make_engine(CONFIG, num_blocks=4)]
    outcomes: list[Outcome] = []
    for engine in engines * 2:
        run = PolicyRun(shared, engine, CONTINUOUS, ASKS, batch_size=2)
        outcomes.append(run.run_to_end())
        assert not engine.has_work
    assert [outcome.num_tokens for outcome in outcomes] == [12] * 4


def test_without_a_kv_cache_every_token_computes_its_whole_sequence(shared: SharedRunner) -> None:
    outcome = run_without_kv_cache(shared, shared.make_engine(CONFIG), ASKS, batch_size=2)
    assert outcome.num_tokens == 12
    assert outcome.num_useful_slots == NUM_USEFUL_SLOTS
    assert outcome.num_slots == sum(range(4, 4 + 9)) + sum(range(8, 8 + 3))


def test_a_request_that_fails_ends_the_benchmark(shared: SharedRunner) -> None:
    engine = shared.make_engine(CONFIG)
    engine.add(shared.make_request("long", shared.draw_prompt(10_000), max_tokens=1))
    with pytest.raises(EngineError, match="request long: The prompt has 10000 tokens"):
        step(engine)


def test_every_step_of_a_prefill_is_a_gap_of_every_stream(checkpoint: Path) -> None:
    config = CONFIG.model_copy(update={"max_num_batched_tokens": 2 + 16, "max_num_seqs": 3})
    shared = SharedRunner(checkpoint, config, seed=0)
    scene = Scene(
        num_streams=2,
        stream_prompt_len=4,
        long_prompt_len=40,
        num_undisturbed_steps=5,
        smallest_chunk=16,
    )
    run = ArrivalRun(shared, shared.make_engine(config), scene)
    for _ in range(2):
        arrival = run.measure()
        assert len(arrival.undisturbed_gaps_s) == 2 * 5
        assert len(arrival.gaps_s) == 2 * 3  # chunks of 16, 16 and 8
        assert sum(arrival.gaps_s) / 2 == pytest.approx(arrival.prefill_s, rel=0.5)
        assert arrival.alone_s > 0.0
