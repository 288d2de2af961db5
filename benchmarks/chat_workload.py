"""The traffic of a chat product: sessions of several turns over a few shared system prompts.

Which system prompt a session begins with follows Zipf's law; lengths of messages and answers are
log-normal, so that a few are very long. Each turn sends what was said before again. When that
history outgrows its bound, its older half is dropped at once, as clients do that trim it. Answers
in the history are made up beforehand: all runs of a benchmark ask the same, whatever was answered.
Must not know when or where a request is sent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from benchmarks.workload import draw_words, encode_body

SYSTEM_SKEW = 1.1
"""Exponent of Zipf's law: the most popular of 8 system prompts begins 4 of 10 sessions."""
LENGTH_SIGMA = 0.8
"""Of the logarithm of lengths: one in twenty is more than 2.7 times the mean."""
MAX_OF_MEAN = 20
"""No message or answer is longer than so many means."""


@dataclass(frozen=True, slots=True)
class ChatWorkload:
    """The shape of all sessions. A word is about one token."""

    seed: int
    num_turns: int = 15
    num_system_prompts: int = 8
    system_words: int = 2000
    mean_user_words: int = 60
    mean_answer_tokens: int = 400
    max_history_words: int = 1920
    """Of what was said before, without system prompt and new message. With the defaults a prompt
    has 3,000 tokens in the mean."""
    ignore_eos: bool = True
    mark: str = ""
    """Begins each user's message: workloads that differ in it alone share the system prompts only,
    so that none profits of what another one left in a cache."""

    def __post_init__(self) -> None:
        for name in ("num_turns", "num_system_prompts", "mean_user_words", "mean_answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.system_words < 0 or self.max_history_words < 0:
            raise ValueError("system_words and max_history_words can't be negative")

    def scaled(self, scale: float) -> ChatWorkload:
        """All lengths times ``scale``; numbers of turns and system prompts stay."""
        if not (math.isfinite(scale) and 0.0 < scale <= 10.0):
            raise ValueError(f"scale must lie above 0 and not above 10, got {scale}")
        return replace(
            self,
            system_words=round(self.system_words * scale),
            mean_user_words=max(1, round(self.mean_user_words * scale)),
            mean_answer_tokens=max(1, round(self.mean_answer_tokens * scale)),
            max_history_words=round(self.max_history_words * scale),
        )

    @property
    def session_len(self) -> int:
        return self.num_turns

    def bodies(self, model: str, run: str, num_requests: int) -> list[bytes]:
        """Session after session, each in the order of its turns; the last one may be cut short."""
        bodies: list[bytes] = []
        session = 0
        while len(bodies) < num_requests:
            bodies += [
                encode_body(model, turn.messages, turn.answer_tokens, ignore_eos=self.ignore_eos)
                for turn in self.session(run, session)
            ]
            session += 1
        return bodies[:num_requests]

    def session(self, run: str, number: int) -> Iterator[ChatTurn]:
        """The turns of one session; other runs and numbers say something else."""
        draw = random.Random(f"{self.seed}/{run}/{number}")
        system = {"role": "system", "content": self._system_prompt(draw)}
        history: list[dict[str, str]] = []
        for _ in range(self.num_turns):
            history = _trimmed(history, self.max_history_words)
            user = f"{self.mark} {_words(draw, _length(draw, self.mean_user_words))}".lstrip()
            answer_tokens = _length(draw, self.mean_answer_tokens)
            history.append({"role": "user", "content": user})
            yield ChatTurn([system, *history], answer_tokens)
            history.append({"role": "assistant", "content": _words(draw, answer_tokens)})

    def _system_prompt(self, draw: random.Random) -> str:
        weights = [rank**-SYSTEM_SKEW for rank in range(1, self.num_system_prompts + 1)]
        number = draw.choices(range(self.num_system_prompts), weights)[0]
        return _words(random.Random(f"{self.seed}/system/{number}"), self.system_words)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One request of a session."""

    messages: list[dict[str, str]]
    answer_tokens: int


def _length(draw: random.Random, mean: int) -> int:
    """Log-normal with that mean, at least 1."""
    length = draw.lognormvariate(math.log(mean) - LENGTH_SIGMA**2 / 2, LENGTH_SIGMA)
    return max(1, min(round(length), MAX_OF_MEAN * mean))


def _words(draw: random.Random, num_words: int) -> str:
    return " ".join(draw_words(draw, num_words))


def _trimmed(history: list[dict[str, str]], max_words: int) -> list[dict[str, str]]:
    """As it is while it fits; else its newest messages, from a user's on, of at most half of it."""
    newest_first = accumulate(len(message["content"].split()) for message in reversed(history))
    sizes = list(newest_first)
    if not sizes or sizes[-1] <= max_words:
        return history
    num_kept = sum(size <= max_words / 2 for size in sizes)
    return history[len(history) - num_kept // 2 * 2 :]
