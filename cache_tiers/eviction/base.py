"""What a tier asks of the policy that says which block leaves it. Must not know slots or media."""

from collections.abc import Callable
from typing import Protocol

CanEvict = Callable[[int], bool]
"""Whether a block may leave now: it is not read, written or pinned."""


class BlockFacts(Protocol):
    """What is known of blocks, by their number; kept once, for all policies."""

    def key(self, entry: int) -> bytes: ...

    def layout_number(self, entry: int) -> int:
        """Blocks with the same one are of one model and size."""
        ...

    def last_used_s(self, entry: int) -> float: ...

    def worth(self, entry: int) -> float:
        """Seconds of computing that a byte of it saves at its next use."""
        ...


class EvictionPolicy(Protocol):
    """Owner: one tier. A block is inserted once, until it is removed or evicted.

    The blocks of a chain are touched from its end to its beginning, so that of two that were used
    together the later one leaves first: without the one before it, it is of no use.
    """

    def insert(self, entry: int, now_s: float) -> None:
        """A block came in."""
        ...

    def touch(self, entry: int, now_s: float) -> None:
        """A block that is in was used; its facts are the new ones, but for when it was used."""
        ...

    def remove(self, entry: int) -> None:
        """A block left for another reason than ``evict``."""
        ...

    def evict(self, now_s: float, can_evict: CanEvict) -> int | None:
        """Choose a block, which is out from now on; ``None``: none may leave."""
        ...
