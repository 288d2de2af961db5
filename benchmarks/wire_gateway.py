"""The gateway's side of the wire benchmark: streams in a closed loop through a ``ChannelClient``.

When an answer ends the next request is announced, waits for its credit and is submitted. Counts
what reaches the sinks; must not know processes.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field

from app.channel import ChannelClient
from app.client import EngineClient
from benchmarks.wire_count import DeliveryCount
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    EngineRequest,
    SamplingParams,
    TimelineEvent,
    TokenDelta,
)

PROMPT_TOKENS = 3000
MEAN_ANSWER_TOKENS = 400
"""The means of the chat workload; answers have between half and one and a half of it."""
BLOCK_SIZE_TOKENS = 16
_NUM_PROMPTS = 16


class StreamLost(Exception):
    """The engine ended a stream otherwise than as the script says."""


@dataclass(slots=True, eq=False)
class Tally:
    """What reached the sinks."""

    num_deltas: int = 0
    submit_times_us: list[int] = field(default_factory=list)
    """From the call to the engine's step loop, as that one says."""


class Gateway:
    """Keeps ``num_streams`` answers going; an ``EngineListener``."""

    def __init__(
        self, num_streams: int, *, seed: int, delivered: DeliveryCount | None = None
    ) -> None:
        self.tally = Tally()
        self._delivered = delivered
        self.failure: str | None = None
        self._random = random.Random(seed)
        self._prompts = [self._make_prompt() for _ in range(_NUM_PROMPTS)]
        self._num_missing = num_streams
        self._num_announced = 0

    def start(self, client: ChannelClient) -> None:
        self._announce(client)

    def on_credits(self, client: EngineClient) -> None:
        while client.num_credits > 0 and self._num_missing > 0:
            self._num_missing -= 1
            self._num_announced = max(0, self._num_announced - 1)
            client.submit(self.make_request(), _Stream(self).take)

    def on_step(self, client: EngineClient, events: CacheEvents | None) -> None:
        if self._delivered is not None:
            self._delivered.value = self.tally.num_deltas
        if self._num_missing != self._num_announced:
            self._announce(client)

    def on_snapshot(self, client: EngineClient, snapshot: CacheSnapshot) -> None: ...

    def on_draining(self, client: EngineClient) -> None: ...

    def on_rung(self, client: EngineClient) -> None: ...

    def on_closed(self, client: EngineClient, reason: str) -> None:
        self.failure = reason

    def stream_ended(self, delta: TokenDelta) -> None:
        self._num_missing += 1
        if delta.error is not None:
            self.failure = delta.error

    def _announce(self, client: EngineClient) -> None:
        self._num_announced = self._num_missing
        client.set_demand((0, self._num_missing, 0))

    def make_request(self) -> EngineRequest:
        token_ids, keys = self._random.choice(self._prompts)
        max_tokens = self._random.randint(MEAN_ANSWER_TOKENS // 2, MEAN_ANSWER_TOKENS * 3 // 2)
        return EngineRequest(
            uuid.UUID(int=self._random.getrandbits(128)).hex,
            token_ids,
            b"root",
            keys,
            SamplingParams(max_tokens=max_tokens, seed=self._random.getrandbits(64)),
            timeout_s=600.0,
            timeline=[TimelineEvent("submitted", time.monotonic())],
        )

    def _make_prompt(self) -> tuple[list[int], list[bytes]]:
        token_ids = [self._random.randrange(128_000) for _ in range(PROMPT_TOKENS)]
        return token_ids, [*block_keys(BlockKey(b"root"), token_ids, BLOCK_SIZE_TOKENS)]


class _Stream:
    """The sink of one request."""

    __slots__ = ("_gateway", "_has_begun")

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._has_begun = False

    def take(self, delta: TokenDelta) -> None:
        tally = self._gateway.tally
        tally.num_deltas += 1
        if not self._has_begun:
            self._has_begun = True
            tally.submit_times_us += delta.token_ids
        if delta.finish_reason is not None:
            self._gateway.stream_ended(delta)
