"""Fits the cost of a step to a table of measured ones: relative least squares, nothing negative.

The batch twin of ``engine.step_time``, which learns the same sum while it serves. Imports no torch.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.performance_profile import StepCost, StepSample

Matrix = npt.NDArray[np.float64]

_ROUNDING = 1e-12


class CostFit(NamedTuple):
    cost: StepCost
    error: float
    """Mean relative error over the samples."""


def fit_step_cost(samples: Sequence[StepSample]) -> CostFit:
    """The cost with the least sum of squared relative errors, however many steps a sample is of.

    Precondition: there is a sample, and each took time.
    """
    assert samples, "nothing was measured"
    times_s = np.array([sample.time_s for sample in samples])
    # [num_samples, 5], each row divided by its time: the sum shall be 1.
    features = np.array([_features(sample) for sample in samples]) / times_s[:, None]
    scale = np.maximum(np.abs(features).max(axis=0), _ROUNDING)
    solution = _least_squares(features / scale) / scale
    errors = np.abs(features @ solution - 1.0)
    return CostFit(StepCost(*solution.tolist()), float(errors.mean()))


def _least_squares(features: Matrix) -> Matrix:
    """Tries every set of coefficients that may be above 0: with five there are 31."""
    num_features = features.shape[1]
    target = np.ones(len(features))
    best, least = np.zeros(num_features), float("inf")
    for size in range(1, num_features + 1):
        for chosen in itertools.combinations(range(num_features), size):
            part = features[:, chosen]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            if solution.min() < 0:
                continue
            error = float(np.square(part @ solution - target).sum())
            # More coefficients must earn their place, or rounding would choose.
            if error < least * (1 - 1e-6) - _ROUNDING:
                best, least = np.zeros(num_features), error
                best[list(chosen)] = solution
    return best


def _features(sample: StepSample) -> tuple[float, ...]:
    """In the order of ``StepCost``."""
    return (
        1.0,
        sample.num_prefill_tokens,
        sample.num_decodes,
        sample.num_context_tokens,
        sample.num_attended_tokens,
    )
