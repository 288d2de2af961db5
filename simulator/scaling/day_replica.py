"""One replica of a day's simulation: steps that compute prompts beside decodes, and stretches of
decodes between them, with the step times of a sum of costs. Owner of its requests; must not know
routers.

It is ``simulator.planned_engine`` without the scheduler's own objects, a hundred times faster:
prompts are computed in the order in which they come, in chunks of what the decodes leave of a
step; all that run get a token per step; nobody is preempted, and there is room in memory. Between
two events only numbers change, so that a stretch costs the same however long it is.
"""

import heapq
import math
from collections import deque
from typing import NamedTuple

from engine.messages import LoadView
from engine.performance_profile import StepCost

NEVER_S = math.inf


class Ended(NamedTuple):
    """What a run brought."""

    begun: list[int]
    """Requests, by number, with their first token now."""
    ended: list[int]


class _Prompt:
    __slots__ = ("answer", "number", "position", "size")

    def __init__(self, number: int, position: int, size: int, answer: int) -> None:
        self.number, self.position, self.size, self.answer = number, position, size, answer


class DayReplica:
    """Everything is in tokens and seconds."""

    __slots__ = (
        "_begun_s", "_ends", "_prompts", "_step_tokens", "_steps", "cost", "end_s", "max_seqs",
        "max_tokens", "name", "num_context", "num_done", "num_generated", "num_running",
        "pending_tokens",
    )  # fmt: skip

    def __init__(self, name: int, cost: StepCost, max_seqs: int, max_tokens: int) -> None:
        """``max_tokens``: of a step."""
        self.name = name
        self.cost = cost
        self.max_seqs, self.max_tokens = max_seqs, max_tokens
        self.end_s = NEVER_S
        """When the run under way ends."""
        self.num_running = 0
        """That decode."""
        self.num_context = 0
        """Their positions."""
        self.num_done = 0
        """Steps so far: who has ``n`` tokens to go ends ``n`` steps later."""
        self.num_generated = 0
        self.pending_tokens = 0
        self._prompts: deque[_Prompt] = deque()
        self._ends: list[tuple[int, int, int]] = []
        """Step at which it ends, number and length then: a heap."""
        self._begun_s = 0.0
        self._steps = 0
        """Of the stretch under way; 0: a step with prompts."""
        self._step_tokens: list[tuple[_Prompt, int]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._prompts)

    @property
    def is_idle(self) -> bool:
        return self.end_s == NEVER_S

    @property
    def decode_step_s(self) -> float:
        cost = self.cost
        decodes_s = cost.per_decode_s * self.num_running
        return cost.base_s + decodes_s + cost.per_context_token_s * self.num_context

    def submit(self, now_s: float, number: int, num_cached: int, prompt: int, answer: int) -> None:
        """``answer``: 1 or more."""
        self._prompts.append(_Prompt(number, num_cached, prompt, answer))
        self.pending_tokens += prompt - num_cached
        if self.end_s == NEVER_S:
            self._begin(now_s)
        elif self._steps > 1:
            self._cut(now_s)

    def finish(self) -> Ended:
        """The run's end has come; the next one begins."""
        ended = Ended([], [])
        if self._steps:
            self._advance(self._steps, ended)
        else:
            tokens, self._step_tokens = self._step_tokens, []
            self._advance(1, ended)
            for prompt, num in tokens:
                prompt.position += num
                self.pending_tokens -= num
                if prompt.position == prompt.size:
                    self._start_answer(prompt, ended)
        self._begin(self.end_s)
        return ended

    def load_view(self, num_kv_tokens: int) -> LoadView:
        """As its engine would tell it; tokens of KV count as blocks."""
        cost = self.cost
        return LoadView(
            num_running=self.num_running,
            num_waiting=len(self._prompts),
            pending_prefill_tokens=self.pending_tokens,
            num_free_blocks=max(0, num_kv_tokens - self.num_context),
            num_blocks=num_kv_tokens,
            prefill_tokens_per_s=1 / cost.per_prefill_token_s,
            step_time_s=self.decode_step_s,
            num_generated_tokens=self.num_generated,
            num_waiting_tokens=self.pending_tokens,
            prefill_base_s=cost.base_s,
            prefill_token_s=cost.per_prefill_token_s,
            prefill_attended_s=cost.per_attended_token_s,
            decode_step_s=self.decode_step_s,
            full_step_tokens=self.max_tokens - self.num_running,
        )

    def _begin(self, now_s: float) -> None:
        self._begun_s = now_s
        self._steps = 0
        if self._prompts and self.num_running < self.max_seqs:
            self.end_s = now_s + self._plan_prompts()
        elif self.num_running:
            self._steps = self._ends[0][0] - self.num_done
            self.end_s = now_s + self._stretch_s(self._steps)
        else:
            self.end_s = NEVER_S

    def _plan_prompts(self) -> float:
        """Of a step; returns how long it takes."""
        left = self.max_tokens - self.num_running
        places = self.max_seqs - self.num_running
        num_tokens, attended = 0, 0.0
        while self._prompts and left > 0 and places > 0:
            prompt = self._prompts[0]
            num = min(left, prompt.size - prompt.position)
            attended += num * (prompt.position + 0.5 * num)
            self._step_tokens.append((prompt, num))
            num_tokens += num
            left -= num
            places -= 1
            if prompt.position + num < prompt.size:
                break  # it goes on with its next chunk
            self._prompts.popleft()
        cost = self.cost
        prompts_s = cost.per_prefill_token_s * num_tokens + cost.per_attended_token_s * attended
        return self.decode_step_s + prompts_s

    def _stretch_s(self, steps: int) -> float:
        growth = self.num_running * steps * (steps - 1) / 2
        return steps * self.decode_step_s + self.cost.per_context_token_s * growth

    def _cut(self, now_s: float) -> None:
        """The stretch ends with the step that is under way."""
        first_s = self.decode_step_s
        growth_s = self.cost.per_context_token_s * self.num_running
        elapsed_s = now_s - self._begun_s
        # steps * first + growth * steps * (steps - 1) / 2 = elapsed
        linear = first_s - growth_s / 2
        root = math.sqrt(linear * linear + 2 * growth_s * elapsed_s)
        steps = max(1, math.ceil(2 * elapsed_s / (linear + root) - 1e-9))
        if steps < self._steps:
            self._steps = steps
            self.end_s = self._begun_s + self._stretch_s(steps)

    def _advance(self, steps: int, ended: Ended) -> None:
        """All that run get so many tokens; who has all of them leaves."""
        self.num_done += steps
        self.num_context += steps * self.num_running
        self.num_generated += steps * self.num_running
        ends = self._ends
        while ends and ends[0][0] <= self.num_done:
            _, number, length = heapq.heappop(ends)
            self.num_running -= 1
            self.num_context -= length
            ended.ended.append(number)

    def _start_answer(self, prompt: _Prompt, ended: Ended) -> None:
        ended.begun.append(prompt.number)
        self.num_generated += 1
        to_go = prompt.answer - 1
        if to_go == 0:
            ended.ended.append(prompt.number)
            return
        # The first token's own position is computed by the next step.
        heapq.heappush(self._ends, (self.num_done + to_go, prompt.number, prompt.size + to_go))
        self.num_running += 1
        self.num_context += prompt.size
