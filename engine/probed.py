"""Collectives and attention that tell a probe when they are at work.

Each is a twin of what it wraps; must not know what is made of the times.
"""

from collections.abc import Sequence

from torch import Tensor

from engine.attention.base import AttentionBackend, RaggedBatch, StepAttention
from engine.collectives import Collectives
from engine.config import RankSpec
from engine.step_probe import StepProbe


class ProbedCollectives:
    """`Collectives` over others."""

    def __init__(self, collectives: Collectives, probe: StepProbe) -> None:
        self._collectives = collectives
        self._probe = probe

    @property
    def rank(self) -> RankSpec:
        return self._collectives.rank

    def all_reduce_(self, tensor: Tensor) -> None:
        with self._probe.part("collectives"):
            self._collectives.all_reduce_(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        with self._probe.part("collectives"):
            self._collectives.broadcast_(tensor)

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        with self._probe.part("collectives"):
            return self._collectives.gather(part, widths)

    def close(self) -> None:
        self._collectives.close()


class ProbedAttention:
    """An `AttentionBackend` over another one."""

    def __init__(self, attention: AttentionBackend, probe: StepProbe) -> None:
        self._attention = attention
        self._probe = probe

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        with self._probe.part("attention"):
            attend = self._attention.prepare(batch)

        def probed(query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
            with self._probe.part("attention"):
                return attend(query, new_kv, kv)

        return probed
