"""Images that a node's cache has brought for one sequence, and how far they are on the accelerator.

The node leases them until it hears of the end. Must not know blocks, plans or who waits.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetched, Found, Loaded, Partial
from cache_tiers.tier import TierKind
from engine.messages import RestoredTokens


class PendingLoad(NamedTuple):
    """An image that has a block to go to."""

    block_index: int
    """Of the block in the sequence's table."""
    image: Found


@dataclass(slots=True, eq=False)
class Restore:
    """What one ``Fetched`` brought. A sequence that gives way begins again with what is left."""

    fetch_id: int
    num_loaded: int
    """Images that were copied, sound or not."""
    full: dict[bytes, Found]
    """By key, those that fill a block."""
    partial: Found | None
    num_blocks_before_partial: int
    predicted_s: float
    fetch_s: float
    is_checked: bool
    """One image less is used: it is held against what is computed in its place."""
    pending: deque[PendingLoad] = field(default_factory=deque)
    """In the order of positions, since the sequence was admitted."""
    num_planned: int = 0
    """Leading ones of ``pending`` that are in the plan under way."""
    check: PendingLoad | None = None
    """To be compared once it is computed."""
    load_s: float = 0.0
    bad_keys: list[bytes] = field(default_factory=list)
    num_tokens_of: Counter[TierKind] = field(default_factory=Counter)
    """That count as cached."""

    @property
    def is_done(self) -> bool:
        """Whether the sequence, having been admitted, needs no image any more."""
        return not self.pending and self.check is None

    def usable(self, keys: Iterable[BlockKey], num_held_blocks: int) -> list[Found]:
        """Images that go on where the accelerator's blocks end; ``keys`` are those that follow."""
        images = []
        for key in keys:
            image = self.full.get(key)
            if image is None:
                break
            images.append(image)
        num_blocks = num_held_blocks + len(images)
        if self.partial is not None and num_blocks == self.num_blocks_before_partial:
            images.append(self.partial)
        return images

    def begin(self, index: int, images: Iterable[Found], check: Found | None) -> None:
        """The sequence has blocks: those of its table from ``index`` on are for ``images``, and
        the next one is for ``check``.
        """
        self.pause()
        for image in images:
            self.pending.append(PendingLoad(index, image))
            index += 1
        if check is not None:
            self.check = PendingLoad(index, check)

    def pause(self) -> None:
        """The sequence has no blocks any more."""
        self.pending.clear()
        self.num_planned = 0
        self.check = None

    def drop(self) -> None:
        """No image is to be used any more."""
        self.pause()
        self.full = {}
        self.partial = None

    def reject(self, key: bytes) -> None:
        """An image is not what it should be."""
        self.bad_keys.append(key)
        self.full.pop(key, None)
        if self.partial is not None and self.partial.key == key:
            self.partial = None

    def end(self) -> Loaded:
        """What the node is told."""
        return Loaded(self.fetch_id, self.num_loaded, self.load_s, self.bad_keys)

    def usage(self) -> RestoredTokens | None:
        """What the client is told; None if nothing came of it."""
        num_tokens_of = self.num_tokens_of
        if not num_tokens_of:
            return None
        return RestoredTokens(
            host=num_tokens_of[TierKind.HOST],
            disk=num_tokens_of[TierKind.DISK],
            peer=num_tokens_of[TierKind.PEER],
            object_store=num_tokens_of[TierKind.OBJECT],
            predicted_s=self.predicted_s,
            seconds=self.fetch_s + self.load_s,
        )


def make_restore(
    fetched: Fetched,
    *,
    block_size_tokens: int,
    partials: Iterable[Partial],
    is_checked: bool,
) -> Restore:
    """``partials``: that were asked for. What is of another length than they is not used."""
    full = {i.key: i for i in fetched.images if i.num_tokens == block_size_tokens}
    num_blocks_before = {(asked.key, asked.num_tokens): asked.chain_len for asked in partials}
    partial = next((i for i in fetched.images if (i.key, i.num_tokens) in num_blocks_before), None)
    return Restore(
        fetch_id=fetched.fetch_id,
        num_loaded=0,
        full=full,
        partial=partial,
        num_blocks_before_partial=(
            0 if partial is None else num_blocks_before[partial.key, partial.num_tokens]
        ),
        predicted_s=fetched.predicted_s,
        fetch_s=fetched.fetch_s,
        is_checked=is_checked,
    )
