"""Sessions that think: who may come back, when, and what to have ready then.

A pause that is likely to outlast what the arena keeps is a reason to make room at once, and to
bring the blocks back shortly before they are wanted. Decides and remembers; moves nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended
from cache_tiers.return_times import ReturnTimes

_MAX_PAUSES = 4096
_MAX_KEYS = 1024 * 1024
"""Of all pauses' chains: 50 MB."""
_REMEMBERED_S = 6 * 3600.0
_USUAL_SHARE = 0.5
_EARLY_SHARE = 0.2
"""Of sessions come back before their blocks are brought."""


@dataclass(slots=True)
class Pause:
    """A session between an answer and its next prompt."""

    layout_number: int
    keys: Sequence[bytes]
    """The whole chain."""
    session_kind: str
    began_s: float
    usual_s: float | None
    """How long it lasts, as likely as not; ``None``: not known."""
    promote_at_s: float = math.inf
    """Infinite unless its blocks were demoted for it."""


class ThinkTime:
    """Owner: one node's cache."""

    def __init__(self) -> None:
        self.return_times = ReturnTimes()
        self._pauses: dict[tuple[int, bytes], Pause] = {}
        """By layout and last key, the oldest first."""
        self._num_keys = 0

    def __len__(self) -> int:
        return len(self._pauses)

    def begin(self, layout_number: int, ended: Ended, now_s: float) -> Pause:
        """An answer is complete."""
        usual_s = ended.expected_return_s
        if usual_s is None:
            usual_s = self.return_times.quantile_s(ended.session_kind, _USUAL_SHARE)
        pause = Pause(layout_number, ended.keys, ended.session_kind, now_s, usual_s)
        self._pop(layout_number, ended.last_key)
        self._pauses[layout_number, ended.last_key] = pause
        self._num_keys += len(pause.keys)
        self._forget(now_s)
        return pause

    def demoted(self, pause: Pause, expected_return_s: float | None, lead_s: float) -> None:
        """Its blocks have left the arena; they take ``lead_s`` to bring back."""
        early_s = expected_return_s
        if early_s is None:
            early_s = self.return_times.quantile_s(pause.session_kind, _EARLY_SHARE)
        if early_s is not None:
            pause.promote_at_s = pause.began_s + max(0.0, early_s - lead_s)

    def end(self, layout_number: int, keys: Sequence[BlockKey], now_s: float) -> None:
        """A prompt came: of the pauses that it ends the last one counts."""
        if not self._pauses:
            return
        for key in reversed(keys):
            pause = self._pop(layout_number, key)
            if pause is not None:
                self.return_times.record(pause.session_kind, now_s - pause.began_s)
                return

    def take_due(self, now_s: float) -> list[Pause]:
        """Those whose blocks should be brought now, each once."""
        due = [pause for pause in self._pauses.values() if pause.promote_at_s <= now_s]
        for pause in due:
            pause.promote_at_s = math.inf
        return due

    def _pop(self, layout_number: int, last_key: bytes) -> Pause | None:
        pause = self._pauses.pop((layout_number, last_key), None)
        if pause is not None:
            self._num_keys -= len(pause.keys)
        return pause

    def _forget(self, now_s: float) -> None:
        while self._pauses:
            oldest = next(iter(self._pauses))
            pause = self._pauses[oldest]
            is_crowded = len(self._pauses) > _MAX_PAUSES or self._num_keys > _MAX_KEYS
            if not is_crowded and now_s - pause.began_s <= _REMEMBERED_S:
                return
            self._pop(*oldest)
            self.return_times.record_lost(pause.session_kind)
