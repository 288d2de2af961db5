"""Rank 0's runner when there are several ranks: every plan goes to the others, then to its own.

One msgpack frame per step and rank, over a blocking socket: a rank that does not keep up holds the
step up, as it would in the collective. Must not know the model or what the plans are for.
"""

import socket
from collections.abc import Sequence

import msgspec

from engine.rank_messages import PlanFrame
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from wire.frames import encode_frame


class RanksOutOfStep(BaseException):
    """A rank did not carry out a plan, so the others wait in a collective or have other KV.

    Not an ``Exception``: the engine would end all requests with an error and go on, while the end
    of the process lets them move to another replica. Out of memory is no exception to that.
    """


class BroadcastRunner:
    """A ``ModelRunner``; owner of ``runner`` and of ``links``, one to each of the other ranks."""

    def __init__(self, runner: ModelRunner, links: Sequence[socket.socket]) -> None:
        self._runner = runner
        self._links = links
        self._sampled: tuple[SampledToken, ...] = ()
        self._encode = msgspec.msgpack.Encoder().encode
        for link in links:
            link.setblocking(True)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step on all ranks. Raises ``RanksOutOfStep`` when that fails."""
        self._broadcast(PlanFrame(plan, self._sampled))
        try:
            result = self._runner.execute(plan)
        except Exception as error:
            raise RanksOutOfStep(f"a step failed: {type(error).__name__}: {error}") from error
        self._sampled = tuple(_without_logprobs(token) for token in result.sampled)
        return result

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        """Nothing to take: rank 0 is the one that samples."""

    def close(self) -> None:
        self._runner.close()
        for link in self._links:
            link.close()

    def _broadcast(self, frame: PlanFrame) -> None:
        encoded = encode_frame(self._encode(frame))
        for rank, link in enumerate(self._links, start=1):
            try:
                link.sendall(encoded)
            except OSError as error:
                raise RanksOutOfStep(f"rank {rank} takes no plans any more: {error}") from error


def _without_logprobs(token: SampledToken) -> SampledToken:
    return token if token.logprobs is None else SampledToken(token.slot, token.token_id)
