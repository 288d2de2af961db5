"""A performance profile: how long the steps of one model take on one kind of machine, as a file.

`headwater profile` writes it, the simulator plays fleets with it. JSON, so that it can be read,
kept beside results and compared. Must not know how steps are measured or what they are predicted
for. Imports no torch.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from engine.errors import EngineError
from engine.output_file import write_output
from engine.step_time import StepWork

FORMAT = 1
_MAX_FILE_BYTES = 64 * 2**20
_MAX_TOKENS = 2**31
_MAX_SEQS = 2**16
_MAX_STEP_S = 3600.0


class ProfileFileError(EngineError):
    """The file cannot be read, or holds no profile; says which file, what, and what to do."""


class StepCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Step time as a sum, the form of ``engine.step_time``; nothing is negative."""

    base_s: float
    """Of a step, whatever it holds."""
    per_prefill_token_s: float = 0.0
    per_decode_s: float = 0.0
    per_context_token_s: float = 0.0
    """Of each position that decodes attend to."""
    per_attended_token_s: float = 0.0
    """Of each position that each prefill token attends to."""

    def predict(self, work: StepWork) -> float:
        """Seconds."""
        return (
            self.base_s
            + self.per_prefill_token_s * work.num_prefill_tokens
            + self.per_decode_s * work.num_decodes
            + self.per_context_token_s * work.num_context_tokens
            + self.per_attended_token_s * work.num_attended_tokens
        )


class StepSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table: steps of this work took this long."""

    num_prefill_tokens: int
    num_decodes: int
    num_context_tokens: float
    """Positions that decodes attend to, all together; the mean of the steps."""
    num_attended_tokens: float
    """Positions that each prefill token attends to, added up."""
    time_s: float
    """Median."""
    num_steps: int = 1
    """That were measured."""

    @property
    def work(self) -> StepWork:
        return StepWork(
            self.num_prefill_tokens,
            self.num_decodes,
            round(self.num_context_tokens),
            self.num_attended_tokens,
        )


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run the model: a precision and a number of tensor-parallel ranks."""

    dtype: str
    quantization: str
    tensor_parallel_size: int
    num_threads: int
    """Of each rank; 0 where it means nothing."""
    kv_token_bytes: int
    """KV of one token, all ranks together."""
    kv_cache_bytes: int
    """What is there for KV, all ranks together."""
    max_model_len: int
    max_num_batched_tokens: int
    """The largest step that was measured."""
    max_num_seqs: int
    """The most decodes that were measured."""
    cost: StepCost
    cost_error: float
    """Mean relative error of ``cost`` over ``samples``."""
    samples: list[StepSample]

    @property
    def label(self) -> str:
        """``int8, TP 2``: tells the profiles of one file apart."""
        precision = self.dtype if self.quantization == "none" else self.quantization
        return f"{precision}, TP {self.tensor_parallel_size}"


class PerformanceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    model: str
    hardware: str
    """Processor or accelerator, and how many."""
    engines: list[EngineProfile]
    versions: dict[str, str] = {}
    """Of what was measured, by package."""
    measured_at: str = ""
    """UTC, ISO 8601."""
    source: str = ""
    """Where figures that ``headwater profile`` did not measure come from."""
    format: int = FORMAT

    def write(self, path: Path) -> None:
        """Raises `OutputFileError`."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_output(path, text + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `ProfileFileError`."""
        remedy = "write one with `headwater profile MODEL --out FILE`"
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise ProfileFileError(f"{path} is too large for a performance profile: {remedy}")
            profile = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ProfileFileError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProfileFileError(
                f"{path} is no performance profile: {error}; {remedy}"
            ) from error
        fault = _fault(profile)
        if fault is not None:
            raise ProfileFileError(f"{path}: {fault}; {remedy}")
        return profile


def _fault(profile: PerformanceProfile) -> str | None:
    if profile.format != FORMAT:
        return f"has format {profile.format}, and this version reads {FORMAT}"
    if not profile.engines:
        return "holds no engine"
    labels = [engine.label for engine in profile.engines]
    if len(set(labels)) < len(labels):
        return f"holds two engines of one precision and number of ranks: {', '.join(labels)}"
    for engine in profile.engines:
        where = f"engine {engine.label!r}"
        counts = (
            engine.tensor_parallel_size,
            engine.kv_token_bytes,
            engine.kv_cache_bytes,
            engine.max_model_len,
            engine.max_num_batched_tokens,
            engine.max_num_seqs,
        )
        if min(counts) < 1:
            return f"{where} has a size below 1"
        num_kv_tokens = engine.kv_cache_bytes // engine.kv_token_bytes
        if max(num_kv_tokens, engine.max_model_len, engine.max_num_batched_tokens) > _MAX_TOKENS:
            return f"{where} has more than {_MAX_TOKENS} tokens in its KV or in a step"
        if engine.max_num_seqs > _MAX_SEQS:
            return f"{where} has more than {_MAX_SEQS} sequences in a step"
        if not _are_amounts(msgspec.structs.astuple(engine.cost)):
            return f"{where} has a negative or infinite step cost"
        if engine.cost.predict(StepWork(1, 0, 0, 1.0)) <= 0:
            return f"{where} has steps that take no time"
        if max(msgspec.structs.astuple(engine.cost)) > _MAX_STEP_S:
            return f"{where} has steps that take longer than an hour"
        for row, sample in enumerate(engine.samples):
            if not _are_amounts(msgspec.structs.astuple(sample)) or sample.time_s == 0:
                return f"{where}, row {row}: no figure may be negative, and no time 0"
    return None


def _are_amounts(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and value >= 0 for value in values)
