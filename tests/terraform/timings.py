"""How long each step of the proof took."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Timings:
    """Steps in the order in which they ended, from any thread."""

    _steps: list[tuple[str, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._steps.append((name, time.monotonic() - start))

    def lines(self) -> list[str]:
        """One a step, as a table."""
        return [f"{seconds:7.1f} s  {name}" for name, seconds in self._steps]

    def write(self, path: Path) -> None:
        """As JSON: a list of steps with their seconds."""
        path.parent.mkdir(parents=True, exist_ok=True)
        steps = [{"step": name, "seconds": round(seconds, 2)} for name, seconds in self._steps]
        path.write_text(json.dumps(steps, indent=2) + "\n", encoding="utf-8")
