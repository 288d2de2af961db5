"""Step times of an engine whose steps were measured by ``headwater profile``.

    time = f(tokens) + b × decodes + c × context that decodes read
         + d × prefill tokens × context that they attend to

The sum that engines learn of themselves takes a step's tokens to cost the same however many they
are. They don't: below some number a step is bound by reading weights and takes about as long with
ten tokens as with one, above it each costs as much again. So f is linear between numbers of tokens
that were measured, and never falls. Must not know files or requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.performance_profile import EngineProfile, StepSample
from engine.step_time import StepWork
from simulator.measured_table import Curve
from simulator.performance import NO_TRANSFERS, Bandwidths, LinearModel, PerformanceModel

Matrix = npt.NDArray[np.float64]

_KNOT_RATIO = 1.4
"""Between numbers of tokens at which f may bend: what lies closer is measured too inexactly."""
_MOST_TURNS = 100
_ROUNDING = 1e-10


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A ``PerformanceModel``."""

    tokens: Curve
    """By tokens of a step, of prompts and decodes together."""
    per_decode_s: float
    per_context_token_s: float
    per_attended_token_s: float
    bandwidths: Bandwidths = NO_TRANSFERS

    def step_time_s(self, work: StepWork) -> float:
        return (
            self.tokens.at(work.num_prefill_tokens + work.num_decodes)
            + self.per_decode_s * work.num_decodes
            + self.per_context_token_s * work.num_context_tokens
            + self.per_attended_token_s * work.num_attended_tokens
        )


def model_of_profile(profile: EngineProfile) -> PerformanceModel:
    """The one of the two that errs less about the steps that were measured; of a profile that has
    none, its sum."""
    linear = LinearModel(profile.cost)
    knots = _knots({_num_tokens(sample) for sample in profile.samples})
    if len(knots) < 2:
        return linear
    profiled = fit_curve(profile.samples, knots)
    errors = [_mean_error(model, profile.samples) for model in (profiled, linear)]
    return profiled if errors[0] < errors[1] else linear


def fit_curve(samples: Sequence[StepSample], knots: Sequence[int]) -> ProfiledModel:
    """Least squares of relative errors. ``knots``: where f may bend; two or more, rising."""
    times_s = np.array([sample.time_s for sample in samples])
    features = np.array([_features(sample, knots) for sample in samples]) / times_s[:, None]
    scale = np.maximum(features.max(axis=0), np.finfo(float).tiny)
    solution = _least_squares(features / scale) / scale
    *rises, per_decode_s, per_context_token_s, per_attended_token_s = solution.tolist()
    curve = Curve(tuple(map(float, knots)), tuple(np.cumsum(rises).tolist()))
    return ProfiledModel(curve, per_decode_s, per_context_token_s, per_attended_token_s)


def _features(sample: StepSample, knots: Sequence[int]) -> list[float]:
    """The first one is f's value at the first knot, the next ones its rises between knots."""
    num_tokens = _num_tokens(sample)
    rises = [(num_tokens - left) / (right - left) for left, right in pairwise(knots)]
    return [
        1.0,
        *(min(1.0, max(0.0, rise)) for rise in rises),
        sample.num_decodes,
        sample.num_context_tokens,
        sample.num_attended_tokens,
    ]


def _least_squares(features: Matrix) -> Matrix:
    """Of sums that shall be 1, with nothing negative (Lawson and Hanson: Solving Least Squares
    Problems, chapter 23)."""
    num_features = features.shape[1]
    target = np.ones(len(features))
    solution = np.zeros(num_features)
    chosen = np.zeros(num_features, dtype=bool)
    for _ in range(_MOST_TURNS):
        slope = np.where(chosen, -np.inf, features.T @ (target - features @ solution))
        if slope.max() <= _ROUNDING:
            break
        chosen[int(slope.argmax())] = True
        while True:
            tried = np.zeros(num_features)
            tried[chosen] = np.linalg.lstsq(features[:, chosen], target, rcond=None)[0]
            falling = chosen & (tried <= 0)
            if not falling.any():
                break
            # As far as the first one that would become negative.
            steps = solution[falling] / (solution[falling] - tried[falling])
            solution = solution + steps.min() * (tried - solution)
            chosen &= solution > _ROUNDING
            solution[~chosen] = 0.0
        solution = tried
    return solution


def _knots(sizes: set[int]) -> list[int]:
    """Numbers of tokens of measured steps, from the smallest to the largest."""
    knots: list[int] = []
    for size in sorted(sizes):
        if not knots or size >= _KNOT_RATIO * knots[-1]:
            knots.append(size)
    if knots:
        knots[-1] = max(sizes)
    return knots


def _num_tokens(sample: StepSample) -> int:
    return sample.num_prefill_tokens + sample.num_decodes


def _mean_error(model: PerformanceModel, samples: Sequence[StepSample]) -> float:
    errors = [abs(model.step_time_s(sample.work) / sample.time_s - 1) for sample in samples]
    return sum(errors) / len(errors)
