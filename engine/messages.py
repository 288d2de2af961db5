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

from enum import IntEnum, StrEnum
from typing import Literal

import msgspec

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from engine.rung_messages import RungOrder, RungState, Successor


class ServiceClass(IntEnum):
    """How urgent a request is; a lower number goes first.

    Queues order by ``arrival + delay_s``: a request of a lower class is overtaken by those of a
    higher one that come up to ``delay_s`` later, and by no others, so that nobody waits for ever.
    """

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2

    @property
    def delay_s(self) -> float:
        """How much later it counts as having arrived than it did."""
        return _CLASS_DELAYS_S[self]


_CLASS_DELAYS_S = (0.0, 10.0, 60.0)


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
    MOVED = "moved"
    """The replica leaves or goes to sleep, and another one is to go on from the tokens so far. Seen
    by gateways only.
    """


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How tokens are chosen. Validated by the gateway; sent to the runner once, at admission.

    Applied in this order: logit bias, ``min_tokens``, penalties; then temperature; then top-k,
    top-p and min-p on the scaled distribution. Log probabilities are those of the model's own
    distribution, before all of it.
    """

    max_tokens: int
    """Most tokens to generate; 0 computes (and caches) the prompt only."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """Unsigned 64-bit; with the position it determines every draw, whatever the batch."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of these ends the request; the token itself is the last one counted."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest one."""
    repetition_penalty: float = 1.0
    """Over prompt and generated tokens; positive logits are divided by it, negative multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time the token was generated before."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, value added to its logit)."""
    min_tokens: int = 0
    """``stop_token_ids`` cannot be sampled before so many tokens were generated."""
    num_logprobs: int | None = None
    """Report the sampled token's log probability and so many of the likeliest; None: none."""
    num_prompt_logprobs: int | None = None
    """The same for every prompt token but the first; such a prompt is computed whole."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was, and which were the likeliest at its place."""

    logprob: float
    """Natural logarithm; finite, at least -9999."""
    top_ids: list[int]
    """As many as were asked for, likeliest first."""
    top_logprobs: list[float]


class TimelineEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to a request."""

    kind: str
    """``received``, ``tokenized``, ``queued``, ``submitted``, and where the begin of the prompt was
    to be loaded from, ``source_host``, ``source_disk`` or ``source_peer``; then the engine's
    ``taken``, ``admitted``, ``restored_`` and a field of ``RestoredTokens``, ``chunk``,
    ``first_token``, ``preempted``, ``last_token``, ``blocks_freed``.
    """
    at_s: float
    """Since the gateway received the request; by monotonic clocks, whatever the wall clock does."""
    value: int = 0
    """Tokens or blocks, by ``kind``."""


class CacheBreakpoint(msgspec.Struct, frozen=True, array_like=True):
    """The prompt up to here is to be kept, and looked for, whether or not it fills a block."""

    num_tokens: int
    """From the prompt's first, at most all of them."""
    ttl_s: float
    """Kept for so long after this request has computed or read it."""


class EngineRequest(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and how many answers to generate from it."""

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
    num_samples: int = 1
    """Independent answers. They share the prompt's blocks; sample 0 draws as if it were alone, the
    others from seeds derived of the request's and their index.
    """
    service_class: ServiceClass = ServiceClass.STANDARD
    age_s: float = 0.0
    """Since the gateway received it, when it was sent."""
    num_generated_tokens: int = 0
    """So many of the last ``token_ids`` are no prompt: an engine that was lost had generated them.
    They count as generated (``max_tokens``, penalties, usage), and deltas bring only what follows.
    Only with one sample.
    """
    timeline: list[TimelineEvent] = []
    """What the gateway did with it so far."""
    breakpoints: list[CacheBreakpoint] = []
    """In rising order."""
    peer: PeerAddress | None = None
    """Whose node holds more of the prompt, where pulling it was thought to be worth the time."""
    session_kind: str = ""
    """What kind of session it belongs to: return times are learned by it."""
    expected_return_s: float | None = None
    """When the client says the session will go on, counted from the end of the answer."""


class RestoredTokens(msgspec.Struct, frozen=True, array_like=True):
    """Where the accelerator's node had prompt tokens from, and how long bringing them took."""

    host: int = 0
    disk: int = 0
    peer: int = 0
    object_store: int = 0
    predicted_s: float = 0.0
    """What the node thought."""
    seconds: float = 0.0
    """From asking the node to KV on the accelerator, without the time that a step took meanwhile.
    """


class CacheWrite(msgspec.Struct, frozen=True, array_like=True):
    """Tokens pinned for one time to live."""

    ttl_s: float
    num_tokens: int


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """The engine's own counts: the truth for billing, also after an abort."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache at first admission, or restored and not computed."""
    completion_tokens: int
    """Tokens generated up to and including the one that ended the request."""
    overrun_tokens: int = 0
    """Generated after the token that completed a stop string; never billed."""
    restored: RestoredTokens | None = None
    """Of ``cached_tokens`` those that came out of tiers, if any did."""
    cache_written: list[CacheWrite] = []
    """Prompt tokens that this request pinned and that were not pinned before."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one sample of one request."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """Ends this sample; the request ends with the last of its samples."""
    usage: Usage | None = None
    """With the first delta (counts so far) and with the last one (final counts). The sample's own:
    every sample reports the prompt's counts, which count once.
    """
    error: str | None = None
    index: int = 0
    """Of the sample, below ``EngineRequest.num_samples``."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token, if asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One per prompt token but the first; with the first delta of sample 0, if asked for."""
    is_refused: bool = False
    """With ``ERROR``: the request itself was wrong, no other engine would take it either. It was
    never started, so this is its only delta, however many samples were asked for.
    """


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
    num_waiting_tokens: int = 0
    """Prompt tokens, not counted as cached, of the requests that wait inside the engine."""
    mean_answer_s: float = 0.0
    """Moving average of the time from a sequence's admission to its end; 0 while unknown."""
    num_empty_blocks: int = 0
    """Of ``num_free_blocks`` those that hold no prefix: a prompt that needs more evicts one."""
    prefill_base_s: float = 0.0
    """Of every step, as fitted to the engine's own; 0 while unknown, like the next three."""
    prefill_token_s: float = 0.0
    """Of each prompt token that is computed."""
    prefill_attended_s: float = 0.0
    """Of each such token and each position that it attends to."""
    decode_step_s: float = 0.0
    """Of a step in which all that run and have their prompt decode, and nothing else; as fitted."""
    full_step_tokens: int = 0
    """Prompt tokens that there is room for beside them in one step; 0 while unknown."""


class Medium(IntEnum):
    """Where an engine replica finds KV again, nearest first."""

    ACCELERATOR = 0
    HOST = 1
    """Its node's CPU memory."""
    DISK = 2
    """Its node's NVMe."""


class CacheEvents(msgspec.Struct, frozen=True, array_like=True):
    """What one medium gained and lost; every ``KEY_STRIDE``-th block of a chain only.

    A block that moves is evicted from one medium and stored in another; one that was copied is held
    by both. Model, adapter, tenant and precision stand in the keys (``cache_tiers.keys.KeySalt``).
    """

    sequence: int
    """Counts up by one per ``CacheEvents`` of an engine replica, of whichever medium: a jump means
    that events were missed.
    """
    stored: list[bytes]
    """In runs: keys of one chain stand one after the other, in its order."""
    evicted: list[bytes]
    medium: Medium = Medium.ACCELERATOR


class CacheSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """All that a replica holds after the events of ``sequence``, in one or more parts.

    The first message after the card, and the answer to ``GetSnapshot``. What was known of the
    engine before the first part is forgotten, of every medium.
    """

    sequence: int
    keys: list[bytes]
    """Like ``CacheEvents.stored``."""
    is_first: bool = True
    is_last: bool = True
    medium: Medium = Medium.ACCELERATOR
    """Of this part's keys."""


KEY_STRIDE = 8
"""The prefix index keeps the 8th, 16th, … key of a chain: 128 tokens with blocks of 16."""


class SamplingDefaults(msgspec.Struct, frozen=True, array_like=True):
    """What the model's makers recommend for what a client leaves open; None: nothing said."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class ModelCard(msgspec.Struct, frozen=True, tag="card"):
    """What a gateway must know of the model behind a connection; the engine's first message."""

    engine_id: str
    model: str
    """The name that clients send."""
    weights_revision: str
    root_key: bytes
    block_size_tokens: int
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    max_request_tokens: int
    """Most tokens that one sequence can hold here: ``max_model_len``, or less if the KV pool is
    small.
    """
    vocab_size: int
    eos_token_ids: list[int]
    tokenizer_json: bytes
    """The whole file in the format of the ``tokenizers`` package."""
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    created_s: int
    """Unix time of the weights, for ``/v1/models``."""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    """Of the model's ``generation_config.json``."""
    max_num_seqs: int = 0
    """Samples that run side by side; 0: not said."""
    node_id: str = ""
    """Engines of one node share its tiers."""
    node_cache: PeerAddress | None = None
    """Where other nodes get KV from this one's; None: it has no tiers."""
    started_from: Rung = Rung.COLD
    """How warm the weights stood on the node when the replica was asked for."""
    start_s: float = 0.0
    """From then until it was ready; 0 while unknown."""


LOAD_PERIOD_S = 0.1
"""While anything changes, an engine tells its load to each gateway at least so often, or once a
step.
"""


class StepFrame(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """Everything one gateway gets of one step, in one frame."""

    deltas: list[TokenDelta]
    load: LoadView
    events: CacheEvents | None = None


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The engine takes ``num_credits`` more requests of this gateway, of whichever class."""

    num_credits: int


class Peers(msgspec.Struct, frozen=True, tag="peers"):
    """How many gateways are connected to the engine, the receiver included; news, or the first."""

    num_gateways: int


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """The replica leaves: it grants no more credits; requests end here, or are ``MOVED``."""


class Demand(msgspec.Struct, frozen=True, tag="demand"):
    """How many requests of this gateway wait for this engine.

    Replaces what was said before; each ``Submit`` that follows counts one off its class.
    """

    num_waiting: tuple[int, int, int]
    """Per ``ServiceClass``."""


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
    ``ABORT``. ``index`` ends one sample only.
    """

    request_id: str
    num_kept_tokens: int | None = None
    index: int | None = None


class GetSnapshot(msgspec.Struct, frozen=True, tag="get_snapshot"):
    """The gateway missed events (a jump of ``CacheEvents.sequence``) and asks for all keys."""


QueryKind = Literal["steps", "request", "profile"]


class Query(msgspec.Struct, frozen=True, tag="query"):
    """An operator asks for records; answered by a ``Reply`` of the same ``query_id``."""

    query_id: int
    kind: QueryKind
    argument: str = ""
    """``request``: the request id; ``steps``: how many of the newest, all if empty; ``profile``:
    ``engine.profile.ProfileOrder`` as JSON, whose time passes before the reply if there is no work.
    """


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a ``Query``."""

    query_id: int
    payload: bytes | None
    """JSON: a list of ``StepRecord`` objects, or a request's timeline; None: unknown here. Of a
    profile: ``engine.profile.ProfileAnswer`` in msgpack.
    """
    is_throttled: bool = False
    """There were too many queries to look; a moment later it may be known."""


GatewayMessage = (
    Demand | ReturnCredits | Submit | Abort | GetSnapshot | Query | RungOrder | Successor
)
EngineMessage = ModelCard | CacheSnapshot | StepFrame | Grant | Peers | Draining | RungState | Reply
