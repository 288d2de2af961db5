"""Plans loads of images into blocks of sequences that were just admitted, and takes in how they
went.

A sequence computes nothing while its images come, and the runner hears of it only afterwards: until
then nobody holds its blocks. An image that is not what it should be ends its restore; what comes
after it is computed. Must not know the connection, or how much a step may move.
"""

import logging

from engine.block_manager import BlockManager, PrefixHit
from engine.notes import NoteKind, Notes
from engine.places import SchedulerTotals
from engine.plan_draft import PlanDraft
from engine.restores import PendingLoad, Restore
from engine.sequence import Sequence
from engine.step import BlockTransfer, StepPlan, StepResult
from engine.tier_desk import TierDesk

logger = logging.getLogger(__name__)


class RestorePlanner:
    """Owner of who is being restored by the plan under way."""

    def __init__(
        self, blocks: BlockManager, totals: SchedulerTotals, tiers: TierDesk, notes: Notes
    ) -> None:
        self._blocks = blocks
        self._notes = notes
        self._block_size = blocks.block_size
        self._totals = totals
        self._tiers = tiers
        self._loading: list[Sequence] = []
        """In the order of the plan's loads."""
        self._checking: list[Sequence] = []
        """In the order of the plan's comparisons."""

    def begin(self, sequence: Sequence, hit: PrefixHit) -> None:
        """``sequence`` was admitted with ``hit``."""
        restore = sequence.restore
        if restore is not None:
            restore.begin(len(hit.block_tables[0]), hit.images, hit.check)

    def plan_loads(self, draft: PlanDraft, sequence: Sequence) -> bool:
        """Load what ``draft`` has room for; whether ``sequence`` has to wait for images."""
        restore = sequence.restore
        if restore is None:
            return False
        if restore.is_done:
            self._end(sequence)
            return False
        if not restore.pending:
            return False
        restore.num_planned = min(len(restore.pending), draft.num_loads_left)
        if restore.num_planned > 0:
            self._loading.append(sequence)
            draft.num_loads_left -= restore.num_planned
            for number in range(restore.num_planned):
                draft.loads.append(self._transfer(sequence, restore.pending[number]))
        return True

    def plan_check(self, draft: PlanDraft, sequence: Sequence, end: int) -> None:
        """``sequence`` computes up to ``end``: compare, if that completes what is to be checked."""
        restore = sequence.restore
        if restore is None or restore.check is None:
            return
        load = restore.check
        if end >= load.block_index * self._block_size + load.image.num_tokens:
            self._checking.append(sequence)
            draft.comparisons.append(self._transfer(sequence, load))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take in what became of the plan's loads; returns whose computed tokens advanced."""
        failed = set(result.failed_loads)
        load_s = result.transfer_s / max(1, len(plan.stores) + len(plan.loads))
        begin = 0
        loading, self._loading = self._loading, []
        for sequence in loading:
            restore = sequence.restore
            assert restore is not None, "a load lost its sequence"
            restore.load_s += load_s * restore.num_planned
            restore.num_loaded += restore.num_planned
            end = begin + restore.num_planned
            self._take_loads(sequence, restore, [index in failed for index in range(begin, end)])
            begin = end
        checking, self._checking = self._checking, []
        for index, sequence in enumerate(checking):
            self._take_check(sequence, is_differing=index in result.differing)
        return loading

    def abandon(self) -> None:
        """The plan failed: nothing of it counts. What it loaded is computed instead, or a load that
        can't succeed would be planned for ever.
        """
        for sequence in self._loading:
            if sequence.restore is not None:
                sequence.restore.drop()
        self._loading.clear()
        self._checking.clear()

    def _take_loads(self, sequence: Sequence, restore: Restore, has_failed: list[bool]) -> None:
        restore.num_planned = 0
        for is_failed in has_failed:
            index, image = restore.pending.popleft()
            self._tiers.counts.record_load(image.kind, is_good=not is_failed)
            if is_failed:
                restore.reject(image.key)
                restore.drop()  # the blocks after it are computed, too
                break
            self._count(sequence, restore, PendingLoad(index, image))
        if sequence.num_computed_tokens // self._block_size > sequence.num_published_blocks:
            self._blocks.publish(sequence)
        if restore.is_done:
            self._end(sequence)

    def _count(self, sequence: Sequence, restore: Restore, load: PendingLoad) -> None:
        """An image is in its block: tokens that were not found before count as cached."""
        end = load.block_index * self._block_size + load.image.num_tokens
        sequence.num_computed_tokens = min(end, sequence.num_tokens - 1)
        assert sequence.cached_tokens is not None, "a sequence is restored before its admission"
        num_new = sequence.num_computed_tokens - sequence.cached_tokens
        if num_new > 0:
            sequence.cached_tokens += num_new
            restore.num_tokens_of[load.image.kind] += num_new
            self._totals.num_cached_prompt_tokens += num_new

    def _take_check(self, sequence: Sequence, *, is_differing: bool) -> None:
        restore = sequence.restore
        if restore is None or restore.check is None:
            return  # it ended, or the node is gone
        if is_differing:
            restore.bad_keys.append(restore.check.image.key)
            logger.error(
                "a block of request %s was computed again and is not what the node's cache (%s) "
                "holds of it; that image is given up",
                sequence.request.request_id,
                restore.check.image.kind,
            )
        restore.check = None
        if restore.is_done:
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """``sequence`` needs no image any more."""
        self._tiers.restored(sequence)
        restored = sequence.restored
        if restored is None:
            return
        num_tokens_of: tuple[tuple[NoteKind, int], ...] = (
            ("restored_host", restored.host),
            ("restored_disk", restored.disk),
            ("restored_peer", restored.peer),
            ("restored_object_store", restored.object_store),
        )
        for kind, num_tokens in num_tokens_of:
            if num_tokens > 0:
                self._notes.add(sequence, kind, num_tokens)

    def _transfer(self, sequence: Sequence, load: PendingLoad) -> BlockTransfer:
        image = load.image
        block_id = sequence.block_tables[0][load.block_index]
        return BlockTransfer(block_id, image.offset, image.key, image.num_tokens)
