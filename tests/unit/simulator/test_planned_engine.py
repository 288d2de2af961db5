"""A simulated engine takes the same steps as the real one, also where it takes many at once."""

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.messages import ServiceClass
from tests.unit.simulator.engine_twin import PACED, Arrival, Course, run_engine, run_planned

CONFIG = EngineConfig(
    runner="paced",
    max_num_seqs=8,
    max_num_batched_tokens=32,
    max_step_stretch=None,
    block_size_tokens=4,
)

arrivals_strategy = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 2).map(lambda t: round(t, 4) + 0.00003),
        num_prompt_tokens=st.integers(1, 60),
        num_answer_tokens=st.integers(1, 60),
        stem=st.integers(0, 2),
        num_shared_blocks=st.integers(0, 12),
    ),
    min_size=1,
    max_size=16,
).map(lambda arrivals: sorted(arrivals, key=lambda a: a.at_s))


def assert_alike(ours: dict[str, Course], theirs: dict[str, Course], rel: float = 1e-9) -> None:
    assert ours.keys() == theirs.keys()
    for request_id, course in ours.items():
        twin = theirs[request_id]
        assert course.num_cached_tokens == twin.num_cached_tokens, request_id
        assert course.first_s == pytest.approx(twin.first_s, rel=rel), request_id
        assert course.end_s == pytest.approx(twin.end_s, rel=rel), request_id


@settings(max_examples=25, deadline=None)
@given(
    arrivals_strategy,
    st.sampled_from(["predicted", "worst_case", "optimistic"]),
    st.sampled_from([31, 60, 400]),
    st.sampled_from([2, 8]),
)
def test_requests_begin_and_end_as_in_the_real_engine(
    arrivals: list[Arrival], kv_admission: str, num_blocks: int, max_num_seqs: int
) -> None:
    config = CONFIG.model_copy(update={"kv_admission": kv_admission, "max_num_seqs": max_num_seqs})
    real = run_engine(config, num_blocks, arrivals)
    planned, _ = run_planned(config, num_blocks, arrivals)
    assert_alike(planned, real)


@settings(max_examples=10, deadline=None)
@given(arrivals_strategy, st.lists(st.sampled_from(ServiceClass), min_size=16, max_size=16))
def test_classes_make_way_for_each_other_as_in_the_real_engine(
    arrivals: list[Arrival], classes: list[ServiceClass]
) -> None:
    mixed = [
        Arrival(a.at_s, a.num_prompt_tokens, a.num_answer_tokens, service_class=service_class)
        for a, service_class in zip(arrivals, classes, strict=False)
    ]
    config = CONFIG.model_copy(update={"kv_admission": "optimistic", "max_num_seqs": 4})
    planned, _ = run_planned(config, 40, mixed)
    assert_alike(planned, run_engine(config, 40, mixed))


def test_a_stretch_of_decodes_is_one_run() -> None:
    arrivals = [Arrival(0.0, 20, 200), Arrival(0.5, 20, 150)]
    at_once, engine = run_planned(CONFIG, 400, arrivals)
    stepwise, twin = run_planned(CONFIG, 400, arrivals, stretches=False)

    assert_alike(at_once, stepwise)
    assert engine.num_steps == twin.num_steps
    assert engine.num_runs < 10
    assert twin.num_runs == twin.num_steps > 100


def test_who_waits_for_blocks_breaks_no_stretch() -> None:
    arrivals = [Arrival(0.01 * number, 160, 60) for number in range(5)]
    planned, engine = run_planned(CONFIG, 70, arrivals)

    assert CONFIG.kv_admission == "predicted"
    assert_alike(planned, run_engine(CONFIG, 70, arrivals))
    assert engine.num_runs < engine.num_steps / 3


def test_preemptions_happen_as_in_the_real_engine() -> None:
    arrivals = [Arrival(0.01 * number, 20, 60) for number in range(8)]
    config = CONFIG.model_copy(update={"kv_admission": "optimistic"})
    planned, engine = run_planned(config, 60, arrivals)

    assert engine.num_preemptions > 0
    assert_alike(planned, run_engine(config, 60, arrivals))


@pytest.mark.parametrize("limits", [{"max_step_stretch": 2.0}, {"tpot_target_s": 0.03}])
def test_limits_for_the_sake_of_streams_are_learned_nearly_alike(limits: dict[str, float]) -> None:
    arrivals = [Arrival(0.07 * number, 50, 40) for number in range(30)]
    config = CONFIG.model_copy(update={"max_num_batched_tokens": 64, **limits})
    planned, _ = run_planned(config, 400, arrivals)
    real = run_engine(config, 400, arrivals)

    ttfts = [fmean(c.first_s for c in courses.values()) for courses in (planned, real)]
    ends = [fmean(c.end_s for c in courses.values()) for courses in (planned, real)]
    assert ttfts[0] == pytest.approx(ttfts[1], rel=0.02)
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_what_a_step_costs_by_itself_is_learned_though_full_steps_came_first() -> None:
    # A queue of prompts keeps steps full; afterwards answers are alone.
    queue = [Arrival(0.001 * number, 60, 2) for number in range(60)]
    answers = [Arrival(0.1, 60, 20 + 40 * number) for number in range(4)]
    _, engine = run_planned(CONFIG, 400, [*queue, *answers])

    load = engine.load_view()
    assert load.prefill_base_s == pytest.approx(PACED.step_base_s, rel=0.01)
    assert load.prefill_token_s == pytest.approx(PACED.per_prefill_token_s, rel=0.01)
    assert engine.num_runs < 0.5 * engine.num_steps  # stretches of decodes pass at once
