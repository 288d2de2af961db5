"""The single meeting point of planning and execution: ``StepPlan`` in, ``StepResult`` out.

Ints and bytes only, so that a plan can be broadcast to tensor-parallel ranks, logged or replayed.
Planning (scheduler, block pool, prefix cache) imports no torch; execution (a ``ModelRunner``) knows
no request.

A *slot* is a small number that names a running sequence in the runner's per-sequence state (block
table, sampling parameters, last sampled token) from its admission to its release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cache_tiers.block_image import ImageLayout
from engine.messages import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy-on-write: ``dst`` gets the KV of ``src`` before the step writes anything."""

    src: int
    dst: int


NO_BLOCK = -1
"""Stands in a block table where a sliding window has passed: nothing reads there any more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence enters ``slot``; whatever the runner held there before is forgotten."""

    slot: int
    sampling: SamplingParams
    """With the seed of this sample."""
    block_tables: tuple[tuple[int, ...], ...]
    """Per KV group (``KvGeometry.groups``) the blocks so far, in the order of positions."""
    num_prompt_tokens: int
    """Tokens at later positions are generated ones."""
    past_token_ids: tuple[int, ...] = ()
    """Prompt and tokens generated before a preemption; only for a sequence whose sampling depends
    on them (penalties).
    """


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Entries ``[start, start + len(block_ids))`` of one group's block table: growth, a block that
    copy-on-write replaced, or ``NO_BLOCK`` where a window has passed.
    """

    group: int
    start: int
    block_ids: tuple[int, ...]


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True):
    """What one sequence computes in this step: positions ``[start, start + num_tokens)``.

    Made for every sequence in every step: a frozen dataclass takes 40 times as long to make.
    """

    slot: int
    start: int
    """Position of the first token computed: this many tokens have their KV in the pool already."""
    token_ids: tuple[int, ...]
    """Tokens known to the planner. When ``is_last_pending``, the runner appends the slot's last
    sampled one.
    """
    is_last_pending: bool
    """PENDING(slot): the last input token was sampled by the runner, which reads it from its own
    state.
    """
    table_updates: tuple[TableUpdate, ...] = ()
    """Of the slot's block tables, before this step."""
    sampling_slots: tuple[int, ...] = ()
    """Slots that each draw a token from the last position: none for all but the last prefill chunk
    (nor for that if nothing is to be generated), several when the samples of one prompt part here.
    The others are admitted in the same plan and share the blocks that this entry writes.
    """
    following_token_id: int | None = None
    """The prompt token after this chunk, for prompt log probabilities; None if there is none."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.is_last_pending


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """A block's KV and its image in the node's arena (``cache_tiers.block_image``): each rank moves
    its own shard.
    """

    block_id: int
    offset: int
    """Of the image in the arena."""
    key: bytes
    num_tokens: int
    """Fewer than the block's for the last block of a pinned prefix."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, in the order in which the runner carries it out."""

    step_id: int
    released_slots: tuple[int, ...]
    """Their state is forgotten. After a failed step all slots stand here: skip those held by
    nobody.
    """
    freed_block_ids: tuple[int, ...]
    """Blocks whose content nobody may read any more; debug mode fills them with NaN. May be handed
    out again in this very plan, so they are filled first.
    """
    block_copies: tuple[BlockCopy, ...]
    """After loads, which may bring their sources."""
    admissions: tuple[Admission, ...]
    scheduled: tuple[ScheduledSequence, ...]
    """Decodes first. No two entries share a slot."""
    stores: tuple[BlockTransfer, ...] = ()
    """From blocks to the arena, before anything else: what is freed below may be among them."""
    loads: tuple[BlockTransfer, ...] = ()
    """From the arena to blocks, after ``freed_block_ids``. No entry of this plan reads them: they
    count once ``StepResult.failed_loads`` is known.
    """
    comparisons: tuple[BlockTransfer, ...] = ()
    """After all that is computed: blocks whose KV is held against the image of the same tokens."""

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_tokens for sequence in self.scheduled)

    @property
    def moves_kv(self) -> bool:
        """Whether all ranks must have done their part before rank 0 counts on it."""
        return bool(self.stores or self.loads)


class SampledToken(msgspec.Struct, frozen=True, array_like=True):
    """A token drawn at the end of a step. As quick to make as a `ScheduledSequence`."""

    slot: int
    token_id: int
    """-1 when the logits were NaN or infinite: that ends this sample alone, with an error."""
    logprobs: TokenLogprobs | None = None
    """If the slot's sampling asks for it."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the prompt tokens that one chunk predicts: positions ``start + 1`` on."""

    slot: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner did with the plan of the same ``step_id``."""

    step_id: int
    sampled: tuple[SampledToken, ...]
    """One for each of the plan's ``sampling_slots``, in the plan's order."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    """One for each chunk of a slot whose sampling asks for them, in the plan's order."""
    num_padding_tokens: int = 0
    """Computed beside those of the plan, to fill a shape that the device has code for."""
    failed_loads: tuple[int, ...] = ()
    """Indices into the plan's ``loads`` whose image was not what it should be, on any rank; their
    blocks hold nothing of use.
    """
    transfer_s: float = 0.0
    """Of stores and loads together, on rank 0."""
    differing: tuple[int, ...] = ()
    """Indices into the plan's ``comparisons`` whose KV is not the image's, on rank 0."""


class ModelRunner(Protocol):
    """Executes plans on a device. Owner: the step loop; calls never overlap, plans in order."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises ``StepOutOfMemory``, after which the engine plans smaller steps; on
        any other exception it ends all its requests and frees all blocks.

        With several ranks every one executes every plan; rank 0 samples, and the results of the
        others are empty.
        """
        ...

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        """On ranks other than 0, before the next plan: what rank 0 sampled in the last one."""
        ...

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        """Transfers of later plans move KV to and from ``arena``; again when that is another.

        ``socket_path``: of the node's cache, where ranks other than 0 open the arena themselves.
        Raises ``TierError`` when one of them can't: no later plan may hold transfers then.
        """
        ...

    def detach_arena(self) -> None:
        """Let go of the arena, if one is attached: no later plan holds transfers, until the next
        ``attach_arena``. What maps it is not this runner's to close.
        """
        ...

    def close(self) -> None:
        """Give the device memory back; no call follows."""
        ...
