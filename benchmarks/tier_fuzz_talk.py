"""Conversations that begin alike, take turns at random, and go on with the answers they got.

Must not know engines or nodes.
"""

import random
from dataclasses import dataclass

from benchmarks.tier_fuzz_model import MAX_LEN, VOCAB_SIZE
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import CacheBreakpoint, EngineRequest, SamplingParams

BLOCK_SIZE = 16
_ROOTS = (bytes(16), bytes([7]) * 16)
"""Of two tenants: what they say alike is not the same KV."""
_FIRST_ID = 3
_MAX_ANSWER = 12
_TIMEOUT_S = 60.0
_TTLS_S = (0.3, 5.0, 300.0)
_SESSION_KINDS = ("", "chat", "agent")


@dataclass(slots=True)
class Talk:
    """One conversation."""

    root: bytes
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Ask:
    """One turn."""

    request: EngineRequest
    talk: Talk


class Talks:
    """Owner of all conversations; draws what is asked next."""

    def __init__(self, draw: random.Random, num_talks: int) -> None:
        self._draw = draw
        self._openings = [self._tokens(draw.randint(20, 150)) for _ in range(4)]
        self._talks = [self._new_talk() for _ in range(num_talks)]
        self._num_asked = 0

    def ask(self, num: int) -> list[Ask]:
        """The next turn of so many different conversations."""
        draw = self._draw
        chosen = draw.sample(range(len(self._talks)), num)
        asks = []
        for index in chosen:
            talk = self._talks[index]
            action = draw.random()
            if len(talk.token_ids) > MAX_LEN - 120 or action < 0.05:
                talk = self._talks[index] = self._new_talk()
            elif action < 0.1:  # an edited message: the rest is said anew
                del talk.token_ids[draw.randint(1, len(talk.token_ids)) :]
                talk.token_ids += self._tokens(draw.randint(1, 40))
            elif action < 0.8:
                talk.token_ids += self._tokens(draw.randint(1, 60))
            # else the same again
            asks.append(Ask(self._request(talk), talk))
        return asks

    def _request(self, talk: Talk) -> EngineRequest:
        draw = self._draw
        self._num_asked += 1
        prompt = talk.token_ids[:]
        keys: list[bytes] = list(block_keys(BlockKey(talk.root), prompt, BLOCK_SIZE))
        return EngineRequest(
            f"request {self._num_asked}",
            prompt,
            talk.root,
            keys,
            SamplingParams(draw.randint(0, _MAX_ANSWER), temperature=0.0),
            _TIMEOUT_S,
            num_samples=draw.choice((1, 1, 1, 1, 2)),
            breakpoints=self._breakpoints(len(prompt)),
            session_kind=draw.choice(_SESSION_KINDS),
            expected_return_s=draw.choice((None, None, 0.05, 60.0)),
        )

    def _breakpoints(self, prompt_len: int) -> list[CacheBreakpoint]:
        draw = self._draw
        if draw.random() < 0.6:
            return []
        places = sorted({draw.randint(1, prompt_len) for _ in range(draw.randint(1, 3))})
        return [CacheBreakpoint(place, draw.choice(_TTLS_S)) for place in places]

    def _new_talk(self) -> Talk:
        draw = self._draw
        opening = draw.choice(self._openings)[: draw.choice((None, None, 16, 40))]
        return Talk(draw.choice(_ROOTS), [*opening, *self._tokens(draw.randint(1, 80))])

    def _tokens(self, num: int) -> list[int]:
        return self._draw.choices(range(_FIRST_ID, VOCAB_SIZE), k=num)
