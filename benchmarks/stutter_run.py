"""One arrival of a long prompt among streams that decode, and the same prompt alone.

The gap of a stream is the time between two of its tokens, as the owner of the step loop sees them.
Must not know which configurations are compared.
"""

import time
from dataclasses import dataclass

from benchmarks.batching_engine import SharedRunner, step
from benchmarks.stutter_summary import Arrival
from engine.engine import Engine
from engine.errors import EngineError
from engine.messages import TokenDelta

_PROMPT_ID = "prompt"
_NUM_SETTLING_STEPS = 4
"""Before gaps count: the first steps of a batch are not its usual ones."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What meets."""

    num_streams: int
    stream_prompt_len: int
    long_prompt_len: int
    num_undisturbed_steps: int
    smallest_chunk: int
    """Tokens of the long prompt that any configuration computes in a step, at least."""

    @property
    def stream_len(self) -> int:
        """Tokens of an answer that outlasts the prefill, also of the stream that began first."""
        num_steps = _NUM_SETTLING_STEPS + self.num_undisturbed_steps + self.num_streams
        return 2 * num_steps + self.long_prompt_len // self.smallest_chunk


class ArrivalRun:
    """Owner of one arrival on one engine."""

    def __init__(self, shared: SharedRunner, engine: Engine, scene: Scene) -> None:
        self._shared = shared
        self._engine = engine
        self._scene = scene
        self._last_token_s: dict[str, float] = {}
        self._gaps_s: list[float] = []

    def measure(self) -> Arrival:
        """First among the streams, then alone; the engine is empty before and after."""
        self._start_streams()
        undisturbed_gaps_s = self._decode()
        prefill_s = self._prefill()
        gaps_s = self._take_gaps()
        self._stop()
        alone_s = self._prefill()
        self._stop()
        return Arrival(undisturbed_gaps_s, gaps_s, prefill_s, alone_s)

    def _start_streams(self) -> None:
        scene = self._scene
        for index in range(scene.num_streams):
            self._add(str(index), scene.stream_prompt_len, max_tokens=scene.stream_len)
        while len(self._last_token_s) < scene.num_streams:
            self._step()
        for _ in range(_NUM_SETTLING_STEPS):
            self._step()
        self._take_gaps()

    def _decode(self) -> tuple[float, ...]:
        for _ in range(self._scene.num_undisturbed_steps):
            self._step()
        return self._take_gaps()

    def _prefill(self) -> float:
        arrived_s = time.perf_counter()
        self._add(_PROMPT_ID, self._scene.long_prompt_len, max_tokens=1)
        while not any(delta.request_id == _PROMPT_ID for delta in self._step()):
            pass
        return time.perf_counter() - arrived_s

    def _add(self, request_id: str, num_tokens: int, *, max_tokens: int) -> None:
        prompt = self._shared.draw_prompt(num_tokens)
        self._engine.add(self._shared.make_request(request_id, prompt, max_tokens=max_tokens))

    def _step(self) -> list[TokenDelta]:
        deltas = step(self._engine).deltas
        now_s = time.perf_counter()
        for delta in deltas:
            if delta.request_id == _PROMPT_ID:
                continue
            if delta.finish_reason is not None:
                raise EngineError(f"stream {delta.request_id} ended before it was measured")
            last_s = self._last_token_s.get(delta.request_id)
            if last_s is not None:
                self._gaps_s.append(now_s - last_s)
            self._last_token_s[delta.request_id] = now_s
        return deltas

    def _take_gaps(self) -> tuple[float, ...]:
        gaps_s, self._gaps_s = tuple(self._gaps_s), []
        return gaps_s

    def _stop(self) -> None:
        for request_id in self._last_token_s:
            self._engine.abort(request_id)
        self._last_token_s.clear()
        self._shared.take_back(self._engine)
