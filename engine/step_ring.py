"""The newest steps, for operators. Keeps what the step loop recorded; must not know requests."""

from collections import deque
from itertools import islice

import msgspec

from engine.observations import StepRecord

MAX_STEPS = 4096


class StepRing:
    """Owner of the last ``MAX_STEPS`` records."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._encoded: deque[bytes] = deque(maxlen=MAX_STEPS)
        """The same in JSON: to encode all of them at once would hold the streams up."""

    def add(self, record: StepRecord) -> None:
        self._records.append(record)
        self._encoded.append(msgspec.json.encode(msgspec.structs.asdict(record)))

    def busy_share(self, now_s: float, window_s: float = 10.0) -> float:
        """Share of the last ``window_s`` that was spent in steps, on the clock of the records."""
        start_s = now_s - window_s
        busy_s = 0.0
        for record in reversed(self._records):
            end_s = record.started_s + record.step_time_s
            if end_s <= start_s:
                break
            busy_s += end_s - max(record.started_s, start_s)
        return min(1.0, busy_s / window_s)

    def to_json(self, count: int | None = None) -> bytes:
        """The newest ``count`` records, oldest first; all without one."""
        num_skipped = 0 if count is None else max(0, len(self._encoded) - count)
        return b"[" + b",".join(islice(self._encoded, num_skipped, None)) + b"]"
