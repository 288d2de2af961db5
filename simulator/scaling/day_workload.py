"""A day of chat: sessions of several turns that begin along a curve of rates, with long-tailed
lengths, each turn sending again what was said before. Equal for equal arguments. Must not know
fleets.

Arrivals do not wait for answers: each turn comes a time to think and the usual time of an answer
after the one before it, so that all policies meet the same requests in the same minutes. Kept as
columns, since a day has millions of rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from cache_tiers.keys import KEY_BYTES
from simulator.errors import SimulationError
from simulator.scaling.rate_trace import Counts, Vector
from simulator.workload import SimulatedRequest, Workload

BLOCK_TOKENS = 128
_SYSTEM_SKEW = 1.1


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What sessions are like; means are of the distributions before they are cut."""

    num_turns: int = 15
    num_system_prompts: int = 8
    num_system_tokens: int = 1664
    """Whole blocks."""
    user_tokens: float = 170.0
    user_sigma: float = 1.4
    """Of the logarithm of lengths."""
    max_user_tokens: int = 12_000
    answer_tokens: float = 400.0
    answer_sigma: float = 0.8
    max_answer_tokens: int = 4000
    max_history_tokens: int = 2800
    """When it is outgrown, the older half is dropped."""
    think_s: float = 10.0
    answer_token_s: float = 0.015
    """Usual; only arrivals go by it."""

    def __post_init__(self) -> None:
        if self.num_turns < 1 or self.num_system_prompts < 1:
            raise SimulationError("a session has at least one turn, and there is a system prompt")
        if self.num_system_tokens % BLOCK_TOKENS:
            raise SimulationError(f"num_system_tokens must be whole blocks of {BLOCK_TOKENS}")


@dataclass(frozen=True, slots=True, eq=False)
class DayWorkload:
    """Requests in the order of their arrival, a column per property."""

    shape: ChatShape
    arrivals_s: Vector
    sessions: Counts
    turns: Counts
    systems: Counts
    """Which system prompt."""
    prompts: Counts
    """Tokens."""
    first_turns: Counts
    """The oldest turn that is still in the history."""
    answers: Counts
    """Tokens."""

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def between(self, begin_s: float, end_s: float) -> "DayWorkload":
        """Those that come then, times as they are."""
        rows = slice(*np.searchsorted(self.arrivals_s, (begin_s, end_s)).tolist())
        return DayWorkload(
            self.shape,
            self.arrivals_s[rows],
            self.sessions[rows],
            self.turns[rows],
            self.systems[rows],
            self.prompts[rows],
            self.first_turns[rows],
            self.answers[rows],
        )

    def as_requests(self) -> Workload:
        """For a simulation of whole engines."""
        columns = (
            self.arrivals_s, self.sessions, self.turns, self.systems, self.prompts,
            self.first_turns, self.answers,
        )  # fmt: skip
        requests = []
        key_of: dict[str, bytes] = {}
        """Equal keys are one object: a full-size window has millions of them."""
        for row in zip(*(column.tolist() for column in columns), strict=True):
            arrival_s, session, turn, system, prompt, first_turn, answer = row
            names = self._key_names(session, system, first_turn, prompt)
            keys = [key_of.get(name) or key_of.setdefault(name, _key(name)) for name in names]
            requests.append(
                SimulatedRequest(
                    f"s{session}-{turn}", arrival_s, prompt, answer, keys, session=f"s{session}"
                )
            )
        return Workload("day", BLOCK_TOKENS, tuple(requests))

    def _key_names(self, session: int, system: int, first_turn: int, prompt: int) -> list[str]:
        """Of full blocks: the system prompt's are shared by all, others are the session's."""
        num_system = self.shape.num_system_tokens // BLOCK_TOKENS
        names = [f"{system}/{block}" for block in range(num_system)]
        own = range(num_system, prompt // BLOCK_TOKENS)
        return names + [f"{session}/{first_turn}/{block}" for block in own]


def make_day(
    shape: ChatShape, rates: Vector, step_s: float, *, extra_variances: Vector | None = None,
    bursts: Sequence[tuple[float, float, float]] = (), seed: int = 0,
) -> DayWorkload:  # fmt: skip
    """``rates``: requests/s in each step. ``extra_variances``: of the number of requests in a
    second beyond a Poisson process's. ``bursts``: time, its length in s, and how many sessions
    begin in it besides, evenly.
    """
    draw = np.random.default_rng(seed)
    means = rates / shape.num_turns * step_s
    if extra_variances is not None:
        extra = np.maximum(extra_variances / shape.num_turns * step_s, 1e-9)
        means = draw.gamma(np.maximum(means, 1e-9) ** 2 / extra, extra / np.maximum(means, 1e-9))
    counts = draw.poisson(means)
    begins = (np.repeat(np.arange(len(rates)), counts) + draw.random(int(counts.sum()))) * step_s
    for at_s, length_s, num_sessions in bursts:
        begins = np.append(begins, at_s + draw.random(round(num_sessions)) * length_s)
    if not len(begins):
        raise SimulationError("no session begins: the rates are too low")
    day = _sessions(shape, np.sort(begins), draw)
    return day.between(0.0, len(rates) * step_s)


def _sessions(shape: ChatShape, begins: Vector, draw: np.random.Generator) -> DayWorkload:
    size = (len(begins), shape.num_turns)
    users = _lengths(draw, shape.user_tokens, shape.user_sigma, shape.max_user_tokens, size)
    answers = _lengths(draw, shape.answer_tokens, shape.answer_sigma, shape.max_answer_tokens, size)
    thinks = draw.exponential(shape.think_s, size)
    waits = thinks + np.roll(answers, 1, axis=1) * shape.answer_token_s
    waits[:, 0] = 0.0
    arrivals = begins[:, None] + np.cumsum(waits, axis=1)
    weights = np.arange(1, shape.num_system_prompts + 1) ** -_SYSTEM_SKEW
    systems = draw.choice(shape.num_system_prompts, len(begins), p=weights / weights.sum())
    prompts, firsts = _prompts(shape, users, answers)
    order = np.argsort(arrivals, axis=None, kind="stable")
    sessions, turns = np.divmod(order, shape.num_turns)
    return DayWorkload(
        shape, arrivals.ravel()[order], sessions, turns, systems[sessions],
        prompts.ravel()[order], firsts.ravel()[order],
        answers.ravel()[order],
    )  # fmt: skip


def _prompts(shape: ChatShape, users: Counts, answers: Counts) -> tuple[Counts, Counts]:
    """Tokens and first turns, each [session, turn]."""
    num_sessions, num_turns = users.shape
    said = np.zeros((num_sessions, num_turns + 1), dtype=np.int64)
    said[:, 1:] = np.cumsum(users + answers, axis=1)  # before each turn
    prompts, firsts = np.zeros_like(users), np.zeros_like(users)
    first = np.zeros(num_sessions, dtype=np.int64)
    rows = np.arange(num_sessions)
    for turn in range(num_turns):
        is_trimmed = said[:, turn] - said[rows, first] > shape.max_history_tokens
        # The oldest turn from which on what was said fits half of the bound.
        fits = said[:, turn, None] - said[:, : turn + 1] <= shape.max_history_tokens / 2
        first = np.where(is_trimmed, fits.argmax(axis=1), first)
        history = said[:, turn] - said[rows, first]
        firsts[:, turn] = first
        prompts[:, turn] = shape.num_system_tokens + history + users[:, turn]
    return prompts, firsts


def _key(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=KEY_BYTES).digest()


def _lengths(
    draw: np.random.Generator, mean: float, sigma: float, most: int, size: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Log-normal, at least 1."""
    lengths = draw.lognormal(math.log(mean) - sigma**2 / 2, sigma, size)
    return np.clip(np.rint(lengths), 1, most).astype(np.int64)
