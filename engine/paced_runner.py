"""A model runner that sleeps a profiled step time; its KV remembers the tokens that wrote it.

A sampled token is drawn from the digest of all tokens before it, as the KV has it: a wrong block
table, a stale block or a wrong token changes the answer or raises ``KvMismatchError``, so that
scheduler faults show in fleet tests. Must not know requests.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cache_tiers.block_image import ImageLayout
from cache_tiers.rung import Rung
from engine.config import PacedConfig
from engine.errors import EngineConfigError, KvMismatchError, StepOutOfMemory
from engine.kv_images import RankImages
from engine.messages import SamplingParams, TokenLogprobs
from engine.paced_kv import ROOT_DIGEST, PacedKv
from engine.paced_transfer import PacedTransfer
from engine.seeds import mix64
from engine.step import (
    NO_BLOCK,
    Admission,
    PromptLogprobs,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TableUpdate,
)
from engine.step_time import measure_work

_LN_2 = 0.6931471805599453


@dataclass(slots=True)
class _Slot:
    """What the runner holds of one running sequence."""

    sampling: SamplingParams
    block_tables: list[list[int]]
    """Per KV group."""
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
        windows: Sequence[int | None] = (None,),
        rank: int = 0,
        started_from: Rung = Rung.COLD,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``windows``: of the KV groups (``KvGeometry.groups``), each at least 2."""
        self._config = config
        self._block_size = block_size_tokens
        self._windows = tuple(windows)
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted({t for t in eos_token_ids if 0 <= t < vocab_size})
        self._num_answer_tokens = vocab_size - len(self._eos_token_ids)
        if self._num_answer_tokens < 1:
            raise EngineConfigError(
                f"a vocabulary of {vocab_size} tokens holds nothing but end-of-text tokens"
            )
        self._sleep = sleep
        self._clock = clock
        self._kv = PacedKv(num_blocks, block_size_tokens)
        self._slots: dict[int, _Slot] = {}
        self._rank = rank
        self._transfer: PacedTransfer | None = None
        start_s = config.start_s
        if started_from >= Rung.STAGED and config.staged_start_s is not None:
            start_s = config.staged_start_s
        if start_s > 0:
            sleep(start_s)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; takes the profiled time, its own bookkeeping included, and what moving KV
        takes.
        """
        started_s = self._clock()
        most = self._config.max_step_tokens
        if most is not None and plan.num_tokens > most:
            raise StepOutOfMemory(f"a step of {plan.num_tokens} tokens; max_step_tokens is {most}")
        if plan.stores:
            self._attached.store(plan.stores)
        stored_s = self._clock()
        for slot in plan.released_slots:
            self._release(slot)
        for entry in plan.scheduled:
            self._drop_replaced(entry)
        self._kv.clear(plan.freed_block_ids)
        loading_s = self._clock()
        failed_loads = self._attached.load(plan.loads) if plan.loads else ()
        transfer_s = self._clock() - loading_s + stored_s - started_s
        for copy in plan.block_copies:
            self._kv.copy(copy)
        forks = self._find_forks(plan) if plan.admissions else {}
        for admission in plan.admissions:
            if admission.slot not in forks:
                self._admit(admission)
        sampled: list[SampledToken] = []
        prompt_logprobs: list[PromptLogprobs] = []
        for entry in plan.scheduled:
            digests = self._compute(entry)
            num_top = self._slots[entry.slot].sampling.num_prompt_logprobs
            if num_top is not None and not entry.is_last_pending:
                prompt_logprobs.append(self._prompt_logprobs(entry, digests, num_top))
            for slot in entry.sampling_slots:
                if slot in forks:  # not before: it shares blocks that have just been written
                    self._admit(forks[slot])
                    self._slots[slot].digest = digests[-1]
                sampled.append(self._draw(slot, digests[-1], entry.start + entry.num_tokens))
        differing = self._attached.compare(plan.comparisons) if plan.comparisons else ()
        step_time_s = self._step_time_s(plan) + transfer_s
        self._sleep(max(0.0, step_time_s - (self._clock() - started_s)))
        return StepResult(
            plan.step_id,
            tuple(sampled),
            tuple(prompt_logprobs),
            self._num_padding_tokens(plan),
            failed_loads=failed_loads,
            transfer_s=transfer_s,
            differing=differing,
        )

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        """Go on with the tokens of another rank."""
        for token in sampled:
            if token.slot in self._slots:
                self._slots[token.slot].last_token_id = token.token_id

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        """Of this rank alone, which needs no ``socket_path``."""
        self._transfer = PacedTransfer(self._kv, RankImages(arena, layout, self._rank))

    def detach_arena(self) -> None:
        """No image is in use between steps."""
        self._transfer = None

    def free_kv(self) -> None:
        self._slots.clear()  # the blocks in their tables are no more
        self._kv.free()

    def allocate_kv(self) -> None:
        """Takes ``wake_s``."""
        self._sleep(self._config.wake_s)
        self._kv.allocate()

    def close(self) -> None:
        """Forget everything."""
        self.free_kv()
        self._transfer = None

    @property
    def _attached(self) -> PacedTransfer:
        assert self._transfer is not None, "a plan moves KV, but no arena was attached"
        return self._transfer

    def _step_time_s(self, plan: StepPlan) -> float:
        config, work = self._config, measure_work(plan.scheduled)
        padding_s = config.per_prefill_token_s if work.num_prefill_tokens else config.per_decode_s
        return (
            config.step_base_s
            + config.per_decode_s * work.num_decodes
            + config.per_prefill_token_s * work.num_prefill_tokens
            + config.per_context_token_s * work.num_context_tokens
            + config.per_attended_token_s * work.num_attended_tokens
            + padding_s * self._num_padding_tokens(plan)
        )

    def _num_padding_tokens(self, plan: StepPlan) -> int:
        return -plan.num_tokens % self._config.bucket_tokens

    def _release(self, slot: int) -> None:
        state = self._slots.pop(slot, None)
        if state is not None:
            for table in state.block_tables:
                self._kv.unhold(table)

    def _drop_replaced(self, entry: ScheduledSequence) -> None:
        """Let go of what windows have passed and what copies replace; it may be freed now."""
        for update in entry.table_updates:
            state = self._slots.get(entry.slot)
            if state is not None:
                table = state.block_tables[update.group]
                replaced = slice(update.start, update.start + len(update.block_ids))
                self._kv.unhold(table[replaced])
                table[replaced] = [NO_BLOCK] * len(table[replaced])

    @staticmethod
    def _find_forks(plan: StepPlan) -> dict[int, Admission]:
        """Admissions that share the blocks of a prompt computed in this very step."""
        sampling = {slot for entry in plan.scheduled for slot in entry.sampling_slots}
        sampling.difference_update(entry.slot for entry in plan.scheduled)
        return {a.slot: a for a in plan.admissions if a.slot in sampling}

    def _admit(self, admission: Admission) -> None:
        self._release(admission.slot)
        tables = [list(table) for table in admission.block_tables]
        self._slots[admission.slot] = _Slot(admission.sampling, tables)
        for table in tables:
            self._kv.hold(table)

    def _update_table(self, state: _Slot, update: TableUpdate) -> None:
        table = state.block_tables[update.group]
        if update.start > len(table):
            raise KvMismatchError(
                f"a block table of {len(table)} entries goes on at {update.start}"
            )
        replaced = slice(update.start, update.start + len(update.block_ids))
        self._kv.unhold(table[replaced])
        table[replaced] = update.block_ids
        self._kv.hold(update.block_ids)

    def _compute(self, entry: ScheduledSequence) -> list[int]:
        """Write the KV of the entry's tokens; returns the digest at each of them."""
        state = self._slots[entry.slot]
        for update in entry.table_updates:
            self._update_table(state, update)
        token_ids = entry.token_ids
        if entry.is_last_pending:
            assert state.last_token_id is not None, "PENDING, but nothing was sampled in this slot"
            token_ids = (*token_ids, state.last_token_id)
        digest = self._read_prefix(state, entry.start)
        digests: list[int] = []
        for position, token_id in enumerate(token_ids, start=entry.start):
            parent, digest = digest, mix64(digest + token_id)
            digests.append(digest)
            for table in state.block_tables:
                self._kv.write(table, position, parent, digest)
        state.digest = digest
        return digests

    def _read_prefix(self, state: _Slot, num_tokens: int) -> int:
        """The digest of the first ``num_tokens`` tokens as the KV has it, in every group."""
        if num_tokens == 0:
            return ROOT_DIGEST
        digests = {
            self._kv.read(table, self._first_followed(state, window, num_tokens), num_tokens)
            for table, window in zip(state.block_tables, self._windows, strict=True)
        }
        if len(digests) > 1 or state.digest not in (None, *digests):
            raise KvMismatchError(f"position {num_tokens - 1} holds the KV of other tokens")
        return digests.pop()

    def _first_followed(self, state: _Slot, window: int | None, num_tokens: int) -> int:
        if window is not None:
            return max(0, num_tokens - window + 1)
        # A prefix that others computed is followed from its start, once. After that nobody can have
        # changed it, since writes to held blocks raise, and a look at its end is enough.
        return 0 if state.digest is None else num_tokens - 1

    def _draw(self, slot: int, digest: int, position: int) -> SampledToken:
        """A token from all tokens before ``position``; greedy answers don't depend on the seed."""
        state = self._slots[slot]
        sampling = state.sampling
        seed = sampling.seed if sampling.temperature > 0 else 0
        token_id = mix64(digest ^ mix64(seed + position)) % self._num_answer_tokens
        for eos_token_id in self._eos_token_ids:
            token_id += token_id >= eos_token_id
        state.last_token_id = token_id
        if sampling.num_logprobs is None:
            return SampledToken(slot, token_id)
        return SampledToken(slot, token_id, self._logprobs(digest, token_id, sampling.num_logprobs))

    def _prompt_logprobs(
        self, entry: ScheduledSequence, digests: list[int], num_top: int
    ) -> PromptLogprobs:
        predicted = entry.token_ids[1:]
        if entry.following_token_id is not None:
            predicted += (entry.following_token_id,)
        return PromptLogprobs(
            entry.slot,
            tuple(
                self._logprobs(digest, token_id, num_top)
                for digest, token_id in zip(digests, predicted, strict=False)
            ),
        )

    def _logprobs(self, digest: int, token_id: int, num_top: int) -> TokenLogprobs:
        """Made up, but the same for the same tokens before: each half as likely as the last."""
        first = -1.0 - mix64(digest ^ token_id) / 2**64
        return TokenLogprobs(
            first,
            [(token_id + rank) % self._vocab_size for rank in range(num_top)],
            [first - rank * _LN_2 for rank in range(num_top)],
        )
