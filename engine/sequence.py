"""One sample of a request on its way through the engine: tokens, block tables, how far it is
computed.

The scheduler moves it, the block manager fills its tables, the engine delivers its deltas. Must not
know runners or transport.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import msgspec

from cache_tiers.keys import BlockKey, next_key
from engine.messages import (
    CacheWrite,
    EngineRequest,
    FinishReason,
    RestoredTokens,
    SamplingParams,
    TokenDelta,
    TokenLogprobs,
    Usage,
)
from engine.restores import Restore
from engine.seeds import sample_seed
from engine.step import SampledToken

_NO_VALID_LOGITS = "The model computed no valid logits for this request."


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one sample between ``add`` and its last delta."""

    request: EngineRequest
    """Its keys are shared by all samples."""
    deadline_s: float
    """On the engine's clock."""
    max_len: int
    """Prompt and answer together; reaching it ends the sample with ``LENGTH``."""
    index: int = 0
    """Of the sample."""
    taken_s: float = 0.0
    """When the engine took the request, on its clock."""
    order: tuple[float, int, int] = (0.0, 0, 0)
    """Who goes first: the time it counts as having arrived, then the order of adding, then the
    sample. The scheduler sets it once.
    """
    admitted_s: float | None = None
    """First admission, on the engine's clock."""
    sampling: SamplingParams = field(init=False)
    """What the runner is told: the seed is this sample's own, and prompt log probabilities are
    asked for until they are here.
    """
    prompt_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    generated_ids: list[int] = field(init=False)
    """Those that a lost engine had generated stand first. A preemption keeps them all."""
    generated_keys: list[BlockKey] = field(default_factory=list)
    """Keys of the full blocks after those of the request; grows as generated tokens fill blocks."""
    block_tables: list[list[int]] = field(default_factory=list)
    """One per KV group while the sequence runs; ``NO_BLOCK`` where a window has passed."""
    num_passed_blocks: list[int] = field(default_factory=list)
    """Per KV group: leading entries that are ``NO_BLOCK``."""
    num_writable_tokens: int = 0
    """Positions before this one can be written without a look at the block tables."""
    slot: int | None = None
    own_slots: tuple[int, ...] = ()
    """``(slot,)``, made once and not in every step."""
    num_computed_tokens: int = 0
    """Leading tokens whose KV is in the pool."""
    num_once_computed_tokens: int = 0
    """Leading tokens that were computed before it last gave way."""
    num_published_blocks: int = 0
    """Leading blocks that the prefix cache knows already."""
    cached_tokens: int | None = None
    """Prefix hit at first admission, and what was restored since; ``None`` before it."""
    restore: Restore | None = None
    """Images that the node leases to it, until they are on the accelerator."""
    restored: RestoredTokens | None = None
    cache_written: list[CacheWrite] = field(default_factory=list)
    num_breakpoints_reached: int = 0
    """Leading ones of the request that were pinned."""
    num_expected_hit_tokens: int = 0
    """Prefix hit when it began to wait; its admission may find more or less."""
    is_admitted: bool = False
    """The runner knows its slot."""
    is_last_on_device: bool = False
    """The last token was sampled in the current slot, so that the runner holds it."""
    next_length_trial: int | None = None
    """Generated tokens with which it next tells how long answers get; ``None`` until it is asked.
    """
    num_delivered_tokens: int = field(init=False)
    undelivered_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the chunks so far; taken away by the delta that delivers them."""
    finish_reason: FinishReason | None = None
    num_kept_tokens: int | None = None
    """Generated tokens up to the one that completed a stop string, if the gateway named it."""
    error: str | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.prompt_ids, self.generated_ids = request.token_ids, []
        if request.num_generated_tokens > 0:
            self.prompt_ids = request.token_ids[: -request.num_generated_tokens]
            self.generated_ids = request.token_ids[-request.num_generated_tokens :]
        self.num_prompt_tokens = len(self.prompt_ids)
        self.num_delivered_tokens = request.num_generated_tokens
        self.sampling = request.sampling
        if self.is_resumed:  # the first delta of the lost engine brought them
            self.sampling = msgspec.structs.replace(self.sampling, num_prompt_logprobs=None)
        if self.index > 0:
            self.sampling = msgspec.structs.replace(
                self.sampling,
                seed=sample_seed(self.sampling.seed, self.index),
                num_prompt_logprobs=None,
            )

    @property
    def due_s(self) -> float:
        """When it counts as having arrived, on the engine's clock: by its class later than it did.

        Never changes, so that nobody is overtaken for ever.
        """
        request = self.request
        return self.taken_s - request.age_s + request.service_class.delay_s

    @property
    def is_resumed(self) -> bool:
        """Whether another engine generated its first tokens."""
        return self.request.num_generated_tokens > 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated here."""
        return len(self.generated_ids) - self.request.num_generated_tokens

    @property
    def num_held_blocks(self) -> int:
        return sum(map(len, self.block_tables)) - sum(self.num_passed_blocks)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.generated_ids)

    @property
    def token_ids(self) -> list[int]:
        """A copy of prompt and generated tokens."""
        return self.prompt_ids + self.generated_ids

    @property
    def num_generated_tokens(self) -> int:
        return len(self.generated_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def block_keys(self) -> Iterable[BlockKey]:
        """Keys of the leading full blocks known so far."""
        return chain(cast("list[BlockKey]", self.request.block_keys), self.generated_keys)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether its prompt must still be computed whole, for the log probabilities."""
        return self.sampling.num_prompt_logprobs is not None

    @property
    def past_token_ids(self) -> tuple[int, ...]:
        """What the runner must know of earlier tokens: all of them if a penalty counts them."""
        sampling = self.sampling
        is_neutral = (
            sampling.repetition_penalty == 1
            and sampling.presence_penalty == 0
            and sampling.frequency_penalty == 0
        )
        return () if is_neutral else tuple(self.token_ids)

    def is_sibling(self, other: "Sequence") -> bool:
        """Whether ``other`` is another sample of the same request and neither has begun to differ:
        their KV is the same.
        """
        return self.request is other.request and not self.generated_ids and not other.generated_ids

    def slice(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens at positions ``[start, end)``."""
        num_prompt_tokens = self.num_prompt_tokens
        if end <= num_prompt_tokens:
            return tuple(self.prompt_ids[start:end])
        generated = self.generated_ids[max(0, start - num_prompt_tokens) : end - num_prompt_tokens]
        return (*self.prompt_ids[start:], *generated)

    def block_key(self, index: int, block_size: int) -> BlockKey:
        """Key of the full block ``index``; made when it is first asked for."""
        prompt_keys = self.request.block_keys
        if index < len(prompt_keys):
            return BlockKey(prompt_keys[index])
        keys = self.generated_keys
        while len(prompt_keys) + len(keys) <= index:
            start = (len(prompt_keys) + len(keys)) * block_size
            last = keys[-1] if keys else (prompt_keys or [self.request.root_key])[-1]
            keys.append(next_key(BlockKey(last), self.slice(start, start + block_size)))
        return keys[index - len(prompt_keys)]

    def share_prompt_counts(self, leader: "Sequence") -> None:
        """``leader`` computed the prompt for both."""
        self.cached_tokens = leader.cached_tokens
        self.restored = leader.restored
        self.cache_written = leader.cache_written
        self.num_breakpoints_reached = leader.num_breakpoints_reached

    def append(self, sampled: SampledToken) -> None:
        """Take what was drawn; sets ``finish_reason`` when nothing follows."""
        token_id = sampled.token_id
        if token_id < 0:  # the logits were NaN or infinite
            self.finish_reason = FinishReason.ERROR
            self.error = _NO_VALID_LOGITS
            return
        self.generated_ids.append(token_id)
        self.is_last_on_device = True
        if sampled.logprobs is not None:
            self.undelivered_logprobs.append(sampled.logprobs)
        if token_id in self.sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif self.num_prompt_tokens + len(self.generated_ids) >= self.max_len:
            self.finish_reason = FinishReason.LENGTH

    def add_prompt_logprobs(self, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Take those of the chunk that was just computed."""
        self.prompt_logprobs += logprobs
        if self.num_computed_tokens == self.num_prompt_tokens:
            self.sampling = msgspec.structs.replace(self.sampling, num_prompt_logprobs=None)

    def make_delta(self) -> TokenDelta:
        """What is not delivered yet; the first and the last delta carry the usage.

        Changes nothing: ``mark_delivered`` is due when it is on its way.
        """
        is_first = self.num_delivered_tokens == self.request.num_generated_tokens
        logprobs = None
        if self.sampling.num_logprobs is not None:
            logprobs = self.undelivered_logprobs
        prompt_logprobs = None
        if is_first and self._has_prompt_logprobs:
            prompt_logprobs = self.prompt_logprobs
        return TokenDelta(
            self.request.request_id,
            self.generated_ids[self.num_delivered_tokens :],
            self.finish_reason,
            self._usage() if is_first or self.finish_reason is not None else None,
            self.error,
            self.index,
            logprobs,
            prompt_logprobs,
        )

    def mark_delivered(self) -> None:
        """The last delta made is on its way."""
        self.num_delivered_tokens = len(self.generated_ids)
        if self.undelivered_logprobs:
            self.undelivered_logprobs = []
        if self.prompt_logprobs and not self.needs_prompt_logprobs:
            self.prompt_logprobs = []

    @property
    def _has_prompt_logprobs(self) -> bool:
        is_asked = self.index == 0 and self.request.sampling.num_prompt_logprobs is not None
        return is_asked and not self.is_resumed and not self.needs_prompt_logprobs

    def _usage(self) -> Usage:
        num_generated = self.num_generated_tokens
        num_kept = num_generated
        if self.num_kept_tokens is not None:
            num_kept = max(0, min(self.num_kept_tokens, num_generated))
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            # Of a resumed one, generated tokens may have been found, too.
            cached_tokens=min(self.cached_tokens or 0, self.num_prompt_tokens),
            completion_tokens=num_kept,
            overrun_tokens=num_generated - num_kept,
            restored=self.restored,
            cache_written=self.cache_written,
        )
