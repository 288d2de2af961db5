"""Cache breakpoints of prompts: what of them is stored at once, pinned, and billed as written.

A prefix is pinned when all of it has been stored; what can't be stored is not. A token counts as
written when the block of its key, or the part of a block, was not pinned by this engine before.
Must not know plans or the connection.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cache_tiers.keys import BlockKey, partial_key
from cache_tiers.messages import Partial, Pin
from engine.messages import CacheBreakpoint, CacheWrite
from engine.sequence import Sequence
from engine.write_policy import BlockWriter, PartialBlock

_MANY_PINS = 65_536
"""Then those that have expired are forgotten."""


def find_partial(
    sequence: Sequence, breakpoint_: CacheBreakpoint, block_size: int
) -> Partial | None:
    """The last block up to a breakpoint, if it is not full."""
    num_blocks, num_tokens = divmod(breakpoint_.num_tokens, block_size)
    if num_tokens == 0:
        return None
    request = sequence.request
    parent = request.block_keys[num_blocks - 1] if num_blocks > 0 else request.root_key
    tokens = sequence.slice(num_blocks * block_size, breakpoint_.num_tokens)
    return Partial(partial_key(BlockKey(parent), tokens), num_blocks, num_tokens)


@dataclass(slots=True)
class _PendingPin:
    """A prefix, parts of which are yet to be stored."""

    root_key: bytes
    keys: list[bytes]
    ttl_s: float
    num_stored: int = 0
    """Leading ones of ``keys``, as far as was looked."""


class Breakpoints:
    """Owner of the pins that wait, and of what was pinned until when."""

    def __init__(self, writer: BlockWriter, block_size_tokens: int) -> None:
        self._writer = writer
        self._block_size = block_size_tokens
        self._pending: list[_PendingPin] = []
        self._pinned_until_s: dict[bytes, float] = {}

    def reach(self, sequence: Sequence, now_s: float) -> None:
        """Store and pin up to the breakpoints that ``sequence`` has computed since the last call,
        and add them to its usage. Its blocks are its own until the next plan.
        """
        request = sequence.request
        breakpoints = request.breakpoints
        begin = sequence.num_breakpoints_reached
        end = begin
        while (
            end < len(breakpoints) and breakpoints[end].num_tokens <= sequence.num_computed_tokens
        ):
            end += 1
        if begin == end:
            return
        sequence.num_breakpoints_reached = end
        num_written = breakpoints[begin - 1].num_tokens if begin > 0 else 0
        num_written = max(num_written, self._num_pinned_tokens(sequence, end, now_s))
        for breakpoint_ in breakpoints[begin:end]:
            num_new = breakpoint_.num_tokens - num_written
            if num_new > 0:
                sequence.cache_written.append(CacheWrite(breakpoint_.ttl_s, num_new))
                num_written = breakpoint_.num_tokens
            self._pin(sequence, breakpoint_, now_s)

    def take_pins(self) -> Iterator[Pin]:
        """Those whose prefix is stored by now; of one that lost a block, the part before."""
        waiting, self._pending = self._pending, []
        for pin in waiting:
            keys = pin.keys
            while pin.num_stored < len(keys) and self._writer.is_stored(keys[pin.num_stored]):
                pin.num_stored += 1
            is_whole = pin.num_stored == len(keys)
            if not is_whole and self._writer.is_pending(keys[pin.num_stored]):
                self._pending.append(pin)
            elif pin.num_stored > 0:
                yield Pin(pin.root_key, keys[: pin.num_stored], pin.ttl_s)

    def forget(self) -> None:
        """The node is gone."""
        self._pending.clear()
        self._pinned_until_s.clear()

    def _num_pinned_tokens(self, sequence: Sequence, num_breakpoints: int, now_s: float) -> int:
        """Length of the prefix that is pinned already: shorter ones are pinned at least as long."""
        until_s = self._pinned_until_s
        num_blocks = 0
        for key in sequence.request.block_keys:
            if until_s.get(key, now_s) <= now_s:
                break
            num_blocks += 1
        num_tokens = num_blocks * self._block_size
        for breakpoint_ in sequence.request.breakpoints[:num_breakpoints]:
            partial = find_partial(sequence, breakpoint_, self._block_size)
            if (
                partial is not None
                and partial.chain_len == num_blocks
                and until_s.get(partial.key, now_s) > now_s
            ):
                num_tokens = breakpoint_.num_tokens
        return num_tokens

    def _pin(self, sequence: Sequence, breakpoint_: CacheBreakpoint, now_s: float) -> None:
        request = sequence.request
        num_blocks = breakpoint_.num_tokens // self._block_size
        keys = request.block_keys[:num_blocks]
        self._writer.want(keys)
        partial = find_partial(sequence, breakpoint_, self._block_size)
        if partial is not None:
            block_id = sequence.block_tables[0][num_blocks]
            self._writer.want_partial(
                PartialBlock(block_id, partial.key, num_blocks + 1, partial.num_tokens)
            )
            keys = [*keys, partial.key]
        self._pending.append(_PendingPin(request.root_key, keys, breakpoint_.ttl_s))
        if len(self._pinned_until_s) > _MANY_PINS:
            self._pinned_until_s = {k: s for k, s in self._pinned_until_s.items() if s > now_s}
        ends_s = now_s + breakpoint_.ttl_s
        for key in keys:
            self._pinned_until_s[key] = max(ends_s, self._pinned_until_s.get(key, ends_s))
