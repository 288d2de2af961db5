"""One request on its way through the engine: its tokens, its block table, how far it is computed.

The scheduler moves it, the block manager fills its table, the engine delivers its deltas. Must not
know runners or transport.
"""

from dataclasses import dataclass, field

from cache_tiers.keys import BlockKey
from engine.messages import EngineRequest, FinishReason, TokenDelta, Usage


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one request between ``add`` and its last delta."""

    request: EngineRequest
    deadline_s: float
    """On the engine's clock."""
    max_len: int
    """Prompt and answer together; reaching it ends the request with ``LENGTH``."""
    token_ids: list[int] = field(init=False)
    """Prompt, then generated tokens. A preemption keeps them all."""
    block_keys: list[BlockKey] = field(init=False)
    """Keys of the leading full blocks; grows as generated tokens fill blocks."""
    block_ids: list[int] = field(default_factory=list)
    slot: int | None = None
    num_computed_tokens: int = 0
    """Leading tokens whose KV is in the pool."""
    num_published_blocks: int = 0
    """Leading blocks that the prefix cache knows already."""
    cached_tokens: int | None = None
    """Prefix hit at first admission; ``None`` before it."""
    num_expected_hit_tokens: int = 0
    """Prefix hit when it began to wait; its admission may find more or less."""
    is_last_on_device: bool = False
    """The last token was sampled in the current slot, so that the runner holds it."""
    num_delivered_tokens: int = 0
    finish_reason: FinishReason | None = None
    num_kept_tokens: int | None = None
    """Generated tokens up to the one that completed a stop string, if the gateway named it."""
    error: str | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.token_ids)
        self.block_keys = [BlockKey(key) for key in self.request.block_keys]

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def append(self, token_id: int) -> None:
        """Take a sampled token; sets ``finish_reason`` when it is the last one."""
        self.token_ids.append(token_id)
        self.is_last_on_device = True
        if token_id in self.request.sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) >= self.max_len:
            self.finish_reason = FinishReason.LENGTH

    def make_delta(self) -> TokenDelta:
        """What is not delivered yet; the first and the last delta carry the usage."""
        is_first = self.num_delivered_tokens == 0
        num_prompt_tokens = len(self.request.token_ids)
        new_token_ids = self.token_ids[num_prompt_tokens + self.num_delivered_tokens :]
        return TokenDelta(
            self.request.request_id,
            new_token_ids,
            self.finish_reason,
            self._usage() if is_first or self.finish_reason is not None else None,
            self.error,
        )

    def _usage(self) -> Usage:
        num_generated = self.num_generated_tokens
        num_kept = num_generated
        if self.num_kept_tokens is not None:
            num_kept = max(0, min(self.num_kept_tokens, num_generated))
        return Usage(
            prompt_tokens=len(self.request.token_ids),
            cached_tokens=self.cached_tokens or 0,
            completion_tokens=num_kept,
            overrun_tokens=num_generated - num_kept,
        )
