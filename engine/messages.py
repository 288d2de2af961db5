"""What crosses a process: requests, token deltas, credits, cache events and the load view.

Frozen, msgpack-able structs, no pickle. Everything a gateway and an engine replica say to each
other is one of ``GatewayMessage`` (down) or ``EngineMessage`` (up), one per ``wire`` frame. Imports
no torch and no transport.

Call order on one connection: the engine sends ``ModelCard`` first. The gateway announces how many
requests wait for this engine (``Demand``), the engine answers with ``Grant``s, each ``Submit`` uses
one credit up, and a credit that is not needed any more goes back by ``ReturnCredits``. The engine
then sends one ``StepFrame`` per step with all deltas of that gateway; the last delta of a request
carries its finish reason and usage.
"""

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """A stop token was sampled, or the gateway named the token that completed a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the context length was reached."""
    ABORT = "abort"
    """The gateway asked for it, or its connection closed."""
    TIMEOUT = "timeout"
    """``timeout_s`` ran out inside the engine."""
    ERROR = "error"
    """The engine failed; ``TokenDelta.error`` says how, in words fit for a client."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How tokens are chosen. Validated by the gateway; sent to the runner once, at admission."""

    max_tokens: int
    """Most tokens to generate, at least 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """Unsigned 64-bit; with the position it determines every draw, whatever the batch."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of these ends the request; the token itself is the last one counted."""


class EngineRequest(msgspec.Struct, frozen=True, array_like=True):
    """One sequence to generate."""

    request_id: str
    """Made by the gateway, unique in the fleet; stands in every log line and error."""
    token_ids: list[int]
    """The prompt, at least one token."""
    root_key: bytes
    """Parent of the first block key (``ModelCard.root_key``, salted with the tenant if there is
    one).
    """
    block_keys: list[bytes]
    """Keys of all full prompt blocks, chained from ``root_key`` (``cache_tiers.keys``)."""
    sampling: SamplingParams
    timeout_s: float
    """Time left for the whole request when it was sent."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """The engine's own counts: the truth for billing, also after an abort."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache, at first admission."""
    completion_tokens: int
    """Tokens generated up to and including the one that ended the request."""
    overrun_tokens: int = 0
    """Generated after the token that completed a stop string; never billed."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one request."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """With the first delta (counts so far) and with the last one (final counts)."""
    error: str | None = None


class LoadView(msgspec.Struct, frozen=True, array_like=True):
    """How busy an engine replica is; the router's input."""

    num_running: int = 0
    num_waiting: int = 0
    pending_prefill_tokens: int = 0
    """Prompt tokens admitted or waiting whose KV is not computed yet."""
    num_free_blocks: int = 0
    """Blocks that can be handed out now, cached but unreferenced ones included."""
    num_blocks: int = 0
    prefill_tokens_per_s: float = 0.0
    """Measured; 0 while unknown."""
    step_time_s: float = 0.0
    """Moving average of one step."""
    num_preemptions: int = 0
    """Since start."""
    num_cached_prompt_tokens: int = 0
    """Prompt tokens found in the prefix cache, since start."""
    num_prompt_tokens: int = 0
    """Prompt tokens admitted, since start."""
    num_generated_tokens: int = 0
    """Since start."""


class CacheEvents(msgspec.Struct, frozen=True, array_like=True):
    """What the accelerator's prefix cache gained and lost; every ``KEY_STRIDE``-th block of a chain
    only.
    """

    sequence: int
    """Counts up by one per ``CacheEvents`` of an engine replica: a jump means that events were
    missed.
    """
    stored: list[bytes]
    evicted: list[bytes]


KEY_STRIDE = 8
"""The prefix index keeps the 8th, 16th, … key of a chain: 128 tokens with blocks of 16."""


class ModelCard(msgspec.Struct, frozen=True, tag="card"):
    """What a gateway must know of the model behind a connection; the engine's first message."""

    engine_id: str
    model: str
    """The name that clients send."""
    weights_revision: str
    root_key: bytes
    block_size_tokens: int
    num_blocks: int
    """Size of the KV pool: ``num_blocks * block_size_tokens`` tokens is the most one request can
    hold.
    """
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    vocab_size: int
    eos_token_ids: list[int]
    tokenizer_json: bytes
    """The whole file in the format of the ``tokenizers`` package."""
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    created_s: int
    """Unix time of the weights, for ``/v1/models``."""


class StepFrame(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """Everything one gateway gets of one step, in one frame."""

    deltas: list[TokenDelta]
    load: LoadView
    events: CacheEvents | None = None


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The engine takes ``num_credits`` more requests of this gateway."""

    num_credits: int


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """The replica leaves: it grants no more credits; running requests go on to their end."""


class Demand(msgspec.Struct, frozen=True, tag="demand"):
    """``num_waiting`` requests of this gateway wait for this engine.

    Replaces the number said before; each ``Submit`` that follows counts one off.
    """

    num_waiting: int


class ReturnCredits(msgspec.Struct, frozen=True, tag="return"):
    """``num_credits`` granted credits that will not be used."""

    num_credits: int


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Start a request; uses one credit."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request within one step; unknown ids are ignored.

    ``num_kept_tokens`` names the generated token that completed a stop string: the request then
    ends with ``STOP``, tokens after it count as overrun. Without it the request ends with
    ``ABORT``.
    """

    request_id: str
    num_kept_tokens: int | None = None


GatewayMessage = Demand | ReturnCredits | Submit | Abort
EngineMessage = ModelCard | StepFrame | Grant | Draining
