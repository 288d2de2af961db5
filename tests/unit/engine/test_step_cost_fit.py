"""A table of step times gives the cost that it was made of, and never a negative one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.performance_profile import StepCost, StepSample
from engine.step_cost_fit import fit_step_cost

SHAPES = [
    (prefill, decodes, decodes * context, prefill * (start + prefill / 2))
    for prefill in (0, 16, 128, 512)
    for decodes in (0, 1, 8, 32)
    for context in (100, 1000)
    for start in (0, 1000)
    if prefill or decodes
]


def table(cost: StepCost, *, error: float = 0.0) -> list[StepSample]:
    """Every other step takes longer by ``error``, the rest are as much shorter."""
    samples = []
    for index, (prefill, decodes, context, attended) in enumerate(SHAPES):
        sample = StepSample(prefill, decodes, context, attended, 1.0)
        time_s = cost.predict(sample.work) * (1 + error * (-1) ** index)
        samples.append(StepSample(prefill, decodes, context, attended, time_s))
    return samples


COSTS = st.builds(
    StepCost,
    st.floats(1e-3, 1e-1),
    st.floats(1e-6, 1e-3),
    st.floats(1e-5, 1e-2),
    st.floats(1e-8, 1e-6),
    st.floats(1e-10, 1e-8),
)


@given(COSTS)
def test_a_cost_is_found_again(cost: StepCost) -> None:
    fit = fit_step_cost(table(cost))
    assert fit.error < 1e-4
    for sample in table(cost):
        assert fit.cost.predict(sample.work) == pytest.approx(sample.time_s, rel=1e-3)


def test_errors_of_both_signs_cancel() -> None:
    cost = StepCost(0.02, 1e-4, 1e-3, 1e-7, 1e-9)
    fit = fit_step_cost(table(cost, error=0.05))
    assert fit.error == pytest.approx(0.05, abs=0.01)
    assert fit.cost.predict(table(cost)[-1].work) == pytest.approx(table(cost)[-1].time_s, rel=0.1)


def test_what_would_be_negative_is_nothing() -> None:
    # More decodes, less time.
    samples = [StepSample(0, n, 0.0, 0.0, 0.02 - n * 1e-4) for n in (1, 8, 64)]
    fit = fit_step_cost(samples)
    assert fit.cost.per_decode_s == 0
    assert 0.013 < fit.cost.base_s < 0.02


def test_one_step_is_all_base() -> None:
    assert fit_step_cost([StepSample(0, 1, 10, 0, 0.5)]).cost == StepCost(0.5)
