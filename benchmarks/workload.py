"""What is asked: seeded prompts and the request bodies made of them.

A prompt depends on the seed, the run and its number only, so that two runs of a benchmark ask
the same. Must not know when or where a request is sent.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

# Common words, so that a tokenizer needs about one token for each, as it does for prose.
_COMMON_WORDS = (
    "the of and to in that is was for on are with as they at be this have from or one had by "
    "word but not what all were we when your can said there use an each which she do how "
    "their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water "
    "been call who oil its now find long down day did get come made may part over new sound "
    "take only little work know place year live me back give most very after thing our just "
    "name good sentence man think say great where help through much before line right too "
    "mean old any same tell boy follow came want show also around form three small set put "
    "end does another well large must big even such because turn here why ask went men read "
    "need land different home us move try kind hand picture again change off play spell air "
    "away animal house point page letter mother answer found study"
)
_WORDS = _COMMON_WORDS.split()


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of every request of a run."""

    prompt_words: int
    output_tokens: int
    seed: int
    shared_prefix_words: int = 0  # the first words of each prompt, the same in all of them
    ignore_eos: bool = False  # ask for exactly `output_tokens`, of servers that know how

    def __post_init__(self) -> None:
        if self.prompt_words < 1 or self.output_tokens < 1:
            raise ValueError("a request needs at least one prompt word and one output token")
        if not 0 <= self.shared_prefix_words <= self.prompt_words:
            raise ValueError(
                f"shared_prefix_words must lie between 0 and prompt_words ({self.prompt_words}), "
                f"got {self.shared_prefix_words}"
            )

    @property
    def session_len(self) -> int:
        """Requests are independent of each other."""
        return 1

    def bodies(self, model: str, run: str, num_requests: int) -> list[bytes]:
        """Streamed, greedy chat completions of one user message each."""
        return [
            make_body(self, model, make_prompt(self, run, index)) for index in range(num_requests)
        ]


def make_prompt(workload: Workload, run: str, index: int) -> str:
    """The prompt of request `index` of run `run`; other runs and indices ask something else."""
    shared = random.Random(f"{workload.seed}/shared")
    own = random.Random(f"{workload.seed}/{run}/{index}")
    num_own_words = workload.prompt_words - workload.shared_prefix_words
    return " ".join(
        [*draw_words(shared, workload.shared_prefix_words), *draw_words(own, num_own_words)]
    )


def draw_words(draw: random.Random, num_words: int) -> list[str]:
    """Common words. Not security: a load must be repeatable."""
    return draw.choices(_WORDS, k=num_words)


def make_body(workload: Workload, model: str, prompt: str) -> bytes:
    """The JSON body of a chat completion of one user message."""
    return encode_body(
        model,
        [{"role": "user", "content": prompt}],
        workload.output_tokens,
        ignore_eos=workload.ignore_eos,
    )


def encode_body(
    model: str, messages: Sequence[Mapping[str, str]], max_tokens: int, *, ignore_eos: bool
) -> bytes:
    """The JSON body of a streamed, greedy chat completion that ends with a usage chunk.

    ``ignore_eos`` asks for exactly ``max_tokens``, of servers that know how.
    """
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
        body["min_tokens"] = max_tokens
    return orjson.dumps(body)
