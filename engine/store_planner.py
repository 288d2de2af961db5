"""Plans which blocks a step copies to the node's cache, and tells the node when it has.

Must not know prompts or places, nor why a block is to be stored (``write_policy``).
"""

from engine.block_manager import BlockManager
from engine.plan_draft import PlanDraft
from engine.running_set import RunningSet
from engine.step import BlockTransfer, StepPlan, StepResult
from engine.step_limits import StepLimits
from engine.step_time import StepWork
from engine.tier_desk import TierDesk

STORED_AHEAD_BLOCKS = 256
"""That are next in the order of eviction: a long prompt takes all its blocks at once, more than
there are slots for in one step."""
STORE_SPARE_S = 0.001
"""Of a step in which somebody computes, for stores that can wait."""
STORE_IDLE_S = 0.01
"""Of a step in which nobody does: whoever comes waits for no more."""


class StorePlanner:
    """Keeps nothing of its own; after all else of a plan is planned."""

    def __init__(
        self, blocks: BlockManager, running: RunningSet, limits: StepLimits, tiers: TierDesk
    ) -> None:
        self._blocks = blocks
        self._running = running
        self._limits = limits
        self._tiers = tiers

    @property
    def is_due(self) -> bool:
        """Whether a plan would store something, even one without sequences."""
        return self._tiers.writer.is_due

    def num_transfers(self) -> int:
        """Blocks that a step may move, both ways, for the sake of all that decode beside it."""
        contexts = [s.num_computed_tokens for s in self._running if s.is_last_on_device]
        decodes = StepWork(num_decodes=len(contexts), num_context_tokens=sum(contexts))
        spare_s = self._limits.spare_s(decodes)
        return self._tiers.pace.num_within(spare_s, most=self._blocks.num_blocks)

    def take(self, draft: PlanDraft) -> tuple[BlockTransfer, ...]:
        """What can wait is stored while nobody does, or a little in each step."""
        is_busy = bool(draft.scheduled or draft.loads)
        num_blocks = self._tiers.pace.num_within(
            STORE_SPARE_S if is_busy else STORE_IDLE_S, most=max(1, draft.num_loads_left)
        )
        return self._tiers.writer.take(num_blocks, self._blocks.find_block)

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """The plan was carried out."""
        self._tiers.commit(plan, result, self._recompute_s)
        num_ahead = min(STORED_AHEAD_BLOCKS, self._blocks.num_blocks // 2)
        self._tiers.writer.want_ahead(self._blocks.next_evicted(num_ahead))

    def _recompute_s(self, chain_len: int) -> float:
        """Of the block that ends a chain, in a step with others; 0 while unknown."""
        steps, size = self._limits.step_times, self._blocks.block_size
        return size * (
            steps.per_prefill_token_s + steps.per_attended_token_s * (chain_len - 0.5) * size
        )
