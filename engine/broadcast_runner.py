"""Rank 0's runner when there are several ranks: every plan goes to the others, then to its own.

One msgpack frame per step and rank, over a blocking socket: a rank that does not keep up holds the
step up, as it would in the collective. Only a step that moves KV is answered. Must not know the
model or what the plans are for.
"""

import dataclasses
import socket
from collections.abc import Sequence

import msgspec

from cache_tiers.block_image import ImageLayout
from cache_tiers.tier import TierError
from engine.errors import KvMemoryError
from engine.follower_link import ANSWER_TIMEOUT_S, FollowerLink, RanksOutOfStep
from engine.kv_memory import ReplicaRunner
from engine.rank_messages import (
    AllocateKv,
    FreeKv,
    FromLeader,
    JoinArena,
    Joined,
    KvDone,
    LeaveArena,
    PlanFrame,
    Transferred,
)
from engine.step import SampledToken, StepPlan, StepResult
from wire.frames import encode_frame


class BroadcastRunner:
    """A ``ReplicaRunner``; owner of ``runner`` and of ``links``, one to each of the other ranks."""

    def __init__(
        self,
        runner: ReplicaRunner,
        links: Sequence[socket.socket],
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._runner = runner
        self._links = [
            FollowerLink(rank, link, answer_timeout_s=answer_timeout_s)
            for rank, link in enumerate(links, start=1)
        ]
        self._sampled: tuple[SampledToken, ...] = ()
        self._encode = msgspec.msgpack.Encoder().encode

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step on all ranks. Raises ``RanksOutOfStep`` when that fails.

        Stores are complete on all ranks when this returns, and a load that failed on one of them
        is among the result's ``failed_loads``.
        """
        self._broadcast(PlanFrame(plan, self._sampled))
        try:
            result = self._runner.execute(plan)
        except Exception as error:
            raise RanksOutOfStep(f"a step failed: {type(error).__name__}: {error}") from error
        self._sampled = tuple(_without_logprobs(token) for token in result.sampled)
        if plan.moves_kv:
            failed = self._gather_failed_loads(plan).union(result.failed_loads)
            result = dataclasses.replace(result, failed_loads=tuple(sorted(failed)))
        return result

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        """Nothing to take: rank 0 is the one that samples."""

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        """Have every rank use the arena, which the others get from ``socket_path``; call it again
        after a new ``connect`` to the node's cache. Raises ``TierError`` when a rank can't use it:
        the engine goes on, with plans that move nothing. Between two steps only.
        """
        self._broadcast(JoinArena(layout, socket_path))
        answers = [link.receive(Joined) for link in self._links]
        self._runner.attach_arena(arena, layout, socket_path)
        for rank, answer in enumerate(answers, start=1):
            if answer.reason_against is not None:
                raise TierError(f"rank {rank} can't use the arena: {answer.reason_against}")

    def detach_arena(self) -> None:
        """Have every rank let go of the arena; between two steps only."""
        self._broadcast(LeaveArena())
        self._runner.detach_arena()

    def free_kv(self) -> None:
        """On all ranks: done when this returns."""
        self._broadcast(FreeKv())
        self._runner.free_kv()
        for link in self._links:
            link.receive(KvDone)

    def allocate_kv(self) -> None:
        """On all ranks, or on none: then it raises ``KvMemoryError``."""
        self._broadcast(AllocateKv())
        failure: str | None = None
        try:
            self._runner.allocate_kv()
        except KvMemoryError as error:
            failure = str(error)
        for link in self._links:
            answer = link.receive(KvDone)
            if failure is None and answer.failure is not None:
                failure = f"rank {link.rank}: {answer.failure}"
        if failure is not None:
            self.free_kv()
            raise KvMemoryError(failure)

    def close(self) -> None:
        self._runner.close()
        for link in self._links:
            link.close()

    def _gather_failed_loads(self, plan: StepPlan) -> set[int]:
        failed: set[int] = set()
        for link in self._links:
            answer = link.receive(Transferred)
            if answer.step_id != plan.step_id:
                raise RanksOutOfStep(
                    f"rank {link.rank} answers step {answer.step_id} in step {plan.step_id}"
                )
            failed.update(answer.failed_loads)
        return failed

    def _broadcast(self, frame: FromLeader) -> None:
        encoded = encode_frame(self._encode(frame))
        for link in self._links:
            link.send(encoded)


def _without_logprobs(token: SampledToken) -> SampledToken:
    return token if token.logprobs is None else SampledToken(token.slot, token.token_id)
