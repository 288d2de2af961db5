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

from simulator.prompt_lru import PromptLru


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
        self._near: list[PromptLru] = []
        """By replica: its accelerator."""
        self._behind: list[list[OrderedDict[bytes, None]]] = []
        """By replica, the tiers behind it: the key that came longest ago first."""

    @property
    def num_tiers(self) -> int:
        return len(self._capacities)

    def add_replica(self) -> None:
        """The next number, with nothing held."""
        self._near.append(PromptLru())
        self._behind.append([OrderedDict() for _ in self._capacities[1:]])

    def num_blocks(self, replica: int) -> int:
        """On its accelerator."""
        return len(self._near[replica])

    def matches(self, keys: Sequence[bytes], tier: int = 0) -> list[int]:
        """By replica: how many of the first ``keys`` it holds in ``tier`` or nearer."""
        counts = [0] * len(self._near)
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
        near, behind = self._near[replica], self._behind[replica]
        holders = self._holders[0]
        for key in near.use(keys):
            bits = holders.setdefault(key, bit)
            if bits != bit:
                holders[key] = bits | bit
            if behind:
                self._raise(behind, key, bit)
        dropped = near.trim(self._capacities[0])
        for key in dropped:
            _remove(holders, key, bit)
        if behind:
            self._pass_on(behind, dropped, bit)

    def clear(self, replica: int) -> None:
        """It is gone."""
        bit = 1 << replica
        for tier, blocks in enumerate(self._tiers(replica)):
            # What lies near counts as held in the tiers behind it, too.
            for holders in self._holders[tier:]:
                for key in blocks:
                    _remove(holders, key, bit)
            blocks.clear()

    def check_integrity(self) -> None:
        """For tests."""
        for replica in range(len(self._near)):
            bit = 1 << replica
            reached: set[bytes] = set()
            tiers = zip(self._tiers(replica), self._capacities, strict=True)
            for tier, (blocks, capacity) in enumerate(tiers):
                assert len(blocks) <= capacity
                assert reached.isdisjoint(blocks), "a block lies in two tiers"
                reached |= set(blocks)
                held = {key for key, bits in self._holders[tier].items() if bits & bit}
                assert held == reached
        assert all(bits for holders in self._holders for bits in holders.values())

    def _tiers(self, replica: int) -> list[PromptLru | OrderedDict[bytes, None]]:
        return [self._near[replica], *self._behind[replica]]

    def _raise(self, behind: list[OrderedDict[bytes, None]], key: bytes, bit: int) -> None:
        """``key`` is on the accelerator now: it leaves the tier where it was."""
        for blocks, holders in zip(behind, self._holders[1:], strict=True):
            if holders.get(key, 0) & bit:
                blocks.pop(key, None)
            else:
                holders[key] = holders.get(key, 0) | bit

    def _pass_on(
        self, behind: list[OrderedDict[bytes, None]], dropped: list[bytes], bit: int
    ) -> None:
        """What the accelerator ``dropped`` goes to the tier behind it, and so on."""
        capacities = self._capacities[1:]
        for blocks, holders, capacity in zip(behind, self._holders[1:], capacities, strict=True):
            blocks.update(dict.fromkeys(dropped))
            dropped = list(islice(blocks, max(0, len(blocks) - capacity)))
            for key in dropped:
                del blocks[key]
                _remove(holders, key, bit)


def _set(counts: list[int], bits: int, depth: int) -> None:
    while bits:
        lowest = bits & -bits
        counts[lowest.bit_length() - 1] = depth
        bits ^= lowest


def _remove(holders: dict[bytes, int], key: bytes, bit: int) -> None:
    if left := holders.pop(key) ^ bit:
        holders[key] = left
