"""Acts on what is known of pauses: blocks leave the arena early, and come back in time.

``think_time`` decides; what moves are blocks of the arena and the disk. Must not know engines.
"""

from cache_tiers.block_index import DISK, HOST, LEAVING, LOADING, PINNED
from cache_tiers.demoter import Demoter
from cache_tiers.evictable_tier import EvictableTier
from cache_tiers.holdings import Holdings
from cache_tiers.host_room import HostRoom
from cache_tiers.image_loads import ImageLoads, Wanted
from cache_tiers.keys import BlockKey
from cache_tiers.media_rates import MediaRates
from cache_tiers.messages import Ended
from cache_tiers.think_time import Pause, ThinkTime
from cache_tiers.tier import TierKind

_LEAD_FACTOR = 2.0
_LEAD_S = 1.0
"""Besides what the load takes, twice: before it is wanted."""
_MANY_USES = 16
"""Of a block that more than one session begins with, most likely."""
_PROMOTED_S = 0.25
"""Seconds of the disk's reading that one tick asks for at most."""


class PauseKeeper:
    """Owner: one node's cache."""

    def __init__(
        self,
        holdings: Holdings,
        room: HostRoom,
        demoter: Demoter,
        loads: ImageLoads,
        rates: MediaRates,
        disk: EvictableTier | None,
    ) -> None:
        self._holdings = holdings
        self._room = room
        self._demoter = demoter
        self._loads = loads
        self._rates = rates
        self._disk = disk
        self.think_time = ThinkTime()
        self.num_demoted = 0
        self.num_promoted = 0

    def begin(self, layout_number: int, ended: Ended) -> None:
        """An answer is complete. Its blocks go to disk at once if they would have to leave before
        the session is likely to be back.
        """
        pause = self.think_time.begin(layout_number, ended, self._holdings.clock())
        kept_s = self._room.eviction_age_s
        if pause.usual_s is None or kept_s is None or pause.usual_s <= kept_s:
            return
        num_demoted = self._demote(pause)
        if num_demoted:
            self.num_demoted += num_demoted
            image_bytes = self._holdings.index.layouts[layout_number].image_bytes
            load_s = self._rates.rate(TierKind.DISK).seconds(num_demoted * image_bytes)
            lead_s = _LEAD_S + _LEAD_FACTOR * load_s
            self.think_time.demoted(pause, ended.expected_return_s, lead_s)

    def promote_due(self) -> None:
        """Bring what is wanted soon, within bounds."""
        now_s = self._holdings.clock()
        left_bytes = _PROMOTED_S / self._rates.rate(TierKind.DISK).byte_s
        for pause in self.think_time.take_due(now_s):
            image_bytes = self._holdings.index.layouts[pause.layout_number].image_bytes
            left_bytes -= image_bytes * self._promote(pause, int(left_bytes // image_bytes))

    def _demote(self, pause: Pause) -> int:
        """From the end; what many prompts begin with stays."""
        holdings, index = self._holdings, self._holdings.index
        num_demoted = 0
        for key in reversed(pause.keys):
            entry = holdings.find(pause.layout_number, BlockKey(key))
            if entry is None:
                continue
            is_shared = index.num_uses(entry) >= _MANY_USES
            is_here = index.flags[entry] & (HOST | LEAVING | PINNED) == HOST
            if is_shared or not is_here or not holdings.may_leave(entry):
                continue
            if not self._demoter.offer(entry):
                break
            holdings.host_policy.remove(entry)
            holdings.leave(entry)
            num_demoted += 1
        return num_demoted

    def _promote(self, pause: Pause, most: int) -> int:
        holdings, index = self._holdings, self._holdings.index
        if self._disk is None or not self._loads.can_read_disk():
            return 0
        wanted: list[Wanted] = []
        for key in map(BlockKey, pause.keys):
            entry = holdings.find(pause.layout_number, key)
            if entry is None or len(wanted) >= most:
                break
            if index.flags[entry] & (HOST | LOADING | DISK) == DISK:
                wanted.append(Wanted(key, index.num_tokens(entry), index.chain_lens[entry], 0.0))
                # As good as used: it is to be there when it is.
                index.touch(entry, holdings.clock())
        loads = self._loads.start(self._disk, pause.layout_number, wanted, is_asked=False)
        self.num_promoted += len(loads)
        return len(loads)
