"""Drives a runner with plans of a test's own, where the scheduler would choose differently."""

from collections.abc import Sequence

from engine.messages import SamplingParams
from engine.step import (
    Admission,
    BlockCopy,
    BlockTransfer,
    ModelRunner,
    ScheduledSequence,
    StepPlan,
    StepResult,
)

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class RawSteps:
    """One sequence at a time, in slot 0."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._step_id = 0
        self.differing: tuple[int, ...] = ()
        """Of the last comparisons."""

    def compute(
        self,
        token_ids: Sequence[int],
        block_ids: Sequence[int],
        *,
        start: int = 0,
        chunk: int = 512,
        num_answer_tokens: int = 0,
        comparisons: Sequence[BlockTransfer] = (),
        block_copies: Sequence[BlockCopy] = (),
    ) -> list[int]:
        """Admit a sequence whose first ``start`` tokens have their KV in ``block_ids``, compute the
        rest, and answer greedily. The comparisons belong to the last step of the prompt.
        """
        table = (tuple(block_ids),)
        admissions: Sequence[Admission] = (Admission(0, GREEDY, table, len(token_ids)),)
        answer: list[int] = []
        for begin in range(start, len(token_ids), chunk):
            tokens = tuple(token_ids[begin : begin + chunk])
            is_last = begin + chunk >= len(token_ids)
            entry = ScheduledSequence(
                0,
                begin,
                tokens,
                is_last_pending=False,
                sampling_slots=(0,) if is_last and num_answer_tokens else (),
            )
            result = self.execute(
                admissions=admissions,
                scheduled=(entry,),
                block_copies=block_copies,
                comparisons=comparisons if is_last else (),
            )
            self.differing = result.differing
            admissions, block_copies = (), ()
            answer += [token.token_id for token in result.sampled]
        while len(answer) < num_answer_tokens:
            position = len(token_ids) + len(answer) - 1
            entry = ScheduledSequence(0, position, (), is_last_pending=True, sampling_slots=(0,))
            answer += [token.token_id for token in self.execute(scheduled=(entry,)).sampled]
        self.execute(released_slots=(0,))
        return answer

    def execute(
        self,
        *,
        released_slots: Sequence[int] = (),
        freed_block_ids: Sequence[int] = (),
        block_copies: Sequence[BlockCopy] = (),
        admissions: Sequence[Admission] = (),
        scheduled: Sequence[ScheduledSequence] = (),
        stores: Sequence[BlockTransfer] = (),
        loads: Sequence[BlockTransfer] = (),
        comparisons: Sequence[BlockTransfer] = (),
    ) -> StepResult:
        """One step."""
        self._step_id += 1
        plan = StepPlan(
            self._step_id,
            tuple(released_slots),
            tuple(freed_block_ids),
            tuple(block_copies),
            tuple(admissions),
            tuple(scheduled),
            tuple(stores),
            tuple(loads),
            tuple(comparisons),
        )
        return self._runner.execute(plan)
