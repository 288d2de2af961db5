"""What tensor-parallel ranks do together: sums, and what rank 0 gathers and says.

Every call is made by all ranks in the same order, or it hangs until the time-out. Process groups
are made directly, not through ``torch.distributed``'s global one: that takes about 30 µs more a
call, and its settings from the environment. Must not know models.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config import RankSpec
from engine.errors import CollectiveError, EngineStartError
from engine.memory_errors import is_out_of_memory

_STORE_NAME = "store"
_LOOPBACK = "127.0.0.1"
_MAX_EXCHANGED_BYTES = 2**20
"""Up to here gloo's sum, a ring of many small messages, takes 1.5 to 5 times as long as sending
everything to everyone (2 to 4 ranks on 2 cores), and twice the CPU time."""


class Collectives(Protocol):
    """One rank's end of its group. Its calls raise `CollectiveError` when another rank is lost."""

    @property
    def rank(self) -> RankSpec: ...

    def all_reduce_(self, tensor: Tensor) -> None:
        """Replace ``tensor``, contiguous and of one shape on all ranks, by the sum of all."""
        ...

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace ``tensor``, contiguous and of one shape on all ranks, by rank 0's."""
        ...

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        """On rank 0 the parts [num_rows, widths[rank]] of all ranks side by side, else None."""
        ...

    def close(self) -> None:
        """No call follows. The other ranks need not be there any more."""
        ...


class SingleRank:
    """A group of one."""

    @property
    def rank(self) -> RankSpec:
        return RankSpec()

    def all_reduce_(self, tensor: Tensor) -> None:
        """The sum of one."""

    def broadcast_(self, tensor: Tensor) -> None:
        """Nobody listens."""

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        return part

    def close(self) -> None:
        """There is nothing to close."""


class ProcessRanks:
    """Ranks in processes of their own, over a ``torch.distributed`` process group."""

    def __init__(self, rank: RankSpec, group: Any, *, max_exchanged_bytes: int = 0) -> None:
        self._rank = rank
        self._group = group  # the stubs of torch's back ends leave out what they do
        self._max_exchanged_bytes = max_exchanged_bytes

    @property
    def rank(self) -> RankSpec:
        return self._rank

    def all_reduce_(self, tensor: Tensor) -> None:
        try:
            if tensor.nbytes <= self._max_exchanged_bytes:
                self._exchange_(tensor)
            else:
                self._group.allreduce(tensor).wait()
        except RuntimeError as error:
            _fail(error)

    def broadcast_(self, tensor: Tensor) -> None:
        try:
            self._group.broadcast(tensor, 0).wait()
        except RuntimeError as error:
            _fail(error)

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        # All parts must have one shape: the narrower ones are padded, by one column as a rule.
        widest = max(widths)
        if part.shape[-1] < widest:
            part = torch.nn.functional.pad(part, (0, widest - part.shape[-1]))
        parts: list[Tensor] = []
        if self._rank.rank == 0:
            parts = [torch.empty_like(part) for _ in widths]
        try:
            self._group.gather([parts] if parts else [], [part], _to_rank_0()).wait()
        except RuntimeError as error:
            _fail(error)
        if not parts:
            return None
        return torch.cat(
            [part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=-1
        )

    def close(self) -> None:
        self._group.shutdown()

    def _exchange_(self, tensor: Tensor) -> None:
        """The sum of what all ranks send each other, in the order of ranks: all get the same."""
        own, size = self._rank
        everything = tensor.new_empty(size, *tensor.shape)
        others = [other for other in range(size) if other != own]
        works = [self._group.send([tensor], other, 0) for other in others]
        works += [self._group.recv([everything[other]], other, 0) for other in others]
        everything[own] = tensor
        for work in works:
            work.wait()
        torch.sum(everything, dim=0, out=tensor)


def join_ranks(rank: RankSpec, *, rendezvous: Path, device: str, timeout_s: float) -> Collectives:
    """Meet the other ranks, which call this too, and return this one's end.

    ``rendezvous`` is a folder that is empty, private and the same for all of them. ``timeout_s``
    bounds the meeting and each collective. On ``"cuda"`` rank ``i`` uses device ``i`` of those that
    its process sees, over NCCL; on ``"cpu"`` ranks talk over the loopback interface. Raises
    `EngineStartError` if they don't meet.
    """
    if rank.size == 1:
        return SingleRank()
    timeout = timedelta(seconds=timeout_s)
    try:
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(rendezvous / _STORE_NAME), rank.size
        )
        store.set_timeout(timeout)
        if device == "cuda":
            collectives = ProcessRanks(rank, _create_nccl(store, rank, timeout))
        else:
            group = _create_gloo(store, rank, timeout)
            collectives = ProcessRanks(rank, group, max_exchanged_bytes=_MAX_EXCHANGED_BYTES)
        _meet(collectives, device)
    except (RuntimeError, CollectiveError) as error:  # the store raises the former
        raise EngineStartError(
            f"rank {rank.rank} did not meet the other {rank.size - 1} within {timeout_s:g} s "
            f"({_first_line(error)}): look for the reason in their logs, or raise start_timeout_s."
        ) from error
    return collectives


def _create_gloo(store: Any, rank: RankSpec, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001 - else an interface is named by the environment alone
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return gloo(store, rank.rank, rank.size, options)


def _create_nccl(store: Any, rank: RankSpec, timeout: timedelta) -> Any:
    torch.cuda.set_device(rank.rank)
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout  # noqa: SLF001
    return nccl(store, rank.rank, rank.size, options)


def _meet(collectives: ProcessRanks, device: str) -> None:
    """NCCL connects at the first call: it shall fail here, not in a step."""
    probe = torch.ones(1, device=device)
    collectives.all_reduce_(probe)
    assert probe.item() == collectives.rank.size


def _to_rank_0() -> dist.GatherOptions:
    options = dist.GatherOptions()
    options.rootRank = 0
    return options


def _fail(error: RuntimeError) -> NoReturn:
    if is_out_of_memory(error):
        raise error
    raise CollectiveError(
        f"another rank of this replica is gone or stuck ({_first_line(error)}): look for the "
        "reason in its log."
    ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
