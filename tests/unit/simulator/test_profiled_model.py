"""What was measured of steps is predicted again, also where it is no sum."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.performance_profile import EngineProfile, StepCost, StepSample
from engine.step_cost_fit import fit_step_cost
from engine.step_time import StepWork
from simulator.performance import LinearModel
from simulator.profiled_model import fit_curve, model_of_profile

SHAPES = [
    StepWork(prefill, decodes, decodes * context, prefill * (start + prefill / 2))
    for prefill in (0, 16, 64, 256, 512)
    for decodes in (0, 1, 4, 16, 32)
    for context in (100, 1000)
    for start in (0, 1000)
    if prefill or decodes
]


def bound_by_weights(work: StepWork) -> float:
    """Sixteen tokens take as long as one, each further one as long as the one before."""
    num_tokens = work.num_prefill_tokens + work.num_decodes
    rest_s = 2e-6 * work.num_context_tokens + 2e-7 * work.num_attended_tokens
    return 0.009 + 0.0005 * max(0, num_tokens - 16) + rest_s


def profile_of(time_of: Callable[[StepWork], float]) -> EngineProfile:
    samples = [
        StepSample(
            work.num_prefill_tokens,
            work.num_decodes,
            work.num_context_tokens,
            work.num_attended_tokens,
            time_of(work),
        )
        for work in SHAPES
    ]
    fit = fit_step_cost(samples)
    return EngineProfile(
        dtype="bfloat16",
        quantization="none",
        tensor_parallel_size=1,
        num_threads=1,
        kv_token_bytes=100,
        kv_cache_bytes=100_000,
        max_model_len=2048,
        max_num_batched_tokens=544,
        max_num_seqs=32,
        cost=fit.cost,
        cost_error=fit.error,
        samples=samples,
    )


def test_few_tokens_take_as_long_as_one() -> None:
    profile = profile_of(bound_by_weights)
    model = model_of_profile(profile)
    for work in (
        *SHAPES,
        StepWork(0, 8, 8 * 400),
        StepWork(100, 8, 8 * 400, 100 * 50.0),
        StepWork(1000, 0, 0, 1000 * 500.0),
    ):
        assert model.step_time_s(work) == pytest.approx(bound_by_weights(work), rel=0.01)
    # Sums get these wrong by a tenth and more.
    few = StepWork(0, 16, 1600)
    assert abs(profile.cost.predict(few) / bound_by_weights(few) - 1) > 0.1


def test_a_sum_stays_a_sum() -> None:
    cost = StepCost(0.01, 4e-4, 1e-4, 2e-6, 1e-8)
    model = model_of_profile(profile_of(cost.predict))
    for work in (*SHAPES, StepWork(100, 8, 4000, 9000.0)):
        assert model.step_time_s(work) == pytest.approx(cost.predict(work), rel=1e-3)


def test_steps_of_one_size_tell_no_more_than_the_profiles_sum() -> None:
    profile = profile_of(bound_by_weights)
    alike = [s for s in profile.samples if s.num_prefill_tokens + s.num_decodes == 16]
    alone = msgspec.structs.replace(profile, samples=alike)
    assert model_of_profile(alone) == LinearModel(profile.cost)


@given(st.lists(st.floats(0.7, 1.4), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_more_tokens_never_take_less_time_whatever_the_noise(noise: list[float]) -> None:
    of_step = {id(work): factor for work, factor in zip(SHAPES, noise, strict=True)}
    profile = profile_of(lambda work: of_step[id(work)] * bound_by_weights(work))
    model = fit_curve(profile.samples, (1, 16, 64, 256, 544))
    times_s = [model.step_time_s(StepWork(num_tokens)) for num_tokens in range(1, 700)]
    assert times_s[0] >= 0
    assert times_s == sorted(times_s)
