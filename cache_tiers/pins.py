"""Which blocks are pinned, by whom and until when. Must not know where they lie."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cache_tiers.keys import BlockKey

_STALE_FACTOR = 2
_MIN_STALE = 1024


class PinnedBlock(NamedTuple):
    """A block of one layout."""

    layout_number: int
    key: BlockKey


@dataclass(slots=True)
class _Pinned:
    tenant: bytes
    expires_s: float
    image_bytes: int


class Pins:
    """Owner: one node's cache. A block counts for the tenant who pinned it first."""

    def __init__(self, tenant_quota_bytes: int, max_bytes: int) -> None:
        self._tenant_quota_bytes = tenant_quota_bytes
        self._max_bytes = max_bytes
        """Of all tenants: what is pinned can't make room for others."""
        self._pinned: dict[PinnedBlock, _Pinned] = {}
        self.used_bytes = 0
        self._used_bytes: dict[bytes, int] = {}
        """Of each tenant."""
        self._expiries: list[tuple[float, PinnedBlock]] = []
        """A heap with one time for each block, or an earlier one than it has by now."""
        self.num_refused = 0
        """Blocks for which a quota was used up."""

    def __len__(self) -> int:
        return len(self._pinned)

    def __contains__(self, block: PinnedBlock) -> bool:
        return block in self._pinned

    def add(
        self, tenant: bytes, blocks: Sequence[PinnedBlock], image_bytes: int, expires_s: float
    ) -> list[PinnedBlock]:
        """Pin leading ``blocks`` as far as quotas allow, and renew pins; those that are new. No pin
        gets shorter.
        """
        added = []
        for position, block in enumerate(blocks):
            pinned = self._pinned.get(block)
            if pinned is None:
                if not self._fits(tenant, image_bytes):
                    self.num_refused += len(blocks) - position
                    break
                pinned = self._pinned[block] = _Pinned(tenant, expires_s, image_bytes)
                self._used_bytes[tenant] = self._used_bytes.get(tenant, 0) + image_bytes
                self.used_bytes += image_bytes
                self._expire_at(expires_s, block)
                added.append(block)
            pinned.expires_s = max(pinned.expires_s, expires_s)
        return added

    def remove(self, block: PinnedBlock) -> None:
        """Also one that isn't pinned."""
        pinned = self._pinned.pop(block, None)
        if pinned is None:
            return
        self.used_bytes -= pinned.image_bytes
        self._used_bytes[pinned.tenant] -= pinned.image_bytes
        if not self._used_bytes[pinned.tenant]:
            del self._used_bytes[pinned.tenant]

    def expire(self, now_s: float) -> list[PinnedBlock]:
        """Those that are pinned no longer."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now_s:
            _, block = heapq.heappop(self._expiries)
            pinned = self._pinned.get(block)
            if pinned is None:
                continue
            if pinned.expires_s > now_s:  # renewed
                self._expire_at(pinned.expires_s, block)
                continue
            self.remove(block)
            expired.append(block)
        return expired

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` if the books contradict each other."""
        used: dict[bytes, int] = {}
        for pinned in self._pinned.values():
            used[pinned.tenant] = used.get(pinned.tenant, 0) + pinned.image_bytes
        assert used == self._used_bytes, "a quota is not what is pinned"
        assert sum(used.values()) == self.used_bytes, "the sum is not what is pinned"
        due_s: dict[PinnedBlock, float] = {}
        for expires_s, block in self._expiries:
            due_s[block] = min(expires_s, due_s.get(block, expires_s))
        late = [b for b, pinned in self._pinned.items() if due_s[b] > pinned.expires_s]
        assert not late, "a pin outlasts its time"
        assert all(num <= self._tenant_quota_bytes for num in used.values()), "a quota is exceeded"
        assert sum(used.values()) <= self._max_bytes, "too much is pinned"

    def _expire_at(self, expires_s: float, block: PinnedBlock) -> None:
        heapq.heappush(self._expiries, (expires_s, block))
        if len(self._expiries) > _STALE_FACTOR * len(self._pinned) + _MIN_STALE:
            # Times of pins that were removed before, many of them.
            self._expiries = [(pinned.expires_s, b) for b, pinned in self._pinned.items()]
            heapq.heapify(self._expiries)

    def _fits(self, tenant: bytes, image_bytes: int) -> bool:
        used_bytes = self._used_bytes.get(tenant, 0) + image_bytes
        return (
            used_bytes <= self._tenant_quota_bytes
            and self.used_bytes + image_bytes <= self._max_bytes
        )
