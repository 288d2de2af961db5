"""What is probed computes what it did before, and tells when it is at work."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import RaggedBatch, StepAttention
from engine.collectives import SingleRank
from engine.config import RankSpec
from engine.probed import ProbedAttention, ProbedCollectives
from engine.step_probe import Part, StepProbe


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        self.heard.append(name)
        yield
        self.heard.append(f"end of {name}")


class Doubling:
    """An attention back end."""

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        return lambda query, new_kv, kv: query * 2


def batch() -> RaggedBatch:
    one = np.ones(1, dtype=np.int64)
    return RaggedBatch(one, one, one[None], 16)


def test_attention_is_told_when_it_prepares_and_when_it_attends() -> None:
    probe = StepProbe()
    attention = ProbedAttention(Doubling(), probe)
    query = torch.ones(1, 2, 3)
    nothing: Tensor = torch.empty(0)
    silent = attention.prepare(batch())(query, nothing, nothing)
    probe.listener = listener = Listener()
    heard = attention.prepare(batch())(query, nothing, nothing)
    assert torch.equal(silent, heard)
    assert listener.heard == ["attention", "end of attention"] * 2


def test_every_collective_is_told() -> None:
    probe = StepProbe()
    probe.listener = listener = Listener()
    collectives = ProbedCollectives(SingleRank(), probe)
    assert collectives.rank == RankSpec()
    tensor = torch.ones(1, 2)
    collectives.all_reduce_(tensor)
    collectives.broadcast_(tensor)
    assert collectives.gather(tensor, [2]) is tensor
    assert listener.heard == ["collectives", "end of collectives"] * 3
    collectives.close()
