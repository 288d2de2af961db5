"""Images that the node keeps in its arena for sequences, until it hears that they are not needed.

Must not know who waits, nor what is loaded when.
"""

from collections.abc import Callable

from cache_tiers.messages import Cancel, EngineToNode
from engine.restores import Restore
from engine.sequence import Sequence


class Leases:
    """Owner of the leases of one connection: one for each ``Restore`` that a sequence has."""

    def __init__(self, send: Callable[[EngineToNode], None]) -> None:
        """``send``: to the node."""
        self._send = send
        self._sequences: dict[int, Sequence] = {}
        """By fetch."""

    def begin(self, sequence: Sequence, restore: Restore) -> None:
        """The node has brought ``restore``, for ``sequence``."""
        sequence.restore = restore
        self._sequences[restore.fetch_id] = sequence

    def end(self, restore: Restore) -> bool:
        """No image of it is needed any more, none is being copied; whether the node had it until
        now.
        """
        if self._sequences.pop(restore.fetch_id, None) is None:
            return False
        is_told = restore.num_loaded > 0 or restore.bad_keys
        self._send(restore.end() if is_told else Cancel(restore.fetch_id))
        return True

    def lose(self) -> None:
        """The node is gone: what is not loaded is computed."""
        for sequence in self._sequences.values():
            assert sequence.restore is not None, "a lease lost its restore"
            sequence.restore.drop()
        self._sequences.clear()

    def cancel(self) -> None:
        """All sequences end."""
        for fetch_id, sequence in self._sequences.items():
            sequence.restore = None
            self._send(Cancel(fetch_id))
        self._sequences.clear()
