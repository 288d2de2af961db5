"""The arithmetic of the design case: 5,000 requests/s on 700 replicas of a 70B model. Pure; knows
no files. What no benchmark here measures is a field of `DesignCase` and can be varied.

A replica's devices take turns between prefill and decode. With `r` requests/s per replica,
`a` the time to read the weights, `b` the time to read one sequence's KV, `p` the prefill time of a
request and `n` its output tokens, a replica that keeps up runs `B = r n T` sequences (Little's law)
at a time per output token of

    T = a + b B + r p T   =>   T = a / (1 - r (n b + p))
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from engine.messages import (
    KEY_STRIDE,
    CacheEvents,
    EngineRequest,
    LoadView,
    SamplingParams,
    StepFrame,
    Submit,
    TokenDelta,
)

BLOCK_SIZE_TOKENS = 16
KEY_TOKENS = KEY_STRIDE * BLOCK_SIZE_TOKENS
_REQUEST_ID = "0" * 32


class ChannelCost(NamedTuple):
    """Seconds on one core for both ends of a channel."""

    frame_s: float
    delta_s: float

    @classmethod
    def between(cls, few: tuple[int, float], many: tuple[int, float]) -> "ChannelCost":
        """The line through two (deltas per frame, deltas per second)."""
        (num_few, few_per_s), (num_many, many_per_s) = few, many
        few_s, many_s = num_few / few_per_s, num_many / many_per_s
        delta_s = (many_s - few_s) / (num_many - num_few)
        return cls(max(0.0, few_s - num_few * delta_s), delta_s)


class GatewayCost(NamedTuple):
    """Seconds of a gateway's core."""

    prompt_s: float
    """Template, tokens and keys of one prompt."""
    token_s: float
    """Text of one token."""
    channel: ChannelCost | None
    """None: not measured."""


class Gateways(NamedTuple):
    """How many processes it takes, and why."""

    num_gateways: int
    prompt_cores: float
    text_cores: float
    stream_cores: float
    channel_cores: float | None
    deltas_per_frame: float


@dataclass(frozen=True, slots=True)
class DesignCase:
    """The load, the fleet and the assumptions."""

    requests_per_s: float = 5_000.0
    prompt_tokens: int = 3_000
    output_tokens: int = 400
    num_replicas: int = 700
    # The model and its node; `headwater models inspect` says the same.
    num_parameters: int = 70_553_706_496
    kv_token_bytes: int = 327_680
    kv_pool_bytes: int = 400_000_000_000
    # Assumed; no accelerator was measured.
    prefix_hit_share: float = 0.5
    device_flops_per_s: float = 8 * 989e12
    flops_efficiency: float = 0.5
    device_bytes_per_s: float = 8 * 3.35e12
    bandwidth_efficiency: float = 0.6
    tpot_target_s: float = 0.030
    ttft_s: float = 0.7
    stream_token_s: float = 30e-6
    stream_token_bytes: int = 250
    core_load: float = 0.6

    @property
    def tokens_per_s(self) -> float:
        return self.requests_per_s * self.output_tokens

    @property
    def requests_per_replica_s(self) -> float:
        return self.requests_per_s / self.num_replicas

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of one replica that does nothing else: 2 operations per parameter and token."""
        return self.device_flops_per_s * self.flops_efficiency / (2 * self.num_parameters)

    @property
    def prefill_s(self) -> float:
        """`p`: the devices' time for the part of a prompt that was not cached."""
        return self.prompt_tokens * (1 - self.prefix_hit_share) / self.prefill_tokens_per_s

    @property
    def weights_s(self) -> float:
        """`a`: weights of 2 bytes, read once per step."""
        return 2 * self.num_parameters / (self.device_bytes_per_s * self.bandwidth_efficiency)

    @property
    def sequence_s(self) -> float:
        """`b`: the KV of a sequence in the middle of its answer, read once per step."""
        context = self.prompt_tokens + self.output_tokens / 2
        bandwidth = self.device_bytes_per_s * self.bandwidth_efficiency
        return context * self.kv_token_bytes / bandwidth

    @property
    def _request_s(self) -> float:
        """What a request adds to the devices' time, whatever the batch: `n b + p`."""
        return self.output_tokens * self.sequence_s + self.prefill_s

    @property
    def tpot_s(self) -> float | None:
        """With all replicas; None if they can't keep up."""
        idle_share = 1 - self.requests_per_replica_s * self._request_s
        return self.weights_s / idle_share if idle_share > 0 else None

    @property
    def num_replicas_needed(self) -> int:
        """For `tpot_target_s`."""
        most_per_s = (1 - self.weights_s / self.tpot_target_s) / self._request_s
        return math.ceil(self.requests_per_s / most_per_s)

    @property
    def num_running(self) -> float:
        """In the fleet, by Little's law; at the target if the fleet is too small."""
        tpot_s = self.tpot_s
        return self.tokens_per_s * (self.tpot_target_s if tpot_s is None else tpot_s)

    @property
    def num_open(self) -> float:
        """Requests, and so client connections: those that wait for their first token as well."""
        return self.num_running + self.requests_per_s * self.ttft_s

    @property
    def request_kv_bytes(self) -> int:
        return (self.prompt_tokens + self.output_tokens) * self.kv_token_bytes

    @property
    def num_kv_sequences(self) -> int:
        """Full-grown ones that a replica's pool holds."""
        return self.kv_pool_bytes // self.request_kv_bytes

    @property
    def num_index_keys(self) -> int:
        """In the whole fleet, if no two replicas held the same prefix."""
        return self.num_replicas * (self.kv_pool_bytes // (KEY_TOKENS * self.kv_token_bytes))

    @property
    def new_keys_per_s(self) -> float:
        """Stored in the fleet; as many are evicted."""
        new_tokens = self.prompt_tokens * (1 - self.prefix_hit_share) + self.output_tokens
        return self.requests_per_s * new_tokens / KEY_TOKENS

    def gateways(self, cost: GatewayCost) -> Gateways:
        """Each a process with one event loop, loaded to `core_load`.

        How many deltas share a frame depends on how many gateways share a replica's streams, and
        the other way round, so this goes up until enough are there.
        """
        prompt_cores = self.requests_per_s * cost.prompt_s
        text_cores = self.tokens_per_s * cost.token_s
        stream_cores = self.tokens_per_s * self.stream_token_s
        num_streams = self.num_running / self.num_replicas
        num_gateways = 0
        while True:
            num_gateways += 1
            deltas = _deltas_per_frame(num_streams, num_gateways)
            channel_cores = None
            if cost.channel is not None:
                per_delta_s = cost.channel.delta_s + cost.channel.frame_s / deltas
                channel_cores = self.tokens_per_s * per_delta_s
            cores = prompt_cores + text_cores + stream_cores + (channel_cores or 0.0)
            if num_gateways * self.core_load >= cores:
                return Gateways(
                    num_gateways, prompt_cores, text_cores, stream_cores, channel_cores, deltas
                )


def submit_bytes(case: DesignCase, vocab_size: int = 128_256) -> int:
    """Of the message that brings a request to its engine; token ids evenly over the vocabulary."""
    step = vocab_size // case.prompt_tokens
    request = EngineRequest(
        _REQUEST_ID,
        [index * step for index in range(case.prompt_tokens)],
        bytes(32),
        [bytes(32)] * (case.prompt_tokens // BLOCK_SIZE_TOKENS),
        SamplingParams(max_tokens=case.output_tokens, seed=2**63),
        timeout_s=600.0,
    )
    return len(msgspec.msgpack.encode(Submit(request)))


def frame_bytes(num_deltas: float) -> float:
    """Of a step's frame with so many deltas, without cache events."""
    load = LoadView(64, 0, 3_000, 50_000, 76_000, 28_000.0, 0.02, 0, 10**9, 10**9, 10**9, 0, 8.0)
    empty = len(msgspec.msgpack.encode(StepFrame([], load)))
    delta = TokenDelta(_REQUEST_ID, [100_000])
    one = len(msgspec.msgpack.encode(StepFrame([delta], load)))
    return empty + num_deltas * (one - empty)


def key_event_bytes() -> float:
    """Of one more key in a frame's cache events."""
    few, many = (
        len(msgspec.msgpack.encode(CacheEvents(10**6, [bytes(32)] * count, []))) for count in (1, 9)
    )
    return (many - few) / 8


def _deltas_per_frame(num_streams: float, num_gateways: int) -> float:
    """In the mean, when a replica's streams belong to gateways at random."""
    num_frames: float = num_gateways * (1 - (1 - 1 / num_gateways) ** num_streams)
    return num_streams / num_frames
