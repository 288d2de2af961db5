"""Tensor-parallel ranks as threads of one process, which meet at a barrier."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from cache_tiers.block_image import ImageLayout
from engine.collectives import Collectives
from engine.config import RankSpec
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult

T = TypeVar("T")
_TIMEOUT_S = 20.0


class ThreadRanks:
    """One rank's end of a group. A rank that fails breaks the barrier for all."""

    def __init__(self, rank: RankSpec, desk: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.num_calls = 0
        self._desk = desk
        self._barrier = barrier

    def all_reduce_(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._share(tensor)).sum(0))

    def broadcast_(self, tensor: Tensor) -> None:
        tensor.copy_(self._share(tensor)[0])

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        parts = self._share(part)
        assert [part.shape[-1] for part in parts] == list(widths)
        return torch.cat(parts, dim=-1) if self.rank.rank == 0 else None

    def close(self) -> None:
        self._barrier.abort()

    def _share(self, tensor: Tensor) -> list[Tensor]:
        self.num_calls += 1
        self._desk[self.rank.rank] = tensor.clone()
        self._barrier.wait(_TIMEOUT_S)
        shared = list(self._desk)
        self._barrier.wait(_TIMEOUT_S)
        return shared


def run_ranks(size: int, run: Callable[[Collectives], T]) -> list[T]:
    """What ``run`` returns on each of ``size`` ranks."""
    barrier = threading.Barrier(size)
    desk: list[Tensor] = [torch.empty(0)] * size

    def run_rank(rank: int) -> T:
        collectives = ThreadRanks(RankSpec(rank, size), desk, barrier)
        try:
            return run(collectives)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run_rank, rank) for rank in range(size)]
        failed = [future.exception() for future in futures]
        for error in failed:  # the reason, not the barriers that broke for it
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]


class RankThreads:
    """The ``ModelRunner`` of a whole group: every rank gets each plan and what rank 0 sampled."""

    def __init__(self, size: int, create: Callable[[Collectives], ModelRunner]) -> None:
        self._runners = run_ranks(size, create)
        self._pool = ThreadPoolExecutor(size)
        self._sampled: tuple[SampledToken, ...] = ()

    def execute(self, plan: StepPlan) -> StepResult:
        leader, *followers = self._runners
        followed = [self._pool.submit(self._follow, runner, plan) for runner in followers]
        result = leader.execute(plan)
        failed = set(result.failed_loads)
        for future in followed:
            other = future.result()
            assert (other.step_id, other.sampled) == (plan.step_id, ())
            failed.update(other.failed_loads)
        self._sampled = result.sampled
        return replace(result, failed_loads=tuple(sorted(failed)))

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        raise AssertionError("rank 0 samples")

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        for runner in self._runners:
            runner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        for runner in self._runners:
            runner.detach_arena()

    def close(self) -> None:
        self._pool.shutdown()
        for runner in self._runners:
            runner.close()

    def _follow(self, runner: ModelRunner, plan: StepPlan) -> StepResult:
        runner.take_sampled(self._sampled)
        return runner.execute(plan)
