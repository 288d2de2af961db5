"""A model runner that sleeps a profiled step time; its KV remembers the tokens that wrote it.

The KV of a position is a digest of all tokens up to it, and a sampled token is drawn from that
digest: a wrong block table, a stale block or a wrong token changes the answer or raises
``KvMismatchError``, so that scheduler faults show in fleet tests. Must not know requests.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from engine.config import PacedConfig
from engine.errors import EngineConfigError, KvMismatchError
from engine.messages import SamplingParams
from engine.step import (
    Admission,
    BlockCopy,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
)

_MASK = (1 << 64) - 1
_ROOT_DIGEST = 0x9E3779B97F4A7C15
"""Stands before the first token of every sequence."""


@dataclass(slots=True)
class _KvBlock:
    """The KV of one block."""

    parent: int = 0
    """Digest of the position before the block."""
    digests: list[int] = field(default_factory=list)
    """One for each position written."""


@dataclass(slots=True)
class _Slot:
    """What the runner holds of one running sequence."""

    sampling: SamplingParams
    block_ids: list[int]
    digest: int | None = None
    """Of the last position computed in this slot; ``None`` until there is one."""
    last_token_id: int | None = None


class PacedRunner:
    """A ``ModelRunner`` without a model."""

    def __init__(
        self,
        config: PacedConfig,
        *,
        num_blocks: int,
        block_size_tokens: int,
        vocab_size: int,
        eos_token_ids: Collection[int],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._block_size = block_size_tokens
        self._eos_token_ids = sorted({t for t in eos_token_ids if 0 <= t < vocab_size})
        self._num_answer_tokens = vocab_size - len(self._eos_token_ids)
        if self._num_answer_tokens < 1:
            raise EngineConfigError(
                f"a vocabulary of {vocab_size} tokens holds nothing but end-of-text tokens"
            )
        self._sleep = sleep
        self._clock = clock
        self._kv = [_KvBlock() for _ in range(num_blocks)]
        self._num_holders = [0] * num_blocks
        self._slots: dict[int, _Slot] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; takes the profiled time, its own bookkeeping included."""
        started_s = self._clock()
        for slot in plan.released_slots:
            self._release(slot)
        self._clear(plan.freed_block_ids)
        for copy in plan.block_copies:
            self._copy(copy)
        for admission in plan.admissions:
            self._admit(admission)
        sampled = []
        for entry in plan.scheduled:
            token_id = self._compute(entry)
            if token_id is not None:
                sampled.append(SampledToken(entry.slot, token_id))
        self._sleep(max(0.0, self._step_time_s(plan) - (self._clock() - started_s)))
        return StepResult(plan.step_id, tuple(sampled))

    def read_block(self, block_id: int) -> bytes:
        """The KV of a block: equal bytes mean equal tokens since the start of the sequence."""
        content = b"".join(digest.to_bytes(8, "little") for digest in self._kv[block_id].digests)
        return hashlib.shake_128(content).digest(self._config.block_bytes)

    def close(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._kv.clear()

    def _step_time_s(self, plan: StepPlan) -> float:
        num_decodes = sum(entry.is_last_pending for entry in plan.scheduled)
        num_prefill_tokens = plan.num_tokens - num_decodes
        return (
            self._config.step_base_s
            + self._config.per_decode_s * num_decodes
            + self._config.per_prefill_token_s * num_prefill_tokens
        )

    def _release(self, slot: int) -> None:
        state = self._slots.pop(slot, None)
        if state is not None:
            for block_id in state.block_ids:
                self._num_holders[block_id] -= 1

    def _clear(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._check_unheld(block_id, "freed")
            self._kv[block_id] = _KvBlock()

    def _copy(self, copy: BlockCopy) -> None:
        self._check_unheld(copy.dst, "overwritten by a copy")
        source = self._kv[copy.src]
        self._kv[copy.dst] = _KvBlock(source.parent, source.digests.copy())

    def _check_unheld(self, block_id: int, what: str) -> None:
        if self._num_holders[block_id] > 0:
            raise KvMismatchError(f"block {block_id} is {what} while a running sequence holds it")

    def _admit(self, admission: Admission) -> None:
        self._release(admission.slot)
        self._slots[admission.slot] = _Slot(admission.sampling, [])
        self._extend_table(self._slots[admission.slot], admission.block_ids)

    def _extend_table(self, state: _Slot, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            state.block_ids.append(block_id)
            self._num_holders[block_id] += 1

    def _compute(self, entry: ScheduledSequence) -> int | None:
        """Write the KV of the entry's tokens; returns the next token if one is asked for."""
        state = self._slots[entry.slot]
        self._extend_table(state, entry.new_block_ids)
        token_ids = entry.token_ids
        if entry.is_last_pending:
            assert state.last_token_id is not None, "PENDING, but nothing was sampled in this slot"
            token_ids = (*token_ids, state.last_token_id)
        digest = self._read_prefix(state, entry.start)
        for position, token_id in enumerate(token_ids, start=entry.start):
            parent, digest = digest, _mix(digest + token_id)
            self._write(state, position, parent, digest)
        state.digest = digest
        if not entry.is_sampling:
            return None
        state.last_token_id = self._draw(digest, entry.start + len(token_ids), state.sampling)
        return state.last_token_id

    def _read_prefix(self, state: _Slot, num_tokens: int) -> int:
        """The digest of the first ``num_tokens`` tokens as the KV has it."""
        digest = _ROOT_DIGEST
        # A prefix that others computed is followed from its start, once. After that nobody can have
        # changed it, since writes to held blocks raise, and a look at its end is enough.
        first = 0 if state.digest is None else (num_tokens - 1) // self._block_size
        for start in range(first * self._block_size, num_tokens, self._block_size):
            block_id = state.block_ids[start // self._block_size]
            block = self._kv[block_id]
            num_read = min(self._block_size, num_tokens - start)
            if len(block.digests) < num_read:
                raise KvMismatchError(f"block {block_id} is read where nothing was written")
            if state.digest is None and block.parent != digest:
                raise KvMismatchError(f"block {block_id} does not continue the block before it")
            digest = block.digests[num_read - 1]
        if state.digest not in (None, digest):
            raise KvMismatchError(f"position {num_tokens - 1} holds the KV of other tokens")
        return digest

    def _write(self, state: _Slot, position: int, parent: int, digest: int) -> None:
        index, offset = divmod(position, self._block_size)
        block_id = state.block_ids[index]
        block = self._kv[block_id]
        if self._num_holders[block_id] != 1:
            raise KvMismatchError(f"block {block_id} is written while others hold it")
        if offset == 0:
            block.parent = parent
        elif len(block.digests) < offset:
            raise KvMismatchError(f"block {block_id} is written with a hole before offset {offset}")
        del block.digests[offset:]
        block.digests.append(digest)

    def _draw(self, digest: int, position: int, sampling: SamplingParams) -> int:
        """A token from all tokens before ``position``; greedy answers don't depend on the seed."""
        seed = sampling.seed if sampling.temperature > 0 else 0
        token_id = _mix(digest ^ _mix(seed + position)) % self._num_answer_tokens
        for eos_token_id in self._eos_token_ids:
            token_id += token_id >= eos_token_id
        return token_id


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every bit of the result depends on every bit of ``value``."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
