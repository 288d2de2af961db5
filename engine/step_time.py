"""How long a step takes: learned from the steps that were carried out, to choose later ones by.

    time = base + a × prefill tokens + b × decodes + c × context that decodes read
         + d × prefill tokens × context that they attend to

Recursive least squares over relative errors, with coefficients that are never negative (Lawson and
Hanson: Solving Least Squares Problems, chapter 23). It forgets only along the kind of step that is
seen (Cao and Schwartz: A directional forgetting algorithm based on the decomposition of the
information matrix, 2000), so that an hour of decodes leaves the cost of prefill known. Steps far
off what is usual (a core was taken away, memory collected) count less (Huber). Must not know
sequences, and reads no clock.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.step import ScheduledSequence

Vector = npt.NDArray[np.float64]

_KEPT = 0.98
"""Of what is known along the direction of a step: about the last fifty such steps count."""
_ERROR_WEIGHT = 0.05
_UNJUDGED_STEPS = 17
"""The first ones: what was never seen can't be predicted."""
_OUTLIER = 3.0
"""Times the usual error: beyond it a step counts less."""
_LEAST_ERROR = 0.01
_MIN_PREFILLS = 4
_MIN_DECODES = 16
_MOST_SOLUTIONS = 12
_RIDGE = 1e-6
_SHORTEST_S = 1e-6
_NO_DELAY_STEPS = 32
_STEPS_PER_SOLUTION = 4
"""After the first steps: a solution costs more than all the rest."""
_IDENTITY: Vector = np.eye(5)
_ROUNDING = 1e-9
_TYPICAL = np.array([1.0, 256.0, 16.0, 4096.0, 65536.0])
"""Of the features of a step, so that all weigh alike in the solution."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes."""

    num_prefill_tokens: int = 0
    num_decodes: int = 0
    num_context_tokens: int = 0
    """Positions that decodes attend to, all together."""
    num_attended_tokens: float = 0.0
    """Positions that each prefill token attends to, added up."""


def measure_work(scheduled: Iterable[ScheduledSequence]) -> StepWork:
    """Of a plan's entries."""
    num_prefill = num_decodes = num_context = 0
    num_attended = 0.0
    for entry in scheduled:
        start = entry.start
        if entry.is_last_pending:
            num_decodes += 1
            num_context += start
        else:
            num_tokens = len(entry.token_ids)
            num_prefill += num_tokens
            num_attended += num_tokens * (start + 0.5 * num_tokens)
    return StepWork(num_prefill, num_decodes, num_context, num_attended)


class StepTimeModel:
    """Owner of what is known of step times."""

    def __init__(self) -> None:
        self.base_s = 0.0
        """Of a step, whatever it holds: reads of the weights, calls."""
        self.per_prefill_token_s = 0.0
        self.per_decode_s = 0.0
        self.per_context_token_s = 0.0
        self.per_attended_token_s = 0.0
        self.error = 1.0
        """Mean size of the last steps' relative errors; 1 while unknown."""
        self._num_steps = 0
        self._num_prefills = 0
        self._num_decodes = 0
        self._information = _IDENTITY * _RIDGE
        self._moment = np.zeros(5)
        self._is_positive = np.ones(5, dtype=bool)
        """Coefficients that are not held at 0."""

    @property
    def confidence(self) -> float:
        """From 0, nothing is known, to 1."""
        return self.seen / (1.0 + self.error)

    @property
    def seen(self) -> float:
        """From 0 to 1, when there were enough steps of both kinds to learn from."""
        return min(1.0, self._num_prefills / _MIN_PREFILLS, self._num_decodes / _MIN_DECODES)

    def record(self, work: StepWork, time_s: float) -> None:
        """Take in a step that took ``time_s``; one of less than a microsecond says
        nothing, nor does the first.
        """
        if not _SHORTEST_S <= time_s < math.inf:
            return
        self._num_steps += 1
        if self._num_steps == 1:
            return  # it touches memory and starts threads
        predicted_s = self.predict(work)
        if predicted_s <= 0:
            predicted_s = time_s
        weight = self._judge((time_s - predicted_s) / predicted_s)
        self._num_prefills += work.num_prefill_tokens > 0
        self._num_decodes += work.num_decodes > 0
        features = _features(work)
        self._forget(features)
        # Relative errors: a millisecond counts more in a decode step than in a long prefill. Of the
        # longer time, or a step whose kind was never seen would count a thousandfold.
        scale = math.sqrt(weight) / max(predicted_s, time_s)
        features *= scale
        self._information += features[:, None] * features
        self._moment += features * (scale * time_s)
        if self._num_steps <= _NO_DELAY_STEPS or self._num_steps % _STEPS_PER_SOLUTION == 0:
            self._solve()

    def predict(self, work: StepWork) -> float:
        """Seconds that a step of ``work`` takes; 0 while nothing is known."""
        return (
            self.base_s
            + self.per_prefill_token_s * work.num_prefill_tokens
            + self.per_decode_s * work.num_decodes
            + self.per_context_token_s * work.num_context_tokens
            + self.per_attended_token_s * work.num_attended_tokens
        )

    def prefill_tokens_within(
        self, time_s: float, decodes: StepWork, *, start: int, most: int
    ) -> int:
        """How many tokens of a prompt, from position ``start`` on, fit beside ``decodes`` into a
        step of ``time_s``: from 0 to ``most``.
        """
        left_s = time_s - self.predict(decodes)
        if left_s <= 0:
            return 0
        # a × n + d × (n × start + n² / 2) = left
        linear_s = self.per_prefill_token_s + self.per_attended_token_s * start
        root_s = math.sqrt(linear_s * linear_s + 2 * self.per_attended_token_s * left_s)
        if linear_s + root_s <= 2 * left_s / max(1, most):
            return most
        # The form of the quadratic's solution that divides by nothing small.
        return min(most, int(2 * left_s / (linear_s + root_s)))

    def _judge(self, error: float) -> float:
        """How much a step with this relative error counts; the error becomes part of the usual."""
        usual = max(_LEAST_ERROR, self.error)
        size = abs(error)
        num_judged = self._num_steps - _UNJUDGED_STEPS
        if num_judged >= 0:
            # Bounded, so that one step can't make the next ones look usual; many together do.
            bounded = min(size, 2 * _OUTLIER * usual)
            self.error += max(_ERROR_WEIGHT, 1 / (num_judged + 1)) * (bounded - self.error)
        return 1.0 if size <= _OUTLIER * usual else _OUTLIER * usual / size

    def _forget(self, features: Vector) -> None:
        along = self._information @ features
        size = float(features @ along)
        if size > 0:
            lost = along * ((1 - _KEPT) / size)
            self._moment -= lost * float(features @ self._moment)
            self._information -= lost[:, None] * along

    def _solve(self) -> None:
        """Coefficients of the least squares, none negative: those at 0 are the ones that would be
        negative otherwise. Starts with those of the last time, which are right almost always.
        """
        information, moment, positive = self._information, self._moment, self._is_positive
        # Of each by itself: decodes, being short, weigh a thousand times what prompts do.
        solvable = information + np.diag(_RIDGE * (information.diagonal() + _RIDGE))
        for _ in range(_MOST_SOLUTIONS):
            system = solvable.copy()
            right: Vector = moment
            has_held = not positive.all()
            if has_held:
                system[~positive] = _IDENTITY[~positive]
                right = np.where(positive, moment, 0.0)
            solution = np.linalg.solve(system, right)
            if solution.min() < -_ROUNDING:
                positive[int(solution.argmin())] = False
                continue
            if not has_held:
                break
            slope = np.where(positive, 0.0, moment - information @ solution)
            if slope.max() <= _ROUNDING * (1.0 + abs(moment).max()):
                break
            positive[int(slope.argmax())] = True
        self._set(np.maximum(solution, 0.0) / _TYPICAL)

    def _set(self, coefficients: Vector) -> None:
        (
            self.base_s,
            self.per_prefill_token_s,
            self.per_decode_s,
            self.per_context_token_s,
            self.per_attended_token_s,
        ) = coefficients.tolist()


def _features(work: StepWork) -> Vector:
    features: Vector = np.array(
        (
            1.0,
            work.num_prefill_tokens,
            work.num_decodes,
            work.num_context_tokens,
            work.num_attended_tokens,
        )
    )
    features /= _TYPICAL
    return features
