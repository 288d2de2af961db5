"""Which replica of a fleet holds which blocks, in LRU order: of what its caches hold, or of what a
router remembers to have sent there. Must not know time, requests or loads.

A replica has up to three tiers: what the accelerator drops goes to the node's CPU memory, what that
drops to its NVMe, and what is used again comes back up. A block lies in one of them.

Replicas are bits. For each tier there is one map from a block's key to the replicas that hold it
there or nearer, so that one walk along a prompt finds the match of every replica.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple


class TierCapacities(NamedTuple):
    """Blocks that a replica holds at most, by tier."""

    accelerator: int
    host: int = 0
    disk: int = 0


class FleetCaches:
    """Owner of the caches of all replicas, which are numbered from 0."""

    def __init__(self, capacities: TierCapacities) -> None:
        # A tier without room only passes on to the next one.
        last = max((tier for tier, blocks in enumerate(capacities) if blocks), default=0)
        self._capacities = capacities[: last + 1]
        self._holders: list[dict[bytes, int]] = [{} for _ in self._capacities]
        """By tier: the bits of the replicas that hold a key there or nearer."""
        self._tiers: list[list[OrderedDict[bytes, None]]] = []
        """By replica and tier: the key used longest ago first."""

    @property
    def num_tiers(self) -> int:
        return len(self._capacities)

    def add_replica(self) -> None:
        """The next number, with nothing held."""
        self._tiers.append([OrderedDict() for _ in self._capacities])

    def num_blocks(self, replica: int) -> int:
        """On its accelerator."""
        return len(self._tiers[replica][0])

    def matches(self, keys: Sequence[bytes], tier: int = 0) -> list[int]:
        """By replica: how many of the first ``keys`` it holds in ``tier`` or nearer."""
        counts = [0] * len(self._tiers)
        holders = self._holders[tier]
        matching = (1 << len(counts)) - 1
        for depth, key in enumerate(keys):
            still = holders.get(key, 0) & matching
            if still != matching:
                _set(counts, matching ^ still, depth)
                if not still:
                    return counts
                matching = still
        _set(counts, matching, len(keys))
        return counts

    def match(self, replica: int, keys: Sequence[bytes], tier: int = 0) -> int:
        """As ``matches``, of one replica."""
        bit = 1 << replica
        holders = self._holders[tier]
        for depth, key in enumerate(keys):
            if not holders.get(key, 0) & bit:
                return depth
        return len(keys)

    def use(self, replica: int, keys: Sequence[bytes]) -> None:
        """The replica computes or loads ``keys``: a prompt's, all on its accelerator afterwards.

        The first key counts as used last, so that a beginning outlives what follows it.
        """
        bit = 1 << replica
        tiers = self._tiers[replica]
        near = tiers[0]
        holders = self._holders[0]
        for key in reversed(keys):
            if key in near:
                near.move_to_end(key)
            else:
                near[key] = None
                bits = holders.setdefault(key, bit)
                if bits != bit:
                    holders[key] = bits | bit
                if len(tiers) > 1:
                    self._raise(tiers, key, bit)
        if len(near) > self._capacities[0]:
            self._trim(tiers, bit)

    def clear(self, replica: int) -> None:
        """It is gone."""
        bit = 1 << replica
        for holders, blocks in zip(self._holders, self._tiers[replica], strict=True):
            for key in blocks:
                _remove(holders, key, bit)
        # What lies near counts as held in the tiers behind it, too.
        for tier, blocks in enumerate(self._tiers[replica]):
            for holders in self._holders[tier + 1 :]:
                for key in blocks:
                    _remove(holders, key, bit)
            blocks.clear()

    def check_integrity(self) -> None:
        """For tests."""
        for replica, tiers in enumerate(self._tiers):
            bit = 1 << replica
            reached: set[bytes] = set()
            for tier, (blocks, capacity) in enumerate(zip(tiers, self._capacities, strict=True)):
                assert len(blocks) <= capacity
                assert reached.isdisjoint(blocks), "a block lies in two tiers"
                reached |= set(blocks)
                held = {key for key, bits in self._holders[tier].items() if bits & bit}
                assert held == reached
        assert all(bits for holders in self._holders for bits in holders.values())

    def _raise(self, tiers: list[OrderedDict[bytes, None]], key: bytes, bit: int) -> None:
        """``key`` is on the accelerator now: it leaves the tier where it was."""
        for tier in range(1, len(tiers)):
            holders = self._holders[tier]
            if holders.get(key, 0) & bit:
                tiers[tier].pop(key, None)
            else:
                holders[key] = holders.get(key, 0) | bit

    def _trim(self, tiers: list[OrderedDict[bytes, None]], bit: int) -> None:
        for tier, capacity in enumerate(self._capacities):
            blocks, holders = tiers[tier], self._holders[tier]
            behind = tiers[tier + 1] if tier + 1 < len(tiers) else None
            for key in list(islice(blocks, max(0, len(blocks) - capacity))):
                del blocks[key]
                # As ``_remove``; a call of its own would cost more than all the rest here.
                if left := holders.pop(key) ^ bit:
                    holders[key] = left
                if behind is not None:
                    behind[key] = None


def _set(counts: list[int], bits: int, depth: int) -> None:
    while bits:
        lowest = bits & -bits
        counts[lowest.bit_length() - 1] = depth
        bits ^= lowest


def _remove(holders: dict[bytes, int], key: bytes, bit: int) -> None:
    if left := holders.pop(key) & ~bit:
        holders[key] = left
