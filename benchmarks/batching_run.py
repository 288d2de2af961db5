"""Runs a policy, or an engine without a KV cache, on the asks of the batching benchmark.

Time is the machine's own: an ask that is not due yet is waited for. Must not know what is compared.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.batching_engine import SharedRunner, step
from benchmarks.batching_outcome import Outcome, Progress
from benchmarks.batching_policies import Policy
from benchmarks.batching_workload import Ask
from engine.engine import Engine
from engine.step_output import StepOutput


class PolicyRun:
    """One run of one policy: hands asks to the engine, steps it, counts what comes out."""

    def __init__(
        self,
        shared: SharedRunner,
        engine: Engine,
        policy: Policy,
        asks: Sequence[Ask],
        *,
        batch_size: int,
    ) -> None:
        self._shared = shared
        self._engine = engine
        self._policy = policy
        self._batch_size = batch_size
        self._to_come = deque(asks)
        self._waiting: deque[Ask] = deque()
        self._open: dict[str, Progress] = {}
        """In the engine; of a batch, all rows until it ends."""
        self._progress: list[Progress] = []
        """Of all that started."""
        self._num_slots = 0
        self._started_s = 0.0

    def run_saturated(self, at_least_s: float) -> Outcome:
        """Until so much time has passed and the batch that began has ended, or no ask is left.

        What continuous batching is amid then counts as far as it has come.
        """
        return self._run(
            lambda: self._now_s() >= at_least_s and not (self._policy.is_batch and self._open)
        )

    def run_to_end(self) -> Outcome:
        """Until every ask has its answer."""
        return self._run(lambda: False)

    def run_arrivals(self) -> Outcome:
        """Until every ask has its first token."""
        return self._run(
            lambda: (
                not self._to_come
                and not self._waiting
                and all(each.first_token_s is not None for each in self._open.values())
            )
        )

    def _run(self, is_over: Callable[[], bool]) -> Outcome:
        self._started_s = time.perf_counter()
        while (self._to_come or self._waiting or self._open) and not is_over():
            self._hand_over()
            if self._engine.has_work:
                self._take(step(self._engine))
            else:
                self._sleep()
        elapsed_s = self._now_s()
        self._end_open()
        self._shared.take_back(self._engine)
        return Outcome.of(self._progress, elapsed_s=elapsed_s, num_slots=self._num_slots)

    def _hand_over(self) -> None:
        now_s = self._now_s()
        while self._to_come and self._to_come[0].arrival_s <= now_s:
            self._waiting.append(self._to_come.popleft())
        if not self._waiting:
            return
        num_starts = self._policy.num_starts(
            num_waiting=len(self._waiting),
            longest_wait_s=now_s - self._waiting[0].arrival_s,
            num_open=len(self._open),
            batch_size=self._batch_size,
        )
        batch = [self._waiting.popleft() for _ in range(num_starts)]
        for ask, row in zip(batch, self._policy.shape(batch) if batch else [], strict=True):
            request_id = str(ask.index)
            self._open[request_id] = Progress(ask)
            self._progress.append(self._open[request_id])
            prompt = self._shared.draw_prompt(row.prompt_len)
            self._engine.add(
                self._shared.make_request(request_id, prompt, max_tokens=row.max_tokens)
            )

    def _take(self, output: StepOutput) -> None:
        now_s = self._now_s()
        self._num_slots += count_slots(output)
        for delta in output.deltas:
            progress = self._open.get(delta.request_id)
            if progress is None:  # a row of a batch that has ended
                continue
            progress.take(len(delta.token_ids), now_s)
            if progress.is_done and not self._policy.is_batch:
                del self._open[delta.request_id]
        if self._policy.is_batch and all(each.is_done for each in self._open.values()):
            self._end_open()

    def _end_open(self) -> None:
        for request_id in self._open:
            self._engine.abort(request_id)
        self._open.clear()

    def _sleep(self) -> None:
        """Until the next ask arrives or the window of the first that waits is over."""
        events_s = [self._to_come[0].arrival_s] if self._to_come else []
        if self._waiting:
            events_s.append(self._waiting[0].arrival_s + self._policy.window_s)
        time.sleep(max(0.0, min(events_s) - self._now_s()))

    def _now_s(self) -> float:
        return time.perf_counter() - self._started_s


def run_without_kv_cache(
    shared: SharedRunner, engine: Engine, asks: Sequence[Ask], *, batch_size: int
) -> Outcome:
    """Answer all asks, ``batch_size`` at a time, without KV from step to step.

    Every token is a request of its own, for one token, whose prompt is the whole sequence so far;
    an ended answer makes place at once, and no prompt is padded. ``engine`` keeps no prefixes.
    """
    waiting = deque(asks)
    running: dict[str, tuple[Progress, list[int]]] = {}
    ended: list[Progress] = []
    num_slots = 0
    started_s = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < batch_size:
            ask = waiting.popleft()
            running[str(ask.index)] = (Progress(ask), shared.draw_prompt(ask.prompt_len))
        for request_id, (_, token_ids) in running.items():
            engine.add(shared.make_request(request_id, token_ids.copy(), max_tokens=1))
        while engine.has_work:
            output = step(engine)
            num_slots += count_slots(output)
            now_s = time.perf_counter() - started_s
            for delta in output.deltas:
                progress, token_ids = running[delta.request_id]
                progress.take(len(delta.token_ids), now_s)
                token_ids += delta.token_ids
                if progress.is_done:
                    ended.append(progress)
                    del running[delta.request_id]
    elapsed_s = time.perf_counter() - started_s
    shared.take_back(engine)
    return Outcome.of(ended, elapsed_s=elapsed_s, num_slots=num_slots)


def count_slots(output: StepOutput) -> int:
    """Rows that a step computed."""
    record = output.record
    return 0 if record is None else record.num_prefill_tokens + record.num_decodes
